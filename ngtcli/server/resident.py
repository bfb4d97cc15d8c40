"""A loaded model that answers the questions of many threads, each as if it were the only one.

One thread has the engine, and does all forward passes; a few others prepare questions. The owner ""
is the user of this process: what earlier answers taught is for this one alone. What others ask is
private: nothing is drafted from other texts, and nothing is learned from theirs.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from queue import SimpleQueue

from ngtcli.config import Settings
from ngtcli.engine.engine import PreparedRequest, Request
from ngtcli.engine.events import USUAL, Ended, Event, Message, Report, Wants, ignore
from ngtcli.engine.local import LocalSession
from ngtcli.engine.local_engine import LocalEngine, private
from ngtcli.engine.question import Question
from ngtcli.engine.requests import RequestEvent, Requests
from ngtcli.errors import NgtError, StoppedError, unexpected
from ngtcli.server.fair_queue import FairQueue
from ngtcli.server.ticket import Ticket
from ngtcli.system.machine import return_memory

_PREPARING = 2  # threads that make prompts; guess
_RETURNED_S = 30.0  # seconds after which freed memory is returned though questions wait; guess


class TicketAnswer:
    """The `Answer` to a question whose events come in other threads."""

    def __init__(self, ticket: Ticket, events: "SimpleQueue[Event | NgtError]") -> None:
        self._ticket = ticket
        self._events = events
        self._is_over = False

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._is_over:
            raise StopIteration
        event = self._events.get()
        self._is_over = isinstance(event, Ended | NgtError)
        if isinstance(event, NgtError):
            raise event
        return event

    def interrupt(self) -> None:
        """As `Answer.interrupt`."""
        self._ticket.cancel()

    def close(self) -> None:
        """As `Answer.close`."""
        self._is_over = True
        self._ticket.cancel()


class Resident:
    """Loads the model of `settings`, and answers until `close`. Raises as LocalSession does.

    `report` is called with the progress of loading, and later with what the user of this process
    should know; every question gets the warnings of loading again. At most `size` questions are
    answered together; 0: as many as memory allows. Without `persist` nothing is stored in files.
    """

    def __init__(
        self,
        settings: Settings,
        report: Report = ignore,
        *,
        size: int = 0,
        persist: bool = True,
    ) -> None:
        self.settings = settings
        self._report = report
        self._size = size
        self._persist = persist
        self._warnings: list[Message] = []  # of loading
        self._queue: FairQueue[Ticket, PreparedRequest] = FairQueue()
        self._tickets: dict[Request, Ticket] = {}  # that the engine answers
        self._is_closing = threading.Event()
        self._returned_at = 0.0  # when memory was returned last, by time.monotonic
        self._is_loaded = threading.Event()
        self._failure: BaseException | None = None  # of loading
        self._threads = [threading.Thread(target=self._run, name="model", daemon=True)]
        self._threads[0].start()
        self._is_loaded.wait()
        if self._failure is not None:
            raise self._failure
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
    ) -> Ticket:
        """Take a question, from any thread. Raises BusyError.

        `on_event` gets its events in threads of this object, the last of them `Ended` or the
        NgtError that it ends with. It must return at once; what it raises cancels the question.
        """
        if owner:
            question = replace(question, settings=private(question.settings))
        ticket = Ticket(
            Request(question, owner, wants),
            on_event,
            on_cancel=self._cancel_waiting,
            is_closing=self._is_closing.is_set,
        )
        self._queue.put(ticket, owner)
        return ticket

    def ask(self, question: Question, *, owner: str = "", wants: Wants = USUAL) -> "TicketAnswer":
        """Take a question, and return its events. Raises BusyError."""
        events: SimpleQueue[Event | NgtError] = SimpleQueue()
        return TicketAnswer(self.submit(question, events.put, owner=owner, wants=wants), events)

    @property
    def waiting(self) -> int:
        """How many questions wait for their turn."""
        return len(self._queue)

    def close(self) -> None:
        """End all that is being answered, and the threads."""
        self._is_closing.set()
        left = self._queue.close()
        for thread in self._threads:
            thread.join()
        for ticket in left + self._queue.close():  # some may have become ready meanwhile
            ticket.send(StoppedError("interrupted"))

    def _cancel_waiting(self, ticket: Ticket) -> None:
        if self._queue.remove(ticket):
            ticket.send(StoppedError("interrupted"))

    # --- the threads that prepare ---

    def _prepare(self) -> None:
        while (ticket := self._queue.to_prepare()) is not None:
            self._queue.prepared(ticket, self._prepared(ticket))

    def _prepared(self, ticket: Ticket) -> PreparedRequest | None:
        """Prepare a question; None where it has ended instead."""
        try:
            for warning in self._warnings:
                ticket.report(warning)
            prepared = self._engine.prepare(ticket.request)
            if not ticket.is_cancelled:
                return prepared
            ticket.send(StoppedError("interrupted"))
        except BaseException as error:  # a library in another language may panic
            ticket.send(unexpected(error))
        return None

    # --- the model's thread ---

    def _run(self) -> None:
        try:
            session = LocalSession(
                self.settings, self._report_of_model, self._persist, stand_ins=self._persist
            )
            session.model.keep_prefixes(memory=True)
            self._engine = LocalEngine(session, size=self._size)
            self._requests = Requests(self._engine)
            self._engine.warm()
        except BaseException as error:
            self._failure = error
            return
        finally:
            self._is_loaded.set()
        while not self._is_closing.is_set():
            try:
                self._step()
            except BaseException as error:
                for ticket in self._tickets.values():
                    ticket.send(unexpected(error))
                self._interrupt()
        self._interrupt()

    def _step(self) -> None:
        """Take the next question if there is one that the engine takes, or else do a step."""
        requests = self._requests
        is_idle = not (requests.busy or self.waiting)
        if is_idle or time.monotonic() - self._returned_at > _RETURNED_S:
            return_memory()
            self._returned_at = time.monotonic()
        for request, ticket in self._tickets.items():
            if ticket.is_cancelled:
                requests.stop(request)
        if taken := self._queue.take(self._takes, wait=not requests.busy):
            ticket, prepared = taken
            if not ticket.is_over:
                self._tickets[ticket.request] = ticket
                requests.add(prepared)
        elif requests.busy:
            self._deliver(requests.step())

    def _takes(self, ticket: Ticket) -> bool:
        """Whether there is room for a question. One for which that fails leaves with its error."""
        try:
            return self._requests.has_room(ticket.request)
        except BaseException as error:
            ticket.send(unexpected(error))
            return True

    def _deliver(self, events: list[RequestEvent]) -> None:
        for request, event in events:
            ticket = self._tickets[request]
            if isinstance(event, Ended | NgtError):
                del self._tickets[request]
            ticket.send(event)

    def _interrupt(self) -> None:
        """End all that is being answered. This thread goes on whatever fails then."""
        try:
            self._deliver(self._requests.interrupt())
        except BaseException as error:
            self._report(Message("warn", str(unexpected(error))))
        self._tickets.clear()

    def _report_of_model(self, event: Event) -> None:
        if isinstance(event, Message):
            if event.kind == "warn" and not self._is_loaded.is_set():
                self._warnings.append(event)
            self._report(event)
