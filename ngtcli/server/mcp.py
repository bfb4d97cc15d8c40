"""The tools of the Model Context Protocol over the documents of given folders, by the official SDK.

They read nothing but the documents that they list. Listing, showing and searching load no torch; a
model is loaded by the first call that needs one. A call that the client cancels ends at once, and
its answer within a step.
"""

import inspect
import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    aclosing,
    asynccontextmanager,
)
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from anyio import from_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import ToolAnnotations
from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as StarletteMessage

from ngtcli import __version__
from ngtcli.documents.load import Document, Loaded
from ngtcli.documents.passages import place
from ngtcli.documents.quotes.sources import Source
from ngtcli.documents.text import utf8
from ngtcli.engine.answers import Submits
from ngtcli.engine.events import Ended, Event, Message, Part, Reading, Stepped
from ngtcli.errors import NgtError
from ngtcli.render.terminal import one_line
from ngtcli.retrieval.ranking import rank
from ngtcli.retrieval.search import Search
from ngtcli.server.activity import Activity
from ngtcli.server.exchange import Threads, answered
from ngtcli.server.public import RequestError, has_path, is_private, private_words, words_of
from ngtcli.server.service import Service, select_documents
from ngtcli.system import reporting
from ngtcli.system.reporting import Reporter, reporting_to
from ngtcli.words import counted, nearest

_INTERVAL_S = 0.25  # between two progress notifications; guess
_MAX_CHARACTERS = 20_000  # characters that `show_passage` gives at once; guess
_MAX_LEFT_OUT = 100  # files left out that are named; guess
_IDLE_S = 600.0  # after which a session of HTTP ends; guess
_MAX_SESSIONS = 1000  # of HTTP that are open at once, each about 30 kB (measured)
_MAX_OWNERS = 10 * _MAX_SESSIONS  # of sessions, also of those that have ended; guess
_SESSION = "mcp-session-id"  # a header
_TOOLS = ("search_passages", "ask", "summarize", "list_documents", "show_passage")
_INSTRUCTIONS = (
    "Documents on the user's machine. search_passages finds what they say, word for word and at"
    " once; show_passage reads on from there; ask and summarize have a local model answer, which"
    " takes seconds to minutes. Name a document as list_documents does."
)
_QUESTION = Annotated[str, Field(description="A question, or words from the text.")]
_NAMES = Annotated[
    list[str] | None,
    Field(description="Only these documents, named as in list_documents; all if omitted."),
]
_TOKENS = Annotated[
    int | None, Field(ge=1, le=10**6, description="Maximum number of tokens in the answer.")
]


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
    """The passages that fit best, the best first, of so many.

    `remarks` are warnings, such as of passages that are longer than the embedder reads.
    """

    passages: list[FoundPassage]
    of_passages: int
    of_documents: int
    remarks: list[str]


@dataclass(frozen=True)
class AnswerResult:
    """The model's answer.

    `verbatim_share` of its characters are in the documents word for word, in the `sources`.
    `finish_reason` is "stop", or why it is cut off: length, context, repetition, prompt
    where it repeats its instructions, or not_in_documents where no passage has enough of the
    question. `remarks` say what was left out of what the model read.
    """

    text: str
    sources: list[Passage]
    verbatim_share: float
    finish_reason: str
    remarks: list[str]
    prompt_tokens: int
    new_tokens: int
    seconds: float


def owner_of(context: Context) -> str:
    """Who asks: over HTTP as its guard says, on standard streams the user."""
    request = context.request_context.request
    return "" if request is None else str(request.scope["owner"])


class Progress(Reporter):
    """Reports to the client how far a call is: in words, by growing numbers.

    Attributes:
        remarks: The warnings of the call, which go with its result.
    """

    def __init__(self, context: Context) -> None:
        self.remarks: list[str] = []
        self._context = context
        self._count = 0  # progress notifications so far
        self._sent_at = 0.0  # when the last one was sent, by time.monotonic
        self._written = 0  # tokens of the answer, or of a part of it
        self._part = ""  # words before a notification

    def status(self, words: str) -> None:
        """As `Reporter.status`, in a thread of the SDK; there a call that is cancelled ends."""
        from_thread.check_cancelled()
        if self._may_see(words):
            from_thread.run(self._send, words)

    def warn(self, words: str) -> None:
        """As `Reporter.warn`: it goes with the result."""
        if self._may_see(words):
            self.remarks.append(one_line(words))

    def _may_see(self, words: str) -> bool:
        """Whether the client may see them: over HTTP none that name a path of this machine."""
        return not (owner_of(self._context) and has_path(words))

    async def show(self, event: Event) -> None:
        """Show an event of an answer."""
        match event:
            case Message(kind="status"):
                await self._send(event.text)
            case Message(kind="warn"):
                self.remarks.append(event.text)
            case Part():
                self._part, self._written = f"{event.words}: " if event.words else "", 0
            case Reading():
                await self._send(f"Reading the prompt: {event.read} of {event.total} tokens")
            case Stepped():
                self._written += len(event.step.tokens)
                await self._send(f"Writing: {counted(self._written, 'token')}")

    async def _send(self, words: str) -> None:
        if time.monotonic() - self._sent_at >= _INTERVAL_S:
            self._sent_at = time.monotonic()
            self._count += 1
            await self._context.report_progress(self._count, None, self._part + words)


class Tools:
    """The tools over the documents of a service's folder.

    The reporter of who makes this gets the errors that clients may not see.

    Args:
        service: What is served.
        answers: What answers.
        activity: Counts the requests that are being answered.
    """

    def __init__(
        self, service: Service, answers: Submits, activity: Activity | None = None
    ) -> None:
        self._service = service
        self._answers = answers
        self._activity = activity or Activity()
        self.reporter = reporting.current()
        self._threads = Threads()

    async def list_documents(self, context: Context) -> DocumentList:
        """List the documents that can be read here, with their sizes, and files left out."""
        folder = self._service.folder
        assert folder is not None
        loaded = await self._loaded(Progress(context))
        documents = [
            ListedDocument(d.name, d.about.format, d.about.pages, len(d.text), d.about.warnings)
            for d in loaded.documents
        ]
        skipped = [one for one in loaded.skipped if not one.kind][:_MAX_LEFT_OUT]
        names = [folder.name_of(s.name) or os.path.basename(s.name) for s in skipped]
        reasons = ["it cannot be read" if has_path(s.reason) else s.reason for s in skipped]
        return DocumentList(documents, list(map(LeftOut, names, reasons)))

    async def show_passage(
        self,
        context: Context,
        document: Annotated[str, Field(description="A name from list_documents.")],
        start: Annotated[int, Field(ge=0, description="From this character on.")] = 0,
        end: Annotated[int | None, Field(ge=0, description="Up to this one.")] = None,
        page: Annotated[int | None, Field(ge=1, description="Or this whole page.")] = None,
    ) -> ShownPassage:
        """Show the text of a document as it was read: from one character to another, or a page.

        At most 20,000 characters come at once; give the end of one call as the next one's start.
        """
        one = (await self._chosen([document], Progress(context))).documents[0]
        first, last = (0, len(one.text)) if page is None else _page(one, page)
        begin, size = first + start, last - first
        if end is not None and page is None:
            last = min(last, end)
        if begin >= last and size:
            hint = f"It has {size:,} characters."
            raise RequestError(f"{one.name} has no such characters", hint, "start")
        last = min(last, begin + _MAX_CHARACTERS)
        return ShownPassage(*_characters(one, begin, last), len(one.text))

    async def search_passages(
        self,
        context: Context,
        question: _QUESTION,
        limit: Annotated[int, Field(ge=1, le=100, description="At most this many.")] = 5,
        documents: _NAMES = None,
    ) -> FoundPassages:
        """Find the passages of the documents that fit a question best, by their words.

        It takes no language model and answers at once.
        """
        progress, settings = Progress(context), self._service.tasks.by_name["ask"][0]
        texts = (await self._chosen(documents, progress)).documents
        search = Search(texts, settings, _asked(question), limit)
        with reporting_to(progress):
            ranking = await self._threads.run(rank, search)
        found = []
        for one in ranking.passages[:limit]:
            at = ranking.index.place(one.passage)
            score = round(one.scores.score, 6)
            found.append(FoundPassage(*_characters(texts[at.document], at.start, at.end), score))
        return FoundPassages(found, len(ranking.index), len(texts), progress.remarks)

    async def ask(
        self,
        context: Context,
        question: _QUESTION,
        documents: _NAMES = None,
        max_tokens: _TOKENS = None,
    ) -> AnswerResult:
        """Have a local model answer a question from the documents, with the places it quotes.

        The first call loads the model.
        """
        return await self._answer("ask", _asked(question), documents, max_tokens, context)

    async def summarize(
        self, context: Context, documents: _NAMES = None, max_tokens: _TOKENS = None
    ) -> AnswerResult:
        """Have a local model summarize the documents, part by part where they are long.

        The first call loads the model.
        """
        return await self._answer("summarize", "", documents, max_tokens, context)

    async def _answer(
        self, task: str, text: str, names: Sequence[str] | None, most: int | None, context: Context
    ) -> AnswerResult:
        progress, owner = Progress(context), owner_of(context)
        with self._activity:
            loaded = await self._chosen(names, progress)
            values: dict[str, Any] = {} if most is None else {"max_tokens": most}
            request = self._service.tasks.request(task, text, loaded=loaded, **values)
            began, last = time.perf_counter(), None
            asking = answered(self._answers, request, owner)
            async with aclosing(asking) as events:
                async for event in events:
                    if event is not None:
                        last = event
                        await progress.show(event)
            assert isinstance(last, Ended)
            s, found = last.statistics, last.sources
            return AnswerResult(
                text=last.text,
                sources=[_passage(source) for source in found.places()],
                verbatim_share=round(found.verbatim_share, 4),
                finish_reason=last.finish_reason,
                remarks=progress.remarks,
                prompt_tokens=s.prompt_tokens,
                new_tokens=s.new_tokens,
                seconds=round(time.perf_counter() - began, 3),
            )

    async def _loaded(self, progress: Progress) -> Loaded:
        assert self._service.folder is not None
        with reporting_to(progress):
            return await self._threads.run(self._service.folder.documents)

    async def _chosen(self, names: Sequence[str] | None, progress: Progress) -> Loaded:
        """The documents of these names, in the order of the list. Raises RequestError."""
        loaded = await self._loaded(progress)
        if names == []:
            raise RequestError("no document is named", hint="Name one, or leave the list out.")
        if names is None:
            return loaded
        return select_documents(loaded, names, "list_documents has the names.")


def _characters(one: Document, start: int, end: int) -> tuple[str, str, int, int, int, str]:
    """The fields of a `Passage`."""
    section = place(one, start)
    return one.name, one.text[start:end], start, end, section.page, section.heading


def _passage(source: Source) -> Passage:
    at = source.span.source_start, source.span.source_end
    return Passage(source.name, source.quote, *at, source.page or 0, source.heading or "")


def _asked(question: str) -> str:
    """The text of a question. Raises RequestError."""
    if not (text := utf8(question.strip())):
        raise RequestError("the question is empty", "Ask something.", "question")
    return text


def _page(document: Document, page: int) -> tuple[int, int]:
    """Where that page begins and ends. Raises RequestError."""
    sections = document.about.sections
    of_page = [at for at, section in enumerate(sections) if section.page == page]
    if not of_page:
        pages = counted(document.about.pages, "page") if document.about.pages else "no pages"
        raise RequestError(f"{document.name} has no page {page}", f"It has {pages}.", "page")
    after = of_page[-1] + 1
    end = sections[after].start if after < len(sections) else len(document.text)
    return sections[of_page[0]].start, end


class _Server(MCPServer[None]):
    """The SDK's server, with the error messages of this program.

    Attributes:
        reporter: Gets the errors that clients may not see.
    """

    reporter: Reporter

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        known = {tool.name: tool.input_schema["properties"] for tool in await self.list_tools()}
        for argument in arguments:
            if name in known and argument not in known[name]:
                hint = nearest(argument, known[name])
                raise ToolError(f"{name} has no argument {argument!r}. {hint}")
        try:
            with reporting_to(Reporter()):  # and nothing else goes to who runs the server
                return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(cause := error.__cause__, ValidationError):
                first = cause.errors()[0]
                is_missing = first["type"] == "missing"
                words = "the argument is missing" if is_missing else first["msg"].lower()
                raise ToolError(f"{'.'.join(map(str, first['loc']))}: {words}") from None
            if not isinstance(cause, NgtError):
                raise
            if owner_of(context) and is_private(cause):
                self.reporter.warn(f"a tool failed: {cause}")
                raise ToolError(private_words(cause)) from cause
            raise ToolError(words_of(cause, with_settings=False)) from cause


def mcp_server(tools: Tools, on_streams: bool = False) -> MCPServer[None]:
    """A server of these tools; on standard streams what anything prints goes to standard error."""
    root = logging.getLogger()
    before = root.handlers[:]
    server = _Server(
        "ngt",
        version=__version__,
        instructions=_INSTRUCTIONS,
        lifespan=_stdout_is_stderr if on_streams else None,
        log_level="WARNING",
        subscriptions=False,
    )
    server.reporter = tools.reporter
    root.handlers[:] = before  # it gives the process one; without, warnings go to stderr
    reads = ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    for name in _TOOLS:
        tool: Callable[..., object] = getattr(tools, name)
        server.add_tool(tool, description=inspect.getdoc(tool), annotations=reads)
    return server


@asynccontextmanager
async def _stdout_is_stderr(_: MCPServer[None]) -> AsyncIterator[None]:
    """The SDK has the descriptor lead to standard error; so must Python's stream, to the end.

    What is still in a buffer would follow the protocol otherwise.
    """
    sys.stdout = sys.stderr
    yield


async def _with_owner(
    app: ASGIApp,
    owners: OrderedDict[str, str],
    owner: str,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Have a request answered by `app`; a session that it begins belongs to its owner."""

    async def noted(message: StarletteMessage) -> None:
        for name, value in message.get("headers", ()):
            if name.lower() == _SESSION.encode() and value.decode() not in owners:
                owners[value.decode()] = owner
                if len(owners) > _MAX_OWNERS:
                    owners.popitem(last=False)
        await send(message)

    await app(scope, receive, noted)


def mcp_routes(
    tools: Tools,
) -> tuple[list[BaseRoute], Callable[[], AbstractAsyncContextManager[object]]]:
    """`/mcp` of an HTTP server, and what runs as long as that does.

    Its guard checks who may ask, by Host and Origin, too, and says it in `scope["owner"]`.
    """
    server = mcp_server(tools)
    guarded = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    server.streamable_http_app(
        transport_security=guarded, session_idle_timeout=_IDLE_S, max_sessions=_MAX_SESSIONS
    )

    owners = OrderedDict[str, str]()  # of sessions, by their ids

    async def mcp(request: Request) -> Any:
        owner, session = request.scope["owner"], request.headers.get(_SESSION)
        if request.method != "POST" and session is None:
            return PlainTextResponse("a session is opened by a POST", 400)
        if session is not None and owners.get(session) != owner:
            return PlainTextResponse("no such session", 404)  # or it is another's
        return partial(_with_owner, server.session_manager.asgi_app, owners, owner)

    route = Route("/mcp", mcp, methods=["GET", "POST", "DELETE"])
    return [route], server.session_manager.run
