"""Ask the server, where there is one for the settings, in place of loading a model.

HTTP/1.0 over its socket, without an HTTP library: those take longer to load than an answer takes to
begin. Loads neither numpy nor what loads models.
"""

import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import fields, replace
from typing import Any

from ngtcli.config import SETTINGS, Settings
from ngtcli.documents.load import Loaded
from ngtcli.engine.events import Ended, Event, Message
from ngtcli.engine.request import Request
from ngtcli.errors import NgtError
from ngtcli.server import places, wire
from ngtcli.server.places import Place, absolute
from ngtcli.system import process, reporting
from ngtcli.words import reason_of

_CHUNK_BYTES = 1 << 18  # read from the socket at once; guess


class NotServedError(Exception):
    """The server takes no requests any more, and has reported nothing yet of this one."""


class OtherStampError(NotServedError):
    """The server has another `runtime_stamp`, so that it might answer otherwise."""


class Reply:
    """The lines that the process of a place answers to a request; `close` it."""

    def __init__(self, place: Place, request: str, body: bytes = b"") -> None:
        """Raises NotServedError where there is no process, and OSError."""
        if (connected := place.connect()) is None:
            raise NotServedError
        self.socket, self._data, self._has_begun = connected, bytearray(), False
        self._waiting = selectors.DefaultSelector()  # select() takes no descriptor from 1024 on
        self._waiting.register(connected, selectors.EVENT_READ)
        head = f"{request} HTTP/1.0\r\nHost: ngt\r\n{wire.STAMP}: {places.runtime_stamp()}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        try:
            self.socket.sendall(head.encode() + body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it replied before it read everything; `next` reads the reply
        except BaseException:
            self.close()
            raise

    def next(self, wanted: type[object] = object) -> Any:
        """Return the object of the next line. A KeyboardInterrupt loses nothing.

        Raises:
            OtherStampError: The server has another stamp.
            EOFError: The reply has ended, or is no success.
            WireError: The line is none of this version.
            OSError: Nothing comes.
        """
        while True:
            if not self._has_begun and (end := self._data.find(b"\r\n\r\n")) >= 0:
                status = self._data.split(maxsplit=2)[1]
                if status == b"409":
                    raise OtherStampError
                if status != b"200":
                    raise EOFError
                del self._data[: end + 4]
                self._has_begun = True
            while self._has_begun and (end := self._data.find(b"\n")) >= 0:
                line = bytes(self._data[:end])
                del self._data[: end + 1]
                if line:
                    return wire.decode(line, wanted)
            if not self._waiting.select(places.RESPONSE_TIMEOUT_S):
                raise TimeoutError
            with process.unbroken():
                if not (data := self.socket.recv(_CHUNK_BYTES)):
                    raise EOFError
                self._data += data

    def close(self) -> None:
        """Leave; what is still being answered ends."""
        self._waiting.close()
        self.socket.close()


class RemoteAnswer:
    """The `Answer` of the server of a place.

    Raises NotServedError, before any event but statuses, where the request is to be answered
    elsewhere.
    """

    def __init__(self, place: Place, request: Request) -> None:
        self._place = place
        self._settings = request.settings
        self._ask = wire.Ask(os.urandom(8).hex(), _absolute_request(request))
        self._reply: Reply | None = None  # once it was asked
        self._has_begun = False  # whether anything but a status has come
        self._is_interrupted = False
        self._is_over = False

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._is_over:
            raise StopIteration
        try:
            if self._reply is None:
                self._reply = Reply(self._place, "POST /ask", wire.encode(self._ask))
            event = self._reply.next()
        except OtherStampError:
            self.close()
            raise
        except (OSError, EOFError, UnicodeEncodeError, wire.WireError) as error:
            self.close()
            if not self._has_begun and not self._is_interrupted:
                raise NotServedError from error
            how = "does not answer" if isinstance(error, TimeoutError) else "ended"
            raise NgtError(
                f"the server {how} in the middle of the answer",
                hint="Ask again; ngt serve status shows what runs.",
            ) from None
        if isinstance(event, wire.Failed | Message):
            event = _as_named(event, self._settings)
        if isinstance(event, wire.Failed | Ended):
            self.close()
        if isinstance(event, wire.Failed):
            raise event.error()
        if not (isinstance(event, Message) and event.kind == "status"):
            self._has_begun = True
        return event  # type: ignore[no-any-return]

    def interrupt(self) -> None:
        """As `Answer.interrupt`. Raises KeyboardInterrupt where that was asked for before."""
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True
        with suppress(NotServedError, OSError):
            Reply(self._place, f"POST /cancel/{self._ask.id}").close()

    def close(self) -> None:
        """As `Answer.close`."""
        self._is_over = True
        if self._reply is not None:
            self._reply.close()


class Remote:
    """The `Answers` of the user's server, asked over its socket."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @classmethod
    def of(cls, settings: Settings) -> "Remote | None":
        """Return the server with the model of these settings; None where none is to be asked."""
        if not settings.engine.serve or settings.engine.engine != "ngt":
            return None
        place = Place.of(settings)
        connected = place.connect()
        if connected is None:
            return None
        connected.close()
        return cls(place)

    def ask(self, request: Request, *, owner: str = "") -> RemoteAnswer:
        """As `Answers.ask`, of this user alone: the server knows no other `owner` here.

        The answer raises NotServedError where the request is to be answered elsewhere.
        """
        assert not owner
        return RemoteAnswer(self._place, request)

    def close(self) -> None:
        """As `Answers.close`; an answer ends by itself."""


def request(place: Place, what: str) -> wire.Served | None:
    """Ask "GET /about" or "POST /stop", and return how the process there describes itself.

    None where there is no process, or one of another version.
    """
    with suppress(NotServedError, OSError, EOFError, wire.WireError):
        with closing(Reply(place, what)) as reply:
            try:
                return reply.next(wire.Served)  # type: ignore[no-any-return]
            except TimeoutError:
                pid = places.peer(reply.socket)[0]
                return wire.Served(model=place.model, state="does not answer", process=pid)
    return None


def start(settings: Settings) -> None:
    """Start the server for these settings, which stops after `keep_warm` without a request.

    It has no terminal; what it reports goes to a file. A warning says why the last one
    could not start, and why this one cannot.
    """
    place, flags = Place.of(settings), places.flags_of(absolute(settings))
    running = request(place, "GET /about")
    if running is not None:
        if running.stamp != places.runtime_stamp():
            reporting.warn(
                "the model is not kept loaded: a server of another installation or other variables"
                " is in its place (ngt serve stop ends it)"
            )
        return
    command = [sys.executable, "-P", "-m", "ngtcli", "serve", "--no-http", *flags]
    if why := _why_not_started(place):
        reporting.warn(f"the model was not kept loaded the last time: {why} ({place.log})")
    try:
        places.private(places.folder())
        log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        with open(log, "wb") as out, open(os.devnull, "rb") as empty_input:
            started = subprocess.Popen(
                [*command, f"--keep-warm={settings.engine.keep_warm}"],
                stdin=empty_input,
                stdout=out,
                stderr=out,
                env=_environment(),
                cwd="/",
                start_new_session=True,
            )
        # Where it ends before this process does, it is waited for, or it would stay a zombie.
        threading.Thread(target=started.wait, daemon=True).start()
    except (OSError, NgtError) as error:
        reporting.warn(f"the model is not kept loaded: {reason_of(error)}")


def _environment() -> dict[str, str]:
    """The variables of a process in another folder.

    Settings are left out: those that say what is loaded come as flags, and each request has the
    others. One that names a relative file would end the process.
    """
    settings = {about.variable for about in SETTINGS.values()}
    environ = {n: value for n, value in places.environment().items() if n not in settings}
    paths = [str(places.PACKAGE.parent), *environ.get("PYTHONPATH", "").split(os.pathsep)]
    environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths if path)
    return {**environ, process.KEPT_WARM: "1"}


def _why_not_started(place: Place) -> str:
    """Why the last process of a place could not load its model; "" where it could, or may yet.

    It ended with an error: warnings say nothing, and one that was stopped writes no error.
    """
    try:
        lines = place.log.read_text("utf-8", "replace").splitlines()
        errors = [line for line in lines if line.startswith(process.FAILED)]
        was_ready = any(" is ready: " in line for line in lines)
        if errors and not was_ready and place.wait_until_free(0):
            return errors[-1].removeprefix(process.FAILED)
    except (OSError, NgtError):  # `start` says what is wrong with the folder
        pass
    return ""


def _as_named(message: Any, settings: Settings) -> Any:
    """Return a message of the server with the model's name as the user wrote it, not its path."""
    path = absolute(settings).model.model
    if path == settings.model.model:
        return message
    texts = {field.name: getattr(message, field.name) for field in fields(message)}
    renamed = {name: text.replace(path, settings.model.model) for name, text in texts.items()}
    return replace(message, **renamed)


def _absolute_request(request: Request) -> Request:
    """Return the request as a process in another folder understands it: with full paths."""
    documents = [replace(d, path=d.path and os.path.abspath(d.path)) for d in request.documents]
    settings = absolute(request.settings)
    return replace(request, settings=settings, loaded=Loaded(tuple(documents)))
