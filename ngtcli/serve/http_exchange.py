"""One HTTP request that is answered: read within bounds, asked, and sent as it comes.

The generation ends with its client: with one that closes the connection at once, with one that does
not read what it is sent after a while.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Any

import anyio
import msgspec
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from ngtcli.errors import ContextOverflowError
from ngtcli.serve.asked import Asked, events_of
from ngtcli.serve.openai_answers import Reply
from ngtcli.serve.openai_requests import RequestError, parsed
from ngtcli.session.events import Ended, Event, Prompted, Stepped, Wants
from ngtcli.session.question import Question

_BODY = 8_000_000  # bytes of a request; guess: the text of some thousand pages
_LONGEST_S = 3600.0  # from the request to the end of its answer; guess
_SENDING_S = 60.0  # that a client takes to send its request, or to read what it is sent; guess
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the events
]


class GoneError(Exception):
    """The client has left, or does not read."""


class Exchange:
    """Answers one request: `kind` is its form, `reply_of` makes that of its answer.

    `failure` makes the response to what goes wrong. `question` is what it asks, `answered` what
    came of that, if all went well, `first_s` the seconds to its first token.
    """

    status = 0  # of the response; 0: none was sent
    question: Question | None = None
    answered: Ended | None = None
    first_s: float | None = None
    is_gone = False  # whether the client left first
    _is_over = False  # whether all is sent

    def __init__(
        self,
        asked: Asked,
        question_of: Callable[[Any], Question],
        kind: Any,
        reply_of: Callable[[Any, Question], Reply],
        failure: Callable[[Exception], JSONResponse],
    ) -> None:
        self._asked, self._question_of, self._kind = asked, question_of, kind
        self._reply_of, self._failure = reply_of, failure
        self._began = time.perf_counter()

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the request and answer it, as long as its client is there."""
        self._scope, self._send = scope, send
        try:
            body = await self._body(receive)
        except GoneError:
            self.is_gone = True
            return
        except Exception as error:
            await self._fail(error, None)
            return
        async with anyio.create_task_group() as group:

            async def leave_with_client() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                self.is_gone = not self._is_over
                group.cancel_scope.cancel()

            group.start_soon(leave_with_client)
            await self._answer(body)
            group.cancel_scope.cancel()

    async def _body(self, receive: Receive) -> bytes:
        """The request's body. Raises RequestError and GoneError."""
        headers = dict(self._scope["headers"])
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":  # a page may send other kinds without asking first
            what = "the body is not of content type application/json"
            raise RequestError(what, "Say so in a header.", code="wrong_content_type", status=415)
        body, more = bytearray(), True
        with anyio.move_on_after(_SENDING_S):
            while more and len(body) <= _BODY:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise GoneError
                body += message.get("body", b"")
                more = message.get("more_body", False)
        if len(body) > _BODY:
            what = f"the body has more than {_BODY / 1e6:g} MB"
            raise RequestError(what, "Send less text.", code="too_large", status=413)
        if more:
            what = f"the request did not come in {_SENDING_S:.0f} s"
            raise RequestError(what, code="timeout", status=408)
        return bytes(body)

    async def _answer(self, body: bytes) -> None:
        """Answer, or say what went wrong."""
        reply: Reply | None = None
        try:
            with anyio.fail_after(_LONGEST_S):
                asked = parsed(self._kind, body)
                self.question = question = await anyio.to_thread.run_sync(
                    self._question_of, asked, abandon_on_cancel=True
                )
                reply = self._reply_of(asked, question)
                async with aclosing(self._events(question, asked)) as events:
                    await (self._stream if asked.stream else self._whole)(reply, events)
        except GoneError:
            self.is_gone = True
        except Exception as error:
            with suppress(GoneError):
                await self._fail(error, reply)

    async def _events(self, question: Question, asked: Any) -> AsyncGenerator[Event | None, None]:
        """What comes of a question, None where nothing came for a while; closing it cancels."""
        keeps_all = getattr(asked, "truncation", "") == "disabled"
        wants = Wants(sources=bool(question.documents))
        own = events_of(self._asked, question, self._scope["owner"], wants)
        async with aclosing(own) as events:
            async for event in events:
                if isinstance(event, Prompted) and event.left_out and keeps_all:
                    hint = 'Send fewer, or "truncation": "auto" to have the oldest left out.'
                    raise ContextOverflowError("the messages do not fit the context", hint)
                if isinstance(event, Stepped) and self.first_s is None:
                    self.first_s = time.perf_counter() - self._began
                if isinstance(event, Ended):
                    self.answered = event
                yield event

    async def _whole(self, reply: Reply, events: AsyncIterator[Event | None]) -> None:
        async for _ in events:
            pass
        assert self.answered is not None
        await JSONResponse(reply.whole(self.answered))(self._scope, _nothing, self._sent)

    async def _stream(self, reply: Reply, events: AsyncIterator[Event | None]) -> None:
        """Send events as they come, the first when the prompt is made: it may not fit.

        A reply `at_once` begins before, since it shows what is being done until then.
        """
        async for event in events:
            begins = reply.at_once or isinstance(event, Prompted | Stepped | Ended)
            if begins and not self.status:
                start = {"type": "http.response.start", "status": 200, "headers": _HEADERS}
                await self._sent(start)
                await self._piece(b"".join(reply.begin()))
            if event is None and self.status:  # else what is between might close it
                await self._piece(b": waiting\n\n")
            elif isinstance(event, Ended):
                await self._piece(b"".join(reply.end(event)))
            elif event is not None:
                await self._piece(b"".join(reply.told(event)))
        await self._piece(b"", last=True)

    async def _piece(self, piece: bytes, last: bool = False) -> None:
        if piece or last:
            body = {"type": "http.response.body", "body": piece, "more_body": not last}
            await self._sent(body)

    async def _sent(self, message: Message) -> None:
        """Raises GoneError where the client does not read."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self._is_over = not message.get("more_body", False)
        try:
            with anyio.fail_after(_SENDING_S):
                await self._send(message)
        except OSError:  # a TimeoutError, too
            raise GoneError from None

    async def _fail(self, error: Exception, reply: Reply | None) -> None:
        """Say what went wrong: as the response, or within what has begun."""
        response = self._failure(error)
        if not self.status:
            await response(self._scope, _nothing, self._sent)
        elif reply is not None:
            await self._piece(b"".join(reply.failed(msgspec.json.decode(response.body))))
            await self._piece(b"", last=True)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
