"""The application of a server: the requests of commands, OpenAI's API and a page for browsers.

It is the same on both sockets: that of the server's user, and that of TCP, which has a guard.
Every request ends: requests, connections, headers, bodies and times are bounded.
"""

import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ngtcli import errors
from ngtcli.config import Settings
from ngtcli.engine.answers import RequestHandle
from ngtcli.engine.checks import check_session
from ngtcli.engine.events import Ended, Event, Message, Prompted, Stepped
from ngtcli.server import wire
from ngtcli.server.exchange import EventQueue, Exchange, Threads, answered, events_of
from ngtcli.server.http_guard import USER, Guard, connection_of
from ngtcli.server.openai_answers import ChatReply, Reply, ResponseReply
from ngtcli.server.openai_requests import ApiRequest, parse_chat, parse_response
from ngtcli.server.page import PageReply, list_documents, parse_page_request, show_page
from ngtcli.server.public import RequestError, is_private, private_words, words_of
from ngtcli.server.service import Service
from ngtcli.system import reporting
from ngtcli.system.reporting import CollectingReporter, Reporter, reporting_to

if TYPE_CHECKING:
    from ngtcli.server.process import Server

_MAX_REQUESTS = 256  # requests that wait or are answered (guess)
_ANSWER_TIMEOUT_S = 3600.0  # from the request to the end of its answer (guess)
_RETRY_AFTER_S = 2  # after which a client may ask again where the queue is full (guess)
_POLL_S = 0.1  # between looks at the progress of loading (guess)
_MAX_EARLY = 64  # remembered ids of requests that were cancelled before they came (guess)
_Parser = Callable[[Service, bytes], ApiRequest]
# The parser of the requests to each path, and the writer of the replies.
_FORMATS: Mapping[str, tuple[_Parser, Callable[[ApiRequest], Reply]]] = {
    "/v1/chat/completions": (parse_chat, ChatReply),
    "/v1/responses": (parse_response, ResponseReply),
    "/answer": (parse_page_request, PageReply),
}


def application(server: "Server", service: Service, routes: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the application of a server, with more `routes` beside its own.

    Every request has its owner in its scope, see `Entrance`. Errors that are not for clients go to
    the reporter of the caller.

    Args:
        server: The server that has the model.
        service: The models and documents that are served.
        routes: Further routes.
    """
    openai = OpenAi(server, service)
    failures: Any = {404: _no_such, 405: _no_such, errors.NgtError: openai.failed}
    all_routes = [*Commands(server).routes, *openai.routes, *routes]
    return Starlette(routes=all_routes, exception_handlers=failures)


class Entrance:
    """Finds the owner of each request, and lets it into the application.

    A request over the socket of the server's user belongs to that user, by the state of its
    connection. A request over TCP waits until the model is loaded, and then needs the guard's
    consent. Nothing done for a request is reported to the one who runs the server.
    """

    def __init__(self, server: "Server", app: ASGIApp, guard: Guard | None) -> None:
        self._server = server
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if connection_of(scope).is_of_user:
            scope["owner"] = USER
        elif self._guard is not None:
            await self._server.loaded.wait()
            try:
                scope["owner"] = await self._guard.owner_of(scope)
            except RequestError as error:
                await error_reply(error.status, error.code, str(error))(scope, receive, send)
                return
        else:
            return
        with reporting_to(Reporter()):
            await self._app(scope, receive, send)


class Commands:
    """The endpoints of the commands of the server's user, see `wire`; they answer nobody else."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._threads = Threads()
        self._submitted: dict[str, RequestHandle] = {}  # requests being answered, by their ids
        self._cancelled_early = deque[str](maxlen=_MAX_EARLY)

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes for commands."""
        return [
            Route("/ask", _of_user(self._ask), methods=["POST"]),
            Route("/cancel/{id}", _of_user(self._cancel), methods=["POST"]),
            Route("/about", _of_user(self._about)),
            Route("/stop", _of_user(self._stop), methods=["POST"]),
        ]

    async def _about(self, request: Request) -> Response:
        return Response(wire.encode(self._server.described()))

    async def _stop(self, request: Request) -> Response:
        self._server.stop()
        return await self._about(request)

    async def _cancel(self, request: Request) -> Response:
        request_id = request.path_params["id"]
        submitted = self._submitted.get(request_id)
        if submitted is not None:
            submitted.cancel()
        else:
            self._cancelled_early.append(request_id)
        return Response()

    async def _ask(self, request: Request) -> Any:
        if request.headers.get(wire.STAMP) != self._server.stamp:
            return Response(status_code=409)  # The command then loads the model itself.
        return Exchange(self._answer, self._server.activity, wire.MAX_REQUEST_BYTES)

    async def _answer(self, exchange: Exchange, body: bytes) -> None:
        try:
            ask: wire.Ask = await self._threads.run(wire.decode, body, wire.Ask)
        except wire.WireError:
            await exchange.respond(Response(status_code=400))
            return
        async with aclosing(self._lines(ask)) as lines:
            await exchange.stream("application/x-ndjson", lines)

    async def _lines(self, ask: wire.Ask) -> AsyncGenerator[bytes]:
        """Yield the events of a request; nothing if it is to be answered elsewhere."""
        async for line in self._until_loaded():
            yield line
        if self._server.refuses():
            return
        try:
            for warning in await self._threads.run(_warnings_of, ask.request.settings):
                yield wire.encode(Message("warn", warning))
            if ask.id in self._cancelled_early:
                raise errors.StoppedError("interrupted")
            queue = EventQueue()
            submitted = self._server.submit(ask.request, queue.put)
            self._submitted[ask.id] = submitted
            async with aclosing(events_of(submitted, queue)) as events:
                async for event in events:
                    yield b"\n" if event is None else wire.encode(event)
        except errors.NgtError as error:
            yield wire.encode(wire.Failed.of(error))
        finally:
            self._submitted.pop(ask.id, None)

    async def _until_loaded(self) -> AsyncGenerator[bytes]:
        """Yield the progress of loading until the model is loaded."""
        last_progress = ""
        while not self._server.loaded.is_set():
            progress = self._server.progress
            if progress == last_progress:
                yield b"\n"
            else:
                yield wire.encode(Message("status", progress))
            last_progress = progress
            await anyio.sleep(_POLL_S)


def _warnings_of(settings: Settings) -> list[str]:
    """Return the warnings of a check of settings. Raises what `check_session` does."""
    reporter = CollectingReporter()
    with reporting_to(reporter):
        check_session(settings)
    return reporter.warnings


def _of_user(
    endpoint: Callable[[Request], Coroutine[Any, Any, Any]],
) -> Callable[[Request], Coroutine[Any, Any, Any]]:
    """Return an endpoint that answers 404 to everybody but the server's user."""

    async def for_user(request: Request) -> Any:
        if request.scope["owner"] != USER:
            raise HTTPException(404)
        return await endpoint(request)

    return for_user


class OpenAi:
    """OpenAI's endpoints and the page."""

    def __init__(self, server: "Server", service: Service) -> None:
        self._server = server
        self._service = service
        self._reporter = reporting.current()  # gets the errors that are not for clients
        self._threads = Threads()
        self._created = int(time.time())

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes for all clients."""
        posts = [Route(path, partial(self._post, path), methods=["POST"]) for path in _FORMATS]
        return [
            *posts,
            Route("/", show_page),
            Route("/health", self._health),
            Route("/documents", self._documents),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._models),
        ]

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _models(self, request: Request) -> Response:
        fields = {"object": "model", "created": self._created, "owned_by": "ngt"}
        name = request.path_params.get("name")
        if name is not None:
            return JSONResponse({"id": self._service.checked(name), **fields})
        models = [{"id": name, **fields} for name in self._service.models]
        return JSONResponse({"object": "list", "data": models})

    async def _documents(self, request: Request) -> Response:
        return JSONResponse(await self._threads.run(list_documents, self._service))

    async def _post(self, path: str, request: Request) -> Any:
        """Answer a request to one of the paths."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        # A browser lets any page send other types without asking first.
        if content_type != "application/json":
            raise RequestError(
                "the content type of the body is not application/json",
                "Send the header Content-Type: application/json.",
                code="wrong_content_type",
                status=415,
            )
        if self._server.activity.answering >= _MAX_REQUESTS:
            return _busy("Too many requests at once. Try again later.")
        return Exchange(partial(self._answer, path), self._server.activity)

    async def _answer(self, path: str, exchange: Exchange, body: bytes) -> None:
        """Answer, or report the error: as the response, or at the end of one that has begun."""
        parser, reply_class = _FORMATS[path]
        reply: Reply | None = None
        try:
            with anyio.fail_after(_ANSWER_TIMEOUT_S):
                parse = partial(parser, self._service, body)
                api_request = await self._threads.run(parse, abandon=True)
                reply = reply_class(api_request)
                owner = exchange.scope["owner"]
                async with aclosing(self._events(api_request, owner)) as events:
                    if api_request.is_stream:
                        await exchange.stream(reply.media_type, _pieces(reply, events))
                    else:
                        *_, last = [event async for event in events]
                        assert isinstance(last, Ended)
                        await exchange.respond(JSONResponse(reply.complete(last)))
        except ClientDisconnect:
            raise
        except Exception as error:
            failure = self._failure(error)
            if reply is None or not exchange.has_begun:
                await exchange.respond(failure)
            else:
                await exchange.send(reply.fail(msgspec.json.decode(failure.body)))

    async def _events(self, api_request: ApiRequest, owner: str) -> AsyncGenerator[Event | None]:
        """Yield the events of a request for its client; None if nothing came for a while."""
        async with aclosing(answered(self._server, api_request.request, owner)) as events:
            async for event in events:
                is_truncated = isinstance(event, Prompted) and event.left_out
                if is_truncated and api_request.refuses_truncation:
                    raise errors.ContextOverflowError(
                        "the messages do not fit the context",
                        hint='Send fewer, or "truncation": "auto" to have the oldest left out.',
                    )
                yield event

    async def failed(self, request: Request, error: Exception) -> Response:
        """Return the response to an error that an endpoint raised."""
        return self._failure(error)

    def _failure(self, error: Exception) -> JSONResponse:
        """Return the response to an error, and report it where it is not for clients."""
        if is_private(error):
            self._reporter.warn(f"a request failed: {type(error).__name__}: {error}")
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
        default_param = "settings" if isinstance(error, errors.UsageError) else None
        param = getattr(error, "name", default_param)
        return error_reply(400, "invalid_value", words, param)


async def _pieces(reply: Reply, events: AsyncGenerator[Event | None]) -> AsyncGenerator[bytes]:
    """Yield the pieces of a streamed reply."""
    has_begun = False
    async for event in events:
        if not has_begun and (
            reply.begins_at_once or isinstance(event, Prompted | Stepped | Ended)
        ):
            has_begun = True
            yield b"".join(reply.begin())
        if event is None and has_begun:  # A proxy might close a connection without traffic.
            yield reply.heartbeat
        elif event is not None and has_begun:
            chunks = reply.end(event) if isinstance(event, Ended) else reply.encode_event(event)
            yield b"".join(chunks)


async def _no_such(request: Request, error: Any) -> Response:
    message = f"no {request.method} {request.url.path} here"
    return error_reply(error.status_code, "unknown_url", message)


def _busy(message: str) -> JSONResponse:
    response = error_reply(503, "queue_full", message)
    response.headers["retry-after"] = str(_RETRY_AFTER_S)
    return response


def error_reply(status: int, code: str, message: str, param: str | None = None) -> JSONResponse:
    """Return an error in OpenAI's format.

    Args:
        status: The HTTP status.
        code: The error's code, such as "invalid_value".
        message: The error in words.
        param: The parameter of the request that is wrong, if any.
    """
    error_type = "server_error" if status >= 500 else "invalid_request_error"
    details = {"message": message, "type": error_type, "param": param, "code": code}
    return JSONResponse({"error": details}, status)
