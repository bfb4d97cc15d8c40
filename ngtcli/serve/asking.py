"""Questions of other programs: to the resident process, or to a model that is loaded here once."""

import threading
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING

from ngtcli.config import Use, settings_where
from ngtcli.errors import NgtError, StoppedError, unexpected
from ngtcli.serve.client import NotServedError, served
from ngtcli.session.events import USUAL, Ended, Event, Message, Wants
from ngtcli.session.question import Question
from ngtcli.session.runs import log_answer

if TYPE_CHECKING:
    from ngtcli.serve.resident import Resident


class InThread:
    """Events that are made in a thread of their own and told; `cancel` ends that at the next."""

    def __init__(
        self, events: Generator[Event], on_event: Callable[[Event | NgtError], object]
    ) -> None:
        self._events, self._tell, self._cancelled = events, on_event, threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def cancel(self) -> None:
        """End it; from any thread."""
        self._cancelled.set()

    def _run(self) -> None:
        try:
            with closing(self._events) as events:
                for event in events:
                    if self._cancelled.is_set():
                        return
                    self._tell(event)
        except Exception as error:
            self._tell(error if isinstance(error, NgtError) else unexpected(error))


class Asking:
    """Has questions answered, from any thread; a model that it loads stays loaded until `close`."""

    def __init__(self) -> None:
        self._lock, self._is_closed = threading.Lock(), False
        self._loaded: dict[tuple[object, ...], Resident] = {}  # by what is loaded, and how

    def submit(
        self,
        question: Question,
        on_event: Callable[[Event | NgtError], object],
        *,
        owner: str = "",
        wants: Wants = USUAL,
    ) -> InThread:
        """Take a question of the user; `on_event` gets what comes of it."""
        return InThread(self.events(question, wants), on_event)

    def events(self, question: Question, wants: Wants = USUAL) -> Generator[Event]:
        """The events of an answer; closing them ends it. Raises NgtError."""
        settings = question.settings
        key = tuple(getattr(settings, name) for name in settings_where(Use.LOADS))
        if key not in self._loaded:
            try:
                if (connection := served(settings)) is not None:
                    yield from connection.ask(question, wants)
                    return
            except NotServedError:  # it is leaving
                pass
            yield Message("status", f"Loading {settings.model} …")
        with self._lock:
            if self._is_closed:
                raise StoppedError("interrupted")
            if key not in self._loaded:
                from ngtcli.serve.resident import Resident  # here: it loads torch

                self._loaded[key] = Resident(settings)
        yield from self._loaded[key].ask(question, wants=wants)

    def close(self) -> None:
        """End what is being answered here, and leave the models, one that is being loaded, too."""
        with self._lock:
            self._is_closed = True
            while self._loaded:
                self._loaded.popitem()[1].close()


def logged(question: Question, answered: Generator[Event], by: str) -> Generator[Event]:
    """The events of an answer, which is logged as one of `by` when it ends."""
    warnings: list[str] = []
    with closing(answered) as events:
        for event in events:
            if isinstance(event, Ended):
                log_answer(question, event, by, warnings.append)
                yield from (Message("warn", words) for words in warnings)
            yield event
