"""A reporter that keeps what is reported."""

from collections.abc import Callable
from typing import TypeVar

from ngtcli.engine.events import Event, Message, Part, Reading
from ngtcli.system.reporting import Reporter, reporting_to

Notify = Callable[[str], object]
Result = TypeVar("Result")


class RecordingReporter(Reporter):
    """Keeps the lines that are reported."""

    def __init__(self) -> None:
        self.statuses: list[str] = []
        self.warnings: list[str] = []
        self.remarks: list[str] = []

    def status(self, text: str) -> None:
        self.statuses.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def remark(self, text: str) -> None:
        self.remarks.append(text)

    def of(self, work: Callable[[], Result]) -> Result:
        """Do some work, and keep what it reports."""
        with reporting_to(self):
            return work()


class CallsOf(Reporter):
    """A reporter that calls functions."""

    def __init__(
        self, *, warn: Callable[[str], object], status: Callable[[str], object] = lambda _: None
    ) -> None:
        self._warn = warn
        self._status = status

    def status(self, text: str) -> None:
        self._status(text)

    def warn(self, text: str) -> None:
        self._warn(text)


class EventsOf(Reporter):
    """A reporter that adds the events of what is reported to a list."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def status(self, text: str) -> None:
        self._events.append(Message("status", text))

    def warn(self, text: str) -> None:
        self._events.append(Message("warn", text))

    def remark(self, text: str) -> None:
        self._events.append(Message("remark", text))

    def reading(self, read: int, total: int) -> None:
        self._events.append(Reading(read, total))

    def part(self, words: str) -> None:
        self._events.append(Part(words))
