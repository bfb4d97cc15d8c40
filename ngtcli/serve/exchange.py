"""One HTTP request and its client: read, answered as it comes, and given up, all within bounds.

The generation ends with its client: with one that closes the connection at once, with one that does
not read what it is sent after a while.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

import anyio
from starlette.types import Message, Receive, Scope, Send

from ngtcli.errors import NgtError
from ngtcli.serve.public import RequestError
from ngtcli.session.events import USUAL, Ended, Event, Wants
from ngtcli.session.question import Question

BODY = 8_000_000  # bytes of a request; guess: the text of some thousand pages
_SENDING_S = 60.0  # that a client takes to send its request, or to read what it is sent; guess
_SILENT_S = 15.0  # after which it is said that nothing came; guess


class Ticket(Protocol):
    """A question that was taken; it ends within a step of `cancel`."""

    def cancel(self) -> None: ...


class Asked(Protocol):
    """What answers questions, from any thread: see `Resident`.

    `on_event` gets the events of a question, last of them `Ended` or the NgtError that it ends
    with. `submit` raises NgtError where the question is not taken.
    """

    def submit(
        self,
        question: Question,
        on_event: Callable[[Event | NgtError], object],
        *,
        owner: str = "",
        wants: Wants = ...,
    ) -> Ticket: ...


class Answerer(Asked, Protocol):
    """A loaded model."""

    def close(self) -> None: ...


async def events_of(
    asked: Asked,
    question: Question,
    owner: str,
    wants: Wants = USUAL,
    silent_s: float = _SILENT_S,
    taken: Callable[[Ticket], object] = lambda _: None,
) -> AsyncGenerator[Event | None, None]:
    """What comes of a question, None where nothing came for a while. Raises NgtError.

    Closing it cancels the question, and waits for nothing.
    """
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Event | NgtError]()

    def put(event: Event | NgtError) -> None:
        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(queue.put_nowait, event)

    ticket = asked.submit(question, put, owner=owner, wants=wants)
    try:
        taken(ticket)
        event: Event | NgtError | None = None
        while not isinstance(event, Ended):
            event = None
            with anyio.move_on_after(silent_s):
                event = await queue.get()
            if isinstance(event, NgtError):
                raise event
            yield event
    finally:
        ticket.cancel()


class GoneError(Exception):
    """The client has left, or does not read."""


class Exchange:
    """Answers one request by `work`, which reads and sends by it, as long as its client is there.

    An application of ASGI, so that an endpoint of Starlette can return it. `has_begun`: something
    is sent.
    """

    has_begun = False

    def __init__(self, work: Callable[["Exchange"], Coroutine[Any, Any, None]], most: int = BODY):
        self._work, self._most = work, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        with suppress(GoneError):
            await self._work(self)

    async def body(self) -> bytes:
        """The request's body. Raises RequestError and GoneError."""
        body, more = bytearray(), True
        with anyio.move_on_after(_SENDING_S):
            while more and len(body) <= self._most:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise GoneError
                body += message.get("body", b"")
                more = message.get("more_body", False)
        if len(body) > self._most:
            what = f"the body has more than {self._most / 1e6:g} MB"
            raise RequestError(what, "Send less text.", code="too_large", status=413)
        if more:
            what = f"the request did not come in {_SENDING_S:.0f} s"
            raise RequestError(what, code="timeout", status=408)
        return bytes(body)

    async def while_there(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`, which raises nothing, and cancel it when the client leaves."""
        async with anyio.create_task_group() as group:

            async def leave_with_client() -> None:
                while (await self._receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(leave_with_client)
            await work
            group.cancel_scope.cancel()

    async def respond(self, response: Callable[[Scope, Receive, Send], Any]) -> None:
        """Send a whole response. Raises GoneError."""
        await response(self.scope, self._receive, self._sent)

    async def stream(self, media_type: str, pieces: AsyncIterator[bytes]) -> None:
        """Send pieces as they come. Raises GoneError, and what they raise."""
        async for piece in pieces:
            if not self.has_begun:
                headers = [
                    (b"content-type", media_type.encode()),
                    (b"cache-control", b"no-store"),
                    (b"x-accel-buffering", b"no"),  # nginx would collect the pieces
                ]
                start = {"type": "http.response.start", "status": 200, "headers": headers}
                await self._sent(start)
            if piece:
                body = {"type": "http.response.body", "body": piece, "more_body": True}
                await self._sent(body)
        await self.last(b"")

    async def last(self, piece: bytes) -> None:
        """Send the end of what has begun. Raises GoneError."""
        await self._sent({"type": "http.response.body", "body": piece, "more_body": False})

    async def _sent(self, message: Message) -> None:
        self.has_begun = True
        try:
            with anyio.fail_after(_SENDING_S):
                await self._send(message)
        except OSError:  # a TimeoutError, too
            raise GoneError from None
