"""Answers in OpenAI's forms: one object, or events as they come.

A `Reply` gets the events of its request: `begin`, `event` for each, `end`. Each yields the pieces
to send; `whole` is the object for a client that wants the answer in one. Besides `usage` there are
the figures of llama.cpp's server, `timings`.
"""

import secrets
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from ngtcli import __version__
from ngtcli.documents.quotes.sources import Sources
from ngtcli.drafting.steps import Statistics
from ngtcli.engine.events import Ended, Event, Stepped
from ngtcli.server.openai_requests import Asks

Object = dict[str, Any]
_AS_STOP = (
    "stop",
    "interrupted",
    "prompt",
    "not_in_documents",
)  # finish reasons that the API calls "stop"; others: "length"
# Of each kind of item of a response: its id's prefix, its own fields, its part's type and fields.
_ITEMS: dict[str, tuple[str, Object, str, Object]] = {
    "reasoning": ("rs_", {"summary": []}, "reasoning_text", {}),
    "message": ("msg_", {"role": "assistant"}, "output_text", {"logprobs": []}),
}


class Reply:
    """An answer that is being given in one of the forms, whose stream is of this media type.

    `beat` is sent where nothing came for a while. A stream that begins `at_once` does so with the
    first event, another when the prompt is made: it may not fit.
    """

    media_type, beat, at_once = "text/event-stream; charset=utf-8", b": waiting\n\n", False

    def __init__(self, asks: Asks) -> None:
        self.asks, self.created, self._id = asks, int(time.time()), secrets.token_hex(12)

    def begin(self) -> Iterator[bytes]:
        """What comes first."""
        yield b""

    def event(self, event: Event) -> Iterator[bytes]:
        """Yield the pieces of an event before the last one."""
        if isinstance(event, Stepped):
            tokens = event.step.tokens
            thought = "".join(token.thought or "" for token in tokens)
            yield from self.made("".join(token.text for token in tokens), thought)

    def made(self, text: str, thought: str) -> Iterator[bytes]:
        """The pieces of what a step made."""
        raise NotImplementedError

    def end(self, ended: Ended) -> Iterator[bytes]:
        """What comes last."""
        raise NotImplementedError

    def failed(self, error: Object) -> bytes:
        """What comes last in place of that."""
        return sent(error)

    def whole(self, ended: Ended) -> Object:
        """The answer in one object."""
        raise NotImplementedError


def timings(statistics: Statistics) -> Object:
    """The figures of llama.cpp: milliseconds, tokens, tokens a second."""
    s = statistics
    return {
        "cache_n": s.cached_tokens,
        **_speed("prompt", s.prompt_tokens - s.cached_tokens, s.prefill_s),
        **_speed("predicted", s.new_tokens, s.decode_s),
        "draft_n": s.drafted_tokens,
        "draft_n_accepted": s.accepted_tokens,
    }


def _speed(name: str, tokens: int, seconds: float) -> Object:
    each_ms = seconds * 1e3 / tokens if tokens else 0.0
    per_s = tokens / seconds if seconds else 0.0
    own = {"n": tokens, "ms": seconds * 1e3, "per_token_ms": each_ms, "per_second": per_s}
    return {f"{name}_{key}": value for key, value in own.items()}


def usage(statistics: Statistics) -> Object:
    """Tokens read and made, as chat has them."""
    s = statistics
    return {
        "prompt_tokens": s.prompt_tokens,
        "completion_tokens": s.new_tokens,
        "total_tokens": s.prompt_tokens + s.new_tokens,
        "prompt_tokens_details": {"cached_tokens": s.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": s.thought_tokens or 0,
            "accepted_prediction_tokens": s.accepted_prediction_tokens or 0,
            "rejected_prediction_tokens": s.rejected_prediction_tokens or 0,
        },
    }


def citations(sources: Sources) -> list[Object]:
    """Where the answer's stretches stand: character ranges of it, file, page or heading, quote."""
    found = []
    for one in sources.spans:
        file = {"file_id": one.name, "filename": one.name, "index": one.span.end}
        at = {"start_index": one.span.start, "end_index": one.span.end}
        place = {"page": one.page, "heading": one.heading, "quote": one.quote}
        found.append({**file, **at, **place})
    return found


def sent(data: Object, event: str = "") -> bytes:
    """A server-sent event."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


class ChatReply(Reply):
    """/v1/chat/completions."""

    def begin(self) -> Iterator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})

    def made(self, text: str, thought: str) -> Iterator[bytes]:
        for name, piece in (("reasoning_content", thought), ("content", text)):
            if piece:
                yield self._chunk({name: piece})

    def end(self, ended: Ended) -> Iterator[bytes]:
        found = _annotations(ended)
        yield self._chunk({"annotations": found} if found else {}, ended)
        if self.asks.with_usage:
            yield sent({**self._head(".chunk"), "choices": [], **_figures(ended)})
        yield b"data: [DONE]\n\n"

    def whole(self, ended: Ended) -> Object:
        thought = {"reasoning_content": ended.thought} if ended.thought else {}
        message = {"role": "assistant", "content": ended.text, "refusal": None, **thought}
        choice = {"index": 0, "message": {**message, "annotations": _annotations(ended)}}
        return {**self._head(), "choices": [{**choice, **_reasons(ended)}], **_figures(ended)}

    def _head(self, kind: str = "") -> Object:
        own = {"id": f"chatcmpl-{self._id}", "object": f"chat.completion{kind}"}
        about = {"created": self.created, "model": self.asks.model}
        return {**own, **about, "system_fingerprint": f"ngt-{__version__}"}

    def _chunk(self, delta: Object, ended: Ended | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, **_reasons(ended)}
        with_usage = {"usage": None} if self.asks.with_usage else {}
        return sent({**self._head(".chunk"), "choices": [choice], **with_usage})


def _annotations(ended: Ended) -> list[Object]:
    return [{"type": "file_citation", "file_citation": c} for c in citations(ended.sources)]


def _figures(ended: Ended) -> Object:
    return {"usage": usage(ended.statistics), "timings": timings(ended.statistics)}


def _reasons(ended: Ended | None) -> Object:
    """Why an answer ended; `stop_reason` says it more closely where it was cut off."""
    if ended is None:
        return {"logprobs": None, "finish_reason": None}
    reason = "stop" if ended.finish_reason in _AS_STOP else "length"
    closer = ended.finish_reason in ("context", "repetition", "prompt", "not_in_documents")
    own = {"stop_reason": ended.finish_reason} if closer else {}
    return {"logprobs": None, "finish_reason": reason, **own}


class ResponseReply(Reply):
    """/v1/responses: the thought, if there is one, and the answer are items of the output."""

    def __init__(self, asks: Asks) -> None:
        super().__init__(asks)
        self._number = 0  # of the next event
        self._output: list[Object] = []  # items that are complete
        self._item: Object = {}  # the one that is being made, and its text
        self._text = ""

    def begin(self) -> Iterator[bytes]:
        for kind in ("created", "in_progress"):
            yield self._event(kind, {"response": self._object("in_progress")})

    def made(self, text: str, thought: str) -> Iterator[bytes]:
        for kind, piece in (("reasoning", thought), ("message", text)):
            if piece:
                yield from self._open(kind)
                self._text += piece
                *_, name, more = _ITEMS[kind]
                yield self._part_event(f"{name}.delta", {"delta": piece, **more})

    def end(self, ended: Ended) -> Iterator[bytes]:
        yield from self._open("message")
        found = [{"type": "file_citation", **citation} for citation in citations(ended.sources)]
        for i, annotation in enumerate(found):
            about = {"annotation_index": i, "annotation": annotation}
            yield self._part_event("output_text.annotation.added", about)
        status = "completed" if ended.finish_reason in _AS_STOP else "incomplete"
        yield from self._close(status, found)
        yield self._event(status, {"response": self._object(status, ended)})

    def failed(self, error: Object) -> bytes:
        about = {"code": "server_error", "message": error["error"]["message"]}
        return self._event("failed", {"response": {**self._object("failed"), "error": about}})

    def whole(self, ended: Ended) -> Object:
        *_, last = [*self.made(ended.text, ended.thought or ""), *self.end(ended)]
        event: Object = msgspec.json.decode(last.partition(b"data: ")[2])
        return dict(event["response"])

    def _open(self, kind: str) -> Iterator[bytes]:
        """Begin an item of that kind, unless it is the one that is being made."""
        if self._item.get("type") == kind:
            return
        yield from self._close("completed")
        prefix, own, *_ = _ITEMS[kind]
        about = {"type": kind, "id": prefix + secrets.token_hex(12), "status": "in_progress"}
        self._item, self._text = {**about, **own, "content": []}, ""
        place = {"output_index": len(self._output), "item": self._item}
        yield self._event("output_item.added", place)
        yield self._part_event("content_part.added", {"part": self._part()})

    def _close(self, status: str, annotations: list[Object] | None = None) -> Iterator[bytes]:
        """End the item that is being made."""
        if not self._item:
            return
        part, (*_, name, more) = self._part(annotations), _ITEMS[self._item["type"]]
        yield self._part_event(f"{name}.done", {"text": self._text, **more})
        yield self._part_event("content_part.done", {"part": part})
        item = {**self._item, "status": status, "content": [part]}
        yield self._event("output_item.done", {"output_index": len(self._output), "item": item})
        self._output.append(item)
        self._item = {}

    def _part(self, annotations: list[Object] | None = None) -> Object:
        *_, name, more = _ITEMS[self._item["type"]]
        own = {"annotations": annotations or []} if name == "output_text" else {}
        return {"type": name, "text": self._text, **own, **more}

    def _part_event(self, name: str, more: Object) -> bytes:
        place = {"item_id": self._item["id"], "output_index": len(self._output), "content_index": 0}
        return self._event(name, {**place, **more})

    def _event(self, name: str, more: Object) -> bytes:
        kind = f"response.{name}"
        event = sent({"type": kind, "sequence_number": self._number, **more}, kind)
        self._number += 1
        return event

    def _object(self, status: str, ended: Ended | None = None) -> Object:
        s = self.asks.request.settings
        cut_off = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": cut_off,
            "instructions": s.answer.system or None,
            "max_output_tokens": s.answer.max_tokens,
            "metadata": {},
            "model": self.asks.model,
            "output": self._output,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": s.answer.temperature,
            "text": {"format": {"type": "text"}, **self.asks.text},
            "tool_choice": "none",
            "tools": [],
            "top_p": s.answer.top_p,
            "truncation": "disabled" if self.asks.keeps_all else "auto",
            **(_response_figures(ended.statistics) if ended else {"usage": None}),
        }


def _response_figures(s: Statistics) -> Object:
    """The figures as /v1/responses has them."""
    used = {
        "input_tokens": s.prompt_tokens,
        "input_tokens_details": {"cached_tokens": s.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": s.new_tokens,
        "output_tokens_details": {"reasoning_tokens": s.thought_tokens or 0},
        "total_tokens": s.prompt_tokens + s.new_tokens,
    }
    return {"usage": used, "timings": timings(s)}
