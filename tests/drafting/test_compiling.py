"""What drafts while `auto` is being compiled, and the process that compiles it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from ngtcli.config import Settings
from ngtcli.drafting.auto import compiling
from ngtcli.drafting.auto.compiling import Begun
from ngtcli.drafting.drafter import DraftSettings
from ngtcli.drafting.registry import parse_method
from ngtcli.engine.drivers import run
from ngtcli.engine.events import Ended, Event, Message
from ngtcli.engine.local import LocalSession
from ngtcli.engine.local_engine import LocalEngine
from ngtcli.engine.request import Request
from ngtcli.prompts.preset import load_preset
from ngtcli.system import compiled
from tests.support.helpers import HARBOUR, ROOT_FOLDER, ngt, wait_until

ASK = ("summarize", HARBOUR, "--max-tokens", "30", "--json")


def compiling_process(folder: Path) -> int | None:
    """Return the id of the process that compiles for a store; None if there is none."""
    lock = folder / "ngt" / compiled.LOCK
    if not lock.exists() or not lock.read_text():
        return None
    pid = int(lock.read_text())
    process = Path(f"/proc/{pid}")
    with suppress(OSError):
        # For a moment after it was started, a process has no command line yet.
        wait_until(lambda: (process / "cmdline").read_bytes() or has_ended(process))
        if b"auto.compiling" in (process / "cmdline").read_bytes():
            return pid
    return None


def has_ended(process: Path) -> bool:
    """Tell whether a process, by its folder in /proc, has ended and waits for its parent."""
    state = (process / "stat").read_text().rpartition(")")[2].split()[0]
    return state in ("Z", "X")


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process know nothing, as a new one does."""
    monkeypatch.setattr(compiling._State, "is_ready", False)
    monkeypatch.setattr(compiling._State, "process", None)
    monkeypatch.setattr(compiling._State, "begun", Begun.NOTHING)


@pytest.fixture
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder where nothing is compiled yet; the process that compiles for it is ended."""
    folder = tmp_path / "compiled"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    forget(monkeypatch)
    yield folder
    end(folder)


def end(folder: Path) -> None:
    pid = compiling_process(folder)
    if pid:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: compiling_process(folder) is None)


needs_proc = pytest.mark.skipif(not Path("/proc").exists(), reason="finds processes in /proc")


@needs_proc
def test_the_first_answer_is_drafted_by_prompt_lookup_and_has_the_same_tokens(
    empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ngt(*ASK)
    assert first.stderr.count(b"Part of ngt is being compiled in the background") == 1
    pid = compiling_process(empty_store)
    assert pid is not None  # it outlives the run
    answer = json.loads(first.stdout)
    assert answer["method"] == "auto"
    assert answer["drafted_by"] == "prompt-lookup"
    assert answer["statistics"]["drafted_tokens"]
    assert "policy" not in answer
    forget(monkeypatch)
    later_run = ngt(*ASK)
    assert b"compiled" not in later_run.stderr  # it was said where it began
    second = json.loads(later_run.stdout)
    assert second["drafted_by"] == "prompt-lookup"
    assert compiling_process(empty_store) == pid  # one process for all runs
    end(empty_store)
    monkeypatch.undo()  # what the other tests have compiled
    later = json.loads(ngt(*ASK).stdout)
    assert later["drafted_by"] == "auto"
    assert "policy" in later
    assert first.returncode == 0
    assert answer["text"] == second["text"] == later["text"]


@needs_proc
def test_a_process_that_is_killed_is_started_again_a_few_times(empty_store: Path) -> None:
    earlier_pids = set()
    for _ in range(compiling.MAX_ATTEMPTS):
        assert compiling.begin()
        pid = compiling_process(empty_store)
        assert pid is not None
        assert pid not in earlier_pids
        earlier_pids.add(pid)
        assert compiling.begin()
        assert compiling_process(empty_store) == pid
        end(empty_store)
        assert compiling._State.process is not None
        compiling._State.process.wait()
    assert not compiling.begin()  # then the run compiles, and shows what is wrong
    assert compiling_process(empty_store) is None


@needs_proc
def test_the_process_that_compiles_has_the_lowest_priority(empty_store: Path) -> None:
    assert compiling.begin()
    pid = compiling_process(empty_store)
    assert pid is not None
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19)
    assert os.getsid(pid) == pid  # no Ctrl-C of a terminal reaches it


@needs_proc
def test_where_nothing_can_be_stored_one_process_compiles_for_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compiled").write_text("a file in its place")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "compiled"))
    forget(monkeypatch)
    assert compiling.begin()
    process = compiling._State.process
    assert process is not None
    try:
        assert process.poll() is None
        assert not compiling.is_ready()
    finally:
        process.kill()
        process.wait()
    assert not compiling.begin()  # and no second one of the same run
    assert compiling.begun() is Begun.FOR_THIS_RUN


@pytest.mark.parametrize("trouble", ["not a folder", "no room"])
def test_a_run_that_does_not_stay_starts_nothing_that_cannot_be_stored(
    trouble: str, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trouble == "not a folder":
        empty_store.write_text("a file in its place")
    else:
        usage = shutil.disk_usage(tmp_path)._replace(free=compiling.ROOM - 1)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    for _ in range(2 * compiling.MAX_ATTEMPTS):
        assert compiling.begin(stays=False)
    assert compiling.begun() is Begun.NOT_STORED
    assert compiling._State.process is None
    if trouble == "not a folder":
        run = ngt(*ASK)
        assert run.returncode == 0
        assert json.loads(run.stdout)["drafted_by"] == "prompt-lookup"
        assert b"a compiled part of ngt cannot be stored" in run.stderr
        assert b"once" not in run.stderr


FUNCTIONS = """
from ngtcli.system import compiled

@compiled.njit()
def twice(n):
    return 2 * n
"""
SEND = """
import sys
from multiprocessing.connection import Connection
sys.path.insert(0, sys.argv[1])
from ngtcli.system import compiled
from functions import twice
sending = Connection(int(sys.argv[2]), readable=False)
compiled.compiled_listeners.append(lambda key, data: sending.send((key, data)))
assert twice(4) == 8
sending.send(None)
"""
USE = """
import sys
sys.path.insert(0, sys.argv[1])
from multiprocessing.connection import Connection
from ngtcli.drafting.auto import compiling
from ngtcli.system import compiled
from ngtcli.system.reporting import reporting_to
from functions import twice
reports = []
compiling._receive(Connection(int(sys.argv[2]), writable=False))
assert compiling.is_ready()
class Recorder:
    status = warn = reports.append

with reporting_to(Recorder):
    assert twice(4) == 8
print(reports)
"""


def test_what_another_process_compiled_is_not_compiled_again(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "compiled").write_text("nothing can be stored here")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "compiled")}
    receiving, sending = Pipe(duplex=False)
    processes = []
    for program, end_of_pipe in ((SEND, sending), (USE, receiving)):
        command = [sys.executable, "-c", program, str(tmp_path), str(end_of_pipe.fileno())]
        processes.append(
            subprocess.Popen(
                command,
                cwd=ROOT_FOLDER,
                env=environment,
                pass_fds=[end_of_pipe.fileno()],
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        end_of_pipe.close()
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[1].strip() == "[]"


def test_a_mark_that_code_is_compiled_holds_for_this_machine_alone(
    empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not compiled.is_ready("some")
    compiled.mark_ready("some")
    assert compiled.is_ready("some")
    assert not compiled.is_ready("other")
    monkeypatch.setattr(compiled, "_machine", lambda: "with other instructions")
    assert not compiled.is_ready("some")


def test_other_methods_need_no_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "is_ready", lambda: False)
    monkeypatch.setattr(compiling, "begin", lambda stays: True)
    settings = DraftSettings(num_draft=7)
    for name in ("trie", "none", "prompt-lookup", "akunu"):
        spec = parse_method(name, settings)
        assert spec.available() is spec
    available = parse_method("auto:num_draft=9", settings).available()
    assert available.name == "prompt-lookup"
    assert available.settings.num_draft == 9
    monkeypatch.setattr(compiling, "begin", lambda stays: False)
    assert parse_method("auto", settings).available().name == "auto"


@pytest.fixture(scope="module")
def session() -> LocalSession:
    return LocalSession(Settings.of(max_tokens=8), persist=False)


def not_ready(monkeypatch: pytest.MonkeyPatch, ready: Callable[[], bool]) -> None:
    """Have `auto` compiled when `ready` says so."""
    monkeypatch.setattr(compiling, "is_ready", ready)
    monkeypatch.setattr(compiling, "begin", lambda stays: True)
    monkeypatch.setattr(compiling, "begun", lambda: Begun.FOR_ALL)


def test_a_measurement_waits_for_the_method_itself(
    session: LocalSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_ready(monkeypatch, lambda: False)
    assert session.available_method().name == "auto"
    assert type(session.drafter()).__name__ == "Auto"


def test_sequences_that_begin_after_compilation_are_drafted_for_by_the_method(
    session: LocalSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences that began before it end with the stand-in, and have the same tokens."""
    preset = load_preset("ask")
    settings = Settings.of(max_tokens=8)
    events: list[Event] = []

    def answers(ready_after: int) -> list[Any]:
        ended: list[Ended] = []
        not_ready(monkeypatch, lambda: len(ended) >= ready_after)
        reporting_session = session.with_settings(settings)
        reporting_session._stand_ins = True
        reporting_session.report = events.append
        engine = LocalEngine(reporting_session, size=2, many=True)
        requests = [
            (i, Request(task="ask", settings=settings, preset=preset, question=f"Who is {i}?"))
            for i in range(6)
        ]

        def draw(waits: bool) -> Any:
            return requests.pop(0) if requests else None

        for outcome in run(engine, draw):
            assert isinstance(outcome.answer, Ended), outcome.answer
            ended.append(outcome.answer)
        return ended

    mixed = answers(2)
    plain = answers(0)
    assert {answer.drafted_by for answer in mixed[:2]} == {"prompt-lookup"}
    assert mixed[-1].drafted_by == "auto"
    assert {answer.drafted_by for answer in plain} == {"auto"}
    assert sorted(a.text for a in mixed) == sorted(a.text for a in plain)
    messages = [event for event in events if isinstance(event, Message)]
    remarks = [message.text for message in messages if message.kind == "remark"]
    assert len(remarks) == 1
    assert "Part of ngt is being compiled in the background" in remarks[0]
