"""Commands that a server answers, `ngt serve` and --keep-warm."""

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ngtcli.config import Settings
from ngtcli.engine.request import OtherModelError, Request
from ngtcli.prompts.preset import load_preset
from ngtcli.server import client, places
from ngtcli.server.client import Remote
from ngtcli.server.many import ServedRun
from ngtcli.server.places import Place
from tests.cli import test_cli
from tests.support import warm
from tests.support.helpers import HARBOUR, assert_not_loaded, ngt, wait_until
from tests.support.recording_reporter import RecordingReporter
from tests.support.warm import Warm

ASK = ("ask", "-d", HARBOUR, "Who saved the town?")
SHORT = ("--max-tokens", "12")
SOME_FAILED = 7  # the exit code
PLAIN = ("--method", "none")  # so that no answer depends on earlier ones


def can_connect(place: Place) -> bool:
    """Whether a server listens; the socket exists a little earlier."""
    connection = place.connect()
    if connection is None:
        return False
    connection.close()
    return True


def next_line(process: Warm) -> bytes:
    """The next line that a process writes to stderr; b"" after it has ended."""
    assert process.stderr is not None
    return process.stderr.readline()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a user with a server, which ends with the tests of this file."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NGT_HOME", str(folder))
        with Warm("serve", "--no-http", "-v") as process:
            while b"is ready" not in (line := next_line(process)):
                assert line
            yield folder
            process.terminate()
            assert process.wait(30) == 0
        assert not [*(folder / "run").glob("*.sock")]


@pytest.fixture(autouse=True)
def own_home(own_home: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of every test in this file is that of the user with a server."""
    monkeypatch.setenv("NGT_HOME", str(home))
    return home


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that is answered in this process fails."""
    monkeypatch.setattr("ngtcli.engine.opening.open_engine", None)


def count_answered() -> int:
    """The number of questions that the server has answered."""
    about = client.request(Place.of(Settings()), "GET /about")
    assert about is not None
    return about.answered


def timeless(text: bytes) -> str:
    """A text without what differs from run to run: seconds, rates, cached tokens, line breaks."""
    lines = re.sub(r"[\d.]+ (tokens/s|s|ms)\b", r"_ \1", text.decode())
    lines = re.sub(r"[\d.]+/s\b", "_/s", lines)
    lines = lines.replace("\x1b[0m\n\x1b[2m", "\n").replace(" · ", "\n")
    return re.sub(r"of \d+ tokens(, [^\n]*)?", "", lines)


COMMANDS = [
    ASK,
    ("summarize", HARBOUR, "--cite", *SHORT),
    ("summarize", HARBOUR, "-v", "--color", "always", *SHORT, *PLAIN),
    ("summarize", HARBOUR, "--temperature", "0.8", "--seed", "3", *SHORT),
    ("ask", "-d", HARBOUR, "-v", "Who saved the town?", *PLAIN),
    ("ask", "-d", HARBOUR, "--show-passages", "Πού;", *SHORT),
    ("ask", "-d", HARBOUR, "Who?", "--method", "trie:x=1"),
    ("ask", "-d", HARBOUR, "Who?", "--method", "rest"),
    ("ask", "-d", HARBOUR, "Who?", "--think", "on"),
    ("generate", "Once upon a time", *SHORT),
]
LOADING = re.compile(r"(Starting|Loading|Packed|Preparing|Compiling|Cutting|Reading|Choosing).*\n")


@pytest.mark.search
@pytest.mark.parametrize("arguments", COMMANDS, ids=range(len(COMMANDS)))
def test_a_command_prints_the_same_with_and_without_a_server(arguments: tuple[str, ...]) -> None:
    before = count_answered()
    served = ngt(*arguments)
    assert count_answered() == before + 1

    expected = ngt(*arguments, "--no-serve")

    assert served.returncode == expected.returncode
    assert served.stdout == expected.stdout
    messages = LOADING.sub("", timeless(served.stderr))
    assert messages == LOADING.sub("", timeless(expected.stderr))


@pytest.mark.usefixtures("no_model")
class TestServed:
    """Tests of the command line, with the answers of the server."""

    test_a_stdin_is_a_document = staticmethod(test_cli.test_a_piped_text_is_a_document)
    test_json = staticmethod(test_cli.test_json_prints_one_object)
    test_colors = staticmethod(test_cli.test_a_terminal_sees_colors_and_a_summary)
    test_hostile = staticmethod(test_cli.test_a_hostile_document_cannot_reach_the_terminal)
    test_ctrl_c = staticmethod(test_cli.test_ctrl_c_keeps_the_text_so_far_and_exits_130)
    test_closed_pipe = staticmethod(test_cli.test_a_closed_pipe_is_silent)


def test_the_json_has_the_same_keys_and_the_same_answer() -> None:
    command = (*ASK, "--json-tokens", *PLAIN)
    served = json.loads(ngt(*command).stdout)
    expected = json.loads(ngt(*command, "--no-serve").stdout)
    assert types_of_members(served) == types_of_members(expected)
    for member in ("statistics", "passes", "retrieval", "settings"):
        del served[member]
        del expected[member]
    assert served == expected


def types_of_members(value: Any) -> Any:
    """The type of a value; for an object, that of each member by its key."""
    if isinstance(value, dict):
        return {key: types_of_members(member) for key, member in value.items()}
    return type(value)


def test_a_command_that_a_server_answers_does_not_load_the_engine() -> None:
    heavy = {"torch", "transformers", "tokenizers", "numba", "numpy", "pydantic", "jinja2"}
    heavy |= {"starlette", "uvicorn", "anyio", "asyncio", "http.client", "email"}
    before = count_answered()
    assert_not_loaded([[*ASK], ["summarize", HARBOUR, *SHORT]], heavy)
    # For --cite, the command itself compares the answer with the documents.
    assert_not_loaded([["summarize", HARBOUR, "--cite", *SHORT]], heavy - {"numpy"})
    assert count_answered() == before + 3


def test_a_conversation_prints_the_same_with_and_without_a_server() -> None:
    before = count_answered()
    command = ("chat", "-d", HARBOUR, *SHORT, *PLAIN)
    questions = b"Who?\nWhen?\n"
    served = ngt(*command, stdin=questions)
    expected = ngt(*command, "--no-serve", stdin=questions)
    assert count_answered() == before + 2
    assert served.returncode == 0
    assert served.stdout == expected.stdout


@pytest.fixture
def three_texts(tmp_path: Path) -> Path:
    """A folder with three paragraphs, a file each."""
    folder = tmp_path / "texts"
    folder.mkdir()
    paragraphs = Path(HARBOUR).read_text().split("\n\n")
    for number, paragraph in enumerate(paragraphs[:3]):
        (folder / f"{number}.txt").write_text(paragraph)
    return folder


def rows_by_id(stdout: bytes) -> dict[str, Any]:
    rows = [json.loads(line) for line in stdout.splitlines()]
    return {row["id"]: row.get("text", row) for row in rows}


def assert_served_as_without_server(
    run: Callable[..., dict[str, Any]], questions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers that `run` returns are the same with the flag --no-serve.

    Without it the server gives them, and no model is loaded in this process.
    """
    before = count_answered()
    with monkeypatch.context() as patch:
        patch.setattr("ngtcli.engine.opening.open_engine", None)
        served = run()
    assert count_answered() == before + questions
    assert served
    assert run("--no-serve") == served
    assert count_answered() == before + questions


def test_the_server_answers_about_each_file(
    three_texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*flags: str) -> dict[str, Any]:
        command = ("ask", "--each", str(three_texts), "When?", "--json")
        done = ngt(*command, *SHORT, *PLAIN, *flags)
        assert done.returncode in (0, SOME_FAILED), done.stderr
        return rows_by_id(done.stdout)

    assert_served_as_without_server(run, 3, monkeypatch)


def test_the_server_writes_the_answers_of_a_folder(
    three_texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def run(*flags: str) -> dict[str, Any]:
        done = ngt("summarize", str(three_texts), "-o", f"{out}/", *SHORT, *PLAIN, *flags)
        assert done.returncode in (0, SOME_FAILED), done.stderr
        texts = {path.name: path.read_text() for path in out.glob("*.txt")}
        shutil.rmtree(out)
        return texts

    assert_served_as_without_server(run, 3, monkeypatch)


def test_the_server_answers_the_lines_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        {"id": number, "question": f"In {number} the", "context": "The boat left."}
        for number in range(12)
    ]
    stdin = "\n".join(json.dumps(line) for line in lines).encode()

    def run(*flags: str) -> dict[str, Any]:
        done = ngt("batch", "-", *SHORT, *PLAIN, *flags, stdin=stdin)
        assert done.returncode in (0, SOME_FAILED), done.stderr
        return rows_by_id(done.stdout)

    assert_served_as_without_server(run, 12, monkeypatch)


def test_questions_that_a_server_no_longer_takes_are_left() -> None:
    """They are those that the server has not begun, and those that were not sent."""
    settings = Settings.of(max_tokens=4)
    run = ServedRun(Remote(Place(key="nobody-is-there")), settings)
    request = Request(task="ask", settings=settings, preset=load_preset("ask"))
    items = [(1, request), (2, request)]
    unsent = list(items)
    assert not list(run.outcomes(lambda _: unsent.pop(0) if unsent else None))
    assert sorted([*run.left, *unsent], key=lambda item: item[0]) == items


def test_a_question_to_another_model_is_refused() -> None:
    settings = Settings.of(max_tokens=4)
    run = ServedRun(Remote(Place(key="nobody-is-there")), settings)
    request = Request(
        task="ask", settings=settings.replace(model="another"), preset=load_preset("ask")
    )
    with pytest.raises(OtherModelError):
        list(run.outcomes(lambda _: (1, request)))


def test_a_killed_server_is_an_error_in_the_middle_of_an_answer_only(tmp_path: Path) -> None:
    with Warm("serve", "--no-http", NGT_HOME=str(tmp_path)) as server:
        assert b"is ready" in next_line(server)
        command = Warm("summarize", HARBOUR, "--max-tokens", "2000", NGT_HOME=str(tmp_path))
        assert command.stdout is not None
        beginning = command.stdout.read(5)
        server.kill()
        rest, stderr = command.communicate(timeout=60)
        assert command.returncode == 1
        assert (beginning + rest).endswith(b"\n")
        assert stderr.splitlines()[-2].startswith(b"ngt: the server ended in the middle")

    # The next command loads the model itself.
    done = warm.run(*ASK, NGT_HOME=str(tmp_path))
    assert done.returncode == 0
    assert done.stdout == ngt(*ASK).stdout
    assert not list((tmp_path / "run").glob("*.sock"))


def test_status_lists_the_server_and_stop_stops_it(tmp_path: Path) -> None:
    variables = {"NGT_HOME": str(tmp_path)}
    with Warm("serve", "--no-http", **variables) as server:
        assert b"is ready" in next_line(server)
        again = ngt("serve", "--no-http", **variables)
        assert again.returncode == 1
        assert b"is already running" in again.stderr
        [about] = json.loads(ngt("serve", "status", "--json", **variables).stdout)
        assert about["model"] == "builtin"
        assert about["process"] == server.pid
        assert about["http"] == ""
        assert about["socket"] == str(next((tmp_path / "run").glob("*.sock")))
        assert b"has stopped" in ngt("serve", "stop", **variables).stderr
        assert server.wait(10) == 0
    assert b"No server is running" in ngt("serve", "stop", "-m", "builtin", **variables).stderr


# `ngt serve` with another default port, as other runs of these tests may have that of the users.
DEFAULT_PORT = """
from ngtcli.__main__ import main
from ngtcli.server import http_guard
http_guard.DEFAULT_ADDRESS = "127.0.0.1:{}"
main()
"""


def test_http_is_served_for_its_user_without_a_flag(tmp_path: Path) -> None:
    variables = {"NGT_HOME": str(tmp_path)}
    with Warm("serve", code=DEFAULT_PORT.format(0), **variables) as server:
        first_line = next_line(server).decode()
        assert first_line.endswith("/v1 is for programs that speak OpenAI's API\n")
        assert b"is ready" in next_line(server)
        [about] = json.loads(ngt("serve", "status", "--json", **variables).stdout)
        assert first_line.startswith(about["http"] + "/ is a page")
        table = ngt("serve", "status", **variables, COLUMNS="200").stdout.decode()
        assert about["http"] in table
        assert about["socket"] in table
        models = httpx.get(f"{about['http']}/v1/models").json()
        assert [model["id"] for model in models["data"]] == ["builtin"]
        again = ngt("serve", "--http", "0", **variables)
        assert again.returncode == 1
        assert b"is already running" in again.stderr
        server.terminate()


def test_without_a_flag_for_http_a_port_in_use_leaves_commands_served(tmp_path: Path) -> None:
    variables = {"NGT_HOME": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with Warm("serve", code=DEFAULT_PORT.format(port), **variables) as server:
            assert next_line(server).decode() == (
                f"ngt: HTTP is not served: 127.0.0.1:{port} is in use by another program;"
                " --http PORT takes another port\n"
            )
            assert b"is ready" in next_line(server)
            [about] = json.loads(ngt("serve", "status", "--json", **variables).stdout)
            assert about["http"] == ""
            assert about["state"] == "ready"
            server.terminate()


def test_with_a_flag_for_http_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("High tide is at nine.")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for flags in (("--http", str(port)), ("-d", str(tmp_path))):
            done = warm.run("serve", *flags, code=DEFAULT_PORT.format(port), NGT_HOME=str(tmp_path))
            assert done.returncode == 1
            problem, advice = done.stderr.decode().splitlines()
            assert problem == f"ngt: 127.0.0.1:{port} is in use by another program"
            assert "--http PORT" in advice
            assert "--no-http" in advice


def test_http_is_not_served_without_a_flag_where_others_could_ask(tmp_path: Path) -> None:
    """Where the system does not say which user opened a connection."""
    code = DEFAULT_PORT.format(0).replace(
        "main()", "http_guard.knows_users = lambda _: False\nmain()"
    )
    with Warm("serve", code=code, NGT_HOME=str(tmp_path)) as server:
        assert b"HTTP is not served" in next_line(server)
        assert b"is ready" in next_line(server)
        [about] = json.loads(ngt("serve", "status", "--json", NGT_HOME=str(tmp_path)).stdout)
        assert about["http"] == ""
        server.terminate()


def test_code_that_is_being_compiled_is_said(tmp_path: Path) -> None:
    code = """
from ngtcli.__main__ import main
from ngtcli.drafting.auto import compiling
compiling.is_ready, compiling.begin = lambda: False, lambda stays: True
compiling.begun = lambda: compiling.Begun.FOR_ALL
main()
"""
    with Warm("serve", "--no-http", code=code, NGT_HOME=str(tmp_path)) as server:
        assert next_line(server).startswith(b"Part of ngt is being compiled")
        assert b"is ready" in next_line(server)
        server.terminate()


def test_an_explicit_start_takes_the_place_of_one_behind_the_scenes(tmp_path: Path) -> None:
    variables = {"NGT_HOME": str(tmp_path)}
    with Warm("serve", "--no-http", _NGT_KEPT_WARM="1", **variables) as first:
        assert b"is ready" in next_line(first)
        assert (
            b"is already running"
            in ngt("serve", "--no-http", _NGT_KEPT_WARM="1", **variables).stderr
        )
        with Warm("serve", "--no-http", **variables) as second:
            assert b"is ready" in next_line(second)
            assert first.wait(30) == 0
            second.terminate()


def test_keep_warm_starts_a_process_whatever_the_variables_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Relative files and folders are those of the folder that the command was given in."""
    (tmp_path / "system.txt").write_text("Be brief.")
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NGT_HOME", "home")
    monkeypatch.setenv("NGT_SYSTEM", "@system.txt")
    started = list[Warm]()

    def start(command: list[str], **more: Any) -> Any:
        if "serve" not in command:
            return _POPEN(command, **more)
        started.append(Warm(*command[4:], cwd=Path(more.pop("cwd")), **more))
        return started[-1]

    monkeypatch.setattr("ngtcli.server.client.subprocess.Popen", start)
    assert ngt(*ASK, "--keep-warm", "20s").returncode == 0
    (process,) = started
    place = Place.of(Settings())
    wait_until(lambda: can_connect(place) or process.poll() is not None)
    assert process.poll() is None, place.log.read_text()
    about = client.request(place, "GET /about")
    assert about is not None
    assert about.kept_warm
    process.terminate()
    assert place.wait_until_free(60)


def test_the_next_run_says_why_a_process_could_not_load_its_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NGT_HOME", str(tmp_path))
    monkeypatch.setattr("ngtcli.server.client.subprocess.Popen", ended_at_once)
    assert b"kept loaded" not in ngt(*ASK, *SHORT, "--keep-warm", "1s").stderr
    place = Place.of(Settings())
    place.log.write_text("ngt: a.pdf: no text\nngt: error: no space left\nMake room.\n")
    messages = ngt(*ASK, *SHORT, "--keep-warm", "1s").stderr.decode()
    assert f"not kept loaded the last time: no space left ({place.log})" in messages


def test_a_warning_of_a_process_that_loads_or_was_stopped_is_no_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NGT_HOME", str(tmp_path))
    monkeypatch.setattr("ngtcli.server.client.subprocess.Popen", ended_at_once)
    place = Place.of(Settings())
    reported = RecordingReporter()
    warnings = reported.warnings
    places.private(places.folder())
    place.log.write_text("ngt: report.pdf: 2 pages without text\n")
    reported.of(lambda: client.start(Settings()))
    handle = place.lock("builtin")
    place.log.write_text("ngt: error: the disk is full\n")
    reported.of(lambda: client.start(Settings()))
    os.close(handle)
    assert warnings == []
    place.log.write_text("ngt: error: the disk is full\n")
    reported.of(lambda: client.start(Settings()))
    assert warnings == [
        f"the model was not kept loaded the last time: the disk is full ({place.log})"
    ]


def test_a_process_behind_the_scenes_marks_the_error_that_ends_it(tmp_path: Path) -> None:
    command = "serve", "--no-http", "-m", str(tmp_path / "nothing")
    variables = {"NGT_HOME": str(tmp_path)}
    hidden = ngt(*command, _NGT_KEPT_WARM="1", **variables).stderr.decode()
    assert hidden.startswith("ngt: error: ")
    assert "no such folder" in hidden
    assert "error: " not in ngt(*command, **variables).stderr.decode()


@pytest.mark.parametrize("name", ["HF_HOME", "HF_HUB_CACHE", "NUMBA_CACHE_DIR", "NGT_HOME"])
def test_relative_folders_mean_the_same_in_the_folder_of_the_process(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NGT_HOME", "home")
    monkeypatch.setenv(name, "own")
    environment = dict[str, str]()

    def start(_: list[str], **more: Any) -> Ended:
        environment.update(more["env"])
        return Ended()

    monkeypatch.setattr("ngtcli.server.client.subprocess.Popen", start)
    client.start(Settings())
    assert environment[name] == str(tmp_path / "own")
    here = Place.of(Settings()).key
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.chdir("/")
    assert Place.of(Settings()).key == here


class Ended:
    """A process that has ended."""

    def wait(self) -> int:
        return 1


_POPEN = subprocess.Popen


def ended_at_once(command: list[str], **options: Any) -> Any:
    """Start a process as `Popen` does, but of a server one that has ended."""
    return Ended() if "serve" in command else _POPEN(command, **options)


def test_keep_warm_starts_one_that_leaves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NGT_HOME", str(tmp_path))
    started: list[Warm] = []

    def start(command: list[str], **more: Any) -> Warm:
        assert command[1:4] == ["-P", "-m", "ngtcli"]
        assert more["stdin"].name == os.devnull
        started.append(Warm(*command[4:], cwd=Path(more.pop("cwd")), **more))
        return started[-1]

    monkeypatch.setattr("ngtcli.server.client.subprocess.Popen", start)
    done = ngt(*ASK, "--keep-warm", "1s")
    assert done.returncode == 0
    place = Place.of(Settings())
    wait_until(lambda: can_connect(place))
    again = ngt(*ASK, "--keep-warm", "1s")  # waits until it has loaded the model
    assert again.stdout == done.stdout
    assert len(started) == 1
    about = client.request(place, "GET /about")
    assert about is not None
    assert about.answered == 1
    assert about.idle_s == 1
    assert os.getsid(about.process) == about.process
    assert place.wait_until_free(60)
    assert b"is ready" in place.log.read_bytes()
    assert place.log.stat().st_mode & 0o777 == 0o600
