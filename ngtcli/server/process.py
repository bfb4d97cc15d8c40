"""The server: it loads a model once, and answers whatever its user's commands ask.

One loop serves its sockets (uvicorn): the process's own, and one of TCP where that is wanted. What
answers, in threads of its own, is a `Resident` or whatever has its methods.
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
from ngtcli.engine.answers import OnEvent, Submitted
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

_LOOK_S = 5.0  # between looks at the clock and at the model's files, at most; guess
_POLL_S = 0.1  # between looks at how much is still answered; guess
_ENDING_S = 1.0  # that what is answered gets to be sent; guess
_MAX_CONNECTIONS = 1024  # at once; guess
_MAX_HEADER_BYTES = 65_536  # of a request; guess
_IDLE_S = 30.0  # after which a connection without a request is closed; guess


Load = Callable[[Settings], "Resident"]  # loads a model


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The application of a server, and where others than its user's commands reach it.

    Attributes:
        app: Answers every request, with its owner in its scope.
        guard: Says whose a request over TCP is; None without HTTP.
        listening: The socket of TCP; None without HTTP.
        url: Where HTTP is asked.
        running: Is open as long as the server runs.
        notes: Lines for the user, when the model is loaded.
    """

    app: ASGIApp
    guard: Guard | None = None
    listening: socket.socket | None = None
    url: str = ""
    running: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    notes: tuple[str, ...] = ()


class Server:
    """Answers on the socket of its settings, until `stop` or until nobody has asked for `idle_s`.

    The reporter of who makes this gets what it does: what fails as warnings, else remarks.

    Attributes:
        stamp: Its `runtime_stamp`, which commands that it answers have as well.
        progress: What is being done while the model is loaded.
        loaded: Is set once the model is loaded, or will not be.
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
        self._ends = asyncio.Event()
        self._load = load
        self._reporter = reporting.current()
        self._began = time.monotonic()
        self._code = code_stamp()
        self._resident: Resident | None = None
        self._files: list[tuple[str, Stamp]] = []
        self._http = ""  # the URL of its HTTP API

    # --- what the application asks of it, in its loop ---

    def stop(self) -> None:
        """Take no more requests, finish what is being answered, and leave."""
        self._ends.set()

    def refuses(self) -> bool:
        """Return whether a request is to be answered elsewhere: the process leaves."""
        return self._resident is None or self._leave_if_changed() or self._ends.is_set()

    def submit(self, request: Request, on_event: OnEvent, *, owner: str = "") -> Submitted:
        """As `Submits.submit`. Raises BusyError."""
        if self._resident is None:
            raise BusyError("no model is loaded", hint="Try again later.")
        return self._resident.submit(request, on_event, owner=owner)

    def described(self) -> Served:
        """Return the description of this server."""
        state = "ready" if self.loaded.is_set() else "loading"
        return Served(
            model=self.settings.model.model,
            state="leaving" if self._ends.is_set() else state,
            process=os.getpid(),
            version=__version__,
            running_s=time.monotonic() - self._began,
            idle_s=self.idle_s,
            answering=self.activity.answering,
            answered=self.activity.answered,
            http=self._http,
            socket=str(self.place.path),
            kept_warm=KEPT_WARM in os.environ,
            stamp=self.stamp,
        )

    # --- its life ---

    def run(self, site: Site) -> None:
        """Answer until the end. Raises ServedAlreadyError, and what loading the model raises."""
        handle = self.place.lock(self.settings.model.model)
        try:
            asyncio.run(self._run(site))
        finally:
            os.close(handle)

    async def _run(self, site: Site) -> None:
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._signalled, number)
        sockets = [self.place.listen()]
        if site.listening is not None:
            sockets.append(site.listening)
            self._http = site.url
        http = Http(Entrance(self, site.app, site.guard))
        serving = asyncio.ensure_future(http.serve(sockets))
        serving.add_done_callback(lambda _: self._ends.set())
        try:
            async with site.running():
                try:
                    await self._until_ready(site.notes)
                    await self._until_idle()
                finally:
                    self._ends.set()
                    self.loaded.set()
                    self.place.remove()
                    await http.leave(serving, self.activity)
        finally:
            if self._resident is not None:
                self._resident.close()

    async def _until_ready(self, notes: Sequence[str]) -> None:
        """Load the model, in a thread, unless the process is to leave before that."""
        before, found = _stamps(self.settings), Future["Resident"]()

        def load() -> None:
            try:
                with reporting_to(_LoadingReporter(self, self._reporter)):
                    found.set_result(self._load(self.settings))
            except BaseException as error:  # a library in another language may panic
                found.set_exception(unexpected(error))

        # No task of the loop, for what is loading cannot be interrupted when the process leaves.
        threading.Thread(target=load, daemon=True).start()
        loading: asyncio.Future[Any] = asyncio.wrap_future(found)
        ends: asyncio.Future[Any] = asyncio.ensure_future(self._ends.wait())
        await asyncio.wait({loading, ends}, return_when=asyncio.FIRST_COMPLETED)
        ends.cancel()
        if loading.done():
            after = _stamps(self.settings)
            self._files = after if {*before} <= {*after} else before  # loading may bring files
            self._resident = loading.result()
            self.activity.rested_since = time.monotonic()
            for line in (*notes, f"{self.settings.model.model} is ready: {self.place.path}"):
                self._reporter.remark(line)
            if note := demonstration_note(self.settings.model.model):
                self._reporter.remark(note)
        self.loaded.set()

    async def _until_idle(self) -> None:
        look_s = min(_LOOK_S, self.idle_s / 4) if self.idle_s else _LOOK_S
        while not self._ends.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ends.wait(), look_s)
            resting_s = time.monotonic() - self.activity.rested_since
            if self.idle_s and not self.activity.answering and resting_s > self.idle_s:
                self._ends.set()
            self._leave_if_changed()
            if code_stamp() != self._code and not self._ends.is_set():
                self._reporter.remark("stopping: ngt was updated")
                self._ends.set()

    def _leave_if_changed(self) -> bool:
        changed = _stamps(self.settings) != self._files
        if changed and not self._ends.is_set():
            self._reporter.remark(f"stopping: files of {self.settings.model.model} have changed")
            self._ends.set()
        return changed

    def _signalled(self, number: int) -> None:
        """The first signal ends the process gently, the second at once."""
        if self._ends.is_set():
            self.place.remove()
            os._exit(128 + number)
        self._ends.set()


class _LoadingReporter(Reporter):
    """Reports what is done while the model is loaded, and has the server say it to clients."""

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
    """Serves an application on sockets; the reporter of who makes this gets what fails in it."""

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
        """The process has handlers of its own."""
        yield

    async def leave(self, serving: "asyncio.Future[None]", activity: Activity) -> None:
        """Accept nothing more, wait FINISH_S at most for what is answered, and end."""
        self.should_exit = True
        while activity.answering and not serving.done():
            await asyncio.sleep(_POLL_S)
        await asyncio.wait({serving}, timeout=_ENDING_S)
        for connection in list(self.server_state.connections):  # streams that wait for nothing
            connection.transport.abort()
        await serving


class _ErrorLog(logging.Handler):
    """Report an error of uvicorn in one line."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(logging.ERROR)
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        why = f": {type(error).__name__}: {error}" if error else ""
        self._reporter.warn(f"the web server: {record.getMessage().strip()}{why}")


class _Connection(H11Protocol):
    """A connection of this user's, closed where no request comes: uvicorn waits for ever."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        own = transport.get_extra_info("socket")
        is_of_user = own.family == socket.AF_UNIX
        self.app_state = {**self.app_state, **Connection(is_of_user).state()}
        self._look(None)
        if is_of_user and peer(own)[1] != os.geteuid():
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._next_look.cancel()
        super().connection_lost(exc)

    def _look(self, last: object) -> None:
        """Close it if it has had no other request since the `last` that was seen."""
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and last == (self.cycle, True):
            self.transport.abort()
        self._next_look = self.loop.call_later(_IDLE_S, self._look, (self.cycle, is_idle))


def _stamps(settings: Settings) -> list[tuple[str, Stamp]]:
    """The files of the models, and the state of each."""
    found = []
    for name in filter(
        None, (settings.model.model, settings.model.draft_model, *settings.model.heads)
    ):
        path = str(BUILTIN_PATH) if name == BUILTIN else name
        if not os.path.exists(path):
            with suppress(NgtError):  # loading it says what is wrong
                path = find(name)
        with suppress(OSError):
            folder = os.path.isdir(path)
            files = [os.path.join(path, file) for file in os.listdir(path)] if folder else [path]
            found += [(file, stamp_of(file)) for file in sorted(files)]
    return found
