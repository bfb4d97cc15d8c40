"""The events of a request, in order: plain data, which may be sent to another process.

`Prompted`, `Started`, a `Stepped` for each step and `Ended` are the events of an answer. `Message`,
`Reading` and `Part` are reported while work goes on, at any time before the end. A request that
has no answer ends with an NgtError instead, which is raised where the events are iterated.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ngtcli.documents.quotes.sources import Sources
from ngtcli.documents.selection import Coverage
from ngtcli.drafting.origins import PolicyReport
from ngtcli.drafting.steps import PassesReport, Statistics, Step, Token
from ngtcli.drafting.tries.files import TrieReport
from ngtcli.engine.request import Request
from ngtcli.errors import NgtError
from ngtcli.prompts.reports import Cut, PartReport, Selection


@dataclass(frozen=True, slots=True)
class Message:
    """A sentence that is reported while an answer is made.

    `kind` is "status", what is being done right now; "warn", what the user should know and may
    change; or "remark", what -v adds.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The progress of prefill: tokens of a prompt that are read, of `total`."""

    read: int
    total: int


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a long text that is being answered from now on; "" after the last."""

    words: str


@dataclass(frozen=True, slots=True)
class Prompted:
    """The prompt is made, of so many tokens; with a `selection` it has passages of documents.

    The first `left_out` questions of a conversation, and what was answered, are not in it.
    """

    tokens: int
    selection: Selection | None = None
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """Reading and decoding begin; `origins` names what drafts may come from."""

    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step, and how many tokens of reasoning there are so far."""

    step: Step
    thought_tokens: int = 0


NO_SOURCES = Sources(0.0, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An answer that is complete, or as far as it came where `finish_reason` is "interrupted".

    Attributes:
        exact: Whether in any dtype no token depends on drafts.
        cuts: The documents that were cut to fit the prompt.
        selection: The passages that the prompt has, where it has passages.
        parts: The summaries of parts that the answer was made of.
        passes: How the forward passes were run.
        policy: What the drafter decided.
        drafted_by: The method that drafted.
        coverage: How much of a question its documents have; None where words cannot tell.
        facts: Short facts for the line below an answer.
        details: More of them, where they are wanted.
        remarks: Sentences for -v, where they are wanted.
    """

    finish_reason: str = ""
    steps: tuple[Step, ...] = ()
    statistics: Statistics = field(default_factory=Statistics)
    exact: bool = False
    cuts: tuple[Cut, ...] = ()
    selection: Selection | None = None
    parts: tuple[PartReport, ...] = ()
    trie: TrieReport = TrieReport("none")
    passes: PassesReport = PassesReport(0, 0.0, "")
    policy: PolicyReport | None = None
    drafted_by: str = ""
    sources: Sources = NO_SOURCES
    coverage: Coverage | None = None
    facts: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def tokens(self) -> list[Token]:
        """The tokens of all steps."""
        return [token for step in self.steps for token in step.tokens]

    @property
    def text(self) -> str:
        """The text of all steps, without thoughts."""
        return "".join(token.text for token in self.tokens)

    @property
    def thought(self) -> str | None:
        """The text of all thoughts; None where there is none."""
        return "".join(token.thought or "" for token in self.tokens).strip() or None


Event = Message | Reading | Part | Prompted | Started | Stepped | Ended


class Answer(Protocol):
    """The events of a request as they come; the NgtError that it ends with is raised.

    A KeyboardInterrupt that is raised meanwhile loses no event: the caller may `interrupt` the
    answer and go on.
    """

    def __iter__(self) -> Iterator[Event]: ...

    def __next__(self) -> Event: ...

    def interrupt(self) -> None:
        """End the answer: its last event says how far it came."""

    def close(self) -> None:
        """End the answer; nobody wants its events any more."""


Report = Callable[[Event], object]  # is called with what is worth showing at once


# One of many requests, drawn by a run: the caller's key, and the request or why there is none.
Drawn = tuple[Any, Request | NgtError]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one of many requests, an answer or an error; `key` is the caller's.

    Without a request it could not be read; `prompt` is None where it could not be made, or where
    the answer is made of those to parts.
    """

    key: Any
    request: Request | None
    prompt: Any
    answer: Ended | NgtError


@dataclass(frozen=True, slots=True)
class EventReporter:
    """A reporter whose lines are events."""

    report: Report

    def status(self, text: str) -> None:
        """Report what is being done."""
        self.report(Message("status", text))

    def warn(self, text: str) -> None:
        """Report what the user should know."""
        self.report(Message("warn", text))


def reporter(
    status: Callable[[str], object] = lambda _: None, warn: Callable[[str], object] = lambda _: None
) -> Report:
    """Return what reports status lines to `status` and warnings to `warn`, and nothing else."""

    def report(event: Event) -> None:
        if isinstance(event, Message) and event.kind != "remark":
            (warn if event.kind == "warn" else status)(event.text)

    return report


def ignore(event: Event) -> None:
    """Report nothing."""
