"""Documents too long for one prompt, in parts that fit: passages in a row, along the headings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ngtcli.documents.load import Document
from ngtcli.documents.passages import Cutting, passages, place
from ngtcli.documents.selection import Excerpt
from ngtcli.prompts.build import Prompt, Task, named
from ngtcli.prompts.fitting import frame_tokens, no_room, whole_prompt

_TOKENS = 200  # of a passage, the least that parts are made of; guess
BETWEEN = 8  # tokens counted for what stands between two texts; guess, the prompt is counted
_LEAST = 0.6  # share of its size from which on a part ends where a heading begins; guess


@dataclass(frozen=True, slots=True)
class Part:
    """Documents of which `task` makes one prompt, and where they stand in those that were split."""

    task: Task
    documents: tuple[Document, ...]
    excerpts: tuple[Excerpt, ...]

    def build(self) -> Prompt:
        """Its prompt, not kept: the ids of all would take 20 to 40 times the memory of the text."""
        return self.task.build(self.documents)

    @property
    def name(self) -> str:
        """Where it begins, and where it ends if that is named otherwise."""
        first, last = self.documents[0].name, self.documents[-1].name
        return first if first == last else f"{first} to {last}"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A passage and its number of tokens; `begins` where a document or a heading does."""

    excerpt: Excerpt
    tokens: int
    begins: bool


def fits(task: Task) -> Prompt | None:
    """The prompt with all documents, if it leaves room for the answer."""
    whole = whole_prompt(task)
    return whole if isinstance(whole, Prompt) and len(whole.ids) <= task.room else None


def whole_or_parts(task: Task) -> Prompt | list[Part]:
    """Return the prompt with all documents, or else the documents in parts.

    Raises:
        ContextOverflowError: Where there is no room for documents.
    """
    prompt = fits(task)
    return split(task) if prompt is None else prompt


def split(task: Task) -> list[Part]:
    """The documents in parts of nearly one size, each of which leaves room for its answer.

    Raises ContextOverflowError where there is no room for documents.
    """
    room = task.room - frame_tokens(replace(task, documents=()))
    pieces = _small_pieces(task, room)
    total = sum(piece.tokens for piece in pieces)
    size = total / -(-total // room)  # so that the last part is no remnant
    return [part for group in _groups(pieces, room, size) for part in _parts(task, group)]


def _small_pieces(task: Task, room: int) -> list[_Piece]:
    """Passages none of which is longer than half of `room`. Raises ContextOverflowError."""
    if room <= 0:
        raise no_room(replace(task, documents=()))
    tokens = max(1, min(_TOKENS, room // 8))
    while True:
        pieces = list(_pieces(task, Cutting(tokens)))
        if all(2 * piece.tokens <= room for piece in pieces):
            return pieces
        if tokens == 1:
            raise no_room(replace(task, documents=()))
        tokens //= 2


def _pieces(task: Task, cutting: Cutting) -> Iterator[_Piece]:
    for i, document in enumerate(task.documents):
        heading: str | None = None
        for passage in passages(document, cutting):
            section = place(document, passage.start)
            begins = section.heading != heading
            heading = section.heading
            text = document.text[passage.start : passage.end]
            name = f"{document.name}, {heading}" if begins else ""
            tokens = len(task.tokenizer.encode(text)) + len(task.tokenizer.encode(name)) + BETWEEN
            yield _Piece(Excerpt(i, passage.start, passage.end), tokens, begins)


def _groups(pieces: Sequence[_Piece], room: int, size: float) -> Iterator[list[_Piece]]:
    """Pieces in a row, in groups of at most `room` tokens and about `size`."""
    group: list[_Piece] = []
    tokens = 0
    for piece in pieces:
        full = tokens + piece.tokens > room or tokens >= size
        if group and (full or (piece.begins and tokens >= _LEAST * size)):
            yield group
            group, tokens = [], 0
        group.append(piece)
        tokens += piece.tokens
    if group:
        yield group


def _parts(task: Task, group: Sequence[_Piece]) -> Iterator[Part]:
    """The part of these pieces; two where it turns out too long."""
    excerpts = tuple(joined(task.documents, [piece.excerpt for piece in group]))
    part = Part(task, tuple(named(task.documents, excerpt) for excerpt in excerpts), excerpts)
    if len(part.build().ids) <= task.room:
        yield part
    elif len(group) == 1:
        raise no_room(replace(task, documents=()))
    else:
        yield from _parts(task, group[: len(group) // 2])
        yield from _parts(task, group[len(group) // 2 :])


def joined(documents: Sequence[Document], found: Sequence[Excerpt]) -> list[Excerpt]:
    """Excerpts in their order, with those put together that follow one another or overlap."""
    kept: list[Excerpt] = []
    for at in found:
        last = kept[-1] if kept and kept[-1].document == at.document else None
        if last is not None and not documents[at.document].text[last.end : at.start].strip():
            kept[-1] = replace(last, end=max(last.end, at.end))
        else:
            kept.append(at)
    return kept
