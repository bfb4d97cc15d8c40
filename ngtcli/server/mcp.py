"""The tools of the Model Context Protocol over the documents of folders, by the official SDK.

They read only the documents that they list. Listing, showing and searching load no torch; the first
call that needs a model loads it. A call that the client cancels ends at once, and its answer within
a step.
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
from ngtcli.engine.answers import RequestService
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

_INTERVAL_S = 0.25  # between two progress notifications (guess)
_MAX_CHARACTERS = 20_000  # characters that `show_passage` returns at once (guess)
_MAX_LEFT_OUT = 100  # files left out that `list_documents` names (guess)
_IDLE_S = 600.0  # without a call, after which an HTTP session ends (guess)
_MAX_SESSIONS = 1000  # HTTP sessions open at once, each about 30 kB (measured)
_MAX_OWNERS = 10 * _MAX_SESSIONS  # owners of sessions, including ended ones (guess)
_SESSION_HEADER = "mcp-session-id"
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
    """A document. Its `pages` are 0 for formats without pages."""

    name: str
    format: str
    pages: int
    characters: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class LeftOut:
    """A file that cannot be read, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class DocumentList:
    """The documents that the other tools read, and files that cannot be read."""

    documents: list[ListedDocument]
    left_out: list[LeftOut]


@dataclass(frozen=True)
class Passage:
    """The characters `start` to `end` of a document.

    `page` is 0 and `heading` "" if the document has none.
    """

    document: str
    text: str
    start: int
    end: int
    page: int
    heading: str


@dataclass(frozen=True)
class ShownPassage(Passage):
    """A passage, and the number of `characters` of its document."""

    characters: int


@dataclass(frozen=True)
class FoundPassage(Passage):
    """A passage, and how well it fits: a higher score is better."""

    score: float


@dataclass(frozen=True)
class FoundPassages:
    """The passages that fit best, the best first, out of `of_passages` in `of_documents`.

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
    """Return the owner of a call: over HTTP as its guard says, on standard streams the user."""
    request = context.request_context.request
    return "" if request is None else str(request.scope["owner"])


class Progress(Reporter):
    """Reports the progress of a call to the client, in words and by growing numbers.

    Attributes:
        remarks: The warnings of the call, which go with its result.
    """

    def __init__(self, context: Context) -> None:
        self.remarks: list[str] = []
        self._context = context
        self._count = 0  # progress notifications so far
        self._sent_at = 0.0  # when the last one was sent, by time.monotonic
        self._written = 0  # tokens of the answer, or of a part of it
        self._prefix = ""  # of a notification

    def status(self, text: str, /) -> None:
        """As `Reporter.status`, in a thread of the SDK; there a call that is cancelled ends."""
        from_thread.check_cancelled()
        if self._may_see(text):
            from_thread.run(self._notify, text)

    def warn(self, text: str, /) -> None:
        """As `Reporter.warn`: the warning goes with the result."""
        if self._may_see(text):
            self.remarks.append(one_line(text))

    def _may_see(self, text: str) -> bool:
        """Return whether the client may see a text: over HTTP, one without a path."""
        return not (owner_of(self._context) and has_path(text))

    async def show(self, event: Event) -> None:
        """Report an event of an answer."""
        match event:
            case Message(kind="status"):
                await self._notify(event.text)
            case Message(kind="warn"):
                self.remarks.append(event.text)
            case Part():
                self._prefix = f"{event.words}: " if event.words else ""
                self._written = 0
            case Reading():
                await self._notify(f"Reading the prompt: {event.read} of {event.total} tokens")
            case Stepped():
                self._written += len(event.step.tokens)
                await self._notify(f"Writing: {counted(self._written, 'token')}")

    async def _notify(self, text: str) -> None:
        """Notify the client, unless that was done a moment ago."""
        if time.monotonic() - self._sent_at >= _INTERVAL_S:
            self._sent_at = time.monotonic()
            self._count += 1
            await self._context.report_progress(self._count, None, self._prefix + text)


class Tools:
    """The tools over the documents of a service's folder.

    The reporter of the caller gets the errors that clients may not see.

    Args:
        service: The folder, and the tasks of the model.
        answers: Answers the questions.
        activity: Counts the requests that are being answered.
    """

    def __init__(
        self, service: Service, answers: RequestService, activity: Activity | None = None
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
        unreadable = [skipped for skipped in loaded.skipped if not skipped.kind]
        left_out = [
            LeftOut(
                folder.name_of(skipped.name) or os.path.basename(skipped.name),
                "it cannot be read" if has_path(skipped.reason) else skipped.reason,
            )
            for skipped in unreadable[:_MAX_LEFT_OUT]
        ]
        return DocumentList(documents, left_out)

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
        shown = (await self._select([document], Progress(context))).documents[0]
        if page is None:
            range_start = 0
            range_end = len(shown.text)
        else:
            range_start, range_end = _page_range(shown, page)
        size = range_end - range_start
        start += range_start
        if end is None or page is not None:
            end = range_end
        end = min(end, range_end)
        if start >= end and size:
            raise RequestError(
                f"{shown.name} has no such characters", f"It has {size:,} characters.", "start"
            )
        end = min(end, start + _MAX_CHARACTERS)
        return ShownPassage(*_passage_fields(shown, start, end), len(shown.text))

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
        progress = Progress(context)
        settings = self._service.tasks.by_name["ask"][0]
        selected = (await self._select(documents, progress)).documents
        search = Search(selected, settings, _checked_question(question), limit)
        with reporting_to(progress):
            ranking = await self._threads.run(rank, search)
        passages = []
        for ranked in ranking.passages[:limit]:
            location = ranking.index.place(ranked.passage)
            fields = _passage_fields(selected[location.document], location.start, location.end)
            passages.append(FoundPassage(*fields, round(ranked.scores.score, 6)))
        return FoundPassages(passages, len(ranking.index), len(selected), progress.remarks)

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
        return await self._answer(
            "ask", _checked_question(question), documents, max_tokens, context
        )

    async def summarize(
        self, context: Context, documents: _NAMES = None, max_tokens: _TOKENS = None
    ) -> AnswerResult:
        """Have a local model summarize the documents, part by part where they are long.

        The first call loads the model.
        """
        return await self._answer("summarize", "", documents, max_tokens, context)

    async def _answer(
        self,
        task: str,
        question: str,
        names: Sequence[str] | None,
        max_tokens: int | None,
        context: Context,
    ) -> AnswerResult:
        """Have the model answer.

        Args:
            task: "ask" or "summarize".
            question: The question; "" for a summary.
            names: The names of the documents to answer from; None for all.
            max_tokens: At most this many tokens in the answer; None for the setting.
            context: The call of the client.

        Raises:
            NgtError: The request is wrong, or the answer failed.
        """
        progress = Progress(context)
        with self._activity:
            loaded = await self._select(names, progress)
            values: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
            request = self._service.tasks.request(task, question, loaded=loaded, **values)
            started = time.perf_counter()
            last: Event | None = None
            async with aclosing(answered(self._answers, request, owner_of(context))) as events:
                async for event in events:
                    if event is not None:
                        last = event
                        await progress.show(event)
            assert isinstance(last, Ended)
            return AnswerResult(
                text=last.text,
                sources=[_passage(source) for source in last.sources.places()],
                verbatim_share=round(last.sources.verbatim_share, 4),
                finish_reason=last.finish_reason,
                remarks=progress.remarks,
                prompt_tokens=last.statistics.prompt_tokens,
                new_tokens=last.statistics.new_tokens,
                seconds=round(time.perf_counter() - started, 3),
            )

    async def _loaded(self, progress: Progress) -> Loaded:
        assert self._service.folder is not None
        with reporting_to(progress):
            return await self._threads.run(self._service.folder.documents)

    async def _select(self, names: Sequence[str] | None, progress: Progress) -> Loaded:
        """Return the documents of these names, in the order of the list. Raises RequestError."""
        loaded = await self._loaded(progress)
        if names == []:
            raise RequestError("no document is named", hint="Name one, or leave the list out.")
        if names is None:
            return loaded
        return select_documents(loaded, names, "list_documents has the names.")


def _passage_fields(
    document: Document, start: int, end: int
) -> tuple[str, str, int, int, int, str]:
    """Return the fields of a `Passage`.

    Args:
        document: The document of the passage.
        start: Its first character in the document.
        end: The character after its last.
    """
    section = place(document, start)
    return document.name, document.text[start:end], start, end, section.page, section.heading


def _passage(source: Source) -> Passage:
    return Passage(
        source.name,
        source.quote,
        source.span.source_start,
        source.span.source_end,
        source.page or 0,
        source.heading or "",
    )


def _checked_question(question: str) -> str:
    """Return the text of a question. Raises RequestError where it is empty."""
    text = utf8(question.strip())
    if not text:
        raise RequestError("the question is empty", "Ask something.", "question")
    return text


def _page_range(document: Document, page: int) -> tuple[int, int]:
    """Return the characters at which a page begins and ends. Raises RequestError."""
    sections = document.about.sections
    indices = [index for index, section in enumerate(sections) if section.page == page]
    if not indices:
        pages = counted(document.about.pages, "page") if document.about.pages else "no pages"
        raise RequestError(f"{document.name} has no page {page}", f"It has {pages}.", "page")
    next_index = indices[-1] + 1
    end = sections[next_index].start if next_index < len(sections) else len(document.text)
    return sections[indices[0]].start, end


class _Server(MCPServer[None]):
    """The SDK's server, with the error messages of this program.

    Attributes:
        reporter: Gets the errors that clients may not see.
    """

    reporter: Reporter

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        properties = {
            tool.name: tool.input_schema["properties"] for tool in await self.list_tools()
        }
        for argument in arguments:
            if name in properties and argument not in properties[name]:
                hint = nearest(argument, properties[name])
                raise ToolError(f"{name} has no argument {argument!r}. {hint}")
        try:
            # Nothing else that a call reports goes to the one who runs the server.
            with reporting_to(Reporter()):
                return await super().call_tool(name, arguments, context)
        except ToolError as error:
            cause = error.__cause__
            if isinstance(cause, ValidationError):
                first = cause.errors()[0]
                is_missing = first["type"] == "missing"
                message = "the argument is missing" if is_missing else first["msg"].lower()
                path = ".".join(map(str, first["loc"]))
                raise ToolError(f"{path}: {message}") from None
            if not isinstance(cause, NgtError):
                raise
            if owner_of(context) and is_private(cause):
                self.reporter.warn(f"a tool failed: {cause}")
                raise ToolError(private_words(cause)) from cause
            raise ToolError(words_of(cause, with_settings=False)) from cause


def mcp_server(tools: Tools, on_streams: bool = False) -> MCPServer[None]:
    """Return a server of these tools.

    With `on_streams` it talks on standard streams, and all other output goes to standard error.
    """
    root = logging.getLogger()
    handlers = root.handlers[:]
    server = _Server(
        "ngt",
        version=__version__,
        instructions=_INSTRUCTIONS,
        lifespan=_stdout_is_stderr if on_streams else None,
        log_level="WARNING",
        subscriptions=False,
    )
    server.reporter = tools.reporter
    # The SDK adds a handler to the process. Without one, warnings go to standard error.
    root.handlers[:] = handlers
    annotations = ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    for name in _TOOLS:
        tool: Callable[..., object] = getattr(tools, name)
        server.add_tool(tool, description=inspect.getdoc(tool), annotations=annotations)
    return server


@asynccontextmanager
async def _stdout_is_stderr(_: MCPServer[None]) -> AsyncIterator[None]:
    """Let `sys.stdout` write to standard error to the end, as the SDK does with the descriptor.

    Otherwise output still in a buffer would follow the protocol.
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
    """Have a request answered by `app`; a session that it begins belongs to its owner.

    Args:
        app: Answers the request.
        owners: The owners of sessions, by the sessions' ids; a new session is added.
        owner: The owner of the request.
        scope: The scope of the request, by ASGI.
        receive: Receives the messages of the request, by ASGI.
        send: Sends the messages of the response, by ASGI.
    """

    async def send_and_note_session(message: StarletteMessage) -> None:
        for name, value in message.get("headers", ()):
            if name.lower() == _SESSION_HEADER.encode() and value.decode() not in owners:
                owners[value.decode()] = owner
                if len(owners) > _MAX_OWNERS:
                    owners.popitem(last=False)
        await send(message)

    await app(scope, receive, send_and_note_session)


def mcp_routes(
    tools: Tools,
) -> tuple[list[BaseRoute], Callable[[], AbstractAsyncContextManager[object]]]:
    """Return `/mcp` of an HTTP server, and a context manager that is open while the server runs.

    The server's guard checks Host and Origin, and stores the owner in `scope["owner"]`.
    """
    server = mcp_server(tools)
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    server.streamable_http_app(
        transport_security=security, session_idle_timeout=_IDLE_S, max_sessions=_MAX_SESSIONS
    )

    owners = OrderedDict[str, str]()  # of sessions, by their ids

    async def mcp(request: Request) -> Any:
        owner = request.scope["owner"]
        session = request.headers.get(_SESSION_HEADER)
        if request.method != "POST" and session is None:
            return PlainTextResponse("a session is opened by a POST", 400)
        if session is not None and owners.get(session) != owner:
            return PlainTextResponse("no such session", 404)  # also where it is another owner's
        return partial(_with_owner, server.session_manager.asgi_app, owners, owner)

    route = Route("/mcp", mcp, methods=["GET", "POST", "DELETE"])
    return [route], server.session_manager.run
