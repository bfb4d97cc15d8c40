"""What the tools of the Model Context Protocol give, and how they tell how far they are."""

import time
from dataclasses import dataclass

from anyio import from_thread
from mcp.server.mcpserver import Context

from ngtcli.errors import counted
from ngtcli.serve.public import has_path
from ngtcli.session.events import Ended, Event, Message, Part, Reading, Stepped

_INTERVAL_S = 0.25  # between two progress notifications; guess


@dataclass(frozen=True)  # the SDK would take slots for defaults
class ListedDocument:
    """A document; `pages` is 0 for formats without pages."""

    name: str
    format: str
    pages: int
    characters: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class LeftOut:
    """A file that is not read, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class DocumentList:
    """The documents that the other tools read, and files that could not be."""

    documents: list[ListedDocument]
    left_out: list[LeftOut]


@dataclass(frozen=True)
class Passage:
    """The characters `start` to `end` of a document.

    `page` is 0 and `heading` "" where the document has none.
    """

    document: str
    text: str
    start: int
    end: int
    page: int
    heading: str


@dataclass(frozen=True)
class ShownPassage(Passage):
    """A passage of a document that has so many `characters`."""

    characters: int


@dataclass(frozen=True)
class FoundPassage(Passage):
    """A passage, and how well it fits: a higher score is better."""

    score: float


@dataclass(frozen=True)
class FoundPassages:
    """The passages that fit best, the best first, of so many."""

    passages: list[FoundPassage]
    of_passages: int
    of_documents: int


@dataclass(frozen=True)
class ToldAnswer:
    """The model's answer.

    `verbatim_share` of its characters stand in the documents word for word, in the `sources`.
    `finish_reason` is "stop", or why it is cut off: length, context or repetition. `remarks` say
    what was left out of what the model read.
    """

    text: str
    sources: list[Passage]
    verbatim_share: float
    finish_reason: str
    remarks: list[str]
    prompt_tokens: int
    new_tokens: int
    seconds: float


def told(ended: Ended, remarks: list[str], seconds: float) -> ToldAnswer:
    """An answer, in `seconds`, of which that was remarked."""
    sources = [
        Passage(
            s.name, s.quote, s.span.source_start, s.span.source_end, s.page or 0, s.heading or ""
        )  # fmt: skip
        for s in ended.sources.places()
    ]
    numbers = ended.statistics.prompt_tokens, ended.statistics.new_tokens, round(seconds, 3)
    share = round(ended.sources.verbatim_share, 4)
    return ToldAnswer(ended.text, sources, share, ended.finish_reason, remarks, *numbers)


def owner_of(context: Context) -> str:
    """Who asks: over HTTP as its guard says, on standard streams the user."""
    request = context.request_context.request
    return "" if request is None else str(request.scope["owner"])


class Progress:
    """Tells the client how far a call is, some times a second.

    The numbers only grow, as the protocol wants; they count tokens of prompt and answer.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._told = context, 0.0
        self._at, self._before, self._read, self._written = 0.0, 0, 0, 0
        self._part = ""

    def say(self, words: str) -> None:
        """What is being done, in a thread of the SDK; there a call that is cancelled ends."""
        from_thread.check_cancelled()
        if not (owner_of(self._context) and has_path(words)):
            from_thread.run(self._send, words)

    async def tell(self, event: Event) -> None:
        """What is done."""
        match event:
            case Message(kind="status"):
                await self._send(event.text)
            case Part():
                self._part = f"{event.words}: " if event.words else ""
            case Reading():
                if event.read < self._read or self._written:  # another part's prompt
                    self._before += self._read + self._written
                    self._written = 0
                self._read = event.read
                total = self._before + event.total
                await self._send(f"Reading the prompt: {event.read} of {event.total} tokens", total)
            case Stepped():
                self._written += len(event.step.tokens)
                await self._send(f"Writing: {counted(self._written, 'token')}")

    async def _send(self, words: str, total: float | None = None) -> None:
        if time.monotonic() - self._told < _INTERVAL_S:
            return
        self._told = time.monotonic()
        least = self._at + 0.001  # where nothing was read or written since
        self._at = max(least, float(self._before + self._read + self._written))
        await self._context.report_progress(self._at, total, self._part + words)
