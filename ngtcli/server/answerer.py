"""Has questions answered: by the server, or else by a model that stays loaded here.

Loads nothing that answers before a question needs it.
"""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ngtcli.config import ModelSettings, Settings
from ngtcli.engine.events import Answer, Event, Message, Report, ignore
from ngtcli.engine.request import Request
from ngtcli.errors import NgtError, StoppedError, unexpected
from ngtcli.server import client
from ngtcli.server.client import NotServedError, served
from ngtcli.server.places import Place
from ngtcli.system import process

if TYPE_CHECKING:
    from ngtcli.server.ticket import Ticket


class Answerer:
    """Asks where a question is answered; `close` it.

    `report` is called at once with what a model that is loaded here reports. `stays`: it answers
    several questions, and a Ctrl-C ends an answer alone. With `threads` it may be asked from any
    thread.
    """

    def __init__(
        self, report: Report = ignore, *, stays: bool = False, threads: bool = False
    ) -> None:
        self._report = report
        self._stays = stays
        self._threads = threads
        self._lock = threading.Lock()
        self._is_closed = False
        self._loaded: dict[ModelSettings, Any] = {}
        self._checked: Settings | None = None

    def _warn(self, words: str) -> None:
        self._report(Message("warn", words))

    @property
    def loaded(self) -> bool:
        """Whether a model was loaded here."""
        return bool(self._loaded)

    def check(self, settings: Settings) -> None:
        """Raise UsageError and ModelError where nothing can answer by these settings.

        The server, where there is one, checks them when it is asked.
        """
        if settings != self._checked and served(settings) is None:
            from ngtcli.engine.checks import check_session  # here: it loads what reads models

            check_session(settings, self._warn)
            self._checked = settings

    def ask(self, request: Request) -> "Asking":
        """Return the events of a question, which is asked with the first of them."""
        return Asking(self, request)

    def place_of(self, settings: Settings) -> Place | None:
        """Return where the server is that answers by these settings; None for a model here."""
        return None if settings.model in self._loaded else served(settings)

    def answer_remotely(self, place: Place, request: Request) -> Answer:
        """Have a question answered by the server of a place."""
        if self._stays:
            process.unwind_on_interrupt()
        return client.RemoteAnswer(place, request)

    def must_report_loading(self, settings: Settings) -> bool:
        """Whether a client waits for a model to be loaded, and is to be told so."""
        return self._threads and settings.model not in self._loaded

    def answer_here(self, request: Request) -> Answer:
        """Have a question answered by a model that is loaded here, now if need be."""
        if request.settings.model not in self._loaded:
            self.check(request.settings)
        loaded = self._opened(request.settings)
        if self._stays:
            process.unwind_on_interrupt()
        if self._threads:
            answer: Answer = loaded.ask(request)
            return answer
        from ngtcli.engine.drivers import Answering  # here: it loads numpy

        return Answering(loaded, request)

    def _opened(self, settings: Settings) -> Any:
        """Return what answers here, loaded once. Raises StoppedError after `close`."""
        key = settings.model
        with self._lock:
            if self._is_closed:
                raise StoppedError("interrupted")
            if key not in self._loaded and self._threads:
                from ngtcli.server.resident import Resident  # here: it loads torch

                self._loaded[key] = Resident(settings, self._report)
            elif key not in self._loaded:
                from ngtcli.engine.opening import open_engine  # here: it loads numpy

                self._loaded[key] = open_engine(settings, self._report, stays=self._stays)
            return self._loaded[key]

    def submit(
        self,
        request: Request,
        on_event: Callable[[Event | NgtError], object],
        *,
        owner: str = "",
    ) -> "Ticket":
        """Take a question of the user; `on_event` gets its events, in another thread."""
        from ngtcli.engine.engine import Submission  # here: it loads numpy
        from ngtcli.server.ticket import Ticket

        ticket = Ticket(Submission(request, owner), on_event)
        events = self.ask(request)
        threading.Thread(target=deliver, args=(events, ticket), daemon=True).start()
        return ticket

    def close(self) -> None:
        """End what is being answered here, and leave the models, one that is being loaded, too."""
        with self._lock:
            self._is_closed = True
            while self._loaded:
                made = self._loaded.popitem()[1]
                if self._threads:
                    made.close()


class Asking:
    """The `Answer` to a question of an Answerer: a server's, or else that of a model here."""

    def __init__(self, answerer: Answerer, request: Request) -> None:
        self._answerer = answerer
        self._request = request
        self._answer: Answer | None = None
        self._is_here = False  # whether no server answers it
        self._is_reported = False  # that a model is loaded for it
        self._is_stopped = False  # before it was asked

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._is_stopped:
            raise StoppedError("interrupted")
        if self._answer is None and not self._is_here:
            place = self._answerer.place_of(self._request.settings)
            if place is None:
                self._is_here = True
            else:
                self._answer = self._answerer.answer_remotely(place, self._request)
        if self._answer is None:
            settings = self._request.settings
            if self._answerer.must_report_loading(settings) and not self._is_reported:
                self._is_reported = True
                return Message("status", f"Loading {settings.model.model} …")
            self._answer = self._answerer.answer_here(self._request)
        try:
            return next(self._answer)
        except NotServedError:  # the server has just left
            self._answer = None
            self._is_here = True
            return next(self)

    def interrupt(self) -> None:
        """As `Answer.interrupt`."""
        if self._answer is None:
            self._is_stopped = True
        else:
            self._answer.interrupt()

    def close(self) -> None:
        """As `Answer.close`."""
        if self._answer is not None:
            self._answer.close()


def deliver(events: "Answer | Generator[Event]", ticket: "Ticket") -> None:
    """Hand events on to who asked, until the question is cancelled."""
    try:
        with closing(events):
            for event in events:
                if ticket.is_cancelled:
                    return
                ticket.send(event)
    except BaseException as error:  # a library in another language may panic
        ticket.send(unexpected(error))
