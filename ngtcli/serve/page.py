"""The server's page: choose documents, ask, and see the answer arrive with its sources.

It is one file, which requests nothing of others and may run no script but its own. It asks for the
names of the server's documents, and sends a question with those that were chosen and texts that
were given in the browser; what comes of it are the events of a stream, in a form of its own.
"""

import base64
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ngtcli.documents.load import Document, Loaded
from ngtcli.errors import NgtError
from ngtcli.grounding.sources import Source
from ngtcli.prompt.preset import for_task
from ngtcli.render import page as render_page
from ngtcli.render.answer_view import short
from ngtcli.render.terminal import one_line, visible
from ngtcli.serve.openai_answers import Object, sent
from ngtcli.serve.openai_requests import GivenDocument, RequestError, Service, given_documents
from ngtcli.session.events import Ended, Event, Message, Part, Prompted, Reading, Stepped
from ngtcli.session.question import Question

_HERE, _RENDER = Path(__file__).parent, Path(render_page.__file__).parent
_QUOTE = 400  # characters of a quotation, about; guess
_PATH = re.compile(r"(?<![\w./])[/~]\w")  # of this machine, in what is said of an answer


@cache
def page_and_policy() -> tuple[str, str]:
    """The HTML, and the policy that allows nothing but its own style, script and server."""
    styles = (_RENDER / "page.css", _RENDER / "answer_page.css", _HERE / "page.css")
    style = "".join(path.read_text(encoding="utf-8") for path in styles)
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    html = (_HERE / "page.html").read_text(encoding="utf-8")
    html = html.replace("/* style */", style).replace("/* script */", script)
    hashes = [
        base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        for part in (style, script)
    ]
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html, policy


async def show_page(request: Request) -> Response:
    """GET /."""
    html, policy = page_and_policy()
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return HTMLResponse(html, headers=headers)


def documents_shown(service: Service) -> Object:
    """What the page lists: the model, and the documents of the server's folder; null for none.

    Raises InputError where they cannot be read.
    """
    found = service.folder.documents().documents if service.folder else None
    names = None if found is None else [{"name": d.name, "size": len(d.text)} for d in found]
    return {"model": service.name, "documents": names}


class PageRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /answer: `names` are of the server's documents, `documents` texts besides."""

    task: Literal["ask", "summarize"]
    question: str = ""
    names: list[str] = []
    documents: list[GivenDocument] = []

    @property
    def stream(self) -> bool:
        """Always: the page shows an answer as it comes."""
        return True


def page_question(service: Service, request: PageRequest) -> Question:
    """What a request asks. Raises RequestError; InputError where documents cannot be read."""
    question = request.question.strip() if request.task == "ask" else ""
    if request.task == "ask" and not question:
        raise RequestError("the question is empty", "Ask something.", "question")
    documents = (*_named(service, request.names), *given_documents(request.documents))
    if not documents:
        raise RequestError("no documents are given", "Choose one, or add a text.", "documents")
    settings, preset = service.tasks[request.task]
    settings = for_task(request.task, settings, preset)
    return Question(
        task=request.task,
        settings=settings,
        preset=preset,
        loaded=Loaded(documents),
        question=question,
    )


def _named(service: Service, names: list[str]) -> tuple[Document, ...]:
    """The documents of the server's folder with these names. Raises RequestError, InputError."""
    wanted = set(names)
    served = service.folder.documents().documents if wanted and service.folder else ()
    found = tuple(document for document in served if document.name in wanted)
    if missing := wanted - {document.name for document in found}:
        what = f"the server has no document {one_line(min(missing))!r}"
        raise RequestError(what, "Load the page again.", "names", status=404)
    return found


class PageReply:
    """An answer in the page's own events."""

    at_once = True  # what is done before the first token is shown, too

    def begin(self) -> Iterator[bytes]:
        yield from ()

    def told(self, event: Event) -> Iterator[bytes]:
        if isinstance(event, Message) and not _PATH.search(event.text):
            yield sent({"kind": event.kind, "text": one_line(event.text)}, "said")
        elif isinstance(event, Reading):
            yield sent({"read": event.read, "total": event.total}, "reading")
        elif isinstance(event, Part):
            yield sent({"words": one_line(event.words)}, "part")
        elif isinstance(event, Prompted):
            yield sent({"tokens": event.tokens}, "prompted")
        elif isinstance(event, Stepped):
            tokens = [
                [visible(t.text), t.origin if t.drafted else "", visible(t.thought or "")]
                for t in event.step.tokens
            ]
            yield sent({"tokens": tokens}, "step")

    def end(self, ended: Ended) -> Iterator[bytes]:
        found = [_shown(source) for source in ended.sources.spans]
        reason, facts = ended.finish_reason, [one_line(fact) for fact in ended.facts]
        yield sent({"finish_reason": reason, "facts": facts, "sources": found}, "end")

    def failed(self, error: Object) -> Iterator[bytes]:
        yield sent(error["error"], "failed")

    def whole(self, ended: Ended) -> Any:
        raise NgtError("the page's answers are streams")


def _shown(source: Source) -> Object:
    """A stretch; `start` and `end` count characters, not the units of JavaScript's texts."""
    return {
        "number": source.number,
        "start": source.span.start,
        "end": source.span.end,
        "document": source.span.document,
        "place": one_line(source.place),
        "quote": visible(short(source.quote, _QUOTE)),
        "before": visible(source.before),
        "after": visible(source.after),
    }
