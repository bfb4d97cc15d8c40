"""The server: it loads a model once, and answers the requests of its user's commands.

One loop serves its sockets by uvicorn: that of the server's user and, if wanted, one of TCP. A
`Resident`, or an object with its methods, answers in threads of its own.
"""

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ngtcli import __version__
from ngtcli.config import Settings
from ngtcli.engine.answers import OnEvent, RequestHandle
from ngtcli.engine.request import Request
from ngtcli.errors import BusyError, NgtError, unexpected
from ngtcli.models.checkpoint import BUILTIN, BUILTIN_PATH, find
from ngtcli.models.recommended import demonstration_note
from ngtcli.server.activity import Activity
from ngtcli.server.app import Entrance
from ngtcli.server.http_guard import Connection, Guard
from ngtcli.server.places import FINISH_S, Place, absolute, code_stamp, peer, runtime_stamp
from ngtcli.server.wire import Served
from ngtcli.system import reporting
from ngtcli.system.files import Stamp, stamp_of
from ngtcli.system.process import KEPT_WARM
from ngtcli.system.reporting import Reporter, reporting_to

if TYPE_CHECKING:  # it loads torch
    from ngtcli.server.resident import Resident

_CHECK_INTERVAL_S = 5.0  # between checks of the clock and of the model's files, at most (guess)
_POLL_S = 0.1  # between looks at the number of unfinished answers (guess)
_ENDING_S = 1.0  # to send the ends of answers (guess)
_MAX_CONNECTIONS = 1024  # at once (guess)
_MAX_HEADER_BYTES = 65_536  # of a request (guess)
_IDLE_S = 30.0  # after which a connection without a request is closed (guess)


Load = Callable[[Settings], "Resident"]  # loads a model


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The application of a server, and its HTTP API over TCP, if any.

    Attributes:
        app: Answers every request, with its owner in its scope.
        guard: Finds the owner of a request over TCP; None without HTTP.
        listening: The socket of TCP; None without HTTP.
        url: The URL of the HTTP API.
        running: Returns a context manager that is open as long as the server runs.
        notes: Lines for the user, when the model is loaded.
    """

    app: ASGIApp
    guard: Guard | None = None
    listening: socket.socket | None = None
    url: str = ""
    running: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    notes: tuple[str, ...] = ()


class Server:
    """Answers on the socket of its settings, until `stop` or `idle_s` seconds without a request.

    It reports to the reporter of the caller: failures as warnings, and the rest as remarks.

    Args:
        settings: The settings of the model.
        load: Loads the model.
        idle_s: Seconds without a request after which the server stops; 0 for never.

    Attributes:
        stamp: Its `runtime_stamp`; commands with another one are refused.
        progress: The progress of loading, in words.
        loaded: Set once the model is loaded, or will not be.
        activity: Counts the requests that are being answered.
    """

    def __init__(
        self,
        settings: Settings,
        load: Load,
        *,
        idle_s: float = 0.0,
    ) -> None:
        self.settings = absolute(settings)
        self.idle_s = idle_s
        self.place = Place.of(settings)
        self.stamp = runtime_stamp()
        self.progress = f"Loading {settings.model.model} …"
        self.loaded = asyncio.Event()
        self.activity = Activity()
        self._is_stopping = asyncio.Event()
        self._load = load
        self._reporter = reporting.current()
        self._started = time.monotonic()
        self._code_stamp = code_stamp()
        self._resident: Resident | None = None
        self._file_stamps: list[tuple[str, Stamp]] = []  # of the model, as loaded
        self._http = ""  # the URL of its HTTP API

    # --- methods for the application, called in the loop ---

    def stop(self) -> None:
        """Refuse new requests, finish the answers that have begun, and stop."""
        self._is_stopping.set()

    def refuses(self) -> bool:
        """Return whether requests must be answered elsewhere, since this server stops."""
        return self._resident is None or self._stop_if_changed() or self._is_stopping.is_set()

    def submit(self, request: Request, on_event: OnEvent, *, owner: str = "") -> RequestHandle:
        """As `RequestService.submit`. Raises BusyError."""
        if self._resident is None:
            raise BusyError("no model is loaded", hint="Try again later.")
        return self._resident.submit(request, on_event, owner=owner)

    def described(self) -> Served:
        """Return the description of this server."""
        state = "ready" if self.loaded.is_set() else "loading"
        return Served(
            model=self.settings.model.model,
            state="leaving" if self._is_stopping.is_set() else state,
            process=os.getpid(),
            version=__version__,
            running_s=time.monotonic() - self._started,
            idle_s=self.idle_s,
            answering=self.activity.answering,
            answered=self.activity.answered,
            http=self._http,
            socket=str(self.place.path),
            kept_warm=KEPT_WARM in os.environ,
            stamp=self.stamp,
        )

    # --- from start to stop ---

    def run(self, site: Site) -> None:
        """Load the model, and answer until the server stops.

        Raises:
            ServedAlreadyError: Another process serves this model.
            NgtError: The model cannot be loaded.
        """
        handle = self.place.lock(self.settings.model.model)
        try:
            asyncio.run(self._run(site))
        finally:
            os.close(handle)

    async def _run(self, site: Site) -> None:
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._handle_signal, number)
        sockets = [self.place.listen()]
        if site.listening is not None:
            sockets.append(site.listening)
            self._http = site.url
        http = Http(Entrance(self, site.app, site.guard))
        serving = asyncio.ensure_future(http.serve(sockets))
        serving.add_done_callback(lambda _: self._is_stopping.set())
        try:
            async with site.running():
                try:
                    await self._until_ready(site.notes)
                    await self._until_idle()
                finally:
                    self._is_stopping.set()
                    self.loaded.set()
                    self.place.remove()
                    await http.leave(serving, self.activity)
        finally:
            if self._resident is not None:
                self._resident.close()

    async def _until_ready(self, notes: Sequence[str]) -> None:
        """Load the model, in a thread, unless the server is stopped before that."""
        stamps_before = _file_stamps(self.settings)
        resident = Future["Resident"]()

        def load() -> None:
            try:
                with reporting_to(_LoadingReporter(self, self._reporter)):
                    resident.set_result(self._load(self.settings))
            except BaseException as error:  # a library in another language may panic
                resident.set_exception(unexpected(error))

        # The thread is no task of the loop, since loading cannot be interrupted when the server
        # stops.
        threading.Thread(target=load, daemon=True).start()
        loading: asyncio.Future[Any] = asyncio.wrap_future(resident)
        stopping: asyncio.Future[Any] = asyncio.ensure_future(self._is_stopping.wait())
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if loading.done():
            # Files that loading added count as unchanged.
            stamps_after = _file_stamps(self.settings)
            is_unchanged = {*stamps_before} <= {*stamps_after}
            self._file_stamps = stamps_after if is_unchanged else stamps_before
            self._resident = loading.result()
            self.activity.rested_since = time.monotonic()
            for line in (*notes, f"{self.settings.model.model} is ready: {self.place.path}"):
                self._reporter.remark(line)
            note = demonstration_note(self.settings.model.model)
            if note:
                self._reporter.remark(note)
        self.loaded.set()

    async def _until_idle(self) -> None:
        interval_s = _CHECK_INTERVAL_S
        if self.idle_s:
            interval_s = min(interval_s, self.idle_s / 4)
        while not self._is_stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), interval_s)
            resting_s = time.monotonic() - self.activity.rested_since
            if self.idle_s and not self.activity.answering and resting_s > self.idle_s:
                self._is_stopping.set()
            self._stop_if_changed()
            if code_stamp() != self._code_stamp and not self._is_stopping.is_set():
                self._reporter.remark("stopping: ngt was updated")
                self._is_stopping.set()

    def _stop_if_changed(self) -> bool:
        """Stop where files of the model have changed; return whether they have."""
        is_changed = _file_stamps(self.settings) != self._file_stamps
        if is_changed and not self._is_stopping.is_set():
            self._reporter.remark(f"stopping: files of {self.settings.model.model} have changed")
            self._is_stopping.set()
        return is_changed

    def _handle_signal(self, number: int) -> None:
        """Stop gently at the first signal, and at once at the second."""
        if self._is_stopping.is_set():
            self.place.remove()
            os._exit(128 + number)
        self._is_stopping.set()


class _LoadingReporter(Reporter):
    """Reports the progress of loading, and stores it for the clients that wait."""

    def __init__(self, server: Server, reporter: Reporter) -> None:
        self._server = server
        self._reporter = reporter

    def status(self, text: str, /) -> None:
        """As `Reporter.status`."""
        self._server.progress = text
        self._reporter.status(text)

    def warn(self, text: str, /) -> None:
        """As `Reporter.warn`."""
        self._reporter.warn(text)

    def remark(self, text: str, /) -> None:
        """As `Reporter.remark`."""
        self._reporter.remark(text)


class Http(uvicorn.Server):
    """Serves an application on sockets, and reports its errors to the reporter of the caller."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MAX_CONNECTIONS,
            h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
            timeout_graceful_shutdown=FINISH_S,  # type: ignore[arg-type]  # asyncio takes a float
        )
        super().__init__(config)
        logging.getLogger("uvicorn").handlers = [_ErrorLog(reporting.current())]

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing: the server has its own handlers."""
        yield

    async def leave(self, serving: "asyncio.Future[None]", activity: Activity) -> None:
        """Accept no more connections, wait at most FINISH_S for unfinished answers, and end."""
        self.should_exit = True
        while activity.answering and not serving.done():
            await asyncio.sleep(_POLL_S)
        await asyncio.wait({serving}, timeout=_ENDING_S)
        # Streams without an answer would stay open.
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await serving


class _ErrorLog(logging.Handler):
    """Reports each error of uvicorn in one line."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(logging.ERROR)
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        message = f"the web server: {record.getMessage().strip()}"
        if error:
            message += f": {type(error).__name__}: {error}"
        self._reporter.warn(message)


class _Connection(H11Protocol):
    """A connection that is closed where no request comes, since uvicorn would wait for ever.

    A connection of another user to the socket of the server's user is closed at once.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        connected_socket = transport.get_extra_info("socket")
        is_of_user = connected_socket.family == socket.AF_UNIX
        self.app_state = {**self.app_state, **Connection(is_of_user).state()}
        self._close_if_idle(None)
        if is_of_user and peer(connected_socket)[1] != os.geteuid():
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._next_check.cancel()
        super().connection_lost(exc)

    def _close_if_idle(self, last_state: object) -> None:
        """Close the connection if it was idle at the last check, and had no request since then."""
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and last_state == (self.cycle, True):
            self.transport.abort()
        state = (self.cycle, is_idle)
        self._next_check = self.loop.call_later(_IDLE_S, self._close_if_idle, state)


def _file_stamps(settings: Settings) -> list[tuple[str, Stamp]]:
    """Return the files of the models, and the stamp of each."""
    stamps = []
    names = (settings.model.model, settings.model.draft_model, *settings.model.heads)
    for name in filter(None, names):
        path = str(BUILTIN_PATH) if name == BUILTIN else name
        if not os.path.exists(path):
            with suppress(NgtError):  # loading the model reports the error
                path = find(name)
        with suppress(OSError):
            files = [path]
            if os.path.isdir(path):
                files = [os.path.join(path, file_name) for file_name in os.listdir(path)]
            stamps += [(file, stamp_of(file)) for file in sorted(files)]
    return stamps
