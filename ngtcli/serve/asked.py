"""What takes questions, and what comes of one in an event loop."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Protocol

import anyio

from ngtcli.errors import NgtError
from ngtcli.session.events import USUAL, Ended, Event, Wants
from ngtcli.session.question import Question

_SILENT_S = 15.0  # after which it is said that nothing came


class Ticket(Protocol):
    """A question that was taken; it ends within a step of `cancel`."""

    def cancel(self) -> None: ...


class Asked(Protocol):
    """What answers questions: see `Resident`."""

    def submit(
        self,
        question: Question,
        on_event: Callable[[Event | NgtError], None],
        *,
        owner: str = "",
        wants: Wants = ...,
    ) -> Ticket: ...


async def events_of(
    asked: Asked, question: Question, owner: str, wants: Wants = USUAL
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
        event: Event | NgtError | None = None
        while not isinstance(event, Ended):
            event = None
            with anyio.move_on_after(_SILENT_S):
                event = await queue.get()
            if isinstance(event, NgtError):
                raise event
            yield event
    finally:
        ticket.cancel()
