"""A loaded model that answers the requests of many threads, each as if it were the only one.

One thread has the engine, and does all forward passes; a few others prepare requests. The owner ""
is the user of this process; only that owner's requests learn from earlier answers. Requests of
other owners are private: they draft from no other texts, and nothing is learned from them.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from queue import SimpleQueue

from ngtcli.config import Settings
from ngtcli.engine.engine import PreparedRequest, Submission
from ngtcli.engine.events import Ended, Event, Message
from ngtcli.engine.local import LocalSession
from ngtcli.engine.local_engine import LocalEngine, private
from ngtcli.engine.request import Request
from ngtcli.engine.submissions import SubmissionEvent, Submissions
from ngtcli.errors import NgtError, StoppedError, unexpected
from ngtcli.server.fair_queue import FairQueue
from ngtcli.server.ticket import Ticket
from ngtcli.system import reporting
from ngtcli.system.machine import return_memory
from ngtcli.system.reporting import Reporter, reporting_to

_PREPARING = 2  # threads that make prompts (guess)
_RETURN_INTERVAL_S = 30.0  # after which freed memory is returned even if requests wait (guess)


class TicketAnswer:
    """The `Answer` to a request whose events come in other threads."""

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


class _LoadingReporter(Reporter):
    """Passes on reports, and collects the warnings that come until the model is loaded."""

    def __init__(
        self, reporter: Reporter, warnings: list[Message], is_loaded: threading.Event
    ) -> None:
        self._reporter = reporter
        self._warnings = warnings
        self._is_loaded = is_loaded

    def status(self, text: str, /) -> None:
        """As `Reporter.status`."""
        self._reporter.status(text)

    def warn(self, text: str, /) -> None:
        """As `Reporter.warn`."""
        if not self._is_loaded.is_set():
            self._warnings.append(Message("warn", text))
        self._reporter.warn(text)

    def remark(self, text: str, /) -> None:
        """As `Reporter.remark`."""
        self._reporter.remark(text)


class Resident:
    """Loads a model, and answers until `close`. Raises as LocalSession does.

    The reporter of the caller gets the progress of loading, and later reports that concern no
    request. Every request gets the warnings of loading again.

    Args:
        settings: The settings of the model.
        size: At most this many requests are batched; 0 for as many as fit into memory.
        persist: Whether files may be written.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        size: int = 0,
        persist: bool = True,
    ) -> None:
        self.settings = settings
        self._reporter = reporting.current()
        self._size = size
        self._persist = persist
        self._warnings: list[Message] = []  # of loading
        self._queue: FairQueue[Ticket, PreparedRequest] = FairQueue()
        self._tickets: dict[Submission, Ticket] = {}  # of requests in the engine
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
        request: Request,
        on_event: Callable[[Event | NgtError], object],
        *,
        owner: str = "",
    ) -> Ticket:
        """Take a request, from any thread. Raises BusyError.

        `on_event` gets its events in threads of this object, the last of them `Ended` or the
        NgtError that it ends with. It must return at once; what it raises cancels the request.
        """
        if owner:
            request = replace(request, settings=private(request.settings))
        ticket = Ticket(
            Submission(request, owner),
            on_event,
            on_cancel=self._cancel_waiting,
            is_closing=self._is_closing.is_set,
        )
        self._queue.put(ticket, owner)
        return ticket

    def ask(self, request: Request, *, owner: str = "") -> "TicketAnswer":
        """Take a request, and return its events. Raises BusyError."""
        events: SimpleQueue[Event | NgtError] = SimpleQueue()
        return TicketAnswer(self.submit(request, events.put, owner=owner), events)

    @property
    def waiting(self) -> int:
        """The number of requests that wait for their turn."""
        return len(self._queue)

    def close(self) -> None:
        """End all requests, and the threads."""
        self._is_closing.set()
        remaining = self._queue.close()
        for thread in self._threads:
            thread.join()
        remaining += self._queue.close()  # requests that have become ready meanwhile
        for ticket in remaining:
            ticket.send(StoppedError("interrupted"))

    def _cancel_waiting(self, ticket: Ticket) -> None:
        if self._queue.remove(ticket):
            ticket.send(StoppedError("interrupted"))

    # --- the threads that prepare ---

    def _prepare(self) -> None:
        while (ticket := self._queue.to_prepare()) is not None:
            self._queue.prepared(ticket, self._prepare_request(ticket))

    def _prepare_request(self, ticket: Ticket) -> PreparedRequest | None:
        """Prepare a request; return None if it has ended instead."""
        try:
            for warning in self._warnings:
                ticket.report(warning)
            prepared = self._engine.prepare(ticket.submission)
            if not ticket.is_cancelled:
                return prepared
            ticket.send(StoppedError("interrupted"))
        except BaseException as error:  # a library in another language may panic
            ticket.send(unexpected(error))
        return None

    # --- the model's thread ---

    def _run(self) -> None:
        try:
            with reporting_to(_LoadingReporter(self._reporter, self._warnings, self._is_loaded)):
                session = LocalSession(self.settings, self._persist, stand_ins=self._persist)
            session.model.keep_prefixes(memory=True)
            self._engine = LocalEngine(session, size=self._size)
            self._submissions = Submissions(self._engine)
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
        """Take the next request if the engine has room for it, or else do a step."""
        submissions = self._submissions
        is_idle = not (submissions.busy or self.waiting)
        if is_idle or time.monotonic() - self._returned_at > _RETURN_INTERVAL_S:
            return_memory()
            self._returned_at = time.monotonic()
        for submission, ticket in self._tickets.items():
            if ticket.is_cancelled:
                submissions.stop(submission)
        entry = self._queue.take(self._has_room, wait=not submissions.busy)
        if entry is not None:
            ticket, prepared = entry
            if not ticket.is_over:
                self._tickets[ticket.submission] = ticket
                submissions.add(prepared)
        elif submissions.busy:
            self._deliver(submissions.step())

    def _has_room(self, ticket: Ticket) -> bool:
        """Return whether the engine has room for a request.

        If that cannot be determined, the request ends with the error, and True takes it out of the
        queue.
        """
        try:
            return self._submissions.has_room(ticket.submission)
        except BaseException as error:
            ticket.send(unexpected(error))
            return True

    def _deliver(self, events: list[SubmissionEvent]) -> None:
        for submission, event in events:
            ticket = self._tickets[submission]
            if isinstance(event, Ended | NgtError):
                del self._tickets[submission]
            ticket.send(event)

    def _interrupt(self) -> None:
        """End all requests in the engine. An error is reported, and does not end the thread."""
        try:
            self._deliver(self._submissions.interrupt())
        except BaseException as error:
            self._reporter.warn(str(unexpected(error)))
        self._tickets.clear()
