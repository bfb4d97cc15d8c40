"""OpenAI's HTTP API and a page over a resident model (Starlette, uvicorn).

Every request ends: requests, connections, headers, bodies and times are bounded.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import anyio
import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ngtcli.errors import (
    BusyError,
    ContextOverflowError,
    InputError,
    NgtError,
    UsageError,
    reason_of,
)
from ngtcli.serve.asked import Asked
from ngtcli.serve.http_exchange import Exchange
from ngtcli.serve.http_guard import Address, Guard
from ngtcli.serve.openai_answers import ChatReply, Reply, ResponseReply
from ngtcli.serve.openai_requests import (
    ChatRequest,
    CompletionRequest,
    RequestError,
    ResponseRequest,
    Service,
)
from ngtcli.serve.page import PageReply, PageRequest, documents_shown, page_question, show_page
from ngtcli.session.events import Ended
from ngtcli.session.question import Question
from ngtcli.session.runs import log_answer

_AT_ONCE, _CONNECTIONS = 256, 1024  # requests that wait or are answered, and connections; guesses
_HEADERS = 65_536  # bytes of a request's headers; guess
_IDLE_S = 30.0  # after which a connection is closed on which no request has come; guess
_ENDING_S = 2  # that answers get to end in when the server does; guess
_RETRY_S = 2  # after which a client may ask again where the queue is full; guess
_SUMS = (  # of the statistics of answers
    *("prompt_tokens", "cached_tokens", "new_tokens", "steps"),
    *("drafted_tokens", "accepted_tokens"),
)
# Of each path the form of its requests, the question that one asks, and the form of the answer.
_MADE_OF: Mapping[str, tuple[Any, Callable[[Service, Any], Question], Callable[..., Reply]]] = {
    "/v1/chat/completions": (
        ChatRequest,
        Service.question,
        lambda r, question: ChatReply(r.model, question, r.stream_options.include_usage),
    ),
    "/v1/completions": (
        CompletionRequest,
        Service.question,
        lambda r, question: ChatReply(r.model, question, r.stream_options.include_usage, True),
    ),
    "/v1/responses": (
        ResponseRequest,
        Service.question,
        lambda r, question: ResponseReply(r.model, question),
    ),
    "/answer": (PageRequest, page_question, lambda r, question: PageReply()),
}


class Figures:
    """What /metrics shows; tokens and steps are those of answers that were given."""

    def __init__(self) -> None:
        own: Any = {"registry": CollectorRegistry()}
        self.registry = own["registry"]
        self._requests = Counter(
            "ngt_requests", "Requests by path and status", ("path", "status"), **own
        )
        self._left = Counter("ngt_clients_left", "Requests whose client left first", **own)
        self._first_s = Histogram("ngt_first_token_seconds", "Seconds to the first token", **own)
        self._whole_s = Histogram("ngt_answer_seconds", "Seconds to the end of the answer", **own)
        self.running = Gauge("ngt_requests_running", "Requests that wait or are answered", **own)
        self._sums = {n: Counter(f"ngt_{n}", f"Sum of {n.replace('_', ' ')}", **own) for n in _SUMS}

    def add(self, path: str, exchange: Exchange, seconds: float) -> None:
        """Count a request and, if it was answered, its answer."""
        self._requests.labels(path, exchange.status or "none").inc()
        self._left.inc(exchange.is_gone)
        if exchange.first_s is not None:
            self._first_s.observe(exchange.first_s)
        if isinstance(exchange.answered, Ended):
            self._whole_s.observe(seconds)
            for name, counter in self._sums.items():
                counter.inc(getattr(exchange.answered.statistics, name))


class OpenAi:
    """The endpoints over what answers and what is served.

    `warn` is told what went wrong here; `counted` is a block in which a request is answered.
    """

    def __init__(
        self,
        asked: Asked,
        service: Service,
        warn: Callable[[str], object],
        counted: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._asked, self._service, self._warn, self._counted = asked, service, warn, counted
        self._figures, self._began, self._running = Figures(), int(time.time()), 0

    def app(
        self, address: Address, routes: Sequence[BaseRoute] = (), lifespan: Any = None
    ) -> Guard:
        """The application, with the `routes` of others beside its own, and their `lifespan`."""
        gets = {"/v1/models": self._models, "/health": self._health, "/metrics": self._metrics}
        gets |= {"/": show_page, "/documents": self._documents}
        own = [Route(path, _Post(self, path), methods=["POST"]) for path in _MADE_OF]
        own += [Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()]
        failures: Any = {404: _no_such, 405: _no_such}
        app = Starlette(routes=[*own, *routes], exception_handlers=failures, lifespan=lifespan)
        return Guard(app, address, error_reply)

    async def post(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request to one of the paths."""
        began, (kind, question_of, reply_of) = time.perf_counter(), _MADE_OF[path]
        asks = partial(question_of, self._service)
        exchange = Exchange(self._asked, asks, kind, reply_of, self._failure)
        if self._running >= _AT_ONCE:
            await _busy("Too many requests at once. Try again later.")(scope, receive, send)
            return
        self._running += 1
        try:
            with self._counted():
                await exchange.run(scope, receive, send)
        finally:
            self._running -= 1
            self._figures.add(path, exchange, time.perf_counter() - began)
        if exchange.question is not None and exchange.answered is not None:
            by = "page" if path == "/answer" else "http"
            log = partial(log_answer, exchange.question, exchange.answered, by, self._warn)
            await anyio.to_thread.run_sync(log)

    async def _models(self, request: Request) -> Response:
        own = {"object": "model", "created": self._began, "owned_by": "ngt"}
        models = [{"id": name, **own} for name in self._service.names]
        return JSONResponse({"object": "list", "data": models})

    async def _documents(self, request: Request) -> Response:
        try:
            found = await anyio.to_thread.run_sync(documents_shown, self._service)
        except NgtError as error:
            return self._failure(error)
        return JSONResponse(found)

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _metrics(self, request: Request) -> Response:
        self._figures.running.set(self._running)
        shown = generate_latest(self._figures.registry)
        return Response(shown, media_type="text/plain; version=0.0.4; charset=utf-8")

    def _failure(self, error: Exception) -> JSONResponse:
        """The response to what went wrong, without paths of this machine."""
        if isinstance(error, TimeoutError):
            return error_reply(504, "timeout", "the answer took too long")
        if isinstance(error, BusyError):
            return _busy(_words(error))
        if isinstance(error, RequestError):
            return error_reply(error.status, error.code, _words(error), error.param)
        if isinstance(error, ContextOverflowError):
            return error_reply(400, "context_length_exceeded", _words(error), "messages")
        if isinstance(error, UsageError):
            return error_reply(400, "invalid_value", _words(error))
        self._warn(f"a request failed: {type(error).__name__}: {error}")
        if isinstance(error, InputError):
            return error_reply(500, "documents_unreadable", "the server's documents cannot be read")
        return error_reply(500, "internal_error", "the answer failed; the server's output says why")


class _Post:
    """The endpoint of a path that answers; an object, so that Starlette gives it all messages."""

    def __init__(self, server: OpenAi, path: str) -> None:
        self._server, self._path = server, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._server.post(self._path, scope, receive, send)


def _words(error: NgtError) -> str:
    return f"{error}. {error.hint}".strip()


async def _no_such(request: Request, error: Any) -> Response:
    what = f"no {request.method} {request.url.path} here"
    return error_reply(error.status_code, "unknown_url", what)


def _busy(what: str) -> JSONResponse:
    response = error_reply(503, "queue_full", what)
    response.headers["retry-after"] = str(_RETRY_S)
    return response


def error_reply(status: int, code: str, message: str, param: str | None = None) -> JSONResponse:
    """An error in OpenAI's form."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    about = {"message": message, "type": kind, "param": param, "code": code}
    return JSONResponse({"error": about}, status)


class _Connection(H11Protocol):
    """A connection that is closed where no request comes: uvicorn waits for a first for ever."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._look(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._next_look.cancel()
        super().connection_lost(exc)

    def _look(self, last: object) -> None:
        """Close it if it has had no other request since the `last` that was seen."""
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and last == (self.cycle, True):
            self.transport.abort()
        self._next_look = self.loop.call_later(_IDLE_S, self._look, (self.cycle, is_idle))


def listen(address: Address) -> socket.socket:
    """A socket that listens there: connections wait. Raises UsageError where it cannot."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        what = f"{address.shown(address.port)}: {reason_of(error)}"
        raise UsageError(what, "Choose another port or address.") from None


class HttpServer:
    """Serves an application on a socket, in a thread of its own, until `close`."""

    def __init__(self, app: Any, listening: socket.socket) -> None:
        self._socket = listening
        config = uvicorn.Config(
            app,
            http=_Connection,
            loop="asyncio",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=_ENDING_S,
            h11_max_incomplete_event_size=_HEADERS,
        )
        logging.getLogger("uvicorn").addHandler(logging.NullHandler())
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def close(self) -> None:
        """End it: what is being answered gets a moment to end."""
        self._server.should_exit = True
        self._thread.join()
