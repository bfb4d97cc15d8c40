"""Ask the server, where one runs for the settings, in place of loading a model.

This speaks HTTP/1.0 over its socket without an HTTP library, which would take longer to load than
an answer takes to begin. It imports neither numpy nor modules that load models.
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

_CHUNK_BYTES = 1 << 18  # read from the socket at once (guess)


class NotServedError(Exception):
    """The server takes no requests any more, and has reported nothing yet of this one."""


class OtherStampError(NotServedError):
    """The server has another `runtime_stamp`, so its answers might differ."""


class Reply:
    """The lines with which the server of a place replies to a request; `close` it.

    Args:
        place: The place of the server.
        request: The method and the path, such as "POST /ask".
        body: The body of the request.

    Raises:
        NotServedError: No server runs there.
        OSError: The request cannot be sent.
    """

    def __init__(self, place: Place, request: str, body: bytes = b"") -> None:
        connection = place.connect()
        if connection is None:
            raise NotServedError
        self.socket = connection
        self._buffer = bytearray()  # received, and not yet returned
        self._has_begun = False  # whether the head of the response has come
        self._selector = selectors.DefaultSelector()  # select() takes no descriptor from 1024 on
        self._selector.register(connection, selectors.EVENT_READ)
        head = f"{request} HTTP/1.0\r\nHost: ngt\r\n{wire.STAMP}: {places.runtime_stamp()}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        try:
            self.socket.sendall(head.encode() + body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # The server replied before it read everything; `next` reads the reply.
        except BaseException:
            self.close()
            raise

    def next(self, expected: type[object] = object) -> Any:
        """Return the object of the next line. A KeyboardInterrupt loses nothing.

        Raises:
            OtherStampError: The server has another stamp.
            EOFError: The reply has ended, or its status is an error.
            WireError: The line is not of this version, or not an `expected` object.
            OSError: Nothing comes.
        """
        while True:
            if not self._has_begun:
                self._take_head()
            while self._has_begun and (end := self._buffer.find(b"\n")) >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                if line:
                    return wire.decode(line, expected)
            if not self._selector.select(places.RESPONSE_TIMEOUT_S):
                raise TimeoutError
            with process.unbroken():
                data = self.socket.recv(_CHUNK_BYTES)
                if not data:
                    raise EOFError
                self._buffer += data

    def _take_head(self) -> None:
        """Take the head of the response from the buffer, if it has come. Raises as `next`."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        status = self._buffer.split(maxsplit=2)[1]
        if status == b"409":
            raise OtherStampError
        if status != b"200":
            raise EOFError
        del self._buffer[: end + 4]
        self._has_begun = True

    def close(self) -> None:
        """Close the connection; the server then ends an unfinished answer."""
        self._selector.close()
        self.socket.close()


class RemoteAnswer:
    """The `Answer` of the server of a place.

    It raises NotServedError, before any event but statuses, where the request must be answered
    elsewhere.
    """

    def __init__(self, place: Place, request: Request) -> None:
        self._place = place
        self._settings = request.settings
        self._ask = wire.Ask(os.urandom(8).hex(), _absolute_request(request))
        self._reply: Reply | None = None  # once the request is sent
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
            verb = "does not answer" if isinstance(error, TimeoutError) else "ended"
            raise NgtError(
                f"the server {verb} in the middle of the answer",
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
        """As `Answer.interrupt`. Raises KeyboardInterrupt the second time."""
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
        """Return the server for these settings; None if none runs or may be used."""
        if not settings.engine.serve or settings.engine.engine != "ngt":
            return None
        place = Place.of(settings)
        connection = place.connect()
        if connection is None:
            return None
        connection.close()
        return cls(place)

    def ask(self, request: Request, *, owner: str = "") -> RemoteAnswer:
        """As `Answers.ask`, for this user alone: over its socket the server has no other `owner`.

        The answer raises NotServedError where the request must be answered elsewhere.
        """
        assert not owner
        return RemoteAnswer(self._place, request)

    def close(self) -> None:
        """As `Answers.close`; an answer ends by itself."""


def request(place: Place, method_and_path: str) -> wire.Served | None:
    """Send "GET /about" or "POST /stop", and return the server's description of itself.

    Returns None if no server runs, or one of another version.
    """
    with suppress(NotServedError, OSError, EOFError, wire.WireError):
        with closing(Reply(place, method_and_path)) as reply:
            try:
                return reply.next(wire.Served)  # type: ignore[no-any-return]
            except TimeoutError:
                pid = places.peer(reply.socket)[0]
                return wire.Served(model=place.model, state="does not answer", process=pid)
    return None


def start(settings: Settings) -> None:
    """Start the server for these settings, which stops after `keep_warm` without a request.

    It has no terminal, and reports to a file. A warning says why the last server could not start,
    and why this one cannot.
    """
    place = Place.of(settings)
    running = request(place, "GET /about")
    if running is not None:
        if running.stamp != places.runtime_stamp():
            reporting.warn(
                "the model is not kept loaded: a server of another installation or other variables"
                " is in its place (ngt serve stop ends it)"
            )
        return
    command = [
        *(sys.executable, "-P", "-m", "ngtcli", "serve", "--no-http"),
        *places.flags_of(absolute(settings)),
        f"--keep-warm={settings.engine.keep_warm}",
    ]
    last_error = _last_error(place)
    if last_error:
        reporting.warn(f"the model was not kept loaded the last time: {last_error} ({place.log})")
    try:
        places.private(places.folder())
        log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        with open(log, "wb") as out, open(os.devnull, "rb") as empty_input:
            started = subprocess.Popen(
                command,
                stdin=empty_input,
                stdout=out,
                stderr=out,
                env=_environment(),
                cwd="/",
                start_new_session=True,
            )
        # A server that ends before this process would stay a zombie if nothing waited for it.
        threading.Thread(target=started.wait, daemon=True).start()
    except (OSError, NgtError) as error:
        reporting.warn(f"the model is not kept loaded: {reason_of(error)}")


def _environment() -> dict[str, str]:
    """Return the environment of a server, which runs in another folder.

    Variables of settings are left out: the settings of the model come as flags, and each request
    has the others. A setting with the relative path of a file would end the server.
    """
    setting_variables = {setting.variable for setting in SETTINGS.values()}
    environ = {
        name: value for name, value in places.environment().items() if name not in setting_variables
    }
    paths = [str(places.PACKAGE.parent), *environ.get("PYTHONPATH", "").split(os.pathsep)]
    environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths if path)
    return {**environ, process.KEPT_WARM: "1"}


def _last_error(place: Place) -> str:
    """Return why the last server of a place could not load its model; "" if it could, or may yet.

    Only errors count: a server with warnings may have loaded, and a stopped one writes no error.
    """
    try:
        lines = place.log.read_text("utf-8", "replace").splitlines()
        errors = [line for line in lines if line.startswith(process.FAILED)]
        was_ready = any(" is ready: " in line for line in lines)
        if errors and not was_ready and place.wait_until_free(0):
            return errors[-1].removeprefix(process.FAILED)
    except (OSError, NgtError):  # `start` reports the trouble with the folder.
        pass
    return ""


def _as_named(message: Any, settings: Settings) -> Any:
    """Return a message of the server with the model's name as the user wrote it, not its path."""
    path = absolute(settings).model.model
    if path == settings.model.model:
        return message
    renamed_texts = {
        field.name: getattr(message, field.name).replace(path, settings.model.model)
        for field in fields(message)
    }
    return replace(message, **renamed_texts)


def _absolute_request(request: Request) -> Request:
    """Return the request as a process in another folder understands it: with full paths."""
    documents = [
        replace(document, path=document.path and os.path.abspath(document.path))
        for document in request.documents
    ]
    settings = absolute(request.settings)
    return replace(request, settings=settings, loaded=Loaded(tuple(documents)))
