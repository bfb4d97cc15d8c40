"""The server: who may ask it, when it leaves, what is left of it when it is killed."""

import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from ngtcli.config import SettingError, Settings, seconds_of
from ngtcli.documents.load import Document, Loaded
from ngtcli.drafting.steps import Step, Token
from ngtcli.engine.events import Ended, Message, Stepped
from ngtcli.engine.request import Request
from ngtcli.errors import InputError, NgtError, StoppedError
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.prompts.preset import load_preset
from ngtcli.server import client, wire
from ngtcli.server import places as places_module
from ngtcli.server.client import NotServedError, OtherStampError, Remote
from ngtcli.server.places import Place, ServedAlreadyError, absolute, flags_of, folder, places
from tests.support.helpers import wait_until, without_note
from tests.support.warm import Warm

# A server whose model spells the question, with a pause before each letter.
PROGRAM = """
import os, shutil, socket, sys, threading, time
from contextlib import ExitStack
from ngtcli.config import Settings
from ngtcli.drafting.steps import Step, Token
from ngtcli.errors import InputError
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.engine.request import Tasks
from ngtcli.server import exchange, http_guard, process
from ngtcli.server.app import application
from ngtcli.server.service import Service
from ngtcli.engine.events import Ended, Message, Stepped
from ngtcli.system import reporting
from ngtcli.system.reporting import Reporter, reporting_to

class Ticket:
    def __init__(self):
        self.ended = threading.Event()
    def cancel(self):
        self.ended.set()

class Speller:
    def __init__(self, settings):
        reporting.status("Learning to spell …")
        while not os.path.exists(LOADING):
            time.sleep(0.01)
        name = settings.model.model
        if not os.path.exists(name) and "/" in name:  # a hub would bring it
            shutil.copytree(BUILTIN_PATH, name)
    def submit(self, question, on_event, *, owner=""):
        ticket = Ticket()
        def spell():
            steps, reason = [], "stop"
            for number, letter in enumerate(question.question):
                if letter == "!":
                    on_event(InputError("no letter", hint="Leave it out."))
                    return
                if ticket.ended.wait(PAUSE if letter == "." else 0):
                    print("cancelled", flush=True)
                    reason = "interrupted"
                    break
                steps.append(Step((Token(number, letter),)))
                on_event(Stepped(steps[-1]))
            on_event(Ended(finish_reason=reason, steps=tuple(steps)))
        threading.Thread(target=spell, daemon=True).start()
        return ticket
    def close(self):
        print("closed", flush=True)

async def app(scope, receive, send):
    if scope["owner"]:  # it came over TCP
        raise RuntimeError("a mistake")
    await for_commands(scope, receive, send)

listening = socket.create_server(("127.0.0.1", 0))
exchange.BEAT_S, exchange._TRANSFER_TIMEOUT_S, process.FINISH_S = 0.2, PATIENCE, PATIENCE
class Printing(Reporter):
    def warn(self, text):
        print(text, flush=True)
    remark = warn

stack = ExitStack()
stack.enter_context(reporting_to(Printing()))
server = process.Server(Settings.of(model=MODEL), Speller, idle_s=IDLE)
for_commands = application(server, Service("builtin", Tasks({})))
if HTTP:
    port = listening.getsockname()[1]
    guard = http_guard.Guard(http_guard.Address("127.0.0.1", port))
    site = process.Site(app=app, guard=guard, listening=listening, notes=(str(port),))
else:
    site = process.Site(app=for_commands)
server.run(site)
"""


class Started:
    """A forked process with `Speller`; `lines` are what it prints."""

    def __init__(
        self,
        model: str = "builtin",
        loading: str = "/",
        pause: float = 30,
        idle: float = 0,
        http: bool = False,
        patience: float = 30,
        before: str = "",
    ):
        names = {"MODEL": repr(model), "LOADING": repr(loading), "PAUSE": pause, "IDLE": idle}
        names |= {"HTTP": http, "PATIENCE": patience}
        own = before + PROGRAM
        for name, value in names.items():
            own = own.replace(name, str(value))
        self.settings = Settings.of(model=model)
        self.process = Warm(code=own)

    def line(self) -> str:
        """The next line, without what the built-in model is."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line and not without_note(line):
            line = self.process.stdout.readline()
        return line.decode().rstrip("\n")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[..., Started]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes, whose places are among the test's own files; all end with the test."""
    started: list[Started] = []

    def begin(*given: object, ready: bool = True, **named: object) -> Started:
        started.append(one := Started(*given, **named))  # type: ignore[arg-type]
        if ready:
            assert "is ready" in one.line()
        return one

    yield begin
    for one in started:
        one.end()
    shutil.rmtree(folder(), ignore_errors=True)  # where their paths are too long it is not theirs


def asked(text: str, **settings: object) -> Request:
    own = Settings.of(**settings)
    loaded = Loaded((Document("a.txt", "Text.", path="a.txt"),))
    return Request(
        task="ask", settings=own, preset=load_preset("ask"), loaded=loaded, question=text
    )


def events_of(text: str, **settings: object) -> client.RemoteAnswer:
    """What the server answers."""
    question = asked(text, **settings)
    remote = Remote.of(question.settings)
    assert remote is not None
    return remote.ask(question)


def test_a_question_is_answered_by_its_events_for_its_user_alone(
    start: Start, own_home: Path
) -> None:
    start()
    *steps, ended = events_of("abc")
    assert steps == [Stepped(Step((Token(i, c),))) for i, c in enumerate("abc")]
    assert ended == Ended(finish_reason="stop", steps=tuple(one.step for one in steps))
    with pytest.raises(InputError, match="no letter") as failed:
        list(events_of("a!"))
    assert failed.value.hint == "Leave it out."
    about = client.request(*places(), "GET /about")
    assert about and (about.model, about.state, about.answered) == ("builtin", "ready", 2)
    path = Place.of(Settings()).path
    assert path.parent.stat().st_mode & 0o777 == 0o700  # a long path has a folder elsewhere
    assert path.stat().st_mode & 0o777 == 0o600


def test_ctrl_c_ends_the_answer_and_says_how_far_it_came(start: Start) -> None:
    one = start()
    events = events_of("ab.c")
    assert [next(events), next(events)]
    events.interrupt()
    ended = next(events)
    assert isinstance(ended, Ended) and ended.finish_reason == "interrupted"
    assert len(ended.steps) == 2 and not list(events)
    assert one.line() == "cancelled"
    events = events_of("ab.c")
    next(events)
    events.close()  # as when the command is killed
    assert one.line() == "cancelled"


def test_what_is_loading_is_waited_for(start: Start, tmp_path: Path) -> None:
    start(loading=str(tmp_path / "go"), ready=False)
    wait_until(Place.of(Settings()).path.exists)
    events = events_of("a")
    first = next(events)
    assert isinstance(first, Message) and first.kind == "status"
    (tmp_path / "go").touch()
    assert isinstance([*events][-1], Ended)


def test_of_two_starts_one_serves_and_of_a_killed_one_nothing_is_left(start: Start) -> None:
    one = start()
    with pytest.raises(ServedAlreadyError, match="already"):
        Place.of(Settings()).lock()
    one.process.kill()
    one.process.wait()
    path = Place.of(Settings()).path
    assert path.exists() and Remote.of(Settings()) is None
    assert not path.exists() and not places()
    start()
    assert len(list(events_of("a"))) == 2


def test_one_that_dies_in_the_middle_is_told_in_one_line(start: Start) -> None:
    one = start()
    events = events_of("a.")
    next(events)
    one.process.kill()
    with pytest.raises(NgtError, match="in the middle of the answer"):
        next(events)
    one = start()
    events = events_of(".")
    threading.Timer(0.05, one.process.kill).start()
    with pytest.raises(NotServedError):  # nothing was said: it may be answered elsewhere
        next(events)


def test_one_that_hangs_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    one = start()
    events = events_of("a.")
    next(events)
    one.process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr("ngtcli.server.places.RESPONSE_TIMEOUT_S", 0.3)
    with pytest.raises(NgtError, match="does not answer in the middle"):
        next(events)
    with pytest.raises(NotServedError):
        next(events_of("a"))
    about = client.request(*places(), "GET /about")
    assert about == wire.Served(model="builtin", state="does not answer", process=one.process.pid)


def test_it_says_that_it_runs_while_an_answer_takes_long(start: Start) -> None:
    start()
    body = wire.encode(wire.Ask("1", asked(".")))
    with closing(client.Reply(Place.of(Settings()), "POST /ask", body)) as reply:
        data = b""
        while not data.endswith(b"\r\n\r\n\n"):
            data += reply.socket.recv(1)


@pytest.mark.parametrize("way", ["stop", "SIGTERM"])
def test_it_finishes_its_answers_and_leaves(start: Start, way: str) -> None:
    one = start(pause=0.3)
    events = events_of("a.b")
    next(events)
    if way == "stop":
        about = client.request(*places(), "POST /stop")
        assert about and about.state == "leaving" and about.answering == 1
    else:
        one.process.send_signal(signal.SIGTERM)
    assert isinstance(list(events)[-1], Ended)
    assert one.line() == "closed" and one.process.wait(10) == 0
    assert not places() and Place.of(Settings()).wait_until_free(0)


def test_leaving_it_accepts_nothing_and_tells_what_failed(start: Start) -> None:
    one = start(pause=0.5, http=True, ready=False)
    at = ("127.0.0.1", int(one.line()))
    assert "is ready" in one.line()
    with socket.create_connection(at) as other:
        other.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert other.recv(100).startswith(b"HTTP/1.1 500")
    assert one.line().endswith(": RuntimeError: a mistake")
    events = events_of("a..b")
    next(events)
    assert (about := client.request(*places(), "POST /stop")) and about.state == "leaving"

    def is_refused() -> bool:
        with suppress(ConnectionRefusedError), socket.create_connection(at):
            return False
        return True

    wait_until(is_refused)
    assert isinstance(list(events)[-1], Ended) and one.process.wait(10) == 0


def test_an_answer_without_end_is_waited_for_once(start: Start) -> None:
    one = start(patience=0.3)
    events = events_of("a.")
    next(events)
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(20) == 0  # the answer takes longer
    with pytest.raises(NgtError, match="ended in the middle"):
        list(events)


def test_a_client_that_is_stopped_does_not_keep_it(start: Start) -> None:
    one = start(idle=0.3, patience=0.3)
    body = wire.encode(wire.Ask("1", asked("a" * 100_000)))
    with closing(client.Reply(Place.of(Settings()), "POST /ask", body)):
        assert one.process.wait(30) == 0  # it was not read


def test_a_model_that_comes_while_it_loads_is_kept(start: Start, tmp_path: Path) -> None:
    model = tmp_path / "new"
    start(str(model))
    asking = asked("a", model=str(model))
    assert isinstance(list(client.RemoteAnswer(*places(), asking))[-1], Ended)


def test_what_is_cancelled_before_it_is_taken_is_not_answered(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closed(client.Reply):
        """One that was closed, as that to a cancellation is: then loading ends."""

        def close(self) -> None:
            super().close()
            (tmp_path / "go").touch()

    start(loading=str(tmp_path / "go"), ready=False)
    wait_until(Place.of(Settings()).path.exists)
    monkeypatch.setattr(client, "Reply", Closed)
    events = events_of("abc")
    next(events)
    events.interrupt()
    with pytest.raises(StoppedError):
        next(events)


def test_it_leaves_when_the_models_files_change(start: Start, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(BUILTIN_PATH, model)
    one = start(str(model))
    assert list(events_of("a", model=str(model)))
    weights = model / "model.safetensors"
    about = weights.stat()
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")  # as by `cp -p` or `rsync -a`
    os.utime(weights, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert weights.stat().st_size == about.st_size
    with pytest.raises(NotServedError):
        list(events_of("a", model=str(model)))
    assert "have changed" in one.line() and one.process.wait(10) == 0


def test_a_process_of_other_settings_or_code_is_not_asked(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start()
    other = [{"dtype": "bfloat16"}, {"threads": 7}, {"serve": False}, {"model": str(tmp_path)}]
    assert all(Remote.of(Settings().replace(**one)) is None for one in other)  # type: ignore[arg-type]
    assert list(events_of("a", max_tokens=7, color="never"))
    with monkeypatch.context() as patch:
        patch.setenv("ATEN_CPU_CAPABILITY", "default")
        with pytest.raises(OtherStampError):
            list(events_of("a"))
    assert list(events_of("a"))
    monkeypatch.setattr(places_module.sys, "prefix", str(tmp_path))
    with pytest.raises(OtherStampError):
        list(events_of("a" * 1_000_000))  # what is not read does not keep it from being told


def test_a_question_looks_at_few_files(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at each file of the package, as the server does from time to time."""
    start()
    stat, looked = os.stat, list[object]()

    def counting(path: object, **more: object) -> os.stat_result:
        looked.append(path)
        return stat(path, **more)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "stat", counting)
    assert list(events_of("a"))
    monkeypatch.undo()
    assert 0 < len(looked) < 20, looked


def test_a_server_leaves_when_files_of_ngt_change(tmp_path: Path) -> None:
    """An installation that is edited: what answers next is what the files say now."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    code = "from pathlib import Path\nfrom ngtcli.server import places, process\n"
    code += f"places.PACKAGE = Path({str(package)!r})\nprocess._CHECK_INTERVAL_S = 0.05\n"
    one = Started(before=code)
    assert "is ready" in one.line()
    (package / "new.py").write_text("x = 1\n")
    assert one.line() == "stopping: ngt was updated"
    assert one.process.wait(10) == 0
    one.end()


def test_a_model_is_the_same_by_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    names = ["model", "./model/", "link", str(tmp_path / "model")]
    assert len({Place.of(Settings.of(model=name)).key for name in names}) == 1


def test_a_socket_whose_path_is_too_long_is_reached(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NGT_HOME", str(tmp_path / ("x" * 120)))
    start()
    assert list(events_of("a"))


def test_what_is_no_message_ends_the_connection_alone(start: Start) -> None:
    start()
    for bad in (
        b"GET /nothing HTTP/1.0\r\n\r\n",
        b"\0\0\0\3\x92\xa1x\r\n\r\n",
        b"\xff" * 64 + b"\r\n\r\n",
    ):
        raw = Place.of(Settings()).connect()
        assert raw is not None
        raw.sendall(bad)
        assert raw.recv(100).startswith(b"HTTP/1.1 4")
        raw.close()
    for body in (b"", b"{}", b'["Ask",{}]', b'["Served",{}]'):
        with closing(client.Reply(Place.of(Settings()), "POST /ask", body)) as reply:
            with pytest.raises((EOFError, wire.WireError)):
                reply.next()
    assert list(events_of("a"))


def test_durations() -> None:
    for bad in ("10", "m", "-1m", "0s", "nanm", "infh", "1 w", "", "31d", "1e300h"):
        with pytest.raises(SettingError, match="keep_warm"):
            seconds_of(bad)
    with pytest.raises(SettingError, match="keep_warm is 'ten'"):
        Settings.of(keep_warm="ten")


def test_flags_of_a_process_name_each_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "mtp"):  # the word stands for the model's own layers, also beside a folder
        (tmp_path / name).mkdir()
    for heads in ((), ("one", "mtp", "a/hub-id")):
        words = flags_of(absolute(Settings.of(heads=heads)))
        found = [word for word in words if word.startswith("--set=heads=")]
        expected = [str(tmp_path / head) if head == "one" else head for head in heads] or ["[]"]
        assert found == [f"--set=heads={head}" for head in expected]
