"""Has questions answered: by the resident process, or else by a model that stays loaded here.

Loads nothing that answers before a question needs it.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from ngtcli.config import Settings, Use, settings_where
from ngtcli.engine.events import USUAL, Event, Message, Report, Wants, ignore
from ngtcli.engine.question import Question
from ngtcli.errors import NgtError, StoppedError, unexpected
from ngtcli.server import client
from ngtcli.server.client import NotServedError, served
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
        self._loaded: dict[tuple[object, ...], Any] = {}  # by what is loaded, and how
        self._checked: Settings | None = None

    def _warn(self, words: str) -> None:
        self._report(Message("warn", words))

    @property
    def loaded(self) -> bool:
        """Whether a model was loaded here."""
        return bool(self._loaded)

    def check(self, settings: Settings) -> None:
        """Raise UsageError and ModelError where nothing can answer by these settings.

        The resident process, where there is one, checks them when it is asked.
        """
        if settings != self._checked and served(settings) is None:
            from ngtcli.engine.checks import check_session  # here: it loads what reads models

            check_session(settings, self._warn)
            self._checked = settings

    def ask(self, question: Question, wants: Wants = USUAL) -> Generator[Event]:
        """Yield the events of a question. Raises NgtError.

        A KeyboardInterrupt, raised here or thrown in, ends the answer: `Ended` says how far it
        came. Closing the events ends it, too.
        """
        with closing(self._events(question, wants)) as events:
            event = next(events, None)
            while event is not None:
                try:
                    yield event
                except KeyboardInterrupt:
                    event = events.throw(KeyboardInterrupt())
                    continue
                event = next(events, None)

    def _events(self, question: Question, wants: Wants) -> Generator[Event]:
        key = tuple(getattr(question.settings, n) for n in settings_where(Use.LOADS))
        if key not in self._loaded and (place := served(question.settings)) is not None:
            if self._stays:
                process.unwind_on_interrupt()
            with suppress(NotServedError):  # it has just left
                yield from client.ask(place, question, wants)
                return
        if key not in self._loaded:
            if self._threads:
                yield Message("status", f"Loading {question.settings.model} …")
            self.check(question.settings)
        made = self._opened(key, question.settings)
        if self._stays:
            process.unwind_on_interrupt()
        if self._threads:
            yield from made.ask(question, wants=wants)
        else:
            from ngtcli.engine.drivers import answer  # here: it loads numpy

            yield from answer(made, question, wants)

    def _opened(self, key: tuple[object, ...], settings: Settings) -> Any:
        """What answers here, loaded once. Raises StoppedError after `close`."""
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
        question: Question,
        on_event: Callable[[Event | NgtError], object],
        *,
        owner: str = "",
        wants: Wants = USUAL,
    ) -> "Ticket":
        """Take a question of the user; `on_event` gets its events, in another thread."""
        from ngtcli.engine.engine import Request  # here: it loads numpy
        from ngtcli.server.ticket import Ticket

        ticket = Ticket(Request(question, owner, wants), on_event)
        events = self._events(question, wants)
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


def deliver(events: Generator[Event], ticket: "Ticket") -> None:
    """Hand events on to who asked, until the question is cancelled."""
    try:
        with closing(events):
            for event in events:
                if ticket.is_cancelled:
                    return
                ticket.send(event)
    except BaseException as error:  # a library in another language may panic
        ticket.send(unexpected(error))
