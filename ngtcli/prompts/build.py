"""Build prompts from a preset, documents, a question and earlier turns. Independent of torch.

A prompt records which of its tokens are outside the documents: only these have to be indexed, as
the documents have a cached trie. If not all documents fit, it also records which passages it has.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
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
    """Check that the model knows all token ids.

    Args:
        ids: The token ids.
        vocabulary: The size of the model's vocabulary; 0 if it is not known.

    Raises:
        ModelError: An id is outside the vocabulary.
    """
    if vocabulary and max(ids, default=0) >= vocabulary:
        raise ModelError(
            f"the tokenizer makes token {max(ids)}, but the model has {vocabulary} tokens",
            hint=f"Tokenizer and model do not belong together. {_OTHER_MODEL}",
        )


def _filled(template: str, **values: str) -> str:
    """Replace each `{field}` of a template by its value.

    >>> _filled("{text}: {text}!", text="{name}")
    '{name}: {name}!'
    """
    return _FIELD.sub(lambda match: values.get(match[1], match[0]), template)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of one answer.

    Attributes:
        text: Its text.
        ids: Its token ids.
        outside: The runs of token ids outside the documents. Each overlaps the documents around it
            by a few tokens, so that it has the n-grams across the border.
        documents: The documents in it. With a `selection`, and in a part, they are excerpts.
        cuts: The documents that were cut to fit.
        references: The token ids of each document in the prompt; empty if not known.
        selection: The passages that were chosen; None if documents are complete.
        left_out: How many of the oldest questions were left out, with what follows each.
        coverage: How much of the question the nearest passage covers; None if not computed.
        predicted: The token ids of a text that the answer will resemble; it is not in the prompt.
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
        """The prompt for a method that drafts from documents: the predicted text becomes one."""
        if not self.predicted:
            return self
        return replace(
            self,
            outside=(*self.outside, self.predicted),
            references=(*self.references, self.predicted),
            predicted=(),
        )


@dataclass(frozen=True, slots=True)
class Message:
    """The input of the chat template.

    Attributes:
        turns: Roles and texts; the user's message is last. Documents in them are within marks.
        documents: Names and texts of documents that the template gets separately.
        chat: What the template gets in addition.
    """

    turns: tuple[tuple[str, str], ...]
    documents: tuple[tuple[str, str], ...] = ()
    chat: Chat = Chat()

    @property
    def text(self) -> str:
        """The user's message."""
        return unmarked(self.turns[-1][1]).text

    @property
    def whole(self) -> str:
        """All texts that are rendered, without marks."""
        texts = [self.chat.system]
        for name, text in self.documents:
            texts += [name, text]
        texts += [text for _, text in self.turns]
        return unmarked("\n".join(filter(None, texts))).text


@dataclass(frozen=True, slots=True)
class Task:
    """The parts that a prompt is built from.

    Attributes:
        preset: The wording.
        documents: The documents.
        question: The question; "" for a summary.
        tokenizer: The tokenizer of the model.
        context: The positions of the model's context.
        answer: How many positions of the context are reserved for the answer.
        vocabulary: The size of the model's vocabulary; 0 if it is not known.
        chat: What the chat template gets in addition.
        turns: The earlier turns of the conversation.
        in_turns: Whether documents are passages, which come before the question of their turn.
            Otherwise they come before the first turn.
        queries: Questions that passages are searched for in place of the question.
        keep: Whether the index of the documents is stored.
        with_coverage: Whether to compute `Prompt.coverage`.
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
    with_coverage: bool = False

    @property
    def answer_room(self) -> int:
        """The positions reserved for the answer: `answer`, at most a quarter of `context`."""
        return min(self.answer, self.context // 4)

    @property
    def room(self) -> int:
        """The positions for the prompt: `context` without those for the answer."""
        return self.context - self.answer_room

    def message(self, documents: Sequence[Document]) -> Message:
        """Return the input of the chat template with these documents and the question."""
        turns = [*self.turns, Turn("user", self.question)]
        if self.chat.documents:
            separate = tuple((d.name, d.text.strip()) for d in [*self.earlier, *documents])
            *worded, (role, text) = [self._worded(turn, [], 0) for turn in turns]
            return Message((*worded, (role, text.strip())), separate, self.chat)

        documents_of_turns = [self.passages_of(turn) for turn in turns]
        if self.in_turns:
            documents_of_turns[-1] = documents
        else:
            first_question = next(i for i, turn in enumerate(turns) if turn.role == "user")
            documents_of_turns[first_question] = documents
        worded = []
        number = 0  # of the next document
        for turn, of_turn in zip(turns, documents_of_turns, strict=True):
            worded.append(self._worded(turn, of_turn, number))
            number += len(of_turn)
        return Message(tuple(worded), chat=self.chat)

    @property
    def earlier(self) -> list[Document]:
        """The passages of all earlier turns."""
        return [passage for turn in self.turns for passage in self.passages_of(turn)]

    def passages_of(self, turn: Turn) -> Sequence[Document]:
        """Return the passages that come before a turn."""
        if not self.in_turns:
            return []
        return [named(self.documents, excerpt) for excerpt in turn.passages]

    def _worded(self, turn: Turn, documents: Sequence[Document], number: int) -> tuple[str, str]:
        """Return the role and the text of a turn: a question in the wording of the preset.

        Args:
            turn: The turn.
            documents: The documents that come before it.
            number: The number of the first of these documents, for its mark.
        """
        if turn.role != "user":
            return turn.role, turn.text
        preset = self.preset
        if self.turns and not documents:
            preset = without_documents(preset)
        form = preset.document if len(documents) == 1 else preset.titled_document
        texts = [
            _filled(form, name=d.name, text=marked(d.text.strip(), number + i), index=str(i + 1))
            for i, d in enumerate(documents)
        ]
        all_documents = preset.separator.join(texts)
        return turn.role, _filled(preset.template, documents=all_documents, question=turn.text)

    def build(self, documents: Sequence[Document]) -> Prompt:
        """Return the prompt with these documents, in the model's chat format if it has one.

        Raises:
            ModelError: There are no tokens, the model does not know one, or as `encode_message`.
            UsageError: As `encode_message`.
        """
        text, ids, spans = encode_message(self.message(documents), self.tokenizer)
        if not ids:
            raise ModelError("the tokenizer makes no tokens of the prompt", hint=_OTHER_MODEL)
        check_known(ids, self.vocabulary)
        all_documents = (*self.earlier, *documents)
        if len(spans) != len(all_documents):
            spans = []
        references = tuple(tuple(ids[start:end]) for start, end in spans)
        return Prompt(text, ids, _outside(ids, spans), all_documents, references=references)

    @property
    def empty(self) -> list[Document]:
        """The documents without their texts."""
        return [replace(d, text="") for d in self.documents]

    @property
    def frame(self) -> Message:
        """The user's message without the documents' texts."""
        return self.message(self.empty)


def named(documents: Sequence[Document], excerpt: Excerpt) -> Document:
    """Return an excerpt as a document of a prompt, named after its page or heading."""
    document = documents[excerpt.document]
    section = place(document, excerpt.start)
    name = placed(document.name, section.page, section.heading)
    return Document(name, document.text[excerpt.start : excerpt.end])


def encode_message(
    message: Message, tokenizer: Tokenizer
) -> tuple[str, list[int], list[tuple[int, int]]]:
    """Encode a message in the model's chat format.

    Without a chat format, the system prompt and the turns follow one another, with an empty line
    between them.

    Returns:
        The text, its token ids, and the spans of the documents in these; no spans if not known.

    Raises:
        TemplateError: As `render`.
        UsageError: As `check_chat`.
    """
    check_chat(tokenizer, message.chat)
    chat = switched(tokenizer, message.chat)
    if tokenizer.has_chat_template:
        rendered = render(tokenizer.backend, message.turns, chat, message.documents)
        encoding = tokenizer.locate(rendered.text, template=rendered.template)
    else:
        texts = [text for _, text in message.turns]
        if chat.system:
            texts.insert(0, chat.system)
        rendered = unmarked("\n\n".join([*texts, ""]))
        encoding = tokenizer.locate(rendered.text, special=True)
    starts = encoding.starts
    spans = []
    if starts:
        spans = [
            (bisect_left(starts, start), bisect_left(starts, end))
            for start, end in rendered.documents
        ]
    return rendered.text, encoding.ids, spans


def look_alikes(
    documents: Sequence[Document], question: str, tokenizer: Tokenizer, system: str = ""
) -> Iterator[str]:
    """Yield a remark for each text that contains the name of a control token.

    Args:
        documents: Documents, whose names count as well.
        question: The question.
        tokenizer: The tokenizer that has the control tokens.
        system: The system prompt.
    """
    texts = [(d.name, f"{d.name}\n{d.text}") for d in documents]
    for name, text in [*texts, ("the question", question), ("the system prompt", system)]:
        control_token = tokenizer.control.first_in(text)
        if control_token:
            yield (
                f"{name} has text that looks like a control token of the model"
                f" ({control_token}): it is read as text"
            )


def _outside(
    ids: list[int], spans: Sequence[tuple[int, int]], overlap: int = 4
) -> tuple[tuple[int, ...], ...]:
    """Return the runs of token ids outside of spans, and up to `overlap` tokens inside them."""
    is_inside = [False] * len(ids)
    for start, end in spans:
        is_inside[start:end] = [True] * (end - start)
    is_near = [not all(is_inside[max(0, i - overlap) : i + overlap + 1]) for i in range(len(ids))]
    runs = groupby(zip(ids, is_near, strict=True), key=itemgetter(1))
    return tuple(tuple(token_id for token_id, _ in run) for near, run in runs if near)
