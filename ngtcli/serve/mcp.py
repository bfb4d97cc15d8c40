"""The tools of the Model Context Protocol over the documents of given folders, by the official SDK.

They read nothing but the documents that they list. What lists, shows and searches loads no torch;
a model is loaded by the first question that needs one. Tools run in threads of the SDK, so that it
goes on listening: a call that the client cancels ends at the answer's next step.
"""

import inspect
import logging
import os
import sys
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Annotated

from anyio import from_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import ToolAnnotations
from pydantic import Field
from starlette.routing import BaseRoute

from ngtcli import __version__
from ngtcli.config import Settings
from ngtcli.documents.load import Document, Loaded
from ngtcli.documents.passages import place
from ngtcli.documents.text import utf8
from ngtcli.errors import InputError, NgtError, counted, nearest
from ngtcli.prompt.preset import Preset, for_task
from ngtcli.retrieve.ranking import rank
from ngtcli.serve.folder import ServedFolder
from ngtcli.session.events import Ended, Event, Message, Part, Reading, Stepped
from ngtcli.session.question import Question

# The events of an answer to a question of an owner, as in `Resident`; closing them ends it.
Events = Callable[[Question, str], Generator[Event]]
Running = AbstractAsyncContextManager[None]
Tasks = Mapping[str, tuple[Settings, Preset]]

_MOST = 20_000  # characters that `show_passage` gives at once; guess
_LEFT_OUT = 100  # files left out that are named; guess
_INTERVAL_S = 0.25  # between two progress notifications; guess
_INSTRUCTIONS = (
    "Documents on the user's machine. search_passages finds what they say, word for word and at"
    " once; show_passage reads on from there; ask and summarize have a local model answer, which"
    " takes seconds to minutes. Name a document as list_documents does."
)


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
class ShownPassage:
    """The characters `start` to `end` of a document, of `characters` in all.

    `page` is 0 and `heading` "" where the document has none.
    """

    document: str
    text: str
    start: int
    end: int
    characters: int
    page: int
    heading: str


@dataclass(frozen=True)
class FoundPassage:
    """A passage as in `show_passage`, and how well it fits: a higher score is better."""

    document: str
    text: str
    start: int
    end: int
    page: int
    heading: str
    score: float


@dataclass(frozen=True)
class FoundPassages:
    """The passages that fit best, the best first, of so many."""

    passages: list[FoundPassage]
    of_passages: int
    of_documents: int


@dataclass(frozen=True)
class Quoted:
    """A stretch of the answer that stands in a document word for word, and where."""

    document: str
    page: int
    heading: str
    start: int
    end: int
    quote: str


@dataclass(frozen=True)
class ToldAnswer:
    """The model's answer.

    `verbatim_share` of its characters stand in the documents word for word, in the `sources`.
    `finish_reason` is "stop", or why it is cut off: length, context or repetition. `remarks` say
    what was left out of what the model read.
    """

    text: str
    sources: list[Quoted]
    verbatim_share: float
    finish_reason: str
    remarks: list[str]
    prompt_tokens: int
    new_tokens: int
    seconds: float


_NAMES = Annotated[
    list[str] | None,
    Field(description="Only these documents, named as list_documents does; without it all."),
]
_TOKENS = Annotated[
    int | None, Field(ge=1, le=10**6, description="At most this many tokens in the answer.")
]


class Tools:
    """The tools over the documents of `folder`; `tasks` say how `ask` and `summarize` answer.

    `events` has a question answered; it may be called from any thread.
    """

    def __init__(self, folder: ServedFolder, tasks: Tasks, events: Events) -> None:
        self._folder, self._tasks, self._events = folder, tasks, events

    def list_documents(self, context: Context) -> DocumentList:
        """List the documents that can be read here, with their sizes, and files left out."""
        with _told_to_client():
            loaded = self._folder.documents(_Progress(context).say)
            documents = [
                ListedDocument(d.name, a.format, a.pages, len(d.text), a.warnings)
                for d in loaded.documents
                for a in [d.about]
            ]
            skipped = [one for one in loaded.skipped if not one.kind][:_LEFT_OUT]
            names = [self._folder.name_of(s.name) or os.path.basename(s.name) for s in skipped]
            left_out = [LeftOut(n, s.reason) for n, s in zip(names, skipped, strict=True)]
            return DocumentList(documents, left_out)

    def show_passage(
        self,
        context: Context,
        document: Annotated[str, Field(description="A name that list_documents gives.")],
        start: Annotated[int, Field(ge=0, description="From this character on.")] = 0,
        end: Annotated[int | None, Field(ge=0, description="Up to this one.")] = None,
        page: Annotated[int | None, Field(ge=1, description="Or this whole page.")] = None,
    ) -> ShownPassage:
        """Show the text of a document as it was read: from one character to another, or a page.

        At most 20,000 characters come at once; give the end of one call as the next one's start.
        """
        with _told_to_client():
            one = self._chosen([document], _Progress(context).say).documents[0]
            last = len(one.text) if end is None else min(end, len(one.text))
            if page is not None:
                first, last = _page(one, page)
                start = first + start
            last = max(start, min(last, start + _MOST))
            section = place(one, start)
            shown = one.text[start:last], start, min(last, len(one.text)), len(one.text)
            return ShownPassage(one.name, *shown, section.page, section.heading)

    def search_passages(
        self,
        context: Context,
        query: Annotated[str, Field(description="A question, or words that the text has.")],
        limit: Annotated[int, Field(ge=1, le=100, description="At most this many.")] = 5,
        documents: _NAMES = None,
    ) -> FoundPassages:
        """Find the passages of the documents that fit a question best, by their words.

        It takes no language model and answers at once.
        """
        with _told_to_client():
            say, settings = _Progress(context).say, self._tasks["ask"][0]
            texts = self._chosen(documents, say).documents
            ranking = rank(texts, settings, utf8(query), limit, say)
            found = []
            for one in ranking.found[:limit]:
                at = ranking.index.place(one.passage)
                document, section = texts[at.document], place(texts[at.document], at.start)
                where = document.text[at.start : at.end], at.start, at.end
                about = section.page, section.heading, round(one.scores.score, 6)
                found.append(FoundPassage(document.name, *where, *about))
            return FoundPassages(found, len(ranking.index), len(texts))

    def ask(
        self,
        context: Context,
        question: Annotated[str, Field(min_length=1, description="What is asked.")],
        documents: _NAMES = None,
        max_tokens: _TOKENS = None,
    ) -> ToldAnswer:
        """Have a local model answer a question from the documents, with the places it quotes.

        The first call loads the model.
        """
        return self._answer("ask", question, documents, max_tokens, context)

    def summarize(
        self, context: Context, documents: _NAMES = None, max_tokens: _TOKENS = None
    ) -> ToldAnswer:
        """Have a local model summarize the documents, part by part where they are long.

        The first call loads the model.
        """
        return self._answer("summarize", "", documents, max_tokens, context)

    def _answer(
        self,
        task: str,
        question: str,
        documents: Sequence[str] | None,
        max_tokens: int | None,
        context: Context,
    ) -> ToldAnswer:
        with _told_to_client():
            progress, (settings, preset) = _Progress(context), self._tasks[task]
            if max_tokens is not None:
                settings = replace(settings, max_tokens=max_tokens)
            asked = Question(
                task=task,
                settings=for_task(task, settings, preset),
                preset=preset,
                loaded=self._chosen(documents, progress.say),
                question=utf8(question.strip()),
            )
            began, remarks, answer = time.perf_counter(), list[str](), None
            with closing(self._events(asked, _owner(context))) as events:
                for event in events:  # to the end: what was kept on the way is removed there
                    from_thread.check_cancelled()
                    if isinstance(event, Message) and event.kind == "warn":
                        remarks.append(event.text)
                    elif isinstance(event, Ended):
                        answer = event
                    progress.tell(event)
            assert answer is not None
            return _answer_of(answer, remarks, time.perf_counter() - began)

    def _chosen(self, names: Sequence[str] | None, status: Callable[[str], None]) -> Loaded:
        """The documents of these names, in the order of the list. Raises InputError."""
        loaded = self._folder.documents(status)
        if names is None:
            return loaded
        known = {document.name for document in loaded.documents}
        for name in names:
            if name not in known:
                hint = nearest(name, known, "list_documents has the names.")
                raise InputError(f"{name!r} is not one of the documents", hint)
        chosen = tuple(d for d in loaded.documents if d.name in names)
        if not chosen:
            raise InputError("no document is named", "Name one, or leave the list out.")
        return replace(loaded, documents=chosen)


def _page(document: Document, page: int) -> tuple[int, int]:
    """Where that page begins and ends. Raises InputError."""
    sections = document.about.sections
    of_page = [at for at, section in enumerate(sections) if section.page == page]
    if not of_page:
        pages = counted(document.about.pages, "page") if document.about.pages else "no pages"
        raise InputError(f"{document.name} has no page {page}", f"It has {pages}.")
    after = of_page[-1] + 1
    end = sections[after].start if after < len(sections) else len(document.text)
    return sections[of_page[0]].start, end


def _answer_of(ended: Ended, remarks: list[str], seconds: float) -> ToldAnswer:
    sources = [
        Quoted(s.name, s.page, s.heading, s.span.source_start, s.span.source_end, s.quote)
        for s in ended.sources.places()
    ]
    numbers = ended.statistics.prompt_tokens, ended.statistics.new_tokens, round(seconds, 3)
    share = round(ended.sources.verbatim, 4)
    return ToldAnswer(ended.text, sources, share, ended.finish_reason, remarks, *numbers)


class _Progress:
    """Tells the client from a tool's thread how far a call is, some times a second.

    The numbers only grow, as the protocol wants; they count tokens of prompt and answer.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._told = context, 0.0
        self._at, self._before, self._read, self._written = 0.0, 0, 0, 0
        self._part = ""

    def say(self, words: str) -> None:
        """What is being done."""
        self._send(words)

    def tell(self, event: Event) -> None:
        """What is done."""
        match event:
            case Message(kind="status"):
                self._send(event.text)
            case Part():
                self._part = f"{event.words}: " if event.words else ""
            case Reading():
                if event.read < self._read or self._written:  # another part's prompt
                    self._before += self._read + self._written
                    self._written = 0
                self._read = event.read
                total = self._before + event.total
                self._send(f"Reading the prompt: {event.read} of {event.total} tokens", total)
            case Stepped():
                self._written += len(event.step.tokens)
                self._send(f"Writing: {counted(self._written, 'token')}")

    def _send(self, words: str, total: float | None = None) -> None:
        from_thread.check_cancelled()
        if time.monotonic() - self._told < _INTERVAL_S:
            return
        self._told = time.monotonic()
        least = self._at + 0.001  # where nothing was read or written since
        self._at = max(least, float(self._before + self._read + self._written))
        from_thread.run(self._context.report_progress, self._at, total, self._part + words)


def _owner(context: Context) -> str:
    """Who asks: over HTTP as its guard says, on standard streams the user."""
    request = context.request_context.request
    return "" if request is None else str(request.scope["owner"])


@contextmanager
def _told_to_client() -> Iterator[None]:
    """Make of our errors those whose text the client gets."""
    try:
        yield
    except NgtError as error:
        raise ToolError(f"{error}. {error.hint}".strip()) from error


def mcp_server(tools: Tools, on_streams: bool = False) -> MCPServer[None]:
    """A server of these tools; on standard streams what anything prints goes to standard error."""
    lifespan = _stdout_is_stderr if on_streams else None
    root = logging.getLogger()
    before = root.handlers[:]
    server: MCPServer[None] = MCPServer(
        "ngt",
        version=__version__,
        instructions=_INSTRUCTIONS,
        lifespan=lifespan,
        log_level="WARNING",
        subscriptions=False,
    )
    root.handlers[:] = before  # it gives the process one; without, warnings go to stderr
    reads = ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    every: Iterable[Callable[..., object]] = (
        tools.search_passages, tools.ask, tools.summarize, tools.list_documents, tools.show_passage,
    )  # fmt: skip
    for tool in every:
        server.add_tool(tool, description=inspect.getdoc(tool), annotations=reads)
    return server


@asynccontextmanager
async def _stdout_is_stderr(_: MCPServer[None]) -> AsyncIterator[None]:
    """The SDK has the descriptor lead to standard error; so must Python's stream, to the end.

    What is still in a buffer would follow the protocol otherwise.
    """
    sys.stdout = sys.stderr
    yield


def mcp_routes(tools: Tools) -> tuple[list[BaseRoute], Callable[[object], Running]]:
    """`/mcp` of an HTTP server, and what runs as long as that does.

    Its guard checks who may ask, by Host and Origin, too, and says it in `scope["owner"]`.
    """
    server = mcp_server(tools)
    guarded = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    routes = server.streamable_http_app(transport_security=guarded).routes
    return list(routes), lambda _: server.session_manager.run()
