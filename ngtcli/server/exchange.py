"""Read an HTTP request, send the answer as it comes, and give up, all within bounds.

An answer ends with its client: at once where the client closes the connection, and after a while
where the client does not read.
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

from ngtcli.engine.answers import Answers, OnEvent, RequestHandle, RequestService
from ngtcli.engine.events import Answer, Ended, Event
from ngtcli.engine.request import Request
from ngtcli.errors import NgtError, unexpected
from ngtcli.server.activity import Activity
from ngtcli.server.folder import StillReadingError
from ngtcli.server.public import RequestError, public
from ngtcli.server.wire import BEAT_S

MAX_BODY_BYTES = 8_000_000  # bytes of a request (guess: the text of some thousand pages)
_TRANSFER_TIMEOUT_S = 60.0  # for a client to send a request, or to read a piece (guess)
_MAX_THREADS = 40  # that prepare the requests of one socket (guess)
_RETRY_S = 0.1  # between two attempts while another thread reads the documents (guess)
Result = TypeVar("Result")


class Threads:
    """Threads that prepare the requests of one socket.

    Requests over TCP never occupy the threads for the user's own commands. While one thread reads
    the documents, requests that need them wait in the loop and occupy no thread.
    """

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(_MAX_THREADS)

    async def run(
        self, work: Callable[..., Result], *arguments: Any, abandon: bool = False
    ) -> Result:
        """Do some work in a thread.

        Args:
            work: The function to call.
            arguments: Its arguments.
            abandon: Whether the work outlives a caller that is cancelled.
        """
        while True:
            try:
                return await to_thread.run_sync(
                    work, *arguments, abandon_on_cancel=abandon, limiter=self._limiter
                )
            except StillReadingError:
                await anyio.sleep(_RETRY_S)


async def events_of(
    submitted: RequestHandle, queue: "EventQueue"
) -> AsyncGenerator[Event | None, None]:
    """Yield the events of a request; None if nothing came for a while. Raises NgtError.

    Closing the generator cancels the request, and waits for nothing.
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


async def answered(
    answers: RequestService, request: Request, owner: str
) -> AsyncGenerator[Event | None]:
    """Yield the events of a request as far as its owner may see them; None for a pause."""
    queue = EventQueue()
    submitted = answers.submit(request, queue.put, owner=owner)
    async with aclosing(events_of(submitted, queue)) as events:
        async for event in events:
            if event is None or not owner:
                yield event
                continue
            public_event = public(event)
            if public_event is not None:
                yield public_event


class Threaded:
    """Passes on the events of other `Answers`, from a thread for each request."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def submit(self, request: Request, on_event: OnEvent, *, owner: str = "") -> RequestHandle:
        """As `RequestService.submit`."""
        return _Thread(self._answers.ask(request, owner=owner), on_event)


class _Thread:
    """Passes on the events of an answer."""

    def __init__(self, answer: Answer, on_event: OnEvent) -> None:
        self._answer = answer
        self._on_event = on_event
        self._is_cancelled = False
        threading.Thread(target=self._run, daemon=True).start()

    def cancel(self) -> None:
        """As `RequestHandle.cancel`: the answer ends at its next event."""
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
    """Answers a request as long as its client is there.

    It is an ASGI application, so that an endpoint of Starlette can return it. It raises
    RequestError for a body that is too long or too slow. Methods that send raise ClientDisconnect,
    also where the client does not read.

    Args:
        work: Answers the request; it gets the body.
        activity: Counts the request while it is answered.
        max_body: Bytes of the body at most.

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
        self.scope = scope
        self._receive = receive
        self._send = send
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
        """Return the body of the request. Raises RequestError and ClientDisconnect."""
        body = bytearray()
        with anyio.move_on_after(_TRANSFER_TIMEOUT_S):
            async for piece in http.Request(self.scope, self._receive).stream():
                body += piece
                if len(body) > self._max_body:
                    raise RequestError(
                        f"the body has more than {self._max_body / 1e6:g} MB",
                        hint="Send less text.",
                        code="too_large",
                        status=413,
                    )
            return bytes(body)
        raise RequestError(
            f"the request did not come in {_TRANSFER_TIMEOUT_S:.0f} s", code="timeout", status=408
        )

    async def respond(self, response: ASGIApp) -> None:
        """Send a whole response."""
        await response(self.scope, self._receive, self._send_message)

    async def stream(self, media_type: str, pieces: AsyncIterator[bytes]) -> None:
        """Send pieces as they come. Raises what they raise, too."""
        headers = [
            (b"content-type", media_type.encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),  # Otherwise nginx would collect the pieces.
        ]
        async for piece in pieces:
            if not self.has_begun:
                start = {"type": "http.response.start", "status": 200, "headers": headers}
                await self._send_message(start)
            if piece:
                await self.send(piece, more_body=True)
        await self.send(b"")

    async def send(self, piece: bytes, more_body: bool = False) -> None:
        """Send the next piece of a response that has begun."""
        await self._send_message(
            {"type": "http.response.body", "body": piece, "more_body": more_body}
        )

    async def _send_message(self, message: Message) -> None:
        self.has_begun = True
        try:
            with anyio.fail_after(_TRANSFER_TIMEOUT_S):
                await self._send(message)
        except OSError:  # TimeoutError is an OSError.
            raise ClientDisconnect from None
