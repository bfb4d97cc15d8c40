"""One application on two sockets: what commands ask the server, OpenAI's API and a page.

Over its own socket the user's commands ask (see `wire`); over TCP those whom the guard lets in.
Every request ends: requests, connections, headers, bodies and times are bounded.
"""

import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ngtcli import errors
from ngtcli.engine.checks import check_session
from ngtcli.engine.events import Ended, Event, Message, Prompted, Stepped
from ngtcli.server import wire
from ngtcli.server.exchange import Exchange, Threads, answered, events_of
from ngtcli.server.openai_answers import ChatReply, Reply, ResponseReply
from ngtcli.server.openai_requests import Asks, chat, response
from ngtcli.server.page import PageReply, documents_shown, page, show_page
from ngtcli.server.public import RequestError, is_private, private_words, words_of
from ngtcli.server.service import Service

if TYPE_CHECKING:
    from ngtcli.server.process import Server

_AT_ONCE = 256  # requests that wait or are answered; guess
_LONGEST_S = 3600.0  # from the request to the end of its answer; guess
_RETRY_S = 2  # after which a client may ask again where the queue is full; guess
_TELL_S = 0.1  # between looks at how far loading is; guess
_EARLY = 64  # questions that are cancelled before they are taken, and remembered; guess
# For each path what reads its requests, and what writes its replies.
_FORMS: Mapping[str, tuple[Callable[[Service, bytes], Asks], Callable[[Asks], Reply]]] = {
    "/v1/chat/completions": (chat, ChatReply),
    "/v1/responses": (response, ResponseReply),
    "/answer": (page, PageReply),
}


class TwoSockets:
    """What the user's commands ask over the process's own socket, and others over TCP.

    Others wait until the model is loaded. They get nothing without `others`.
    """

    def __init__(self, process: "Server", others: ASGIApp | None = None) -> None:
        self._process, self._others = process, others
        self._threads = Threads()
        self._tickets: dict[str, Any] = {}  # of questions that are answered, by their ids
        self._early = deque[str](maxlen=_EARLY)
        post: Any = {"methods": ["POST"]}
        routes = [
            Route("/ask", self._ask, **post), Route("/cancel/{id}", self._cancel, **post),
            Route("/about", self._about), Route("/stop", self._stop, **post),
        ]  # fmt: skip
        self._commands = Starlette(routes=routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["server"][1] is None:  # a path in place of an address: the user's, see _Connection
            await self._commands(scope, receive, send)
        elif self._others is not None:
            await self._process.loaded.wait()
            await self._others(scope, receive, send)

    async def _about(self, request: Request) -> Response:
        return Response(wire.encode(self._process.described()))

    async def _stop(self, request: Request) -> Response:
        self._process.stop()
        return await self._about(request)

    async def _cancel(self, request: Request) -> Response:
        if (ticket := self._tickets.get(name := request.path_params["id"])) is not None:
            ticket.cancel()
        else:
            self._early.append(name)
        return Response()

    async def _ask(self, request: Request) -> Any:
        refusal = Response(status_code=400)
        return Exchange(self._answer, lambda _: refusal, self._process.counted, wire.MOST)

    async def _answer(self, exchange: Exchange, body: bytes) -> None:
        try:
            asked: wire.Ask = await self._threads.run(wire.decode, body, wire.Ask)
        except wire.WireError:
            await exchange.respond(Response(status_code=400))
            return
        async with aclosing(self._lines(asked)) as lines:
            await exchange.stream("application/x-ndjson", lines)

    async def _lines(self, asked: wire.Ask) -> AsyncGenerator[bytes]:
        """What comes of a question; nothing where it is to be answered elsewhere."""
        async for line in self._until_loaded():
            yield line
        if self._process.refuses():
            return
        try:
            warned: list[str] = []
            await self._threads.run(check_session, asked.request.settings, warned.append)
            for words in warned:
                yield wire.encode(Message("warn", words))
            if asked.id in self._early:
                raise errors.StoppedError("interrupted")
            taken = partial(self._tickets.__setitem__, asked.id)
            own = events_of(self._process.submit, asked.request, "", taken)
            async with aclosing(own) as events:
                async for event in events:
                    yield b"\n" if event is None else wire.encode(event)
        except errors.NgtError as error:
            yield wire.encode(wire.Failed.of(error))
        finally:
            self._tickets.pop(asked.id, None)

    async def _until_loaded(self) -> AsyncGenerator[bytes]:
        """What is being done until the model is loaded."""
        told = ""
        while not self._process.loaded.is_set():
            before, told = told, self._process.told
            yield b"\n" if told == before else wire.encode(Message("status", told))
            await anyio.sleep(_TELL_S)


class OpenAi:
    """OpenAI's endpoints and the page over what answers and what is served.

    `warn` is told what went wrong here.
    """

    def __init__(self, process: "Server", service: Service, warn: Callable[[str], object]) -> None:
        self._process, self._service, self._warn = process, service, warn
        self._threads = Threads()
        self._began = int(time.time())

    def app(self, routes: Sequence[BaseRoute] = ()) -> ASGIApp:
        """The application, with the `routes` of others beside its own."""
        gets: Mapping[str, Any] = {
            "/": show_page, "/health": self._health, "/documents": self._documents,
            "/v1/models": self._models, "/v1/models/{name:path}": self._models,
        }  # fmt: skip
        own = [Route(path, partial(self._post, path), methods=["POST"]) for path in _FORMS]
        own += [Route(path, endpoint) for path, endpoint in gets.items()]
        failures: Any = {404: _no_such, 405: _no_such, errors.NgtError: self._failed}
        return Starlette(routes=[*own, *routes], exception_handlers=failures)

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _models(self, request: Request) -> Response:
        own = {"object": "model", "created": self._began, "owned_by": "ngt"}
        if (name := request.path_params.get("name")) is not None:
            return JSONResponse({"id": self._service.checked(name), **own})
        models = [{"id": name, **own} for name in self._service.names]
        return JSONResponse({"object": "list", "data": models})

    async def _documents(self, request: Request) -> Response:
        return JSONResponse(await self._threads.run(documents_shown, self._service))

    async def _post(self, path: str, request: Request) -> Any:
        """Answer a request to one of the paths."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # a page may send other kinds without asking first
            what = "the body is not of content type application/json"
            raise RequestError(what, "Say so in a header.", None, "wrong_content_type", 415)
        if self._process.answering >= _AT_ONCE:
            return _busy("Too many requests at once. Try again later.")
        return Exchange(partial(self._answer, path), self._failure, self._process.counted)

    async def _answer(self, path: str, exchange: Exchange, body: bytes) -> None:
        """Answer, or say what went wrong: as the response, or within what has begun."""
        asks_of, reply_of = _FORMS[path]
        reply: Reply | None = None
        try:
            with anyio.fail_after(_LONGEST_S):
                ask = partial(asks_of, self._service, body)
                asks = await self._threads.run(ask, abandon=True)
                reply = reply_of(asks)
                async with aclosing(self._events(asks, exchange.scope["owner"])) as events:
                    if asks.is_stream:
                        await exchange.stream(reply.media_type, _pieces(reply, events))
                    else:
                        *_, last = [event async for event in events]
                        assert isinstance(last, Ended)
                        await exchange.respond(JSONResponse(reply.whole(last)))
        except ClientDisconnect:
            raise
        except Exception as error:
            said = self._failure(error)
            if reply is None or not exchange.has_begun:
                await exchange.respond(said)
            else:
                await exchange.send(reply.failed(msgspec.json.decode(said.body)))

    async def _events(self, asks: Asks, owner: str) -> AsyncGenerator[Event | None]:
        """What comes of a question, for others; None where nothing came for a while."""
        own = answered(self._process.submit, asks.request, owner)
        async with aclosing(own) as events:
            async for event in events:
                if isinstance(event, Prompted) and event.left_out and asks.keeps_all:
                    hint = 'Send fewer, or "truncation": "auto" to have the oldest left out.'
                    raise errors.ContextOverflowError(
                        "the messages do not fit the context", hint=hint
                    )
                yield event

    async def _failed(self, request: Request, error: Exception) -> Response:
        return self._failure(error)

    def _failure(self, error: Exception) -> JSONResponse:
        """The response to what went wrong."""
        if is_private(error):
            self._warn(f"a request failed: {type(error).__name__}: {error}")
            code = (
                "documents_unreadable" if isinstance(error, errors.InputError) else "internal_error"
            )
            return error_reply(500, code, private_words(error))
        if not isinstance(error, errors.NgtError):
            return error_reply(504, "timeout", "the answer took too long")
        words = words_of(error, with_settings=True)
        if isinstance(error, errors.BusyError):
            return _busy(words)
        if isinstance(error, RequestError):
            return error_reply(error.status, error.code, words, error.param)
        if isinstance(error, errors.ContextOverflowError):
            return error_reply(400, "context_length_exceeded", words, "messages")
        of_settings = "settings" if isinstance(error, errors.UsageError) else None
        return error_reply(400, "invalid_value", words, getattr(error, "name", of_settings))


async def _pieces(reply: Reply, events: AsyncGenerator[Event | None]) -> AsyncGenerator[bytes]:
    """A reply in pieces."""
    has_begun = False
    async for event in events:
        if not has_begun and (reply.at_once or isinstance(event, Prompted | Stepped | Ended)):
            has_begun = True
            yield b"".join(reply.begin())
        if event is None and has_begun:  # else what is between might close it
            yield reply.beat
        elif event is not None and has_begun:
            told = reply.end(event) if isinstance(event, Ended) else reply.told(event)
            yield b"".join(told)


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
