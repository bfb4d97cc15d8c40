"""The events of a request: plain data, which can be sent to another process.

The events of an answer are, in this order: `Prompted`, `Started`, a `Stepped` for each step, and
`Ended`. `Message`, `Reading` and `Part` may come at any time before the end. A request that fails
ends with an NgtError instead, which the iterator of its events raises.
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
from ngtcli.system.reporting import Reporter


@dataclass(frozen=True, slots=True)
class Message:
    """A sentence that is reported while an answer is being made.

    Attributes:
        kind: "status" for the current work, "warn" for a warning, "remark" for what -v shows.
        text: The sentence.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The progress of the prefill: how many of a prompt's tokens have been read."""

    read: int
    total: int


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a long document that is summarized next; "" after the last part."""

    words: str


@dataclass(frozen=True, slots=True)
class Prompted:
    """The prompt has been made.

    Attributes:
        tokens: Its length.
        selection: The passages that it contains; None: it contains complete documents, or none.
        left_out: How many questions at the beginning of a conversation it leaves out, with their
            answers.
    """

    tokens: int
    selection: Selection | None = None
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """Prefill and decoding begin; `origins` has the names of the origins of drafts."""

    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step, and the number of reasoning tokens so far."""

    step: Step
    thought_tokens: int = 0


NO_SOURCES = Sources(0.0, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The complete answer, or its beginning if `finish_reason` is "interrupted".

    Attributes:
        finish_reason: Why decoding stopped, such as "stop" or "length".
        steps: All steps.
        statistics: Numbers of tokens, steps and seconds.
        exact: Whether the tokens are independent of the drafts in every dtype.
        cuts: The documents that were cut to fit the prompt.
        selection: The passages in the prompt; None if it contains complete documents.
        parts: Reports on the parts whose summaries the answer was made from.
        trie: Where the trie of the documents came from.
        passes: How the forward passes were run.
        policy: The decisions of the drafter; None for methods without a policy.
        drafted_by: The method that drafted.
        sources: The spans that the answer copies from documents.
        coverage: How much of the question the nearest passage covers; None if not computed.
        facts: Short facts for the line below an answer.
        details: Further facts, if the request wants them.
        remarks: Sentences for -v, if the request wants them.
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
        """The text of all steps, without reasoning."""
        return "".join(token.text for token in self.tokens)

    @property
    def thought(self) -> str | None:
        """The text of the reasoning; None if there is none."""
        return "".join(token.thought or "" for token in self.tokens).strip() or None


Event = Message | Reading | Part | Prompted | Started | Stepped | Ended


class Answer(Protocol):
    """An iterator over the events of a request; an NgtError that ends it is raised.

    A KeyboardInterrupt during iteration loses no event: the caller may `interrupt` the answer and
    continue to iterate.
    """

    def __iter__(self) -> Iterator[Event]: ...

    def __next__(self) -> Event: ...

    def interrupt(self) -> None:
        """End the answer; its last event has the answer so far."""

    def close(self) -> None:
        """End the answer without further events."""


Report = Callable[[Event], object]  # is called with each event as soon as it happens


# An item of a batch: the caller's key, and the request, or the error that prevented it.
BatchItem = tuple[Any, Request | NgtError]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one request of a batch.

    Attributes:
        key: The key that the caller gave it.
        request: The request; None if it could not be read.
        prompt: Its prompt; None if none was made, or if the answer was made from parts.
        answer: The answer, or the error.
    """

    key: Any
    request: Request | None
    prompt: Any
    answer: Ended | NgtError


def report_to(reporter: Reporter) -> Report:
    """Return a function that shows messages, prefill progress and parts through a reporter."""

    def report(event: Event) -> None:
        match event:
            case Message(kind="status"):
                reporter.status(event.text)
            case Message(kind="warn"):
                reporter.warn(event.text)
            case Message():
                reporter.remark(event.text)
            case Reading():
                reporter.reading(event.read, event.total)
            case Part():
                reporter.part(event.words)

    return report


def ignore(event: Event) -> None:
    """Report nothing."""
