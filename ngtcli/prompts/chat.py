"""A chat in a model's format, and which parts of it the template wrote.

The template is given texts between marks that no text has: what is outside of all marks is its own.
White space at a text's ends stands outside, too, as templates may strip it. A template is tried
once with texts of ours first, in bounds of memory as well as time.
"""

import inspect
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import count, groupby, product
from operator import itemgetter
from typing import Any, TypeVar

from ngtcli.config import SettingError, Settings, arguments_of
from ngtcli.documents.text import utf8
from ngtcli.errors import TemplateError, UsageError
from ngtcli.models.checkpoint import TEMPLATE_HINT
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.system.sandbox import BoundError, bounded, timed

# A mark has no letters, which filters of a template change, and U+FDD0 is no character.
_SECRET = secrets.randbits(48)
_CLOSE = f"\ufdd0{_SECRET}-\ufdd0"
_MARK = re.compile(f"\ufdd0{_SECRET}-(\\d*)\ufdd0")
# Numbers of texts: a document's; from here on its name's, which a template need not write; and from
# _SAID on those of the turns, of which a system text is the first.
_NAMES, _SAID = 10**8, 2 * 10**8
_PROBE = 'É"<\\&\n a'  # what filters of a template change
_PROBES = 25_000  # in all texts that are tried: a template multiplies no others by much; guess
_SWITCH = re.compile("/(?:no_think|think|system_override)")  # SmolLM3's takes it out
# A template's program: real ones take milliseconds and some thousand characters; guesses.
_SECONDS = 5.0
_MEGABYTES = 256
_LONGEST = 1_000_000  # characters around the copies of the texts
_COPIES = 8  # of the texts
_DEPENDS = "the chat template changes the text that it is given"
_THOUGHT_ENDS = ("</think>", "[/THINK]", "</thought>")  # behind which templates look for an answer
_CONTENTS: tuple[Callable[[str], Any], ...] = (str, lambda text: [{"type": "text", "text": text}])
Turns = Sequence[tuple[str, str]]  # role and text
T = TypeVar("T")
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
        given = (
            s.answer.system.strip(),
            s.answer.chat_template,
            s.answer.template_arg,
            s.answer.template_documents,
        )
        return cls(*given, s.answer.think)

    @property
    def flags(self) -> list[str]:
        """The flags of what a template may not take."""
        names = "--system", "--set template_arg", "--set template_documents"
        given = self.system, self.arguments, self.documents
        return [name for name, value in zip(names, given, strict=True) if value]


_PLAIN = Chat()


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text, its spans outside of all marks, and those in marks with their numbers."""

    text: str
    template: tuple[Span, ...]
    spans: tuple[tuple[int, Span], ...]

    @property
    def documents(self) -> list[Span]:
        """The first span of each document's text, in their order."""
        first = dict(reversed(self.spans))
        return [first[number] for number in sorted(first) if number < _NAMES]


def marked(text: str, number: int) -> str:
    """`text` in the marks of this number, but for white space at its ends."""
    body = text.strip()
    before, _, after = text.partition(body) if body else (text, "", "")
    return f"{before}\ufdd0{_SECRET}-{number}\ufdd0{body}{_CLOSE}{after}"


def unmarked(text: str) -> Rendered:
    """A text without its marks, one inside of another or not.

    Raises TemplateError where one is missing.
    """
    parts: list[str] = []
    template: list[Span] = []
    spans: list[tuple[int, Span]] = []
    inside: list[tuple[int, int]] = []  # number of each open mark, and where its text begins
    at = length = end = 0
    for found in _MARK.finditer(text):
        parts.append(text[at : found.start()])
        at, length = found.end(), length + len(parts[-1])
        if found[1]:
            if not inside:
                template.append((end, length))
            inside.append((int(found[1]), length))
        elif inside:
            number, first = inside.pop()
            spans.append((number, (first, length)))
            end = length
        else:
            raise TemplateError(_DEPENDS, hint=TEMPLATE_HINT)
    if inside:
        raise TemplateError(_DEPENDS, hint=TEMPLATE_HINT)
    parts.append(text[at:])
    template.append((end, length + len(parts[-1])))
    return Rendered("".join(parts), tuple(template), tuple(spans))


def check_chat(tokenizer: Tokenizer, chat: Chat) -> None:
    """Raise UsageError for what the templates of this tokenizer cannot be given."""
    backend, names, name = tokenizer.backend, _names(tokenizer.backend), chat.template
    if not tokenizer.has_chat_template and (chat.template or chat.documents):
        flag = "--set chat_template" if chat.template else "--set template_documents"
        raise UsageError("the model has no chat template", hint=f"Leave {flag} out.")
    if chat.template and chat.template not in names:
        hint = f"Choose from {', '.join(names)}." if names else "It has one: leave the name out."
        raise SettingError("chat_template", f"the model has no chat template {name!r}", hint)
    if names and not chat.template and "default" not in names:
        what = "the model has several chat templates, none of which is the default"
        raise UsageError(what, hint=f"Choose from {', '.join(names)} with --set chat_template.")
    if not chat.arguments:
        return
    taken = {"messages", *inspect.signature(backend.apply_chat_template).parameters}
    for key, value in arguments_of(chat.arguments).items():
        if key in taken:
            raise UsageError(f"template_arg {key} is reserved: ngt sets it", hint="Leave it out.")
        if tokenizer.has_control(utf8(json.dumps(value, ensure_ascii=False))):
            what = f"template_arg {key} holds a control token of the model"
            raise UsageError(what, hint="Take it out: only the template itself writes them.")


def try_chat(tokenizer: Tokenizer, chat: Chat) -> Iterator[str]:
    """A sentence for each argument that changes nothing in a prompt of short texts.

    Raises UsageError as `check_chat`, TemplateError as `render`.
    """
    check_chat(tokenizer, chat)
    whole = short_chat(tokenizer, chat) if tokenizer.has_chat_template else ""
    for argument in chat.arguments:
        others = tuple(other for other in chat.arguments if other is not argument)
        with suppress(TemplateError):  # it is needed
            if not whole or short_chat(tokenizer, replace(chat, arguments=others)) == whole:
                key = argument.partition("=")[0]
                yield f"--set template_arg={key} changes nothing in the prompt of this model"


def short_chat(tokenizer: Tokenizer, chat: Chat) -> str:
    """The chat of short texts. Raises TemplateError as `render`."""
    documents = [("1", "1")] if chat.documents else []
    return render(tokenizer.backend, [("user", "1")], chat, documents).text


def template_of(backend: Any, name: str = "") -> str:
    """The source of the chat template, of several that of this name; "" for none."""
    templates = getattr(backend, "chat_template", None) or ""
    if isinstance(templates, dict):
        return str(templates.get(name or "default", ""))
    return str(templates)


def render(
    backend: Any, said: Turns, chat: Chat = _PLAIN, documents: Sequence[tuple[str, str]] = ()
) -> Rendered:
    """The chat of turns (role, text), up to the start of the assistant's; texts may have marks.

    Adjacent turns of a role become one where the template does not take them. `documents` are given
    to it as (name, text). Raises TemplateError if it fails, omits the system text, a turn or a
    document, or changes what a text says.
    """
    said = [("system", chat.system), *said] if chat.system else said
    try:
        found = _rendered(backend, said, chat, documents)
    except TemplateError as error:
        if not chat.flags:
            raise
        turns = [(role, text) for role, text in said if role != "system"]
        _rendered(backend, turns, replace(chat, arguments=()), ())  # or this is it
        names = _names(backend)
        other = f" Or choose from {', '.join(names)} with --set chat_template." if names else ""
        hint = f"It takes a message without {' and '.join(chat.flags)}.{other}"
        raise TemplateError(str(error), hint=hint) from error
    text = found.text + chat.ending
    last = found.template[-1][0], len(text)  # the ending is the template's, too
    return replace(found, text=text, template=(*found.template[:-1], last))


def _rendered(
    backend: Any, said: Turns, chat: Chat, documents: Sequence[tuple[str, str]]
) -> Rendered:
    """The chat without an ending. Raises TemplateError."""
    source = template_of(backend, chat.template)
    mark = next((end for end in _THOUGHT_ENDS if end in source), "")
    texts = {i: utf8(text) for i, (_, text) in enumerate(documents)}
    texts |= {_NAMES + i: utf8(name) for i, (name, _) in enumerate(documents)}
    for i, (role, text) in enumerate(said):
        thinks = mark and role == "assistant" and mark in text
        texts[_SAID + i] = utf8(text.rpartition(mark)[2].lstrip() if thinks else text)
    roles = tuple(role for role, _ in said)
    plain = replace(chat, system="", ending="")
    _try(backend, plain, source, "system" in roles, bool(documents))
    work = partial(_written, backend, chat, source, roles, texts)
    return _checked(_within_bounds(partial(timed, work, _SECONDS)), texts)


@lru_cache(64)
def _try(backend: Any, chat: Chat, source: str, has_system: bool, has_documents: bool) -> None:
    """Have the template write a conversation and a single message, in bounds of time and memory.

    This is done once for a template, however long conversations become, as it forks the process.
    Raises TemplateError where a bound is exceeded or a text changed. What the template refuses of
    these is left to `render`: what is asked may be of another form.
    """
    conversations = [("user", "assistant", "user"), ("user",)]
    if has_system:
        conversations = [("system", *roles) for roles in conversations]
    documents = (0, _NAMES) if has_documents else ()
    tried: list[tuple[tuple[str, ...], dict[int, str]]] = []
    for roles in conversations:
        numbers = [*documents, *range(_SAID, _SAID + len(roles))]
        tried.append((roles, dict.fromkeys(numbers, _PROBE * (1 + _PROBES // len(numbers)))))

    def work() -> list[str | None]:
        found: list[str | None] = []
        for roles, texts in tried:
            try:
                found.append(_written(backend, chat, source, roles, texts))
            except TemplateError:
                found.append(None)
        return found

    found = _within_bounds(partial(bounded, work, seconds=_SECONDS, megabytes=_MEGABYTES))
    for (_, texts), text in zip(tried, found, strict=True):
        if text is not None:
            _checked(text, texts)


def _within_bounds(write: Callable[[], T]) -> T:
    """What is written. Raises TemplateError where that takes too much time or memory."""
    try:
        return write()
    except (BoundError, MemoryError) as error:
        what = str(error) or "it takes more memory than there is"
        raise TemplateError(f"the chat template fails: {what}", hint=TEMPLATE_HINT) from None


def _checked(text: str, texts: Mapping[int, str]) -> Rendered:
    """What is written of these texts. Raises TemplateError where it is not what they say."""
    found = unmarked(text)
    own = {n: _MARK.sub("", text.strip()) for n, text in texts.items()}
    for number, (first, last) in found.spans:
        shown = found.text[first:last]
        if shown != (text := own.get(number, shown)):
            bare = _SWITCH.sub("", text) if number == _SAID else text
            if shown not in (json.dumps(text, ensure_ascii=False)[1:-1], bare):
                raise TemplateError(_DEPENDS, hint=TEMPLATE_HINT)
    return found


def _written(
    backend: Any, chat: Chat, source: str, roles: Sequence[str], texts: Mapping[int, str]
) -> str:
    """What the template writes, marks and all, of turns in the way that it takes them."""
    failure: TemplateError | None = None
    turns = [(role, marked(texts[_SAID + i], _SAID + i)) for i, role in enumerate(roles)]
    by_role = [(role, [*group]) for role, group in groupby(turns, key=itemgetter(0))]
    alike = [(role, "\n\n".join(text for _, text in group)) for role, group in by_role]
    needed = [n for n in texts if not _NAMES <= n < _SAID]
    options = _options(chat, source, texts)
    for own, content in product((turns, alike) if turns != alike else (turns,), _CONTENTS):
        try:
            text = _apply(backend, own, content, options)
        except TemplateError as error:
            failure = failure or error
            continue
        if len(text) > _LONGEST + _COPIES * sum(map(len, texts.values())):
            raise BoundError(f"it writes {len(text):,} characters")
        found = {int(number) for number in _MARK.findall(text) if number}
        if not (missing := [n for n in needed if n not in found]):
            return text
        what = f"the chat template leaves {_name_of(missing[-1], roles)} out"
        failure = failure or TemplateError(what, hint=TEMPLATE_HINT)
    assert failure is not None
    raise failure


def _name_of(number: int, roles: Sequence[str]) -> str:
    """What a text is, in words."""
    if number < _SAID:
        return "documents"
    if roles[number - _SAID] == "system":
        return "the system prompt"
    return "the text" if number - _SAID == len(roles) - 1 else "a turn of the conversation"


def _names(backend: Any) -> list[str]:
    """The names of the templates, where there are several."""
    templates = getattr(backend, "chat_template", None)
    return sorted(templates) if isinstance(templates, dict) else []


def _options(chat: Chat, source: str, texts: Mapping[int, str]) -> dict[str, Any]:
    """What the template is given beside the turns."""
    options = arguments_of(chat.arguments)
    if chat.template:
        options["chat_template"] = chat.template
    if documents := [n for n in texts if n < _NAMES]:
        numbers = ({"doc_id": i} if "doc_id" in source else {} for i in count(1))  # Granite's
        options["documents"] = [
            more | {"title": marked(texts[_NAMES + n], _NAMES + n), "text": marked(texts[n], n)}
            for n, more in zip(documents, numbers, strict=False)
        ]
    return options


def _apply(
    backend: Any, turns: Turns, content: Callable[[str], Any], options: Mapping[str, Any]
) -> str:
    """The rendered chat. Raises TemplateError with the template's message, MemoryError."""
    messages = [{"role": role, "content": content(text)} for role, text in turns]
    try:
        text: str = backend.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **options
        )
    except MemoryError:
        raise
    except Exception as error:  # a template is a program and can raise anything
        words = _MARK.sub("", str(error)).replace(str(_SECRET), "")  # a known mark can be written
        lines = words.strip().splitlines() or [type(error).__name__]
        raise TemplateError(f"the chat template fails: {lines[0]}", hint=TEMPLATE_HINT) from error
    return utf8(text)
