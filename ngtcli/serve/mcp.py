"""The tools of the Model Context Protocol over the documents of given folders, by the official SDK.

They read nothing but the documents that they list. What lists, shows and searches loads no torch;
a model is loaded by the first question that needs one. A question that the client cancels is given
up at once; what is made for it ends within a step.
"""

import inspect
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import replace
from typing import Annotated

from anyio import to_thread
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
from ngtcli.retrieve.ranking import Search, rank
from ngtcli.serve.asked import Asked, events_of
from ngtcli.serve.folder import ServedFolder
from ngtcli.serve.mcp_answers import (
    DocumentList,
    FoundPassage,
    FoundPassages,
    LeftOut,
    ListedDocument,
    Progress,
    ShownPassage,
    ToldAnswer,
    told,
)
from ngtcli.session.events import Ended, Message
from ngtcli.session.question import Question
from ngtcli.session.runs import log_answer

Running = AbstractAsyncContextManager[None]
Tasks = Mapping[str, tuple[Settings, Preset]]

_MOST = 20_000  # characters that `show_passage` gives at once; guess
_LEFT_OUT = 100  # files left out that are named; guess
_INSTRUCTIONS = (
    "Documents on the user's machine. search_passages finds what they say, word for word and at"
    " once; show_passage reads on from there; ask and summarize have a local model answer, which"
    " takes seconds to minutes. Name a document as list_documents does."
)


_NAMES = Annotated[
    list[str] | None,
    Field(description="Only these documents, named as list_documents does; without it all."),
]
_TOKENS = Annotated[
    int | None, Field(ge=1, le=10**6, description="At most this many tokens in the answer.")
]


class Tools:
    """The tools over the documents of `folder`; `tasks` say how `ask` and `summarize` answer.

    `asked` answers questions; `counted` is a block in which one is answered.
    """

    def __init__(
        self,
        folder: ServedFolder,
        tasks: Tasks,
        asked: Asked,
        counted: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._folder, self._tasks, self._asked, self._counted = folder, tasks, asked, counted

    def list_documents(self, context: Context) -> DocumentList:
        """List the documents that can be read here, with their sizes, and files left out."""
        with _told_to_client():
            loaded = self._folder.documents(Progress(context).say)
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
            one = self._chosen([document], Progress(context).say).documents[0]
            last = len(one.text) if end is None else min(end, len(one.text))
            if page is not None:
                first, last = _page(one, page)
                start = first + start
            last = max(start, min(last, start + _MOST))
            section = place(one, start)
            shown = one.text[start:last], start, min(last, len(one.text))
            about = section.page, section.heading, len(one.text)
            return ShownPassage(one.name, *shown, *about)

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
            say, settings = Progress(context).say, self._tasks["ask"][0]
            texts = self._chosen(documents, say).documents
            ranking = rank(Search(texts, settings, utf8(query), limit, status=say))
            found = []
            for one in ranking.found[:limit]:
                at = ranking.index.place(one.passage)
                document, section = texts[at.document], place(texts[at.document], at.start)
                where = document.text[at.start : at.end], at.start, at.end
                about = section.page, section.heading, round(one.scores.score, 6)
                found.append(FoundPassage(document.name, *where, *about))
            return FoundPassages(found, len(ranking.index), len(texts))

    async def ask(
        self,
        context: Context,
        question: Annotated[str, Field(min_length=1, description="What is asked.")],
        documents: _NAMES = None,
        max_tokens: _TOKENS = None,
    ) -> ToldAnswer:
        """Have a local model answer a question from the documents, with the places it quotes.

        The first call loads the model.
        """
        return await self._answer("ask", question, documents, max_tokens, context)

    async def summarize(
        self, context: Context, documents: _NAMES = None, max_tokens: _TOKENS = None
    ) -> ToldAnswer:
        """Have a local model summarize the documents, part by part where they are long.

        The first call loads the model.
        """
        return await self._answer("summarize", "", documents, max_tokens, context)

    async def _answer(
        self,
        task: str,
        question: str,
        documents: Sequence[str] | None,
        max_tokens: int | None,
        context: Context,
    ) -> ToldAnswer:
        with _told_to_client(), self._counted():
            progress, (settings, preset) = Progress(context), self._tasks[task]
            if max_tokens is not None:
                settings = replace(settings, max_tokens=max_tokens)
            asked = Question(
                task=task,
                settings=for_task(task, settings, preset),
                preset=preset,
                loaded=await to_thread.run_sync(self._chosen, documents, progress.say),
                question=utf8(question.strip()),
            )
            began, remarks, answer = time.perf_counter(), list[str](), None
            async with aclosing(events_of(self._asked, asked, _owner(context))) as events:
                async for event in events:
                    if isinstance(event, Message) and event.kind == "warn":
                        remarks.append(event.text)
                    elif isinstance(event, Ended):
                        answer = event
                    await progress.tell(event)
            assert answer is not None
            await to_thread.run_sync(log_answer, asked, answer, "mcp", remarks.append)
            return told(answer, remarks, time.perf_counter() - began)

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
