"""The resident process: it loads a model once, and answers whatever its user's commands ask.

One loop takes connections and sends events; what makes them, in threads of its own, is a `Resident`
or whatever has its methods.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import lru_cache
from typing import Any, Protocol

from ngtcli import __version__
from ngtcli.config import Settings
from ngtcli.errors import NgtError, unexpected
from ngtcli.model_files.checkpoint import BUILTIN, BUILTIN_PATH, find
from ngtcli.serve import wire
from ngtcli.serve.places import Place, absolute, peer
from ngtcli.session.checks import check_session
from ngtcli.session.events import Ended, Event, Message, Wants
from ngtcli.session.question import Question
from ngtcli.system.files import Stamp, stamp_of

FINISH_S = 30.0  # for answers that are being made when the process is to leave; guess
_LOOK_S = 5.0  # between looks at the clock and at the model's files, at most; guess
_TELL_S = 0.1  # between looks at how far loading is; guess


class Ticket(Protocol):
    """An answer that is being made; `cancel` ends it, and then its last event comes."""

    def cancel(self) -> None: ...


class Answerer(Protocol):
    """A loaded model; its methods may be called from any thread.

    `on_event` gets the events of a question, last of them `Ended` or the NgtError that it ends
    with. `submit` raises NgtError where the question is not taken.
    """

    def submit(
        self,
        question: Question,
        on_event: Callable[[Event | NgtError], object],
        *,
        owner: str = "",
        wants: Wants = ...,
    ) -> Ticket: ...
    def close(self) -> None: ...


Load = Callable[[Settings, Callable[[str], None]], Answerer]  # told what is being done
# What answers besides the socket, as HTTP: open while the model is.
Listener = Callable[["Server", Any], AbstractContextManager[object]]


class Server:
    """Answers on the socket of its settings, until `stop` or until nobody has asked for `idle_s`.

    `status` is told what is being done, `say` what the user is to know.
    """

    def __init__(
        self,
        settings: Settings,
        load: Load,
        *,
        idle_s: float = 0.0,
        status: Callable[[str], object] = lambda _: None,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.settings, self.idle_s = absolute(settings), idle_s
        self.place = Place.of(settings)
        self._load, self._status, self._say = load, status, say
        self._told = f"Loading {settings.model} …"
        self._began = self._last = time.monotonic()
        self._lock = threading.Lock()
        self._answering = self._answered = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._answerer: Answerer | None = None

    def run(self, *listeners: Listener) -> None:
        """Answer until the end. Raises ServedAlreadyError, and what loading the model raises."""
        handle = self.place.lock()
        try:
            asyncio.run(self._run(listeners))
        finally:
            os.close(handle)

    def stop(self) -> None:
        """Take no more questions, finish what is being answered, and leave. From any thread."""
        with suppress(RuntimeError):  # it has left
            self._loop.call_soon_threadsafe(self._ends.set)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A block in which a question is answered. From any thread."""
        with self._lock:
            self._answering += 1
        try:
            yield
        finally:
            with self._lock:
                self._answering -= 1
                self._answered += 1
                self._last = time.monotonic()

    async def _run(self, listeners: tuple[Listener, ...]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends, self._loaded = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._signalled, number)
        self._files = _stamps(self.settings)
        server = await asyncio.start_unix_server(self._connected, sock=self.place.listen())
        with ExitStack() as stack:
            stack.callback(self.place.remove)
            answerer = await self._until_loaded()
            if answerer is not None:
                stack.callback(answerer.close)
                for listener in listeners:
                    stack.enter_context(listener(self, answerer))
                self._say(f"{self.settings.model} is ready: {self.place.path}")
                self._last, self._answerer = time.monotonic(), answerer
            self._loaded.set()
            await self._until_idle()
            self.place.remove()
            server.close()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=FINISH_S)
            until = time.monotonic() + FINISH_S
            while self._answering and time.monotonic() < until:  # what listeners answer
                await asyncio.sleep(_TELL_S)

    async def _until_loaded(self) -> Answerer | None:
        """What answers, loaded in a thread; None where the process is to leave before that."""
        loop, found = self._loop, self._loop.create_future()

        def deliver(answerer: Answerer | None, error: BaseException | None) -> None:
            if error is None:
                found.set_result(answerer)
            else:
                found.set_exception(error if isinstance(error, NgtError) else unexpected(error))

        def work() -> None:
            made, failure = None, None
            try:
                made = self._load(self.settings, self._tell)
            except BaseException as error:  # a library in another language may panic
                failure = error
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(deliver, made, failure)

        # No task of the loop, for what is loading cannot be interrupted when the process leaves.
        threading.Thread(target=work, daemon=True).start()
        ends = asyncio.ensure_future(self._ends.wait())
        try:
            await asyncio.wait({found, ends}, return_when=asyncio.FIRST_COMPLETED)
            return found.result() if found.done() else None
        finally:
            ends.cancel()
            if not found.done() or found.exception():
                self._ends.set()
                self._loaded.set()

    def _tell(self, words: str) -> None:
        self._told = words
        self._status(words)

    async def _until_idle(self) -> None:
        look_s = min(_LOOK_S, self.idle_s / 4) if self.idle_s else _LOOK_S
        while not self._ends.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ends.wait(), look_s)
            resting_s = time.monotonic() - self._last
            if self.idle_s and not self._answering and resting_s > self.idle_s:
                self._ends.set()
            self._leave_if_changed()

    def _leave_if_changed(self) -> bool:
        changed = _stamps(self.settings) != self._files
        if changed and not self._ends.is_set():
            self._say(f"leaving: files of {self.settings.model} have changed")
            self._ends.set()
        return changed

    def _signalled(self, number: int) -> None:
        """The first signal ends the process gently, the second at once."""
        if self._ends.is_set():
            self.place.remove()
            os._exit(128 + number)
        self._ends.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, wire.WireError):  # the other end has left, or is no ngt
            while peer(writer.get_extra_info("socket"))[1] == os.geteuid():
                message = await _read(reader)
                if isinstance(message, wire.Ask):
                    with self.counted(), self._finished_before_leaving(), _beating(writer):
                        await self._answer(message, reader, writer)
                    break
                if isinstance(message, wire.Stop):
                    self._ends.set()
                writer.write(wire.pack(self._described()))
        writer.close()

    @contextmanager
    def _finished_before_leaving(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    async def _answer(
        self, asked: wire.Ask, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await self._tell_until_loaded(writer)
        answerer = self._answerer
        if answerer is None or self._leave_if_changed() or self._ends.is_set():
            writer.write(wire.pack(wire.Refused()))
            return
        events: asyncio.Queue[Event | NgtError] = asyncio.Queue()

        def told(event: Event | NgtError) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens
                self._loop.call_soon_threadsafe(events.put_nowait, event)

        try:
            for words in await asyncio.to_thread(_checked, asked.question.settings):
                writer.write(wire.pack(Message("warn", words)))
            ticket = answerer.submit(asked.question, told, wants=asked.wants)
        except NgtError as error:
            writer.write(wire.pack(wire.Failed.of(error)))
            return
        watching = asyncio.ensure_future(_watch(reader, ticket))
        try:
            event: object = None
            while not isinstance(event, Ended | NgtError):
                event = await events.get()
                sent = wire.Failed.of(event) if isinstance(event, NgtError) else event
                if not writer.is_closing():
                    writer.write(wire.pack(sent))
            await writer.drain()
        finally:
            ticket.cancel()
            watching.cancel()

    async def _tell_until_loaded(self, writer: asyncio.StreamWriter) -> None:
        """Wait until the model is loaded, and tell what is being done."""
        told = ""
        while not self._loaded.is_set():
            if told != self._told:
                told = self._told
                writer.write(wire.pack(Message("status", told)))
                await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._loaded.wait(), _TELL_S)

    def _described(self) -> wire.Served:
        state = "ready" if self._loaded.is_set() else "loading"
        return wire.Served(
            model=self.settings.model,
            state="leaving" if self._ends.is_set() else state,
            process=os.getpid(),
            version=__version__,
            running_s=time.monotonic() - self._began,
            idle_s=self.idle_s,
            answering=self._answering,
            answered=self._answered,
        )


async def _read(reader: asyncio.StreamReader) -> Any:
    """The next message. Raises EOFError, WireError and OSError."""
    (size,) = wire.HEAD.unpack(await reader.readexactly(wire.HEAD.size))
    return wire.unpack(await reader.readexactly(wire.checked(size)))


@lru_cache(64)
def _checked(settings: Settings) -> tuple[str, ...]:
    """What is to be said of the settings of a question. Raises UsageError and ModelError."""
    words: list[str] = []
    check_session(settings, words.append)
    return tuple(words)


@contextmanager
def _beating(writer: asyncio.StreamWriter) -> Iterator[None]:
    """A block in which the process says that it is there, or a command gives it up."""

    async def beat() -> None:
        while not writer.is_closing():
            writer.write(wire.pack(wire.Alive()))
            await asyncio.sleep(wire.BEAT_S)

    beating = asyncio.ensure_future(beat())
    try:
        yield
    finally:
        beating.cancel()


async def _watch(reader: asyncio.StreamReader, ticket: Ticket) -> None:
    """End an answer when the other end wants that, or has left."""
    with suppress(EOFError, OSError, wire.WireError):
        while not isinstance(await _read(reader), wire.Cancel):
            pass
    ticket.cancel()


def _stamps(settings: Settings) -> list[tuple[str, Stamp]]:
    """The files of the models, and the state of each."""
    found = []
    for name in filter(None, (settings.model, settings.draft_model, *settings.heads)):
        path = str(BUILTIN_PATH) if name == BUILTIN else name
        if not os.path.exists(path):
            with suppress(NgtError):  # loading it says what is wrong
                path = find(name)
        with suppress(OSError):
            folder = os.path.isdir(path)
            files = [os.path.join(path, file) for file in os.listdir(path)] if folder else [path]
            found += [(file, stamp_of(file)) for file in sorted(files)]
    return found
