"""A reporter that keeps what is reported."""

from collections.abc import Callable
from typing import TypeVar

from ngtcli.system.reporting import reporting_to

Result = TypeVar("Result")


class Reported:
    """Keeps the lines that are reported."""

    def __init__(self) -> None:
        self.statuses: list[str] = []
        self.warnings: list[str] = []

    def status(self, text: str) -> None:
        self.statuses.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def of(self, work: Callable[[], Result]) -> Result:
        """Do some work, and keep what it reports."""
        with reporting_to(self):
            return work()


class CallsOf:
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
