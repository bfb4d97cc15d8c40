"""A message in a model's chat format, with the knowledge of which part the template wrote.

The template is rendered with a placeholder as well: what stands around that is the template's, and
what stands there in its stead is text, however the template trimmed, escaped or repeated it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ngtcli.errors import ModelError

# Digits: no filter of a template changes them.
_PLACEHOLDER = "730281946572"
_HINT = "Mend the chat template in the model's folder, or name another model (-m)."
# How a template that knows no parts shows them.
_SPELLED_OUT = ("'text': '", '"text": "')
Content = str | list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered chat. `template` are spans that the template wrote, `message` the first other."""

    text: str
    template: tuple[tuple[int, int], ...]
    message: tuple[int, int]


def render(backend: Any, message: str) -> Rendered:
    """`message` as the user's turn, ready for the assistant's.

    Raises ModelError where the template fails, leaves the message out, or words the chat otherwise
    for this message, so that it cannot be told what is text.
    """
    form, pieces = _frame(backend)
    text = _apply(backend, form(message))
    length = _text_length(text, pieces)
    start = len(pieces[0])
    if length is None or _adds(text[start : start + length], message.strip()):
        raise ModelError("the chat template depends on the text that it is given", _HINT)
    spans, at = [], 0
    for piece in pieces:
        spans.append((at, at + len(piece)))
        at += len(piece) + length
    return Rendered(text, tuple(spans), (start, start + length))


def _adds(shown: str, message: str) -> bool:
    """Whether there is more in `shown` than the message, which the placeholder did not get."""
    at = shown.find(message)
    return at >= 0 and bool(shown[:at].strip() or shown[at + len(message) :].strip())


def _frame(backend: Any) -> tuple[Callable[[str], Content], list[str]]:
    """How this template takes a text, and what it writes before, between and after its places."""
    failure: ModelError | None = None
    for form in (_plain, _parts):
        try:
            pieces = _apply(backend, form(_PLACEHOLDER)).split(_PLACEHOLDER)
        except ModelError as error:
            failure = failure or error
            continue
        if len(pieces) > 1 and not pieces[0].endswith(_SPELLED_OUT):
            return form, pieces
    raise failure or ModelError("the chat template leaves the text out", _HINT)


def _plain(text: str) -> Content:
    return text


def _parts(text: str) -> Content:
    return [{"type": "text", "text": text}]


def _text_length(text: str, pieces: list[str]) -> int | None:
    """Characters of each copy of the message between `pieces`; None where they are not equal."""
    length, rest = divmod(len(text) - sum(map(len, pieces)), len(pieces) - 1)
    if rest or length < 0:
        return None
    copy, at = text[len(pieces[0]) : len(pieces[0]) + length], 0
    for piece in pieces[:-1]:
        if not text.startswith(piece, at) or not text.startswith(copy, at + len(piece)):
            return None
        at += len(piece) + length
    return length if text.startswith(pieces[-1], at) else None


def _apply(backend: Any, content: Content) -> str:
    """The rendered chat of one user's turn. Raises ModelError with the template's own message."""
    try:
        text: str = backend.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # templates are programs: syntax, their own refusals, arithmetic
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"the chat template fails: {lines[0]}", _HINT) from error
    return text
