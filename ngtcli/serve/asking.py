"""Questions of other programs: to the resident process, or to a model that is loaded here once."""

import threading
from collections.abc import Generator

from ngtcli.config import Settings, settings_where
from ngtcli.errors import NgtError
from ngtcli.serve.client import NotServedError, served
from ngtcli.session.events import USUAL, Event, Message, Wants
from ngtcli.session.question import Question


class Asking:
    """Has questions answered; from any thread. What it loaded stays loaded until `close`."""

    def __init__(self) -> None:
        self._residents: dict[tuple[object, ...], Resident] = {}  # by the settings of what is loaded
        self._lock = threading.Lock()

    def events(self, question: Question, wants: Wants = USUAL) -> Generator[Event]:
        """The events of an answer; closing them ends it. Raises NgtError."""
        key = _key(question.settings)
        connection = None if key in self._residents else served(question.settings)
        if connection is not None:
            try:
                yield from connection.ask(question, wants)
                return
            except NotServedError:  # it is leaving
                pass
        if key not in self._residents:
            yield Message("status", f"Loading {question.settings.model} …")
        yield from self._resident(key, question.settings).ask(question, wants=wants)
