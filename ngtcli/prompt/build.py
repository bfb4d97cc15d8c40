"""Prompts made of a preset, documents and a question. Independent of torch.

A prompt states which of its tokens are outside the documents, because the documents' n-grams come
from their cached trie, and which passages it has, where not all documents fit.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from ngtcli.documents.load import Document
from ngtcli.errors import ModelError
from ngtcli.prompt.chat import Chat, Rendered, check_chat, render
from ngtcli.prompt.preset import Preset
from ngtcli.prompt.thinking import switched
from ngtcli.retrieve.selection import Cut, Selection
from ngtcli.tokens.control import Spans
from ngtcli.tokens.tokenizer import Tokenizer

Status = Callable[[str], None]
_OTHER_MODEL = "Name another model (-m)."
_FIELD = re.compile(r"\{(documents|question|summary|name|text|index)\}")


def check_known(ids: Sequence[int], vocabulary: int) -> None:
    """Raise ModelError, unless `vocabulary` is 0, for ids that are not below it."""
    if vocabulary and max(ids, default=0) >= vocabulary:
        what = f"the tokenizer makes token {max(ids)}, the model knows {vocabulary} tokens"
        raise ModelError(what, f"Tokenizer and model do not belong together. {_OTHER_MODEL}")


def fill(template: str, values: Mapping[str, str]) -> str:
    """`template` with each `{field}` replaced by its value; braces in values are kept.

    >>> fill("{text}!", {"text": "{name}"})
    '{name}!'
    """
    return _FIELD.sub(lambda m: values.get(m.group(1), m.group()), template)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads. `outside` are the runs of ids outside the documents.

    Each run overlaps the documents around it by a few tokens, to have the n-grams across the
    border. `references` are the documents' ids in the prompt; empty if not known. With a
    `selection` the `documents` are excerpts of those that were `given`; so are those of a part.
    """

    text: str
    ids: list[int]
    outside: tuple[tuple[int, ...], ...]
    documents: tuple[Document, ...]
    cuts: tuple[Cut, ...] = ()
    references: tuple[tuple[int, ...], ...] = ()
    selection: Selection | None = None
    given: tuple[Document, ...] = ()

    def predicting(self, ids: Sequence[int]) -> "Prompt":
        """The prompt with a text beside it from which is drafted as from a document."""
        own = tuple(ids)
        references = (*self.references, own)
        return replace(self, outside=(*self.outside, own), references=references)


@dataclass(frozen=True, slots=True)
class Message:
    """The user's message and the span of each document in it; no spans if one is not in it.

    `given` are documents as (name, text) that the chat template is given beside it.
    """

    text: str
    documents: tuple[tuple[int, int], ...]
    given: tuple[tuple[str, str], ...] = ()
    chat: Chat = Chat()

    @property
    def whole(self) -> str:
        """All texts that are rendered."""
        given = (part for document in self.given for part in document)
        return "\n".join(filter(None, (self.chat.system, *given, self.text)))


@dataclass(frozen=True, slots=True)
class Task:
    """The parts of a prompt; `context` positions in all, `answer` of them for the answer.

    `status` gets lines on how much is read. `chat` is for the chat template.
    """

    preset: Preset
    documents: Sequence[Document]
    question: str
    tokenizer: Tokenizer
    context: int
    answer: int
    vocabulary: int = 0
    status: Status = lambda _: None
    summary: str = ""
    chat: Chat = Chat()

    @property
    def answer_room(self) -> int:
        """Positions kept for the answer: `answer`, or a quarter of `context` where that is less."""
        return min(self.answer, self.context // 4)

    @property
    def room(self) -> int:
        """Positions for a cut prompt: `context` less those for the answer."""
        return self.context - self.answer_room

    def message(self, documents: Sequence[Document]) -> Message:
        """The user's message: the preset's template with documents, question and summary."""
        values = {"documents": "", "question": self.question, "summary": self.summary}
        if self.chat.documents:
            given = tuple((d.name, d.text.strip()) for d in documents)
            return Message(fill(self.preset.template, values).strip(), (), given, self.chat)
        form = self.preset.document if len(documents) == 1 else self.preset.titled_document
        parts: list[str] = []
        spans: list[tuple[int, int]] = []
        at = 0
        for i, document in enumerate(documents, 1):
            body = document.text.strip()
            own = {"name": document.name, "text": body, "index": str(i)}
            if (start := _place(form, "text", own)) is not None:
                spans.append((at + start, at + start + len(body)))
            parts.append(fill(form, own))
            at += len(parts[-1]) + len(self.preset.separator)
        values["documents"] = self.preset.separator.join(parts)
        first = _place(self.preset.template, "documents", values)
        text = fill(self.preset.template, values)
        if first is None or len(spans) < len(documents):
            return Message(text, (), chat=self.chat)
        return Message(text, tuple(_shifted(spans, first)), chat=self.chat)

    def build(self, documents: Sequence[Document]) -> Prompt:
        """The prompt with these documents, in the model's chat format if it has one.

        Raises as `code`, and ModelError if there are no tokens and, unless `vocabulary` is 0, for
        ids that are not below it.
        """
        text, ids, spans = code(self.message(documents), self.tokenizer)
        if not ids:
            raise ModelError("the tokenizer makes no tokens of the prompt", _OTHER_MODEL)
        check_known(ids, self.vocabulary)
        references = tuple(tuple(ids[first:last]) for first, last in spans)
        return Prompt(text, ids, _outside(ids, spans), tuple(documents), references=references)

    @property
    def empty(self) -> list[Document]:
        """The documents with empty texts."""
        return [replace(d, text="") for d in self.documents]

    @property
    def frame(self) -> Message:
        """The user's message without the documents' texts."""
        return self.message(self.empty)


def _place(template: str, name: str, values: Mapping[str, str]) -> int | None:
    """The index of the value of the first field `name` in the filled template; None without it."""
    found = next((m for m in _FIELD.finditer(template) if m.group(1) == name), None)
    return None if found is None else len(fill(template[: found.start()], values))


def code(message: Message, tokenizer: Tokenizer) -> tuple[str, list[int], list[tuple[int, int]]]:
    """The message in the model's chat format, if any, its ids, and the documents' spans of them.

    Without a chat format the system text stands before it. There are no spans if they are not
    known. Raises ModelError as `render`, UsageError as `check_chat`.
    """
    check_chat(tokenizer, message.chat)
    chat = switched(tokenizer, message.chat)
    if tokenizer.has_chat_template:
        rendered = render(tokenizer.backend, message.text, chat, message.given)
        text, places = rendered.text, rendered.documents or _places(message, rendered)
        coded = tokenizer.locate(text, template=rendered.template)
    else:
        head = f"{chat.system}\n\n" if chat.system else ""
        text, places = f"{head}{message.text}\n\n", _shifted(message.documents, len(head))
        coded = tokenizer.locate(text, special=True)
    starts = coded.starts
    spans = [(bisect_left(starts, first), bisect_left(starts, last)) for first, last in places]
    return text, coded.ids, spans if starts else []


def _places(message: Message, rendered: Rendered) -> Spans:
    """The spans of the documents in the rendered message; none if the template changed it."""
    first, last = rendered.message
    shown, own = rendered.text[first:last], message.text
    if shown not in (own, own.strip()):
        return ()
    return _shifted(message.documents, first - (len(own) - len(own.lstrip())) * (shown != own))


def _shifted(spans: Spans, by: int) -> Spans:
    return [(first + by, last + by) for first, last in spans]


def look_alikes(
    documents: Sequence[Document], question: str, tokenizer: Tokenizer, system: str = ""
) -> Iterator[str]:
    """A sentence per text that contains the name of a control token of the model."""
    texts = [(d.name, f"{d.name}\n{d.text}") for d in documents]
    for name, text in [*texts, ("the question", question), ("the system text", system)]:
        if found := tokenizer.control.first_in(text):
            yield (
                f"{name} holds text that looks like the model's control tokens ({found}):"
                " it is read as text"
            )


def _outside(
    ids: list[int], spans: Sequence[tuple[int, int]], overlap: int = 4
) -> tuple[tuple[int, ...], ...]:
    inside = [False] * len(ids)
    for first, last in spans:
        inside[first:last] = [True] * (last - first)
    near = [not all(inside[max(0, i - overlap) : i + overlap + 1]) for i in range(len(ids))]
    runs = groupby(zip(ids, near, strict=True), key=itemgetter(1))
    return tuple(tuple(token for token, _ in run) for is_near, run in runs if is_near)
