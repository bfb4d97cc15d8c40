"""The server's process and its client: who may ask, when it exits, what remains if it is killed."""

import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from ngtcli.config import SettingError, Settings
from ngtcli.documents.load import Document, Loaded
from ngtcli.drafting.steps import Step, Token
from ngtcli.engine.events import Ended, Message, Stepped
from ngtcli.engine.request import Request
from ngtcli.errors import InputError, NgtError, StoppedError
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.prompts.preset import load_preset
from ngtcli.server import client, wire
from ngtcli.server.client import NotServedError, OtherStampError, Remote
from ngtcli.server.places import Place, ServedAlreadyError, absolute, flags_of, folder, places
from tests.support.helpers import wait_until, without_note
from tests.support.warm import Warm

# A server whose model spells the question, with a pause at each full stop. `Server` replaces the
# names in capitals.
PROGRAM = """
import os, shutil, socket, sys, threading, time
from contextlib import ExitStack
from ngtcli.config import SettingError, Settings
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
        if not os.path.exists(name) and "/" in name:  # as if it were downloaded
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
    if scope["owner"]:  # a request over TCP
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


class Server:
    """A forked process that runs `PROGRAM`.

    Args:
        model: The model of the settings.
        loading: A file that the process waits for before the model is loaded.
        pause: The seconds that a full stop in the question takes.
        idle: The seconds without requests after which the server exits; 0 for never.
        http: Whether the process also serves HTTP, on a port that it prints first.
        patience: The seconds that the server waits for a client, and for its last answers.
        before: A program that runs first.
    """

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
        values = {
            "MODEL": repr(model),
            "LOADING": repr(loading),
            "PAUSE": str(pause),
            "IDLE": str(idle),
            "HTTP": str(http),
            "PATIENCE": str(patience),
        }
        program = before + PROGRAM
        for name, value in values.items():
            program = program.replace(name, value)
        self.process = Warm(code=program)

    def read_line(self) -> str:
        """The next line that the process prints, without the note on the built-in model."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line and not without_note(line):
            line = self.process.stdout.readline()
        return line.decode().rstrip("\n")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[..., Server]


@pytest.fixture
def start() -> Iterator[Start]:
    """A function that starts servers for the test's home; they are killed after the test."""
    servers: list[Server] = []

    def start_server(*arguments: object, ready: bool = True, **named: object) -> Server:
        server = Server(*arguments, **named)  # type: ignore[arg-type]
        servers.append(server)
        if ready:
            assert "is ready" in server.read_line()
        return server

    yield start_server

    for server in servers:
        server.kill()
    # If the path in the test's home is too long for a socket, this folder is elsewhere.
    shutil.rmtree(folder(), ignore_errors=True)


def request_of(question: str, **settings: object) -> Request:
    return Request(
        task="ask",
        settings=Settings.of(**settings),
        preset=load_preset("ask"),
        loaded=Loaded((Document("a.txt", "Text.", path="a.txt"),)),
        question=question,
    )


def ask(question: str, **settings: object) -> client.RemoteAnswer:
    """The events of the server's answer."""
    request = request_of(question, **settings)
    remote = Remote.of(request.settings)
    assert remote is not None
    return remote.ask(request)


def only_place() -> Place:
    """The place of the only server that runs."""
    (place,) = places()
    return place


def post_ask(body: bytes) -> client.Reply:
    return client.Reply(Place.of(Settings()), "POST /ask", body)


def test_an_answer_comes_as_events(start: Start) -> None:
    start()

    *steps, ended = ask("abc")

    expected = [Step((Token(number, letter),)) for number, letter in enumerate("abc")]
    assert steps == [Stepped(step) for step in expected]
    assert ended == Ended(finish_reason="stop", steps=tuple(expected))


def test_an_error_of_the_server_is_raised_with_its_hint(start: Start) -> None:
    start()
    with pytest.raises(InputError, match="no letter") as raised:
        list(ask("a!"))
    assert raised.value.hint == "Leave it out."


def test_the_server_reports_its_model_its_state_and_the_answers_it_gave(start: Start) -> None:
    start()
    list(ask("a"))
    list(ask("b"))
    about = client.request(only_place(), "GET /about")
    assert about is not None
    assert about.model == "builtin"
    assert about.state == "ready"
    assert about.answered == 2


def test_the_socket_is_its_users_alone(start: Start, own_home: Path) -> None:
    start()
    path = Place.of(Settings()).path
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_interrupted_answer_ends_with_the_steps_that_came(start: Start) -> None:
    server = start()
    events = ask("ab.c")
    next(events)
    next(events)

    events.interrupt()

    ended = next(events)
    assert isinstance(ended, Ended)
    assert ended.finish_reason == "interrupted"
    assert len(ended.steps) == 2
    assert not list(events)
    assert server.read_line() == "cancelled"


def test_an_answer_is_cancelled_when_the_client_closes_the_connection(start: Start) -> None:
    server = start()
    events = ask("ab.c")
    next(events)
    events.close()  # as when the command is killed
    assert server.read_line() == "cancelled"


def test_a_question_waits_while_the_model_is_loaded(start: Start, tmp_path: Path) -> None:
    start(loading=str(tmp_path / "go"), ready=False)
    wait_until(lambda: Remote.of(Settings()) is not None)

    events = ask("a")
    first = next(events)
    assert isinstance(first, Message)
    assert first.kind == "status"

    (tmp_path / "go").touch()
    *_, last = events
    assert isinstance(last, Ended)


def test_a_second_server_for_the_same_settings_is_refused(start: Start) -> None:
    start()
    with pytest.raises(ServedAlreadyError, match="already"):
        Place.of(Settings()).lock()


def test_a_client_removes_the_socket_of_a_killed_server(start: Start) -> None:
    server = start()
    server.process.kill()
    server.process.wait()
    path = Place.of(Settings()).path
    assert path.exists()

    assert Remote.of(Settings()) is None
    assert not path.exists()
    assert not places()

    start()
    assert len(list(ask("a"))) == 2


def test_a_server_that_dies_in_the_middle_of_an_answer_is_an_error(start: Start) -> None:
    server = start()
    events = ask("a.")
    next(events)
    server.process.kill()
    with pytest.raises(NgtError, match="in the middle of the answer"):
        next(events)


def test_a_question_may_be_asked_elsewhere_if_the_server_dies_before_its_first_event(
    start: Start,
) -> None:
    server = start()
    events = ask(".")
    threading.Timer(0.05, server.process.kill).start()
    with pytest.raises(NotServedError):
        next(events)


def test_a_server_that_hangs_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    events = ask("a.")
    next(events)
    server.process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr("ngtcli.server.places.RESPONSE_TIMEOUT_S", 0.3)

    with pytest.raises(NgtError, match="does not answer in the middle"):
        next(events)
    with pytest.raises(NotServedError):
        next(ask("a"))
    about = client.request(only_place(), "GET /about")
    assert about == wire.Served(
        model="builtin", state="does not answer", process=server.process.pid
    )


def test_the_server_sends_empty_lines_during_a_long_answer(start: Start) -> None:
    start()
    with closing(post_ask(wire.encode(wire.Ask("1", request_of("."))))) as reply:
        received = b""
        while not received.endswith(b"\r\n\r\n\n"):
            received += reply.socket.recv(1)


@pytest.mark.parametrize("method", ["stop", "SIGTERM"])
def test_a_stopped_server_finishes_its_answers(start: Start, method: str) -> None:
    server = start(pause=0.3)
    events = ask("a.b")
    next(events)

    if method == "stop":
        about = client.request(only_place(), "POST /stop")
        assert about is not None
        assert about.state == "leaving"
        assert about.answering == 1
    else:
        server.process.send_signal(signal.SIGTERM)

    *_, last = events
    assert isinstance(last, Ended)
    assert server.read_line() == "closed"
    assert server.process.wait(10) == 0
    assert not places()
    assert Place.of(Settings()).wait_until_free(0)


def test_an_error_of_the_application_is_reported(start: Start) -> None:
    server = start(http=True, ready=False)
    address = ("127.0.0.1", int(server.read_line()))
    assert "is ready" in server.read_line()

    with socket.create_connection(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 500")

    assert server.read_line().endswith(": RuntimeError: a mistake")


def test_a_server_that_is_leaving_accepts_no_connections(start: Start) -> None:
    server = start(pause=0.5, http=True, ready=False)
    address = ("127.0.0.1", int(server.read_line()))
    assert "is ready" in server.read_line()
    events = ask("a..b")
    next(events)

    about = client.request(only_place(), "POST /stop")
    assert about is not None
    assert about.state == "leaving"

    def is_refused() -> bool:
        with suppress(ConnectionRefusedError), socket.create_connection(address):
            return False
        return True

    wait_until(is_refused)
    *_, last = events
    assert isinstance(last, Ended)
    assert server.process.wait(10) == 0


def test_a_stopped_server_waits_for_its_answers_for_a_limited_time(start: Start) -> None:
    server = start(patience=0.3)
    events = ask("a.")  # which takes 30 seconds
    next(events)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0
    with pytest.raises(NgtError, match="ended in the middle"):
        list(events)


def test_a_client_that_does_not_read_does_not_keep_the_server_running(start: Start) -> None:
    server = start(idle=0.3, patience=0.3)
    with closing(post_ask(wire.encode(wire.Ask("1", request_of("a" * 100_000))))):
        assert server.process.wait(30) == 0


def test_a_model_that_is_downloaded_while_it_is_loaded_is_served(
    start: Start, tmp_path: Path
) -> None:
    model = tmp_path / "new"
    start(str(model))
    *_, last = client.RemoteAnswer(only_place(), request_of("a", model=str(model)))
    assert isinstance(last, Ended)


def test_a_question_that_is_cancelled_while_the_model_is_loaded_is_not_answered(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SignallingReply(client.Reply):
        """A reply that lets the model be loaded once it is closed, as a cancellation's is."""

        def close(self) -> None:
            super().close()
            (tmp_path / "go").touch()

    start(loading=str(tmp_path / "go"), ready=False)
    wait_until(lambda: Remote.of(Settings()) is not None)
    monkeypatch.setattr(client, "Reply", SignallingReply)
    events = ask("abc")
    next(events)
    events.interrupt()
    with pytest.raises(StoppedError):
        next(events)


def test_the_server_exits_when_the_models_files_change(start: Start, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(BUILTIN_PATH, model)
    server = start(str(model))
    assert list(ask("a", model=str(model)))

    # Size and time of change stay the same, as with `cp -p` or `rsync -a`.
    weights = model / "model.safetensors"
    before = weights.stat()
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights.stat().st_size == before.st_size

    with pytest.raises(NotServedError):
        list(ask("a", model=str(model)))
    assert "have changed" in server.read_line()
    assert server.process.wait(10) == 0


@pytest.mark.parametrize("setting", [{"dtype": "bfloat16"}, {"threads": 7}, {"serve": False}])
def test_a_server_of_other_settings_is_not_asked(start: Start, setting: dict[str, Any]) -> None:
    start()
    assert Remote.of(Settings.of(**setting)) is None


def test_a_server_of_another_model_is_not_asked(start: Start, tmp_path: Path) -> None:
    start()
    assert Remote.of(Settings.of(model=str(tmp_path))) is None


def test_settings_of_the_answer_alone_need_no_other_server(start: Start) -> None:
    start()
    assert list(ask("a", max_tokens=7, color="never"))


def test_a_server_with_other_cpu_kernels_is_not_asked(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start()
    with monkeypatch.context() as patch:
        patch.setenv("ATEN_CPU_CAPABILITY", "default")
        with pytest.raises(OtherStampError):
            list(ask("a"))
    assert list(ask("a"))


@pytest.mark.parametrize("length", [1, 1_000_000])
def test_a_server_of_another_installation_is_not_asked(
    start: Start, length: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server replies even though it does not read the whole of a long request."""
    start()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(OtherStampError):
        list(ask("a" * length))


def test_a_question_examines_few_files(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not examine each file of the package, as the server does from time to time."""
    start()
    stat = os.stat
    examined: list[object] = []

    def recording_stat(path: object, **options: object) -> os.stat_result:
        examined.append(path)
        return stat(path, **options)  # type: ignore[call-overload, no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", recording_stat)
        assert list(ask("a"))
    assert 0 < len(examined) < 20, examined


def test_a_server_exits_when_files_of_ngt_change(start: Start, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    watch_package = f"""
from pathlib import Path
from typing import Any
from ngtcli.server import places, process
places.PACKAGE = Path({str(package)!r})
process._CHECK_INTERVAL_S = 0.05
"""
    server = start(before=watch_package)
    (package / "new.py").write_text("x = 1\n")
    assert server.read_line() == "stopping: ngt was updated"
    assert server.process.wait(10) == 0


def test_a_model_has_one_place_by_every_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert list(ask("a"))


@pytest.mark.parametrize(
    "message",
    [
        b"GET /nothing HTTP/1.0\r\n\r\n",
        b"\0\0\0\3\x92\xa1x\r\n\r\n",
        b"\xff" * 64 + b"\r\n\r\n",
    ],
)
def test_an_invalid_request_is_refused_and_the_server_goes_on(start: Start, message: bytes) -> None:
    start()
    connection = Place.of(Settings()).connect()
    assert connection is not None
    with connection:
        connection.sendall(message)
        assert connection.recv(100).startswith(b"HTTP/1.1 4")
    assert list(ask("a"))


@pytest.mark.parametrize("body", [b"", b"{}", b'["Ask",{}]', b'["Served",{}]'])
def test_an_invalid_question_is_refused_and_the_server_goes_on(start: Start, body: bytes) -> None:
    start()
    with closing(post_ask(body)) as reply:
        with pytest.raises((EOFError, wire.WireError)):
            reply.next()
    assert list(ask("a"))


def test_flags_of_a_server_have_absolute_paths_of_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "mtp").mkdir()  # mtp means the model's own layers even if a folder has that name

    flags = flags_of(absolute(Settings.of(heads=("folder", "mtp", "a/hub-id"))))

    expected = [f"--set=heads={tmp_path}/folder", "--set=heads=mtp", "--set=heads=a/hub-id"]
    assert [flag for flag in flags if flag.startswith("--set=heads=")] == expected


def test_flags_of_a_server_without_heads_say_so() -> None:
    flags = flags_of(absolute(Settings.of(heads=())))
    assert [flag for flag in flags if flag.startswith("--set=heads=")] == ["--set=heads=[]"]


@pytest.mark.parametrize(
    "keep_warm", ["10", "m", "-1m", "0s", "nanm", "infh", "1 w", "", "31d", "1e300h", "ten"]
)
def test_an_invalid_duration_of_keep_warm_is_refused(keep_warm: str) -> None:
    with pytest.raises(SettingError, match=f"keep_warm is '{keep_warm}'"):
        Settings.of(keep_warm=keep_warm)
