"""Answers in OpenAI's formats: one object, or a stream of events.

A `Reply` writes the stream of a request: `begin`, then `encode_event` for each event, then `end`.
Each yields the pieces to send. `complete` returns the one object for a client that wants no stream.
Besides `usage` there are `timings`, the figures of llama.cpp's server.
"""

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ngtcli import __version__
from ngtcli.documents.quotes.sources import Sources
from ngtcli.drafting.steps import Statistics
from ngtcli.engine.events import Ended, Event, Stepped
from ngtcli.server.openai_requests import ApiRequest

Object = dict[str, Any]
# Finish reasons that the API calls "stop"; all others are "length".
_STOP_REASONS = ("stop", "interrupted", "prompt", "not_in_documents")
# Finish reasons that `stop_reason` reports as they are.
_REPORTED_REASONS = ("context", "repetition", "prompt", "not_in_documents")


@dataclass(frozen=True, slots=True)
class _ItemKind:
    """A kind of item of a response.

    Attributes:
        prefix: The start of its ids.
        fields: The fields that only this kind has.
        part_type: The type of its content part.
        part_fields: The fields that only its content part has.
    """

    prefix: str
    fields: Object
    part_type: str
    part_fields: Object


_ITEM_KINDS: dict[str, _ItemKind] = {
    "reasoning": _ItemKind("rs_", {"summary": []}, "reasoning_text", {}),
    "message": _ItemKind("msg_", {"role": "assistant"}, "output_text", {"logprobs": []}),
}


class Reply:
    """An answer in one of the formats.

    Attributes:
        media_type: The media type of the stream.
        heartbeat: Sent where nothing came for a while.
        begins_at_once: Whether the stream begins with the first event. Others begin when the
            prompt is made, since it may not fit.
    """

    media_type = "text/event-stream; charset=utf-8"
    heartbeat = b": waiting\n\n"
    begins_at_once = False

    def __init__(self, api_request: ApiRequest) -> None:
        self.api_request = api_request
        self.created = int(time.time())
        self._id = secrets.token_hex(12)

    def begin(self) -> Iterator[bytes]:
        """Yield the first pieces."""
        yield b""

    def encode_event(self, event: Event) -> Iterator[bytes]:
        """Yield the pieces of an event before the last one."""
        if isinstance(event, Stepped):
            tokens = event.step.tokens
            text = "".join(token.text for token in tokens)
            reasoning = "".join(token.thought or "" for token in tokens)
            yield from self.encode_step(text, reasoning)

    def encode_step(self, text: str, reasoning: str) -> Iterator[bytes]:
        """Yield the pieces of the text and the reasoning of a step."""
        raise NotImplementedError

    def end(self, ended: Ended) -> Iterator[bytes]:
        """Yield the last pieces."""
        raise NotImplementedError

    def fail(self, error: Object) -> bytes:
        """Return the last piece of an answer that failed."""
        return server_sent_event(error)

    def complete(self, ended: Ended) -> Object:
        """Return the answer in one object."""
        raise NotImplementedError


def timings(statistics: Statistics) -> Object:
    """Return the figures of llama.cpp: milliseconds, tokens, tokens per second."""
    s = statistics
    return {
        "cache_n": s.cached_tokens,
        **_speed("prompt", s.prompt_tokens - s.cached_tokens, s.prefill_s),
        **_speed("predicted", s.new_tokens, s.decode_s),
        "draft_n": s.drafted_tokens,
        "draft_n_accepted": s.accepted_tokens,
    }


def _speed(name: str, tokens: int, seconds: float) -> Object:
    return {
        f"{name}_n": tokens,
        f"{name}_ms": seconds * 1e3,
        f"{name}_per_token_ms": seconds * 1e3 / tokens if tokens else 0.0,
        f"{name}_per_second": tokens / seconds if seconds else 0.0,
    }


def usage(statistics: Statistics) -> Object:
    """Return the numbers of tokens of prompt and answer, as /v1/chat/completions has them."""
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
    """Return a citation for each range of the answer's characters that a source has."""
    return [
        {
            "file_id": source.name,
            "filename": source.name,
            "index": source.span.end,
            "start_index": source.span.start,
            "end_index": source.span.end,
            "page": source.page,
            "heading": source.heading,
            "quote": source.quote,
        }
        for source in sources.spans
    ]


def server_sent_event(data: Object, event: str = "") -> bytes:
    """Encode data as a server-sent event."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


class ChatReply(Reply):
    """A reply to /v1/chat/completions."""

    def begin(self) -> Iterator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})

    def encode_step(self, text: str, reasoning: str) -> Iterator[bytes]:
        if reasoning:
            yield self._chunk({"reasoning_content": reasoning})
        if text:
            yield self._chunk({"content": text})

    def end(self, ended: Ended) -> Iterator[bytes]:
        annotations = _annotations(ended)
        yield self._chunk({"annotations": annotations} if annotations else {}, ended)
        if self.api_request.with_usage:
            usage_chunk = {**self._head(".chunk"), "choices": [], **_figures(ended)}
            yield server_sent_event(usage_chunk)
        yield b"data: [DONE]\n\n"

    def complete(self, ended: Ended) -> Object:
        message: Object = {"role": "assistant", "content": ended.text, "refusal": None}
        if ended.thought:
            message["reasoning_content"] = ended.thought
        message["annotations"] = _annotations(ended)
        choice = {"index": 0, "message": message, **_finish_fields(ended)}
        return {**self._head(), "choices": [choice], **_figures(ended)}

    def _head(self, suffix: str = "") -> Object:
        return {
            "id": f"chatcmpl-{self._id}",
            "object": f"chat.completion{suffix}",
            "created": self.created,
            "model": self.api_request.model,
            "system_fingerprint": f"ngt-{__version__}",
        }

    def _chunk(self, delta: Object, ended: Ended | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, **_finish_fields(ended)}
        chunk = {**self._head(".chunk"), "choices": [choice]}
        if self.api_request.with_usage:
            chunk["usage"] = None
        return server_sent_event(chunk)


def _annotations(ended: Ended) -> list[Object]:
    return [
        {"type": "file_citation", "file_citation": citation}
        for citation in citations(ended.sources)
    ]


def _figures(ended: Ended) -> Object:
    return {"usage": usage(ended.statistics), "timings": timings(ended.statistics)}


def _finish_fields(ended: Ended | None) -> Object:
    """Return the fields that say why an answer ended, which are null before its end."""
    if ended is None:
        return {"logprobs": None, "finish_reason": None}
    reason = "stop" if ended.finish_reason in _STOP_REASONS else "length"
    fields = {"logprobs": None, "finish_reason": reason}
    if ended.finish_reason in _REPORTED_REASONS:
        fields["stop_reason"] = ended.finish_reason
    return fields


class ResponseReply(Reply):
    """A reply to /v1/responses: the reasoning, if any, and the answer are items of the output."""

    def __init__(self, api_request: ApiRequest) -> None:
        super().__init__(api_request)
        self._next_number = 0  # sequence number of the next event
        self._output: list[Object] = []  # items that are complete
        self._item: Object = {}  # the item that is being written
        self._text = ""  # its text so far

    def begin(self) -> Iterator[bytes]:
        for kind in ("created", "in_progress"):
            yield self._event(kind, {"response": self._object("in_progress")})

    def encode_step(self, text: str, reasoning: str) -> Iterator[bytes]:
        for kind_name, piece in (("reasoning", reasoning), ("message", text)):
            if piece:
                yield from self._open(kind_name)
                self._text += piece
                kind = _ITEM_KINDS[kind_name]
                fields = {"delta": piece, **kind.part_fields}
                yield self._part_event(f"{kind.part_type}.delta", fields)

    def end(self, ended: Ended) -> Iterator[bytes]:
        yield from self._open("message")
        annotations = [
            {"type": "file_citation", **citation} for citation in citations(ended.sources)
        ]
        for i, annotation in enumerate(annotations):
            fields = {"annotation_index": i, "annotation": annotation}
            yield self._part_event("output_text.annotation.added", fields)
        status = "completed" if ended.finish_reason in _STOP_REASONS else "incomplete"
        yield from self._close(status, annotations)
        yield self._event(status, {"response": self._object(status, ended)})

    def fail(self, error: Object) -> bytes:
        response = self._object("failed")
        response["error"] = {"code": "server_error", "message": error["error"]["message"]}
        return self._event("failed", {"response": response})

    def complete(self, ended: Ended) -> Object:
        # The last event of the stream has the response.
        *_, last = [*self.encode_step(ended.text, ended.thought or ""), *self.end(ended)]
        event: Object = msgspec.json.decode(last.partition(b"data: ")[2])
        return dict(event["response"])

    def _open(self, kind_name: str) -> Iterator[bytes]:
        """Begin an item of a kind, unless the item that is being written is of that kind."""
        if self._item.get("type") == kind_name:
            return
        yield from self._close("completed")
        kind = _ITEM_KINDS[kind_name]
        self._item = {
            "type": kind_name,
            "id": kind.prefix + secrets.token_hex(12),
            "status": "in_progress",
            **kind.fields,
            "content": [],
        }
        self._text = ""
        fields = {"output_index": len(self._output), "item": self._item}
        yield self._event("output_item.added", fields)
        yield self._part_event("content_part.added", {"part": self._part()})

    def _close(self, status: str, annotations: list[Object] | None = None) -> Iterator[bytes]:
        """End the item that is being written."""
        if not self._item:
            return
        part = self._part(annotations)
        kind = _ITEM_KINDS[self._item["type"]]
        yield self._part_event(f"{kind.part_type}.done", {"text": self._text, **kind.part_fields})
        yield self._part_event("content_part.done", {"part": part})
        item = {**self._item, "status": status, "content": [part]}
        yield self._event("output_item.done", {"output_index": len(self._output), "item": item})
        self._output.append(item)
        self._item = {}

    def _part(self, annotations: list[Object] | None = None) -> Object:
        kind = _ITEM_KINDS[self._item["type"]]
        part: Object = {"type": kind.part_type, "text": self._text}
        if kind.part_type == "output_text":
            part["annotations"] = annotations or []
        return {**part, **kind.part_fields}

    def _part_event(self, name: str, fields: Object) -> bytes:
        location = {
            "item_id": self._item["id"],
            "output_index": len(self._output),
            "content_index": 0,
        }
        return self._event(name, {**location, **fields})

    def _event(self, name: str, fields: Object) -> bytes:
        event_type = f"response.{name}"
        data = {"type": event_type, "sequence_number": self._next_number, **fields}
        self._next_number += 1
        return server_sent_event(data, event_type)

    def _object(self, status: str, ended: Ended | None = None) -> Object:
        answer = self.api_request.request.settings.answer
        cut_off = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": cut_off,
            "instructions": answer.system or None,
            "max_output_tokens": answer.max_tokens,
            "metadata": {},
            "model": self.api_request.model,
            "output": self._output,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": answer.temperature,
            "text": {"format": {"type": "text"}, **self.api_request.text_options},
            "tool_choice": "none",
            "tools": [],
            "top_p": answer.top_p,
            "truncation": "disabled" if self.api_request.refuses_truncation else "auto",
            **(_response_figures(ended.statistics) if ended else {"usage": None}),
        }


def _response_figures(statistics: Statistics) -> Object:
    """Return the figures as /v1/responses has them."""
    s = statistics
    token_counts = {
        "input_tokens": s.prompt_tokens,
        "input_tokens_details": {"cached_tokens": s.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": s.new_tokens,
        "output_tokens_details": {"reasoning_tokens": s.thought_tokens or 0},
        "total_tokens": s.prompt_tokens + s.new_tokens,
    }
    return {"usage": token_counts, "timings": timings(s)}
