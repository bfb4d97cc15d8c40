"""Questions of other programs: to the resident process, or to a model that is loaded here once."""

import threading
from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING

from ngtcli.config import settings_where
from ngtcli.serve.client import NotServedError, served
from ngtcli.session.events import USUAL, Ended, Event, Message
from ngtcli.session.question import Question
from ngtcli.session.runs import log_answer

if TYPE_CHECKING:
    from ngtcli.serve.resident import Resident


class Asking:
    """Has questions answered, from any thread, and logs the answers as those of `by`.

    A model that it loads stays loaded until `close`.
    """

    def __init__(self, by: str) -> None:
        self._by, self._lock = by, threading.Lock()
        self._loaded: dict[tuple[object, ...], Resident] = {}  # by what is loaded, and how

    def events(self, question: Question, owner: str = "") -> Generator[Event]:
        """The events of an answer; closing them ends it. Raises NgtError."""
        return logged(question, self._answered(question), self._by)

    def _answered(self, question: Question) -> Generator[Event]:
        settings = question.settings
        key = tuple(getattr(settings, name) for name in settings_where(loaded=True))
        if key not in self._loaded:
            try:
                if (connection := served(settings)) is not None:
                    yield from connection.ask(question, USUAL)
                    return
            except NotServedError:  # it is leaving
                pass
            yield Message("status", f"Loading {settings.model} …")
        with self._lock:
            if key not in self._loaded:
                from ngtcli.serve.resident import Resident  # here: it loads torch

                self._loaded[key] = Resident(settings)
        yield from self._loaded[key].ask(question)

    def close(self) -> None:
        """End what is being answered here, and leave the models."""
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
