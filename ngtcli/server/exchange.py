"""One HTTP request and its client: read, answered as it comes, and given up, all within bounds.

The generation ends with its client: with one that closes the connection at once, with one that does
not read what it is sent after a while.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, closing, suppress
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from starlette import requests as http
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ngtcli.engine.answers import Answers, OnEvent, Submits, Submitted
from ngtcli.engine.events import Answer, Ended, Event
from ngtcli.engine.request import Request
from ngtcli.errors import NgtError, unexpected
from ngtcli.server.activity import Activity
from ngtcli.server.folder import StillReadingError
from ngtcli.server.public import RequestError, public
from ngtcli.server.wire import BEAT_S

MAX_BODY_BYTES = 8_000_000  # bytes of a request; guess: the text of some thousand pages
_SENDING_S = 60.0  # for a client to send its request, or to read a piece of the answer; guess
_MAX_THREADS = 40  # that prepare the requests of one socket; guess
_RETRY_S = 0.1  # between looks at whether the documents are read; guess
Result = TypeVar("Result")


class Threads:
    """Threads that prepare the requests of one socket.

    The user's own commands find a free one, whatever comes over TCP. While one thread reads the
    documents, requests that need them wait in the loop and occupy none.
    """

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(_MAX_THREADS)

    async def run(
        self, work: Callable[..., Result], *arguments: Any, abandon: bool = False
    ) -> Result:
        """Do some work in a thread; with `abandon` it outlives a caller that is cancelled."""
        while True:
            try:
                return await to_thread.run_sync(
                    work, *arguments, abandon_on_cancel=abandon, limiter=self._limiter
                )
            except StillReadingError:
                await anyio.sleep(_RETRY_S)


async def events_of(
    submitted: Submitted, queue: "EventQueue"
) -> AsyncGenerator[Event | None, None]:
    """Yield the events of a request, None where nothing came for a while. Raises NgtError.

    Closing it cancels the request, and waits for nothing.
    """
    try:
        event: Event | NgtError | None = None
        while not isinstance(event, Ended):
            event = None
            with anyio.move_on_after(BEAT_S):
                event = await queue.get()
            if isinstance(event, NgtError):
                raise event
            yield event
    finally:
        submitted.cancel()


class EventQueue:
    """The events of a request, which come in other threads and are taken in this loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events = asyncio.Queue[Event | NgtError]()

    def put(self, event: Event | NgtError) -> None:
        """Add an event, from any thread."""
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def get(self) -> Event | NgtError:
        """Return the next event, when it comes."""
        return await self._events.get()


async def answered(answers: Submits, request: Request, owner: str) -> AsyncGenerator[Event | None]:
    """Yield the events of a request as far as its owner may see them; None for a pause."""
    queue = EventQueue()
    submitted = answers.submit(request, queue.put, owner=owner)
    async with aclosing(events_of(submitted, queue)) as events:
        async for event in events:
            if event is None or not owner or (event := public(event)) is not None:
                yield event


class Threaded:
    """Hands on what other `Answers` answer, from a thread for each request."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def submit(self, request: Request, on_event: OnEvent, *, owner: str = "") -> Submitted:
        """As `Submits.submit`."""
        return _Thread(self._answers.ask(request, owner=owner), on_event)


class _Thread:
    """Hands on the events of one answer."""

    def __init__(self, answer: Answer, on_event: OnEvent) -> None:
        self._answer = answer
        self._on_event = on_event
        self._is_cancelled = False
        threading.Thread(target=self._run, daemon=True).start()

    def cancel(self) -> None:
        """As `Submitted.cancel`: it ends at its next event."""
        self._is_cancelled = True

    def _run(self) -> None:
        try:
            with closing(self._answer) as events:
                for event in events:
                    if self._is_cancelled:
                        return
                    self._on_event(event)
        except BaseException as error:  # a library in another language may panic
            self._on_event(unexpected(error))


class Exchange:
    """Answers one request by `work`, which gets the body, as long as its client is there.

    An application of ASGI, so that an endpoint of Starlette can return it. It raises RequestError
    for a body that is too long or too slow. What sends raises ClientDisconnect, also for a client
    that does not read.

    Attributes:
        has_begun: Whether something was sent.
    """

    def __init__(
        self,
        work: Callable[["Exchange", bytes], Coroutine[Any, Any, None]],
        activity: Activity,
        max_body: int = MAX_BODY_BYTES,
    ) -> None:
        self._work = work
        self._activity = activity
        self._max_body = max_body
        self.has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        with self._activity, suppress(ClientDisconnect):
            body = await self._body()
            async with anyio.create_task_group() as group:
                group.start_soon(self._leave_with_client, group.cancel_scope)
                with suppress(ClientDisconnect):
                    await self._work(self, body)
                group.cancel_scope.cancel()

    async def _leave_with_client(self, scope: anyio.CancelScope) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _body(self) -> bytes:
        """The request's body. Raises RequestError and ClientDisconnect."""
        body = bytearray()
        with anyio.move_on_after(_SENDING_S):
            async for piece in http.Request(self.scope, self._receive).stream():
                body += piece
                if len(body) > self._max_body:
                    what = f"the body has more than {self._max_body / 1e6:g} MB"
                    raise RequestError(what, hint="Send less text.", code="too_large", status=413)
            return bytes(body)
        what = f"the request did not come in {_SENDING_S:.0f} s"
        raise RequestError(what, code="timeout", status=408)

    async def respond(self, response: ASGIApp) -> None:
        """Send a whole response."""
        await response(self.scope, self._receive, self._sent)

    async def stream(self, media_type: str, pieces: AsyncIterator[bytes]) -> None:
        """Send pieces as they come. Raises what they raise, too."""
        kind = b"content-type", media_type.encode()
        # Without the last nginx would collect the pieces.
        headers = [kind, (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        async for piece in pieces:
            if not self.has_begun:
                start = {"type": "http.response.start", "status": 200, "headers": headers}
                await self._sent(start)
            if piece:
                await self.send(piece, more=True)
        await self.send(b"")

    async def send(self, piece: bytes, more: bool = False) -> None:
        """Send what comes next of what has begun."""
        await self._sent({"type": "http.response.body", "body": piece, "more_body": more})

    async def _sent(self, message: Message) -> None:
        self.has_begun = True
        try:
            with anyio.fail_after(_SENDING_S):
                await self._send(message)
        except OSError:  # a TimeoutError, too
            raise ClientDisconnect from None
