"""A chat in a model's format, and which parts of it the template wrote.

The template is first rendered with a placeholder for each text: what is around the placeholders is
the template's, and all else is text, even if the template trimmed, escaped or repeated it.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product
from operator import itemgetter
from typing import Any

from ngtcli.config import Settings, arguments_of
from ngtcli.documents.text import utf8
from ngtcli.errors import ModelError, UsageError
from ngtcli.model_files.checkpoint import TEMPLATE_HINT
from ngtcli.system.sandbox import BoundError, bounded
from ngtcli.tokens.tokenizer import Tokenizer

# Digits, since no filter of a template changes them; those in the middle number the text.
_PLACEHOLDER = "7302{:07d}9"
_PLACES = re.compile(r"7302(\d{7})9")
# Numbers of texts: the message's, the system text's, of each document its name's, which is even and
# which a template need not write, and its text's; and from _TURNS on those of the turns before.
_NONE, _MESSAGE, _SYSTEM, _DOCUMENTS, _TURNS = -1, 0, 1, 2, 5_000_000
# A template's program: real ones take milliseconds and some thousand characters; guesses.
_SECONDS = 5.0
_MEGABYTES = 256
_LONGEST = 1_000_000  # characters around the copies of the texts
_COPIES = 8  # of the texts, for each of which there is memory
# How a template that takes no list of parts writes one.
_SPELLED_OUT = ("'text': '", '"text": "')
Content = str | list[dict[str, str]]
Form = Callable[[str], Content]
_FORMS: tuple[Form, ...] = (str, lambda text: [{"type": "text", "text": text}])
Texts = Mapping[int, str]  # by their numbers
Turns = Sequence[tuple[str, tuple[int, ...]]]  # by each role the texts of these numbers
Apply = Callable[[Texts], str]
Frame = list[tuple[str, int]]  # what the template wrote, and which text is behind it; last _NONE
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Chat:
    """What the chat template is given beside the message; `template` names one of several.

    `arguments` are KEY=VALUE texts, which `arguments_of` makes variables of the template. With
    `documents` it is given those, too, and places them; else they stand in the message.
    `think` is for `thinking.switched`, which `render` does not read.
    """

    system: str = ""
    template: str = ""
    arguments: tuple[str, ...] = ()
    documents: bool = False
    think: str = "auto"
    ending: str = ""  # written behind what the template writes

    @classmethod
    def of(cls, settings: Settings) -> "Chat":
        """As the settings have it."""
        s = settings
        given = s.system.strip(), s.chat_template, s.template_arg, s.template_documents
        return cls(*given, s.think)

    @property
    def flags(self) -> list[str]:
        """The flags of what a template may not take."""
        names = "--system", "--set template_arg", "--set template_documents"
        given = self.system, self.arguments, self.documents
        return [name for name, value in zip(names, given, strict=True) if value]


_PLAIN = Chat()


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered chat: its text, the spans that the template wrote, and the first of the message.

    `documents` are the first spans of the texts of those that the template was given, `before`
    those of the turns before the message.
    """

    text: str
    template: tuple[Span, ...]
    message: Span
    documents: tuple[Span, ...] = ()
    before: tuple[Span, ...] = ()


def check_chat(tokenizer: Tokenizer, chat: Chat) -> None:
    """Raise UsageError for what the templates of this tokenizer cannot be given."""
    backend, names = tokenizer.backend, _names(tokenizer.backend)
    if not tokenizer.has_chat_template and (chat.template or chat.documents):
        flag = "--set chat_template" if chat.template else "--set template_documents"
        raise UsageError("the model has no chat template", f"Leave {flag} out.")
    if chat.template and chat.template not in names:
        hint = f"Choose from {', '.join(names)}." if names else "It has one: leave the name out."
        raise UsageError(f"the model has no chat template {chat.template!r}", hint)
    if names and not chat.template and "default" not in names:
        what = "the model has several chat templates, none of which is the default"
        raise UsageError(what, f"Choose from {', '.join(names)} with --set chat_template.")
    if not chat.arguments:
        return
    taken = {"messages", *inspect.signature(backend.apply_chat_template).parameters}
    for key, value in arguments_of(chat.arguments).items():
        if key in taken:
            raise UsageError(f"template_arg {key} is what ngt itself gives", "Leave it out.")
        if tokenizer.has_control(utf8(json.dumps(value, ensure_ascii=False))):
            what = f"template_arg {key} holds a control token of the model"
            raise UsageError(what, "Take it out: only the template itself writes them.")


def try_chat(tokenizer: Tokenizer, chat: Chat) -> Iterator[str]:
    """A sentence for each argument that changes nothing in a prompt of short texts.

    Raises UsageError as `check_chat`, ModelError as `render`.
    """
    check_chat(tokenizer, chat)
    whole = short_chat(tokenizer, chat) if tokenizer.has_chat_template else ""
    for argument in chat.arguments:
        others = tuple(other for other in chat.arguments if other is not argument)
        with suppress(ModelError):  # it is needed
            if not whole or short_chat(tokenizer, replace(chat, arguments=others)) == whole:
                key = argument.partition("=")[0]
                yield f"--set template_arg={key} changes nothing in the prompt of this model"


def short_chat(tokenizer: Tokenizer, chat: Chat) -> str:
    """The chat of short texts. Raises ModelError as `render`."""
    return render(tokenizer.backend, "1", chat, [("1", "1")] * chat.documents).text


def render(
    backend: Any,
    message: str,
    chat: Chat = _PLAIN,
    documents: Sequence[tuple[str, str]] = (),
    before: Sequence[tuple[str, str]] = (),
) -> Rendered:
    """The chat with `message` as the user's turn, up to the start of the assistant's.

    `documents` are given to the template as (name, text), turns `before` as (role, text); adjacent
    ones of a role become one where the template does not take them. Raises ModelError if the
    template fails, omits the message, the system text, a turn or a document, or writes other text
    around these than around the placeholders, so that text and template cannot be distinguished.
    """
    texts = [message, chat.system, *(text for pair in (*documents, *before) for text in pair)]
    try:
        return bounded(
            partial(_render, backend, message, chat, documents, before),
            seconds=_SECONDS,
            megabytes=_MEGABYTES + 4 * _COPIES * sum(map(len, texts)) // 1_000_000,
        )
    except BoundError as error:
        raise ModelError(f"the chat template fails: {error}", TEMPLATE_HINT) from None


def _render(
    backend: Any,
    message: str,
    chat: Chat,
    documents: Sequence[tuple[str, str]],
    before: Sequence[tuple[str, str]],
) -> Rendered:
    """As `render`, without bounds."""
    turns = [(role, (_TURNS + i,)) for i, (role, _) in enumerate(before)]
    own = [(_SYSTEM, chat.system)] if chat.system else []
    turns = [*(("system", (number,)) for number, _ in own), *turns, ("user", (_MESSAGE,))]
    others = enumerate((text for pair in documents for text in pair), _DOCUMENTS)
    earlier = enumerate((text for _, text in before), _TURNS)
    texts = dict([(_MESSAGE, message), *own, *others, *earlier])
    try:
        apply, frame = _frame(backend, chat, turns, texts)
        text = apply(texts)
        shown = _as_written(apply, frame, texts, text)
    except ModelError as error:
        if not chat.flags:
            raise
        plain = Chat(template=chat.template)
        _render(backend, message, plain, (), before)  # else this is what fails
        names = _names(backend)
        other = f" Or choose from {', '.join(names)} with --set chat_template." if names else ""
        hint = f"It takes a message without {' and '.join(chat.flags)}.{other}"
        raise ModelError(str(error), hint) from error
    spans = _filled(frame, shown)[1]
    ends = [0, *(end for _, end in spans)]
    written = tuple((end, start) for end, (start, _) in zip(ends, spans, strict=False))
    first = {n: span for (_, n), span in zip(reversed(frame), reversed(spans), strict=True)}
    given = tuple(first[n] for n in texts if not _is_said(n) and n % 2)
    said = tuple(first[_TURNS + i] for i in range(len(before)))
    return Rendered(text, written, first[_MESSAGE], given, said)


def _is_said(number: int) -> bool:
    """Whether a text is a turn's, and not a document's."""
    return not _DOCUMENTS <= number < _TURNS


def _frame(backend: Any, chat: Chat, turns: Turns, texts: Texts) -> tuple[Apply, Frame]:
    """What renders texts, in the form that the template takes, and their frame."""
    failure: ModelError | None = None
    for alike, form in product(dict.fromkeys((tuple(turns), _alternating(turns))), _FORMS):
        apply = partial(_apply, backend, chat, alike, form)
        try:
            text = apply(_placeholders(texts))
        except ModelError as error:
            failure = failure or error
            continue
        parts = _PLACES.split(text)
        frame = [*zip(parts[::2], map(int, parts[1::2]), strict=False), (parts[-1], _NONE)]
        found = {n for piece, n in frame if not (_is_said(n) and piece.endswith(_SPELLED_OUT))}
        missing = [n for n in texts if n not in found and (_is_said(n) or n % 2)]
        if not missing:
            return apply, frame
        what = {_MESSAGE: "the text", _SYSTEM: "the system text"}.get(missing[0], "documents")
        what = "a turn of the conversation" if missing[0] >= _TURNS else what
        failure = failure or ModelError(f"the chat template leaves {what} out", TEMPLATE_HINT)
    assert failure is not None
    raise failure


def _alternating(turns: Turns) -> Turns:
    """The turns with adjacent ones of a role as one."""
    by_role = groupby(turns, key=itemgetter(0))
    return tuple((role, tuple(n for _, own in group for n in own)) for role, group in by_role)


def _placeholders(texts: Texts) -> dict[int, str]:
    return {number: _PLACEHOLDER.format(number) for number in texts}


def _as_written(apply: Apply, frame: Frame, texts: Texts, chat: str) -> Texts:
    """The texts as they stand in the chat, which the template may have changed.

    All texts that are said are trimmed; or each in turn takes its placeholder's place. Its copies
    have one length, if the template adds no more. An answer may lack its start, as a thought does.
    Documents are as they are given, or as in JSON. Raises ModelError for another chat than the
    frame with these texts.
    """
    trimmed = {n: text.strip() if _is_said(n) else text for n, text in texts.items()}
    for written in (texts, trimmed):
        if _filled(frame, written)[0] == chat:
            return written
    failure = ModelError("the chat template depends on the text that it is given", TEMPLATE_HINT)
    given = _placeholders(texts)
    shown = dict(given)
    for number in filter(_is_said, texts):
        before, spans = _filled(frame, shown)
        places = [span for (_, n), span in zip(frame, spans, strict=True) if n == number]
        given[number], own = texts[number], texts[number].strip()
        whole = chat if given == texts else apply(given)
        start, end = places[0]
        end = max(start, end + (len(whole) - len(before)) // len(places))
        shown[number] = whole[start:end]
        if number >= _TURNS and own.endswith(shown[number].strip()):
            continue
        head, found, tail = shown[number].partition(own) if own else ("", True, shown[number])
        if found and (head + tail).replace("\\", "").strip():  # more than space and JSON's escapes
            raise failure
    for write in (str, lambda text: json.dumps(text, ensure_ascii=False)[1:-1]):
        shown |= {n: write(text) for n, text in texts.items() if not _is_said(n)}
        if _filled(frame, shown)[0] == chat:
            return shown
    raise failure


def _filled(frame: Frame, texts: Texts) -> tuple[str, list[Span]]:
    """The chat with these texts in their places, and the span of each; the last one is empty."""
    parts: list[str] = []
    spans: list[Span] = []
    at = 0
    for piece, number in frame:
        text = texts.get(number, "")
        parts += piece, text
        at += len(piece) + len(text)
        spans.append((at - len(text), at))
    return "".join(parts), spans


def _names(backend: Any) -> list[str]:
    """The names of the templates, where there are several."""
    templates = getattr(backend, "chat_template", None)
    return sorted(templates) if isinstance(templates, dict) else []


def _apply(backend: Any, chat: Chat, turns: Turns, form: Form, texts: Texts) -> str:
    """The rendered chat. Raises ModelError with the template's message, MemoryError, BoundError."""
    messages = [
        {"role": role, "content": form("\n\n".join(texts[n] for n in numbers))}
        for role, numbers in turns
    ]
    options = arguments_of(chat.arguments)
    if chat.template:
        options["chat_template"] = chat.template
    if names := [n for n in texts if not _is_said(n) and n % 2 == 0]:
        numbered = "doc_id" in backend.get_chat_template(chat.template or None)  # Granite's
        options["documents"] = [
            ({"doc_id": i} if numbered else {}) | {"title": texts[n], "text": texts[n + 1]}
            for i, n in enumerate(names, 1)
        ]
    try:
        text: str = backend.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **options
        )
    except MemoryError:
        raise
    except Exception as error:  # a template is a program and can raise anything
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"the chat template fails: {lines[0]}", TEMPLATE_HINT) from error
    if len(text) > _LONGEST + _COPIES * sum(map(len, texts.values())):
        raise BoundError(f"it writes {len(text):,} characters")
    return utf8(text) + chat.ending
