"""A chat in a model's format, and which parts of it the template wrote.

The template is rendered with placeholders, in bounds of time and memory, once for each form that a
conversation has: what is around them is the template's. Texts are then put in their places, changed
as the template changes others: trimmed, escaped for JSON, or without a thought.
"""

import inspect
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import count, groupby, product
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
# What is changed where a template does more than trim or escape; no template writes U+2003.
_PROBE = '\n\u2003É"<\\&\n 7302{:07d}9 a\u2003\n'
# Numbers of texts: of each document its name's, which is even and which a template need not write,
# and its text's; from _SAID on those of the turns, of which a system text is the first.
_NONE, _SAID = -1, 5_000_000
# A template's program: real ones take milliseconds and some thousand characters; guesses.
_SECONDS = 5.0
_MEGABYTES = 256
_LONGEST = 1_000_000  # characters around the copies of the texts
_COPIES = 8  # of the texts
# How a template that takes no list of parts writes one.
_SPELLED_OUT = ("'text': '", '"text": "')
_DEPENDS = "the chat template depends on the text that it is given"
_THOUGHT_ENDS = ("</think>", "[/THINK]", "</thought>")  # behind which templates look for an answer
_STRIPPED = ("", "\n", None)  # at an end of a text, as `str.strip` has it
_CONTENTS: tuple[Callable[[str], Any], ...] = (str, lambda text: [{"type": "text", "text": text}])
Texts = Mapping[int, str]  # by their numbers
Turns = tuple[tuple[str, tuple[int, ...]], ...]  # by each role the texts of these numbers
Pieces = list[tuple[str, int]]  # what the template wrote, and the text behind it; last _NONE
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
    """A rendered chat: its text and the spans that the template wrote.

    `said` are the first spans of the turns, without the system text's, `documents` those of the
    texts of the documents that the template was given.
    """

    text: str
    template: tuple[Span, ...]
    said: tuple[Span, ...]
    documents: tuple[Span, ...] = ()


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
    documents = [("1", "1")] if chat.documents else []
    return render(tokenizer.backend, [("user", "1")], chat, documents).text


def template_of(backend: Any, name: str = "") -> str:
    """The source of the chat template, of several that of this name; "" for none."""
    templates = getattr(backend, "chat_template", None) or ""
    if isinstance(templates, dict):
        return str(templates.get(name or "default", ""))
    return str(templates)


def render(
    backend: Any,
    said: Sequence[tuple[str, str]],
    chat: Chat = _PLAIN,
    documents: Sequence[tuple[str, str]] = (),
) -> Rendered:
    """The chat of turns (role, text), up to the start of the assistant's.

    Adjacent turns of a role become one where the template does not take them. `documents` are given
    to it as (name, text). Raises ModelError if it fails, omits the system text, a turn or a
    document, or depends on what the texts say.
    """
    said = [("system", chat.system), *said] if chat.system else said
    texts = dict(enumerate(utf8(text) for pair in documents for text in pair))
    texts |= {_SAID + i: utf8(text) for i, (_, text) in enumerate(said)}
    source = template_of(backend, chat.template)
    now = time.strftime("%Y-%m-%d %H:%M") if "strftime_now" in source else ""
    roles = tuple(role for role, _ in said)
    form = Form(source, chat.template, chat.arguments, roles, len(documents), now)
    try:
        frame = _frame(backend, form)
    except ModelError as error:
        if not chat.flags:
            raise
        turns = tuple(role for role in roles if role != "system")
        _frame(backend, replace(form, arguments=(), roles=turns, documents=0))  # or this is it
        names = _names(backend)
        other = f" Or choose from {', '.join(names)} with --set chat_template." if names else ""
        hint = f"It takes a message without {' and '.join(chat.flags)}.{other}"
        raise ModelError(str(error), hint) from error
    filled = _filled(frame, texts, chat.ending)
    return replace(filled, said=filled.said[1:]) if chat.system else filled


@dataclass(frozen=True, slots=True)
class Form:
    """A conversation without its texts, for the template of this `source`.

    `now` is the time to the minute where that is written.
    """

    source: str
    template: str
    arguments: tuple[str, ...]
    roles: tuple[str, ...]
    documents: int
    now: str

    @property
    def numbers(self) -> list[int]:
        """Those of its texts."""
        return [*range(2 * self.documents), *range(_SAID, _SAID + len(self.roles))]

    def name_of(self, number: int) -> str:
        """What a text is, in words."""
        if number < _SAID:
            return "documents"
        if self.roles[number - _SAID] == "system":
            return "the system text"
        return "the text" if number == self.numbers[-1] else "a turn of the conversation"


@dataclass(frozen=True, slots=True)
class Change:
    """What a template does to a text: behind `mark` alone, stripped at its ends, as in JSON."""

    mark: str = ""
    first: str | None = ""
    last: str | None = ""
    as_json: bool = False

    def of(self, text: str) -> str:
        """The text as the template writes it."""
        text = text.rpartition(self.mark)[2] if self.mark else text
        text = text.lstrip(self.first).rstrip(self.last)
        return json.dumps(text, ensure_ascii=False)[1:-1] if self.as_json else text


@dataclass(frozen=True, slots=True)
class Place:
    """What a template writes before a text, the text's number, and how it changes that.

    `answer` is what it does to one in which a thought ends, of which None is not known.
    """

    piece: str
    number: int
    change: Change
    answer: Change | None


@lru_cache(64)
def _frame(backend: Any, form: Form) -> list[Place]:
    """What a template writes around the texts of a form, in bounds. Raises ModelError."""
    work = partial(_probed, backend, form)
    try:
        return bounded(work, seconds=_SECONDS, megabytes=_MEGABYTES)
    except BoundError as error:
        raise ModelError(f"the chat template fails: {error}", TEMPLATE_HINT) from None


def _probed(backend: Any, form: Form) -> list[Place]:
    """As `_frame`, without bounds."""
    apply, pieces = _placed(backend, form)
    probes = {n: _PROBE.format(n) for n in form.numbers}
    changes = answers = _changes(pieces, probes, apply(probes))
    if None in changes:
        raise ModelError(_DEPENDS, TEMPLATE_HINT)
    mark = next((end for end in _THOUGHT_ENDS if end in form.source), "")
    if mark and "assistant" in form.roles:
        said = [_SAID + i for i, role in enumerate(form.roles) if role == "assistant"]
        probes |= {n: f"{_PLACEHOLDER}{mark}{probes[n]}" for n in said}
        answers = [
            None if n in said else usual for (_, n), usual in zip(pieces, changes, strict=True)
        ]
        with suppress(ModelError):  # it takes no thoughts
            found = _changes(pieces, probes, apply(probes), mark)
            answers = answers if None in found else found
    each = zip(pieces, changes, answers, strict=True)
    return [Place(piece, n, usual or Change(), answer) for (piece, n), usual, answer in each]


def _placed(backend: Any, form: Form) -> tuple[Callable[[Texts], str], Pieces]:
    """What renders texts, in the way that the template takes, and its pieces around them."""
    failure: ModelError | None = None
    turns = tuple((role, (_SAID + i,)) for i, role in enumerate(form.roles))
    by_role = [(role, [*group]) for role, group in groupby(turns, key=itemgetter(0))]
    alike = tuple((role, tuple(n for _, own in group for n in own)) for role, group in by_role)
    for own, content in product(dict.fromkeys((turns, alike)), _CONTENTS):
        apply = partial(_apply, backend, form, own, content)
        try:
            text = apply({n: _PLACEHOLDER.format(n) for n in form.numbers})
        except ModelError as error:
            failure = failure or error
            continue
        parts = _PLACES.split(text)
        pieces = [*zip(parts[::2], map(int, parts[1::2]), strict=False), (parts[-1], _NONE)]
        found = {n for piece, n in pieces if n < _SAID or not piece.endswith(_SPELLED_OUT)}
        missing = [n for n in form.numbers if n not in found and (n >= _SAID or n % 2)]
        if not missing:
            return apply, pieces
        what = f"the chat template leaves {form.name_of(missing[-1])} out"
        failure = failure or ModelError(what, TEMPLATE_HINT)
    assert failure is not None
    raise failure


def _changes(pieces: Pieces, texts: Texts, shown: str, mark: str = "") -> list[Change | None]:
    """How each text was changed where it stands in a rendered chat; None where that is not known.

    The last is for _NONE; it is None for another end than the frame's.
    """
    found: list[Change | None] = []
    at = len(pieces[0][0]) if shown.startswith(pieces[0][0]) else len(shown)
    ways = product(dict.fromkeys(("", mark)), _STRIPPED, _STRIPPED, (False, True))
    every = [Change(*one) for one in ways]
    for (_, number), (piece, _) in zip(pieces, pieces[1:], strict=False):
        written = ((one, one.of(texts[number]) + piece) for one in every)
        one, text = next((w for w in written if shown.startswith(w[1], at)), (None, ""))
        found.append(one)
        at += len(text)
    return [*found, Change() if at == len(shown) else None]


def _filled(frame: Sequence[Place], texts: Texts, ending: str) -> Rendered:
    """The chat of a frame with these texts in their places. Raises ModelError as `render`."""
    parts: list[str] = []
    spans: dict[int, Span] = {}  # the first of each text
    template: list[Span] = []
    at, most = 0, _LONGEST + _COPIES * sum(map(len, texts.values()))
    for place in frame:
        text = texts.get(place.number, ending)
        thinks = place.number >= _SAID and any(end in text for end in _THOUGHT_ENDS)
        if (change := place.answer if thinks else place.change) is None:
            raise ModelError(_DEPENDS, TEMPLATE_HINT)
        parts += place.piece, change.of(text)
        first = at + len(place.piece)
        template.append((at, first))
        at = first + len(parts[-1])
        spans.setdefault(place.number, (first, at))
        if at > most:
            what = f"the chat template writes more than {most:,} characters"
            raise ModelError(what, TEMPLATE_HINT)
    template[-1] = (template[-1][0], at)  # the ending is the template's, too
    documents = tuple(spans[n] for n in texts if n < _SAID and n % 2)
    said = tuple(spans[n] for n in texts if n >= _SAID)
    return Rendered("".join(parts), tuple(template), said, documents)


def _names(backend: Any) -> list[str]:
    """The names of the templates, where there are several."""
    templates = getattr(backend, "chat_template", None)
    return sorted(templates) if isinstance(templates, dict) else []


def _apply(
    backend: Any, form: Form, turns: Turns, content: Callable[[str], Any], texts: Texts
) -> str:
    """The rendered chat. Raises ModelError with the template's message, MemoryError, BoundError."""
    messages = [
        {"role": role, "content": content("\n\n".join(texts[n] for n in numbers))}
        for role, numbers in turns
    ]
    options = arguments_of(form.arguments)
    if form.template:
        options["chat_template"] = form.template
    if form.documents:
        numbers = ({"doc_id": i} if "doc_id" in form.source else {} for i in count(1))  # Granite's
        titles = range(0, 2 * form.documents, 2)
        options["documents"] = [
            more | {"title": texts[n], "text": texts[n + 1]}
            for n, more in zip(titles, numbers, strict=False)
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
    return utf8(text)
