"""A loaded model that answers the questions of many threads, each as it would be answered alone.

One thread has the engine, which does all that uses the model; a few others prepare questions. The
owner "" is the user of this process: what earlier answers taught is for this one alone. What others
ask is private: nothing is drafted from other texts, and nothing is learned from theirs.
"""

import threading
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from queue import SimpleQueue

from ngtcli.config import Settings
from ngtcli.engine.engine import Asked
from ngtcli.engine.events import USUAL, Ended, Event, Message, Tell, Wants, nobody
from ngtcli.engine.local import LocalSession
from ngtcli.engine.local_engine import LocalEngine, private
from ngtcli.engine.question import Question
from ngtcli.errors import NgtError, unexpected
from ngtcli.server.fair_queue import FairQueue
from ngtcli.system.machine import return_memory

_PREPARING = 2  # threads that make prompts; guess
_RETURNED_S = 30.0  # seconds after which freed memory is returned though questions wait; guess


class Resident:
    """Loads the model of `settings`, and answers until `close`. Raises as LocalSession does.

    `tell` is told of loading, and later what the user of this process should know; each question is
    told again what loading warned of. `size` are answered together at most; 0: as many as memory
    allows. Without `persist` nothing is kept in files.
    """

    def __init__(
        self, settings: Settings, tell: Tell = nobody, *, size: int = 0, persist: bool = True
    ) -> None:
        self.settings, self._told, self._size, self._persist = settings, tell, size, persist
        self._warned: list[Message] = []  # while loading
        self._queue = FairQueue()
        self._is_closing, self._returned = False, 0.0  # when memory was, by time.monotonic
        self._is_loaded, self._failure = threading.Event(), list[BaseException]()
        self._threads = [threading.Thread(target=self._run, name="model", daemon=True)]
        self._threads[0].start()
        self._is_loaded.wait()
        if self._failure:
            raise self._failure[0]
        for _ in range(_PREPARING):
            self._threads.append(threading.Thread(target=self._prepare, daemon=True))
            self._threads[-1].start()

    def submit(
        self,
        question: Question,
        on_event: Callable[[Event | NgtError], object],
        *,
        owner: str = "",
        wants: Wants = USUAL,
    ) -> Asked:
        """Take a question, from any thread; `cancel` it there. Raises BusyError.

        `on_event` gets its events in threads of this object, the last of them `Ended` or the
        NgtError that it ends with. It must return at once; what it raises cancels the question.
        """

        def tell(event: Event | NgtError) -> None:
            asked.cancelled |= self._is_closing
            try:
                on_event(event)
            except Exception:  # nobody is there any more
                asked.cancelled = True

        if owner:
            question = replace(question, settings=private(question.settings))
        asked = Asked(question, tell, owner, wants, self._cancelled)
        self._queue.put(asked)
        return asked

    def ask(self, question: Question, *, owner: str = "", wants: Wants = USUAL) -> Generator[Event]:
        """The events of a question. Raises NgtError.

        Closing it, or a KeyboardInterrupt raised in it, cancels the question.
        """
        events: SimpleQueue[Event | NgtError] = SimpleQueue()
        asked = self.submit(question, events.put, owner=owner, wants=wants)
        event: Event | NgtError | None = None
        try:
            while not isinstance(event, Ended):
                try:
                    event = events.get()
                    if isinstance(event, NgtError):
                        raise event
                    yield event
                except KeyboardInterrupt:
                    asked.cancel()
        finally:
            asked.cancel()

    @property
    def waiting(self) -> int:
        """How many questions wait for their turn."""
        return len(self._queue)

    def close(self) -> None:
        """End all that is being answered, and the threads."""
        self._is_closing = True
        left = self._queue.close()
        for thread in self._threads:
            thread.join()
        for asked in left + self._queue.close():  # some may have become ready meanwhile
            asked.say(asked.stopped)

    def _cancelled(self, asked: Asked) -> None:
        if self._queue.remove(asked):
            asked.say(asked.stopped)

    def _prepare(self) -> None:
        while (asked := self._queue.to_prepare()) is not None:
            try:
                for warning in self._warned:
                    asked.say(warning)
                self._engine.prepare(asked)
                if asked.cancelled or self._is_closing:
                    asked.say(asked.stopped)
            except BaseException as error:  # a library in another language may panic
                asked.say(unexpected(error))
            self._queue.prepared(asked, not asked.is_over)

    # --- the model's thread ---

    def _run(self) -> None:
        try:
            own = self.settings, self._tell_of_loading, self._persist
            session = LocalSession(*own, stand_ins=self._persist)
            session.model.keep_prefixes(memory=True)
            self._engine = LocalEngine(session, size=self._size)
            self._engine.warm()
        except BaseException as error:
            self._failure.append(error)
            return
        finally:
            self._is_loaded.set()
        while not self._is_closing:
            try:
                self._step()
            except BaseException as error:
                for asked in self._engine.asked:
                    asked.say(unexpected(error))
                self._interrupt()
        self._interrupt()

    def _interrupt(self) -> None:
        """End all that is being answered. This thread goes on whatever fails then."""
        try:
            self._engine.interrupt()
        except BaseException as error:
            self._told(Message("warn", str(unexpected(error))))

    def _step(self) -> None:
        """Take the next question if there is one that the engine takes, or else have it go on."""
        engine = self._engine
        is_idle = not (engine.busy or self.waiting)
        if is_idle or time.monotonic() - self._returned > _RETURNED_S:
            return_memory()
            self._returned = time.monotonic()
        if asked := self._queue.take(self._takes, wait=not engine.busy):
            if not asked.is_over:
                engine.add(asked)
        elif engine.busy:
            engine.step()

    def _takes(self, asked: Asked) -> bool:
        """Whether the engine takes a question now. One that it fails at leaves with its error."""
        try:
            return self._engine.takes(asked)
        except BaseException as error:
            asked.say(unexpected(error))
            return True

    def _tell_of_loading(self, event: Event) -> None:
        if isinstance(event, Message):
            if event.kind == "warn" and not self._is_loaded.is_set():
                self._warned.append(event)
            self._told(event)
