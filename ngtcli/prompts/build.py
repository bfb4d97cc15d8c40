"""Prompts made of a preset, documents, a question and what was said before. Independent of torch.

A prompt states which of its tokens are outside the documents, because the documents' n-grams come
from their cached trie, and which passages it has, where not all documents fit.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from operator import itemgetter

from ngtcli.documents.content import placed
from ngtcli.documents.load import Document
from ngtcli.documents.passages import place
from ngtcli.documents.selection import Coverage, Excerpt
from ngtcli.errors import ModelError
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.prompts.chat import Chat, check_chat, marked, render, unmarked
from ngtcli.prompts.preset import Preset, without_documents
from ngtcli.prompts.reports import Cut, Selection
from ngtcli.prompts.thinking import switched
from ngtcli.prompts.turns import Turn

_OTHER_MODEL = "Name another model (-m)."
_FIELD = re.compile(r"\{(documents|question|name|text|index)\}")


def check_known(ids: Sequence[int], vocabulary: int) -> None:
    """Raise ModelError, unless `vocabulary` is 0, for ids that are not below it."""
    if vocabulary and max(ids, default=0) >= vocabulary:
        what = f"the tokenizer makes token {max(ids)}, the model knows {vocabulary} tokens"
        raise ModelError(what, hint=f"Tokenizer and model do not belong together. {_OTHER_MODEL}")


def _filled(template: str, **values: str) -> str:
    """`template` with each `{field}` replaced by its value.

    >>> _filled("{text}: {text}!", text="{name}")
    '{name}: {name}!'
    """
    return _FIELD.sub(lambda found: values.get(found[1], found[0]), template)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads. `outside` are the runs of ids outside the documents.

    Each run overlaps the documents around it by a few tokens, to have the n-grams across the
    border. `references` are the documents' ids in the prompt; empty if not known. With a
    `selection` the `documents` are excerpts of those that were given; so are those of a part. The
    first `left_out` questions of the turns, and what follows each, were left out. `predicted` are
    the ids of a text beside it which the answer is said to be like.
    """

    text: str
    ids: list[int]
    outside: tuple[tuple[int, ...], ...]
    documents: tuple[Document, ...]
    cuts: tuple[Cut, ...] = ()
    references: tuple[tuple[int, ...], ...] = ()
    selection: Selection | None = None
    left_out: int = 0
    coverage: Coverage | None = None
    predicted: tuple[int, ...] = ()

    @property
    def with_prediction_as_document(self) -> "Prompt":
        """The same, for a method that drafts from documents: the predicted text is one of them."""
        if not self.predicted:
            return self
        outside, references = (*self.outside, self.predicted), (*self.references, self.predicted)
        return replace(self, outside=outside, references=references, predicted=())


@dataclass(frozen=True, slots=True)
class Message:
    """What is said to the model: the turns (role, text), of which the user's message is the last.

    Documents in them stand in marks, as in `marked`. `given` are documents as (name, text) that the
    chat template is given beside them.
    """

    said: tuple[tuple[str, str], ...]
    given: tuple[tuple[str, str], ...] = ()
    chat: Chat = Chat()

    @property
    def text(self) -> str:
        """The user's message."""
        return unmarked(self.said[-1][1]).text

    @property
    def whole(self) -> str:
        """All texts that are rendered."""
        given = (part for document in self.given for part in document)
        texts = (self.chat.system, *given, *(text for _, text in self.said))
        return unmarked("\n".join(filter(None, texts))).text


@dataclass(frozen=True, slots=True)
class Task:
    """The parts of a prompt; `context` positions in all, `answer` of them for the answer.

    `chat` is for the chat template. Documents stand before the first of the `turns`; with
    `in_turns` they are passages, which stand before the question, as those of each turn did.
    `queries` take the place of the question where passages are searched.
    With `compares` the prompt says how much of the question the documents have.
    Without `keep` what is made to search the documents is not stored.
    """

    preset: Preset
    documents: Sequence[Document]
    question: str
    tokenizer: Tokenizer
    context: int
    answer: int
    vocabulary: int = 0
    chat: Chat = Chat()
    turns: Sequence[Turn] = ()
    in_turns: bool = False
    queries: Sequence[str] = ()
    keep: bool = True
    compares: bool = False

    @property
    def answer_room(self) -> int:
        """Positions kept for the answer: `answer`, or a quarter of `context` where that is less."""
        return min(self.answer, self.context // 4)

    @property
    def room(self) -> int:
        """Positions for a cut prompt: `context` less those for the answer."""
        return self.context - self.answer_room

    def message(self, documents: Sequence[Document]) -> Message:
        """What is said: the preset's template with documents and question, after turns."""
        turns = [*self.turns, Turn("user", self.question)]
        first = next(i for i, turn in enumerate(turns) if turn.role == "user")
        at = len(turns) - 1 if self.in_turns else first
        if self.chat.documents:
            given = tuple((d.name, d.text.strip()) for d in (*self.earlier, *documents))
            *said, (role, text) = (self._said(turn, [], 0) for turn in turns)
            return Message((*said, (role, text.strip())), given, self.chat)
        own = [self.passages_of(turn) for turn in turns]
        own[at] = documents
        numbers = accumulate(map(len, own), initial=0)
        each = zip(turns, own, numbers, strict=False)
        return Message(tuple(self._said(*one) for one in each), chat=self.chat)

    @property
    def earlier(self) -> list[Document]:
        """The passages that stand before those turns with which they were read."""
        return [passage for turn in self.turns for passage in self.passages_of(turn)]

    def passages_of(self, turn: Turn) -> Sequence[Document]:
        """The passages that stand before a turn."""
        found = turn.passages if self.in_turns else ()
        return [named(self.documents, excerpt) for excerpt in found]

    def _said(self, turn: Turn, documents: Sequence[Document], number: int) -> tuple[str, str]:
        """A turn in the wording that it has: of the user's, the preset's with its documents.

        The first of these has that number.
        """
        if turn.role != "user":
            return turn.role, turn.text
        alone = self.turns and not documents
        template = (without_documents(self.preset) if alone else self.preset).template
        form = self.preset.document if len(documents) == 1 else self.preset.titled_document
        texts = [
            _filled(form, name=d.name, text=marked(d.text.strip(), number + i), index=str(i + 1))
            for i, d in enumerate(documents)
        ]
        whole = self.preset.separator.join(texts)
        return turn.role, _filled(template, documents=whole, question=turn.text)

    def build(self, documents: Sequence[Document]) -> Prompt:
        """The prompt with these documents, in the model's chat format if it has one.

        Raises as `code`, and ModelError if there are no tokens and, unless `vocabulary` is 0, for
        ids that are not below it.
        """
        text, ids, spans = code(self.message(documents), self.tokenizer)
        if not ids:
            raise ModelError("the tokenizer makes no tokens of the prompt", hint=_OTHER_MODEL)
        check_known(ids, self.vocabulary)
        read = *self.earlier, *documents
        spans = spans if len(spans) == len(read) else []
        references = tuple(tuple(ids[first:last]) for first, last in spans)
        return Prompt(text, ids, _outside(ids, spans), tuple(read), references=references)

    @property
    def empty(self) -> list[Document]:
        """The documents with empty texts."""
        return [replace(d, text="") for d in self.documents]

    @property
    def frame(self) -> Message:
        """The user's message without the documents' texts."""
        return self.message(self.empty)


def named(documents: Sequence[Document], excerpt: Excerpt) -> Document:
    """The excerpt as a document of a prompt, named after its page or heading."""
    document = documents[excerpt.document]
    section = place(document, excerpt.start)
    name = placed(document.name, section.page, section.heading)
    return Document(name, document.text[excerpt.start : excerpt.end])


def code(message: Message, tokenizer: Tokenizer) -> tuple[str, list[int], list[tuple[int, int]]]:
    """The message in the model's chat format, if any, its ids, and the documents' spans of them.

    Without a chat format the system text and the turns stand before it, an empty line between them.
    There are no spans if they are not known. Raises ModelError as `render`, UsageError as
    `check_chat`.
    """
    check_chat(tokenizer, message.chat)
    chat = switched(tokenizer, message.chat)
    if tokenizer.has_chat_template:
        shown = render(tokenizer.backend, message.said, chat, message.given)
        coded = tokenizer.locate(shown.text, template=shown.template)
    else:
        texts = [*filter(None, [chat.system]), *(text for _, text in message.said), ""]
        shown = unmarked("\n\n".join(texts))
        coded = tokenizer.locate(shown.text, special=True)
    starts = coded.starts
    spans = [
        (bisect_left(starts, first), bisect_left(starts, last)) for first, last in shown.documents
    ]
    return shown.text, coded.ids, spans if starts else []


def look_alikes(
    documents: Sequence[Document], question: str, tokenizer: Tokenizer, system: str = ""
) -> Iterator[str]:
    """A sentence per text that contains the name of a control token of the model."""
    texts = [(d.name, f"{d.name}\n{d.text}") for d in documents]
    for name, text in [*texts, ("the question", question), ("the system prompt", system)]:
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
