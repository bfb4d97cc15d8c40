"""One HTTP request and its client: read, answered as it comes, and given up, all within bounds.

The generation ends with its client: with one that closes the connection at once, with one that does
not read what it is sent after a while.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, aclosing, suppress
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from starlette import requests as http
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ngtcli.engine.events import Ended, Event
from ngtcli.engine.request import Request
from ngtcli.errors import NgtError
from ngtcli.server.folder import StillReadingError
from ngtcli.server.public import RequestError, public
from ngtcli.server.wire import BEAT_S

BODY = 8_000_000  # bytes of a request; guess: the text of some thousand pages
_SENDING_S = 60.0  # that a client takes to send its request, or to read what it is sent; guess


_THREADS = 40  # that make the requests of one door ready; guess
_AGAIN_S = 0.1  # after which is asked again whether the documents are read; guess
Result = TypeVar("Result")


class Threads:
    """Threads that make requests ready, apart from those of other doors.

    So whatever others send, the user's own commands find a free one. While one thread reads the
    documents, those who need them wait in the loop and take none.
    """

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(_THREADS)

    async def run(
        self, work: Callable[..., Result], *arguments: Any, abandon: bool = False
    ) -> Result:
        """Do some work in a thread; it goes on there without us if we `abandon` it."""
        while True:
            try:
                return await to_thread.run_sync(
                    work, *arguments, abandon_on_cancel=abandon, limiter=self._limiter
                )
            except StillReadingError:
                await anyio.sleep(_AGAIN_S)


Submit = Callable[..., Any]  # has a question answered, from any thread: see `Resident.submit`


async def events_of(
    submit: Submit,
    request: Request,
    owner: str,
    taken: Callable[[Any], object] = lambda _: None,
) -> AsyncGenerator[Event | None, None]:
    """Yield the events of a question, None where nothing came for a while. Raises NgtError.

    `taken` is called with its ticket. Closing it cancels the question, and waits for nothing.
    """
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Event | NgtError]()

    def put(event: Event | NgtError) -> None:
        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(queue.put_nowait, event)

    ticket = submit(request, put, owner=owner)
    try:
        taken(ticket)
        event: Event | NgtError | None = None
        while not isinstance(event, Ended):
            event = None
            with anyio.move_on_after(BEAT_S):
                event = await queue.get()
            if isinstance(event, NgtError):
                raise event
            yield event
    finally:
        ticket.cancel()


async def answered(
    submit: Submit,
    request: Request,
    owner: str,
) -> AsyncGenerator[Event | None]:
    """Yield what `events_of` yields, as far as the owner may see it."""
    async with aclosing(events_of(submit, request, owner)) as events:
        async for event in events:
            if event is None or not owner or (event := public(event)) is not None:
                yield event


class Exchange:
    """Answers one request by `work`, which gets the body, as long as its client is there.

    An application of ASGI, so that an endpoint of Starlette can return it. `refusal` makes the
    response to a body that is too long or too slow, `during` is open from the first to the last.
    `has_begun`: something is sent. What sends raises ClientDisconnect, also for one that does not
    read.
    """

    has_begun = False

    def __init__(
        self,
        work: Callable[["Exchange", bytes], Coroutine[Any, Any, None]],
        refusal: Callable[[RequestError], ASGIApp],
        during: Callable[[], AbstractContextManager[None]],
        most: int = BODY,
    ) -> None:
        self._work, self._refusal, self._during, self._most = work, refusal, during, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        with self._during(), suppress(ClientDisconnect):
            try:
                body = await self._body()
            except RequestError as error:
                await self.respond(self._refusal(error))
                return
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
                if len(body) > self._most:
                    what = f"the body has more than {self._most / 1e6:g} MB"
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
