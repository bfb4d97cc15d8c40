"""A message in a model's chat format, and which parts of it the template wrote.

The template is also rendered with a placeholder: what is around the placeholder is the template's,
and all else is text, even if the template trimmed, escaped or repeated it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ngtcli.errors import ModelError
from ngtcli.model_files.checkpoint import TEMPLATE_HINT
from ngtcli.system.sandbox import BoundError, bounded

# Digits, since no filter of a template changes them.
_PLACEHOLDER = "730281946572"
# A template's program: real ones take milliseconds and some thousand characters; guesses.
_SECONDS = 5.0
_MEGABYTES = 256
_LONGEST = 1_000_000  # characters around the copies of a message
_COPIES = 8  # of a message, for each of which there is memory
# How a template that takes no list of parts writes one.
_SPELLED_OUT = ("'text': '", '"text": "')
Content = str | list[dict[str, str]]
_FORMS: tuple[Callable[[str], Content], ...] = (str, lambda text: [{"type": "text", "text": text}])


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered chat: its text, the spans that the template wrote, and the first other span."""

    text: str
    template: tuple[tuple[int, int], ...]
    message: tuple[int, int]


def render(backend: Any, message: str) -> Rendered:
    """The chat with `message` as the user's turn, up to the start of the assistant's.

    Raises ModelError if the template fails, omits the message, or writes other text around this
    message than around the placeholder, so that text and template cannot be distinguished.
    """
    form, pieces = _frame(backend)
    text = _apply(backend, form(message))
    # The copies of the message between the pieces have one length, if the template adds no more.
    length = max(0, len(text) - sum(map(len, pieces))) // (len(pieces) - 1)
    start = len(pieces[0])
    shown, own = text[start : start + length], message.strip()
    at = shown.find(own)
    more = at >= 0 and (shown[:at] + shown[at + len(own) :]).strip()  # the placeholder got none
    if shown.join(pieces) != text or more:
        raise ModelError("the chat template depends on the text that it is given", TEMPLATE_HINT)
    spans, at = [], 0
    for piece in pieces:
        spans.append((at, at + len(piece)))
        at += len(piece) + length
    return Rendered(text, tuple(spans), (start, start + length))


def _frame(backend: Any) -> tuple[Callable[[str], Content], list[str]]:
    """The form of content that the template takes, and its text before, between and after it."""
    failure: ModelError | None = None
    for form in _FORMS:
        try:
            pieces = _apply(backend, form(_PLACEHOLDER)).split(_PLACEHOLDER)
        except ModelError as error:
            if isinstance(error.__cause__, BoundError):
                raise
            failure = failure or error
            continue
        if len(pieces) > 1 and not pieces[0].endswith(_SPELLED_OUT):
            return form, pieces
    raise failure or ModelError("the chat template leaves the text out", TEMPLATE_HINT)


def _apply(backend: Any, content: Content) -> str:
    """The rendered chat of one user's turn. Raises ModelError with the template's message."""
    size = len(content if isinstance(content, str) else content[0]["text"])
    turn = [{"role": "user", "content": content}]
    try:
        text: str = bounded(
            lambda: backend.apply_chat_template(turn, tokenize=False, add_generation_prompt=True),
            seconds=_SECONDS,
            megabytes=_MEGABYTES + 4 * _COPIES * size // 1_000_000,
        )
        if len(text) > _LONGEST + _COPIES * size:
            raise BoundError(f"it writes {len(text):,} characters")
    except (Exception, BoundError) as error:  # a template is a program and can raise anything
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"the chat template fails: {lines[0]}", TEMPLATE_HINT) from error
    return text
