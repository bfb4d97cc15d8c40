"""Answers in OpenAI's forms: one object, or events as they come.

A reply is `told` what comes of its question, between `begin` and `end`. Each gives the events to
send; `whole` is the object for a client that wants it in one piece. Besides
`usage` there are the figures of llama.cpp's server (`timings`) and of vLLM (`metrics`).
"""

import secrets
import time
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from ngtcli import __version__
from ngtcli.draft.steps import Statistics
from ngtcli.grounding.sources import Sources
from ngtcli.session.events import Ended, Event, Stepped
from ngtcli.session.question import Question

Object = dict[str, Any]
_DONE = b"data: [DONE]\n\n"
_AS_STOP = ("stop", "interrupted")  # finish reasons that the API calls "stop"; others: "length"


class Reply(Protocol):
    """An answer that is being given in one of the forms.

    One that begins `at_once` does so with the first event, another when the prompt is made.
    """

    @property
    def at_once(self) -> bool: ...
    def begin(self) -> Iterator[bytes]: ...
    def told(self, event: Event) -> Iterator[bytes]: ...
    def end(self, ended: Ended) -> Iterator[bytes]: ...
    def failed(self, error: Object) -> Iterator[bytes]: ...
    def whole(self, ended: Ended) -> Object: ...


def figures(statistics: Statistics, num_draft: int) -> Object:
    """`timings` as llama.cpp has them and `metrics` as vLLM: milliseconds, tokens, steps."""
    s, accepted = statistics, statistics.acceptance_histogram
    read = s.prompt_tokens - s.cached_tokens
    prefill_ms, decode_ms = s.prefill_s * 1e3, s.decode_s * 1e3
    timings = {
        "cache_n": s.cached_tokens,
        "prompt_n": read,
        "prompt_ms": prefill_ms,
        "prompt_per_token_ms": _ratio(prefill_ms, read),
        "prompt_per_second": _ratio(read, s.prefill_s),
        "predicted_n": s.new_tokens,
        "predicted_ms": decode_ms,
        "predicted_per_token_ms": _ratio(decode_ms, s.new_tokens),
        "predicted_per_second": s.tokens_per_s,
        "draft_n": s.drafted_tokens,
        "draft_n_accepted": s.accepted_tokens,
    }
    speculative = {
        "mean_acceptance_length": s.mean_acceptance_length,
        "draft_acceptance_rate": s.draft_acceptance_rate,
        "acceptance_histogram": [accepted[n] for n in range(max(accepted, default=-1) + 1)],
        "num_spec_steps": s.steps,
        "num_accepted_draft_tokens": s.accepted_tokens,
        "num_draft_tokens": s.drafted_tokens,
        "num_spec_tokens": num_draft,
    }
    return {"timings": timings, "metrics": {"speculative_decoding": speculative}}


def _ratio(one: float, other: float) -> float:
    return one / other if other else 0.0


def usage(statistics: Statistics) -> Object:
    """Tokens read and made, as chat and completions have them."""
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


def finish_reason(ended: Ended) -> str:
    """The reason as the API knows it."""
    return "stop" if ended.finish_reason in _AS_STOP else "length"


class _Base:
    at_once = False

    def __init__(self, prefix: str, name: str, question: Question, with_usage: bool) -> None:
        self.question, self.with_usage = question, with_usage
        self.id, self.created, self.name = new_id(prefix), int(time.time()), name

    def told(self, event: Event) -> Iterator[bytes]:
        if isinstance(event, Stepped):
            text = "".join(token.text for token in event.step.tokens)
            thought = "".join(token.thought or "" for token in event.step.tokens)
            yield from self.delta(text, thought)

    def delta(self, text: str, thought: str) -> Iterator[bytes]:
        """The events of a piece of text."""
        raise NotImplementedError

    def _figures(self, ended: Ended) -> Object:
        return figures(ended.statistics, self.question.settings.num_draft)


def new_id(prefix: str) -> str:
    """A name that no other answer has."""
    return f"{prefix}{secrets.token_hex(12)}"


class ChatReply(_Base):
    """/v1/chat/completions, and with `is_text` /v1/completions."""

    def __init__(
        self, name: str, question: Question, with_usage: bool = False, is_text: bool = False
    ) -> None:
        super().__init__("cmpl-" if is_text else "chatcmpl-", name, question, with_usage)
        self._is_text = is_text

    def begin(self) -> Iterator[bytes]:
        if not self._is_text:
            yield self._chunk({"role": "assistant", "content": ""})

    def delta(self, text: str, thought: str) -> Iterator[bytes]:
        if thought and not self._is_text:
            yield self._chunk({"reasoning_content": thought})
        if text:
            yield self._chunk({"content": text})

    def end(self, ended: Ended) -> Iterator[bytes]:
        found = self._annotations(ended)
        yield self._chunk({"annotations": found} if found else {}, ended)
        if self.with_usage:
            last = {**self._head(".chunk"), "choices": [], "usage": usage(ended.statistics)}
            yield sent({**last, **self._figures(ended)})
        yield _DONE

    def failed(self, error: Object) -> Iterator[bytes]:
        yield sent(error)

    def whole(self, ended: Ended) -> Object:
        content: Object = {"text": ended.text}
        if not self._is_text:
            message: Object = {"role": "assistant", "content": ended.text, "refusal": None}
            message["annotations"] = self._annotations(ended)
            if ended.thought:
                message["reasoning_content"] = ended.thought
            content = {"message": message}
        return {
            **self._head(),
            "choices": [{"index": 0, **content, **_reasons(ended)}],
            "usage": usage(ended.statistics),
            **self._figures(ended),
        }

    def _annotations(self, ended: Ended) -> list[Object]:
        return [{"type": "file_citation", "file_citation": c} for c in citations(ended.sources)]

    def _head(self, kind: str = "") -> Object:
        name = "text_completion" if self._is_text else f"chat.completion{kind}"
        own = {"id": self.id, "object": name, "created": self.created, "model": self.name}
        return {**own, "system_fingerprint": f"ngt-{__version__}"}

    def _chunk(self, delta: Object, ended: Ended | None = None) -> bytes:
        content = {"text": delta.get("content", "")} if self._is_text else {"delta": delta}
        choice = {"index": 0, **content, **_reasons(ended)}
        with_usage = {"usage": None} if self.with_usage else {}
        return sent({**self._head(".chunk"), "choices": [choice], **with_usage})


def _reasons(ended: Ended | None) -> Object:
    """Why an answer ended; `stop_reason` says it more closely where it was cut off."""
    if ended is None:
        return {"logprobs": None, "finish_reason": None}
    own = {"logprobs": None, "finish_reason": finish_reason(ended)}
    closer = ended.finish_reason in ("context", "repetition")
    return {**own, "stop_reason": ended.finish_reason} if closer else own


def sent(data: Object, event: str = "") -> bytes:
    """A server-sent event."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


class ResponseReply(_Base):
    """/v1/responses: the thought, if there is one, and the answer are items of the output."""

    def __init__(self, name: str, question: Question) -> None:
        super().__init__("resp_", name, question, True)
        self._number = 0  # of the next event
        self._output: list[Object] = []  # items that are complete
        self._item: Object | None = None  # the one that is being made
        self._text = ""  # of that

    def begin(self) -> Iterator[bytes]:
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", {"response": self._object("in_progress")})

    def delta(self, text: str, thought: str) -> Iterator[bytes]:
        for kind, piece in (("reasoning", thought), ("message", text)):
            if piece:
                yield from self._open(kind)
                self._text += piece
                name = "reasoning_text" if kind == "reasoning" else "output_text"
                more: Object = {} if kind == "reasoning" else {"logprobs": []}
                yield self._part_event(f"{name}.delta", {"delta": piece, **more})

    def end(self, ended: Ended) -> Iterator[bytes]:
        if self._item is None or self._item["type"] != "message":
            yield from self._open("message")
        for i, annotation in enumerate(_annotations(ended)):
            about = {"annotation_index": i, "annotation": annotation}
            yield self._part_event("output_text.annotation.added", about)
        yield from self._close(ended)
        status, final = _status(ended), self._object(_status(ended), ended)
        yield self._event(f"response.{status}", {"response": final})

    def failed(self, error: Object) -> Iterator[bytes]:
        about = {"code": "server_error", "message": error["error"]["message"]}
        response = {**self._object("failed"), "error": about}
        yield self._event("response.failed", {"response": response})

    def whole(self, ended: Ended) -> Object:
        for _ in self.delta(ended.text, ended.thought or ""):
            pass
        for _ in self.end(ended):
            pass
        return self._object(_status(ended), ended)

    def _open(self, kind: str) -> Iterator[bytes]:
        """Begin an item of that kind, unless it is the one that is being made."""
        if self._item is not None and self._item["type"] == kind:
            return
        yield from self._close()
        self._text = ""
        if kind == "message":
            own: Object = {"id": new_id("msg_"), "role": "assistant", "content": []}
        else:
            own = {"id": new_id("rs_"), "summary": [], "content": []}
        self._item = {"type": kind, "status": "in_progress", **own}
        place = {"output_index": len(self._output), "item": self._item}
        yield self._event("response.output_item.added", place)
        yield self._part_event("content_part.added", {"part": self._part()})

    def _close(self, ended: Ended | None = None) -> Iterator[bytes]:
        """End the item that is being made."""
        if self._item is None:
            return
        part, name = self._part(ended), "output_text"
        more: Object = {"text": self._text, "logprobs": []}
        if self._item["type"] == "reasoning":
            name, more = "reasoning_text", {"text": self._text}
        yield self._part_event(f"{name}.done", more)
        yield self._part_event("content_part.done", {"part": part})
        status = _status(ended) if ended else "completed"
        item = {**self._item, "status": status, "content": [part]}
        place = {"output_index": len(self._output), "item": item}
        yield self._event("response.output_item.done", place)
        self._output.append(item)
        self._item = None

    def _part(self, ended: Ended | None = None) -> Object:
        assert self._item is not None
        if self._item["type"] == "reasoning":
            return {"type": "reasoning_text", "text": self._text}
        found = _annotations(ended) if ended else []
        return {"type": "output_text", "text": self._text, "annotations": found, "logprobs": []}

    def _part_event(self, name: str, more: Object) -> bytes:
        assert self._item is not None
        place = {"item_id": self._item["id"], "output_index": len(self._output), "content_index": 0}
        return self._event(f"response.{name}", {**place, **more})

    def _event(self, kind: str, more: Object) -> bytes:
        event = sent({"type": kind, "sequence_number": self._number, **more}, kind)
        self._number += 1
        return event

    def _object(self, status: str, ended: Ended | None = None) -> Object:
        s = self.question.settings
        cut_off = {"reason": "max_output_tokens"} if status == "incomplete" else None
        found: Object = {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": cut_off,
            "instructions": s.system or None,
            "max_output_tokens": s.max_tokens,
            "metadata": {},
            "model": self.name,
            "output": self._output,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": s.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": s.top_p,
            "truncation": "disabled",
            "usage": None,
        }
        if ended is not None:
            t = ended.statistics
            found["usage"] = {
                "input_tokens": t.prompt_tokens,
                "input_tokens_details": {"cached_tokens": t.cached_tokens, "cache_write_tokens": 0},
                "output_tokens": t.new_tokens,
                "output_tokens_details": {"reasoning_tokens": t.thought_tokens or 0},
                "total_tokens": t.prompt_tokens + t.new_tokens,
            }
            found |= self._figures(ended)
        return found


def _annotations(ended: Ended) -> list[Object]:
    return [{"type": "file_citation", **citation} for citation in citations(ended.sources)]


def _status(ended: Ended) -> str:
    return "completed" if finish_reason(ended) == "stop" else "incomplete"
