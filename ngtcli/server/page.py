"""The server's page: choose documents, ask, and see the answer arrive with its sources.

It is one file, which loads nothing from other hosts and runs no script but its own. It asks for the
names of the server's documents, and sends a question with the chosen ones and with texts added in
the browser. The reply has the events of the answer, one on each line.
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
from ngtcli.server.openai_requests import ApiRequest, convert_form, decode_body
from ngtcli.server.public import RequestError
from ngtcli.server.service import RequestDocument, Service, request_documents, select_documents
from ngtcli.server.wire import Failed, encode

_SERVER_FOLDER = Path(__file__).parent
_RENDER_FOLDER = Path(render_page.__file__).parent
_QUOTE_LENGTH = 400  # characters of a quotation, about (guess)
_MAX_PASSAGES = 1000  # that a browser may ask for (guess)


@cache
def page_and_policy() -> tuple[str, str]:
    """Return the HTML, and the policy that allows only its own style, script and server."""
    style_paths = (
        _RENDER_FOLDER / "page.css",
        _RENDER_FOLDER / "answer_page.css",
        _SERVER_FOLDER / "page.css",
    )
    style = "".join(path.read_text(encoding="utf-8") for path in style_paths)
    script = (_SERVER_FOLDER / "page.js").read_text(encoding="utf-8")
    html = (_SERVER_FOLDER / "page.html").read_text(encoding="utf-8")
    html = html.replace("/* style */", style).replace("/* script */", script)
    digests = [hashlib.sha256(part.encode()).digest() for part in (style, script)]
    hashes = [base64.b64encode(digest).decode() for digest in digests]
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html, policy


async def show_page(request: Request) -> Response:
    """Respond to GET / with the page."""
    html, policy = page_and_policy()
    headers = {
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "content-security-policy": policy,
        "cache-control": "no-cache",
    }
    return HTMLResponse(html, headers=headers)


def list_documents(service: Service) -> Object:
    """Return the model, and the documents of the server's folder; null without a folder.

    Raises InputError where they cannot be read.
    """
    listed = None
    if service.folder is not None:
        documents = service.folder.documents().documents
        listed = [{"name": document.name, "size": len(document.text)} for document in documents]
    return {"model": described(service.name), "documents": listed}


class _Form(Struct, forbid_unknown_fields=True, kw_only=True):
    """A POST to /answer: `names` are of the server's documents, `documents` are further texts."""

    task: Literal["ask", "summarize"]
    question: str = ""
    names: list[str] = []
    documents: list[RequestDocument] = []
    passages: Annotated[int, Meta(ge=0, le=_MAX_PASSAGES)] = 0  # 0: as the server's settings say


def parse_page_request(service: Service, body: bytes) -> ApiRequest:
    """Parse a request of the page.

    Raises:
        RequestError: The request is wrong, or has no question or no documents.
        InputError: The server's documents cannot be read.
    """
    form = convert_form(_Form, decode_body(body))
    text = form.question.strip() if form.task == "ask" else ""
    if form.task == "ask" and not text:
        raise RequestError("the question is empty", "Ask something.", "question")
    served = service.folder.documents() if form.names and service.folder else Loaded(())
    selected = select_documents(served, form.names, "Load the page again.").documents
    documents = (*selected, *request_documents(form.documents))
    if not documents:
        raise RequestError("no documents are given", "Choose one, or add a text.", "documents")
    values: dict[str, Any] = {"passages": form.passages} if form.passages else {}
    request = service.tasks.request(form.task, text, loaded=Loaded(documents), **values)
    return ApiRequest(service.name, request)


@dataclass(frozen=True, slots=True)
class MorePassages:
    """An offer of the page to ask again, with this number of passages."""

    passages: int


class PageReply(Reply):
    """An answer as its events; the last one has only what the page shows."""

    media_type = "application/x-ndjson"
    heartbeat = b"\n"
    begins_at_once = True

    def encode_event(self, event: Event) -> Iterator[bytes]:
        yield encode(event)

    def end(self, ended: Ended) -> Iterator[bytes]:
        spans = tuple(
            replace(source, name=source.place, quote=short(source.quote, _QUOTE_LENGTH))
            for source in ended.sources.spans
        )
        sources = replace(ended.sources, spans=spans)
        is_from_model = ended.finish_reason != NOT_IN_DOCUMENTS
        if is_from_model and ended.selection and ended.selection.read_next:
            yield encode(MorePassages(ended.selection.read_next))
        yield encode(Ended(finish_reason=ended.finish_reason, facts=ended.facts, sources=sources))

    def fail(self, error: Object) -> bytes:
        details = error["error"]
        return encode(Failed(details["code"], details["message"], hint=""))
