"""Status lines, warnings and remarks while work continues.

Who shows it says so once, for the work that it starts; who works reports, and passes nothing on:

    with reporting_to(notes):
        answer(question)

It is a context variable, as for logging per request: a thread that was not given the context
reports to nobody. What outlives the context that makes it, such as a model or what `auto` learns,
holds the reporter that was `current` then, and so never reports to another request.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


class Reporter:
    """Shows nothing; a subclass shows what it can."""

    def status(self, text: str, /) -> None:
        """Show what is being done right now; the next status takes its place."""

    def warn(self, text: str, /) -> None:
        """Show what the user should know and may change."""

    def remark(self, text: str, /) -> None:
        """Show a sentence for those who want to know more."""

    def reading(self, read: int, total: int, /) -> None:
        """Show how many tokens of a prompt are read, of so many."""

    def part(self, words: str, /) -> None:
        """Show which part of a long text is answered from now on; "" after the last."""


@dataclass(frozen=True, slots=True)
class _Destination:
    reporter: Reporter
    said: set[str] = field(default_factory=set)  # by `status_once` and `warn_once`


class CollectingReporter(Reporter):
    """Collects warnings, and shows nothing."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str, /) -> None:
        """As `Reporter.warn`."""
        self.warnings.append(text)


_SILENT = Reporter()
_destination: ContextVar[_Destination | None] = ContextVar("destination", default=None)


@contextmanager
def reporting_to(reporter: Reporter) -> Iterator[None]:
    """Report to this reporter in here, and in what is called from here."""
    token = _destination.set(_Destination(reporter))
    try:
        yield
    finally:
        _destination.reset(token)


def current() -> Reporter:
    """Return the reporter of this context; one that shows nothing if there is none."""
    destination = _destination.get()
    return _SILENT if destination is None else destination.reporter


def status(text: str) -> None:
    """Report what is being done."""
    current().status(text)


def status_once(text: str) -> None:
    """Report what is being done, unless this was said since `reporting_to`."""
    destination = _destination.get()
    if destination is not None and text not in destination.said:
        destination.said.add(text)
        destination.reporter.status(text)


def warn(text: str) -> None:
    """Report what the user should know."""
    current().warn(text)


def warn_once(text: str) -> None:
    """Report what the user should know, unless this was said since `reporting_to`."""
    destination = _destination.get()
    if destination is not None and text not in destination.said:
        destination.said.add(text)
        destination.reporter.warn(text)
