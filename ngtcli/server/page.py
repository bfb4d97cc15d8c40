"""The server's page: choose documents, ask, and see the answer arrive with its sources.

It is one file, which requests nothing of others and may run no script but its own. It asks for the
names of the server's documents, and sends a question with those that were chosen and texts that
were given in the browser; what comes of it are the events of the answer, one a line.
"""

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ngtcli.documents.load import Loaded
from ngtcli.engine.events import Ended, Event
from ngtcli.engine.no_answer import NOT_IN_DOCUMENTS
from ngtcli.models.recommended import described
from ngtcli.render import page as render_page
from ngtcli.render.answer_view import short
from ngtcli.server.openai_answers import Object, Reply
from ngtcli.server.openai_requests import Asks, data_of, form_of
from ngtcli.server.public import RequestError
from ngtcli.server.service import GivenDocument, Service, given_documents, named
from ngtcli.server.wire import Failed, encode

_HERE, _RENDER = Path(__file__).parent, Path(render_page.__file__).parent
_QUOTE = 400  # characters of a quotation, about; guess


@cache
def page_and_policy() -> tuple[str, str]:
    """The HTML, and the policy that allows nothing but its own style, script and server."""
    styles = (_RENDER / "page.css", _RENDER / "answer_page.css", _HERE / "page.css")
    style = "".join(path.read_text(encoding="utf-8") for path in styles)
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    html = (_HERE / "page.html").read_text(encoding="utf-8")
    html = html.replace("/* style */", style).replace("/* script */", script)
    digests = [hashlib.sha256(part.encode()).digest() for part in (style, script)]
    hashes = [base64.b64encode(digest).decode() for digest in digests]
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html, policy


async def show_page(request: Request) -> Response:
    """GET /."""
    html, policy = page_and_policy()
    headers = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
    headers |= {"content-security-policy": policy, "cache-control": "no-cache"}
    return HTMLResponse(html, headers=headers)


def documents_shown(service: Service) -> Object:
    """What the page lists: the model, and the documents of the server's folder; null for none.

    Raises InputError where they cannot be read.
    """
    found = service.folder.documents().documents if service.folder else None
    names = None if found is None else [{"name": d.name, "size": len(d.text)} for d in found]
    return {"model": described(service.name), "documents": names}


_MAX_PASSAGES = 1000  # that a browser may ask for; guess


class _Form(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /answer: `names` are of the server's documents, `documents` texts besides."""

    task: Literal["ask", "summarize"]
    question: str = ""
    names: list[str] = []
    documents: list[GivenDocument] = []
    passages: Annotated[int, Meta(ge=0, le=_MAX_PASSAGES)] = 0  # 0: as the server's settings say


def page(service: Service, body: bytes) -> Asks:
    """What the page asks. Raises RequestError; InputError where documents cannot be read."""
    form = form_of(_Form, data_of(body))
    text = form.question.strip() if form.task == "ask" else ""
    if form.task == "ask" and not text:
        raise RequestError("the question is empty", "Ask something.", "question")
    served = service.folder.documents() if form.names and service.folder else Loaded(())
    chosen = named(served, form.names, "Load the page again.").documents
    documents = (*chosen, *given_documents(form.documents))
    if not documents:
        raise RequestError("no documents are given", "Choose one, or add a text.", "documents")
    values: dict[str, Any] = {"passages": form.passages} if form.passages else {}
    request = service.tasks.request(form.task, text, loaded=Loaded(documents), **values)
    return Asks(service.name, request)


@dataclass(frozen=True, slots=True)
class MorePassages:
    """An offer of the page to ask again, with so many passages."""

    passages: int


class PageReply(Reply):
    """An answer as the events that it consists of; of its end what the page shows."""

    media_type, beat, at_once = "application/x-ndjson", b"\n", True

    def event(self, event: Event) -> Iterator[bytes]:
        yield encode(event)

    def end(self, ended: Ended) -> Iterator[bytes]:
        spans = [
            replace(s, name=s.place, quote=short(s.quote, _QUOTE)) for s in ended.sources.spans
        ]
        found = replace(ended.sources, spans=tuple(spans))
        was_asked = ended.finish_reason != NOT_IN_DOCUMENTS
        if was_asked and ended.selection and ended.selection.read_next:
            yield encode(MorePassages(ended.selection.read_next))
        yield encode(Ended(finish_reason=ended.finish_reason, facts=ended.facts, sources=found))

    def failed(self, error: Object) -> bytes:
        about = error["error"]
        return encode(Failed(about["code"], about["message"], hint=""))
