"""Render a chat in a model's format, and tell which parts of it the template wrote.

The template gets texts between marks that no text contains: whatever is outside of all marks was
written by the template. White space at the ends of a text is outside as well, because templates may
strip it. A template is first tried with texts of our own, within limits of time and memory.
"""

import inspect
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby, product
from operator import itemgetter
from typing import Any, TypeVar

from ngtcli.config import SettingError, Settings, template_variables
from ngtcli.documents.text import utf8
from ngtcli.errors import TemplateError, UsageError
from ngtcli.models.checkpoint import TEMPLATE_HINT
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.system.sandbox import BoundError, bounded, timed

# A mark has no letters, which filters of a template change, and U+FDD0 is no character.
_SECRET = secrets.randbits(48)
_CLOSE = f"\ufdd0{_SECRET}-\ufdd0"
_MARK = re.compile(f"\ufdd0{_SECRET}-(\\d*)\ufdd0")
# Each marked text has a number. Documents are numbered from 0, and their names, which a template
# need not write, from _NAMES. Turns are numbered from _TURNS; the first may be the system prompt.
_NAMES = 10**8
_TURNS = 2 * 10**8
_PROBE = 'É"<\\&\n a'  # characters that filters of a template change
_PROBES = 25_000  # copies of _PROBE in all texts of a trial (guess: enough to show multiplication)
_SWITCH = re.compile("/(?:no_think|think|system_override)")  # SmolLM3's template removes it
# Limits of a template's program: real ones take milliseconds and some thousand characters; guesses.
_SECONDS = 5.0
_MEGABYTES = 256
_MAX_OWN_CHARACTERS = 1_000_000  # written by the template itself
_MAX_COPIES = 8  # of each text
_CHANGED = "the chat template changes the text that it is given"
_REASONING_ENDS = ("</think>", "[/THINK]", "</thought>")  # templates look for an answer after these
# The ways in which templates accept the content of a message.
_CONTENTS: tuple[Callable[[str], Any], ...] = (str, lambda text: [{"type": "text", "text": text}])
Turns = Sequence[tuple[str, str]]  # role and text
T = TypeVar("T")
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Chat:
    """The inputs of a chat template in addition to the messages.

    Attributes:
        system: The system prompt; "" for none.
        template: The name of the template, if the model has several.
        arguments: Variables of the template as KEY=VALUE texts, which `template_variables` reads.
        documents: Whether the template gets the documents; otherwise they are in the message.
        think: The setting of that name. `thinking.switched` applies it; `render` ignores it.
        ending: Text that follows what the template writes.
    """

    system: str = ""
    template: str = ""
    arguments: tuple[str, ...] = ()
    documents: bool = False
    think: str = "auto"
    ending: str = ""

    @classmethod
    def of(cls, settings: Settings) -> "Chat":
        """Return the chat of these settings."""
        answer = settings.answer
        return cls(
            system=answer.system.strip(),
            template=answer.chat_template,
            arguments=answer.template_arg,
            documents=answer.template_documents,
            think=answer.think,
        )

    @property
    def flags(self) -> list[str]:
        """The flags in use that a template may not support."""
        values = {
            "--system": self.system,
            "--set template_arg": self.arguments,
            "--set template_documents": self.documents,
        }
        return [flag for flag, value in values.items() if value]


_PLAIN = Chat()


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text without its marks.

    Attributes:
        text: The text.
        template: The spans outside of all marks, which the template wrote.
        spans: The spans that were marked, each after its number.
    """

    text: str
    template: tuple[Span, ...]
    spans: tuple[tuple[int, Span], ...]

    @property
    def documents(self) -> list[Span]:
        """The first span of each document's text, in the order of the documents."""
        first_spans = dict(reversed(self.spans))
        return [first_spans[number] for number in sorted(first_spans) if number < _NAMES]


def marked(text: str, number: int) -> str:
    """Return a text within the marks of a number, except for white space at its ends."""
    body = text.strip()
    before, _, after = text.partition(body) if body else (text, "", "")
    return f"{before}\ufdd0{_SECRET}-{number}\ufdd0{body}{_CLOSE}{after}"


def unmarked(text: str) -> Rendered:
    """Remove the marks of a text, which may be nested.

    Raises:
        TemplateError: An opening or closing mark is missing.
    """
    parts: list[str] = []
    template: list[Span] = []
    spans: list[tuple[int, Span]] = []
    open_marks: list[tuple[int, int]] = []  # the number of each, and where its text begins
    position = 0  # in `text`, after the last mark
    length = 0  # of all parts
    template_start = 0
    for match in _MARK.finditer(text):
        part = text[position : match.start()]
        parts.append(part)
        position = match.end()
        length += len(part)
        if match[1]:
            if not open_marks:
                template.append((template_start, length))
            open_marks.append((int(match[1]), length))
        elif open_marks:
            number, start = open_marks.pop()
            spans.append((number, (start, length)))
            template_start = length
        else:
            raise TemplateError(_CHANGED, hint=TEMPLATE_HINT)
    if open_marks:
        raise TemplateError(_CHANGED, hint=TEMPLATE_HINT)
    parts.append(text[position:])
    template.append((template_start, length + len(parts[-1])))
    return Rendered("".join(parts), tuple(template), tuple(spans))


def check_chat(tokenizer: Tokenizer, chat: Chat) -> None:
    """Raise UsageError for a chat that the templates of this tokenizer cannot render."""
    names = _template_names(tokenizer.backend)
    if not tokenizer.has_chat_template and (chat.template or chat.documents):
        flag = "--set chat_template" if chat.template else "--set template_documents"
        raise UsageError("the model has no chat template", hint=f"Leave {flag} out.")
    if chat.template and chat.template not in names:
        hint = f"Choose from {', '.join(names)}." if names else "It has one: leave the name out."
        message = f"the model has no chat template {chat.template!r}"
        raise SettingError("chat_template", message, hint)
    if names and not chat.template and "default" not in names:
        raise UsageError(
            "the model has several chat templates, none of which is the default",
            hint=f"Choose from {', '.join(names)} with --set chat_template.",
        )
    if not chat.arguments:
        return
    signature = inspect.signature(tokenizer.backend.apply_chat_template)
    reserved = {"messages", *signature.parameters}
    for key, value in template_variables(chat.arguments).items():
        if key in reserved:
            raise UsageError(f"template_arg {key} is reserved: ngt sets it", hint="Leave it out.")
        if tokenizer.has_control(utf8(json.dumps(value, ensure_ascii=False))):
            raise UsageError(
                f"template_arg {key} contains a control token of the model",
                hint="Remove it: only the template itself writes them.",
            )


def try_chat(tokenizer: Tokenizer, chat: Chat) -> Iterator[str]:
    """Yield a warning for each argument that does not change a prompt of short texts.

    Raises UsageError as `check_chat`, TemplateError as `render`.
    """
    check_chat(tokenizer, chat)
    complete = short_chat(tokenizer, chat) if tokenizer.has_chat_template else ""
    for argument in chat.arguments:
        others = tuple(other for other in chat.arguments if other is not argument)
        with suppress(TemplateError):  # the template needs the argument
            if not complete or short_chat(tokenizer, replace(chat, arguments=others)) == complete:
                key = argument.partition("=")[0]
                yield f"--set template_arg={key} changes nothing in the prompt of this model"


def short_chat(tokenizer: Tokenizer, chat: Chat) -> str:
    """Render a chat of short texts. Raises TemplateError as `render`."""
    documents = [("1", "1")] if chat.documents else []
    return render(tokenizer.backend, [("user", "1")], chat, documents).text


def template_of(backend: Any, name: str = "") -> str:
    """Return the source of the chat template, by name if there are several; "" for none."""
    templates = getattr(backend, "chat_template", None) or ""
    if isinstance(templates, dict):
        return str(templates.get(name or "default", ""))
    return str(templates)


def render(
    backend: Any, turns: Turns, chat: Chat = _PLAIN, documents: Sequence[tuple[str, str]] = ()
) -> Rendered:
    """Render a chat up to the start of the assistant's turn.

    Adjacent turns of a role are joined if the template does not support them.

    Args:
        backend: The tokenizer of transformers.
        turns: Roles and texts, without the system prompt. Texts may have marks.
        chat: What the template gets in addition.
        documents: Names and texts of the documents that the template gets.

    Raises:
        TemplateError: The template fails, omits the system prompt, a turn or a document, or
            changes a text.
    """
    if chat.system:
        turns = [("system", chat.system), *turns]
    try:
        rendered = _render(backend, turns, chat, documents)
    except TemplateError as error:
        if not chat.flags:
            raise
        # If the template fails without these flags, too, that error is raised instead.
        without_system = [(role, text) for role, text in turns if role != "system"]
        _render(backend, without_system, replace(chat, arguments=()), ())
        names = _template_names(backend)
        hint = f"It takes a message without {' and '.join(chat.flags)}."
        if names:
            hint += f" Or choose from {', '.join(names)} with --set chat_template."
        raise TemplateError(str(error), hint=hint) from error
    text = rendered.text + chat.ending
    last = rendered.template[-1][0], len(text)  # the ending counts as the template's
    return replace(rendered, text=text, template=(*rendered.template[:-1], last))


def _render(
    backend: Any, turns: Turns, chat: Chat, documents: Sequence[tuple[str, str]]
) -> Rendered:
    """Render a chat without its ending. Raises TemplateError."""
    source = template_of(backend, chat.template)
    reasoning_end = next((end for end in _REASONING_ENDS if end in source), "")
    texts: dict[int, str] = {}
    for i, (name, text) in enumerate(documents):
        texts[i] = utf8(text)
        texts[_NAMES + i] = utf8(name)
    for i, (role, text) in enumerate(turns):
        if reasoning_end and role == "assistant" and reasoning_end in text:
            text = text.rpartition(reasoning_end)[2].lstrip()
        texts[_TURNS + i] = utf8(text)
    roles = tuple(role for role, _ in turns)
    plain = replace(chat, system="", ending="")
    _try(backend, plain, source, "system" in roles, bool(documents))
    write = partial(_write, backend, chat, source, roles, texts)
    return _check_written(_within_bounds(partial(timed, write, _SECONDS)), texts)


@lru_cache(64)
def _try(backend: Any, chat: Chat, source: str, has_system: bool, has_documents: bool) -> None:
    """Have the template write a conversation and a message within limits of time and memory.

    This is done once per template, because it forks the process. A conversation that the template
    refuses is not an error here: the real one may be of another form, and `render` reports that.

    Raises:
        TemplateError: A limit is exceeded, or a text is changed.
    """
    conversations = [("user", "assistant", "user"), ("user",)]
    if has_system:
        conversations = [("system", *roles) for roles in conversations]
    documents = (0, _NAMES) if has_documents else ()
    trials: list[tuple[tuple[str, ...], dict[int, str]]] = []
    for roles in conversations:
        numbers = [*documents, *range(_TURNS, _TURNS + len(roles))]
        text = _PROBE * (1 + _PROBES // len(numbers))
        trials.append((roles, dict.fromkeys(numbers, text)))

    def write_all() -> list[str | None]:
        outputs: list[str | None] = []
        for roles, texts in trials:
            try:
                outputs.append(_write(backend, chat, source, roles, texts))
            except TemplateError:
                outputs.append(None)
        return outputs

    outputs = _within_bounds(partial(bounded, write_all, seconds=_SECONDS, megabytes=_MEGABYTES))
    for (_, texts), output in zip(trials, outputs, strict=True):
        if output is not None:
            _check_written(output, texts)


def _within_bounds(write: Callable[[], T]) -> T:
    """Return what `write` returns. Raises TemplateError if it exceeds its time or memory."""
    try:
        return write()
    except (BoundError, MemoryError) as error:
        reason = str(error) or "it takes more memory than there is"
        raise TemplateError(f"the chat template fails: {reason}", hint=TEMPLATE_HINT) from None


def _check_written(output: str, texts: Mapping[int, str]) -> Rendered:
    """Remove the marks, and check that the template did not change the texts between them.

    A text may be written as a JSON string, and SmolLM3's switches are removed from the system
    prompt. Raises TemplateError for any other change.
    """
    rendered = unmarked(output)
    expected = {number: _MARK.sub("", text.strip()) for number, text in texts.items()}
    for number, (start, end) in rendered.spans:
        written = rendered.text[start:end]
        text = expected.get(number, written)
        allowed = [text, json.dumps(text, ensure_ascii=False)[1:-1]]
        if number == _TURNS:
            allowed.append(_SWITCH.sub("", text))
        if written not in allowed:
            raise TemplateError(_CHANGED, hint=TEMPLATE_HINT)
    return rendered


def _write(
    backend: Any, chat: Chat, source: str, roles: Sequence[str], texts: Mapping[int, str]
) -> str:
    """Have the template write turns in the first way that it supports.

    Args:
        backend: The tokenizer of transformers.
        chat: What the template gets in addition.
        source: The source of the template.
        roles: The role of each turn.
        texts: The texts of documents, their names and the turns, by number.

    Returns:
        The output with its marks.

    Raises:
        TemplateError: The template fails or omits a text.
        BoundError: The output is too long.
    """
    failure: TemplateError | None = None
    turns = [(role, marked(texts[_TURNS + i], _TURNS + i)) for i, role in enumerate(roles)]
    joined = [
        (role, "\n\n".join(text for _, text in group))
        for role, group in groupby(turns, key=itemgetter(0))
    ]
    required = [number for number in texts if not _NAMES <= number < _TURNS]
    max_characters = _MAX_OWN_CHARACTERS + _MAX_COPIES * sum(map(len, texts.values()))
    options = _options(chat, source, texts)
    forms = [turns] if turns == joined else [turns, joined]
    for form, content in product(forms, _CONTENTS):
        try:
            output = _apply(backend, form, content, options)
        except TemplateError as error:
            failure = failure or error
            continue
        if len(output) > max_characters:
            raise BoundError(f"it writes {len(output):,} characters")
        written = {int(number) for number in _MARK.findall(output) if number}
        missing = [number for number in required if number not in written]
        if not missing:
            return output
        failure = failure or TemplateError(
            f"the chat template leaves {_name_of(missing[-1], roles)} out", hint=TEMPLATE_HINT
        )
    assert failure is not None
    raise failure


def _name_of(number: int, roles: Sequence[str]) -> str:
    """Return the words for a text in errors."""
    if number < _TURNS:
        return "documents"
    if roles[number - _TURNS] == "system":
        return "the system prompt"
    return "the text" if number - _TURNS == len(roles) - 1 else "a turn of the conversation"


def _template_names(backend: Any) -> list[str]:
    """Return the names of the templates; none if there is only one."""
    templates = getattr(backend, "chat_template", None)
    return sorted(templates) if isinstance(templates, dict) else []


def _options(chat: Chat, source: str, texts: Mapping[int, str]) -> dict[str, Any]:
    """Return the arguments of `apply_chat_template` other than the turns."""
    options = template_variables(chat.arguments)
    if chat.template:
        options["chat_template"] = chat.template
    documents: list[dict[str, Any]] = []
    for number in texts:
        if number < _NAMES:
            title = _NAMES + number
            document: dict[str, Any] = {
                "title": marked(texts[title], title),
                "text": marked(texts[number], number),
            }
            if "doc_id" in source:  # Granite's templates
                document = {"doc_id": len(documents) + 1, **document}
            documents.append(document)
    if documents:
        options["documents"] = documents
    return options


def _apply(
    backend: Any, turns: Turns, content: Callable[[str], Any], options: Mapping[str, Any]
) -> str:
    """Render the chat. Raises MemoryError, or TemplateError with the template's own message."""
    messages = [{"role": role, "content": content(text)} for role, text in turns]
    try:
        text: str = backend.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **options
        )
    except MemoryError:
        raise
    except Exception as error:  # a template is a program and can raise anything
        # A text that knew the secret could write marks.
        message = _MARK.sub("", str(error)).replace(str(_SECRET), "")
        lines = message.strip().splitlines() or [type(error).__name__]
        raise TemplateError(f"the chat template fails: {lines[0]}", hint=TEMPLATE_HINT) from error
    return utf8(text)
