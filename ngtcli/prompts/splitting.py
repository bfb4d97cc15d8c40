"""Split documents that are too long for one prompt into parts, between passages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ngtcli.documents.load import Document
from ngtcli.documents.passages import Cutting, passages, place
from ngtcli.documents.selection import Excerpt
from ngtcli.prompts.build import Prompt, Task, named
from ngtcli.prompts.fitting import frame_tokens, no_room, whole_prompt

_TOKENS = 200  # of a passage, the smallest piece of a part (guess)
BETWEEN = 8  # tokens counted for the separator of two texts (guess; the whole prompt is counted)
_MIN_SHARE = 0.6  # a part that has this share of its size ends at the next heading (guess)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of long documents, which fits one prompt.

    Attributes:
        task: Makes the prompt.
        documents: The documents of the prompt.
        excerpts: Where they are in the documents that were split.
    """

    task: Task
    documents: tuple[Document, ...]
    excerpts: tuple[Excerpt, ...]

    def build(self) -> Prompt:
        """Make the prompt. It is not stored: token ids take 20 to 40 times the memory of text."""
        return self.task.build(self.documents)

    @property
    def name(self) -> str:
        """The name of its first document, and that of the last one if it differs."""
        first = self.documents[0].name
        last = self.documents[-1].name
        return first if first == last else f"{first} to {last}"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A passage with its length in tokens; it `begins` a document, or the text under a heading."""

    excerpt: Excerpt
    tokens: int
    begins: bool


def complete_prompt(task: Task) -> Prompt | None:
    """Return the prompt with all documents if it leaves room for the answer, else None."""
    prompt = whole_prompt(task)
    if isinstance(prompt, Prompt) and len(prompt.ids) <= task.room:
        return prompt
    return None


def whole_or_parts(task: Task) -> Prompt | list[Part]:
    """Return the prompt with all documents, or else the documents in parts.

    Raises:
        ContextOverflowError: There is no room for documents.
    """
    prompt = complete_prompt(task)
    return split(task) if prompt is None else prompt


def split(task: Task) -> list[Part]:
    """Split documents into parts of about the same size, each with room for its answer.

    Raises:
        ContextOverflowError: There is no room for documents.
    """
    room = task.room - frame_tokens(replace(task, documents=()))
    pieces = _small_pieces(task, room)
    total = sum(piece.tokens for piece in pieces)
    parts = -(-total // room)  # rounded up
    size = total / parts  # equal sizes, so that the last part is not a short rest
    return [part for group in _groups(pieces, room, size) for part in _parts(task, group)]


def _small_pieces(task: Task, room: int) -> list[_Piece]:
    """Return passages of at most half of `room`. Raises ContextOverflowError."""
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
    """Yield adjacent pieces in groups of about `size` tokens, and at most `room`."""
    group: list[_Piece] = []
    tokens = 0
    for piece in pieces:
        is_full = tokens + piece.tokens > room or tokens >= size
        ends_before_heading = piece.begins and tokens >= _MIN_SHARE * size
        if group and (is_full or ends_before_heading):
            yield group
            group = []
            tokens = 0
        group.append(piece)
        tokens += piece.tokens
    if group:
        yield group


def _parts(task: Task, group: Sequence[_Piece]) -> Iterator[Part]:
    """Yield the part of these pieces, or the parts of each half if it is too long."""
    excerpts = tuple(joined(task.documents, [piece.excerpt for piece in group]))
    part = Part(task, tuple(named(task.documents, excerpt) for excerpt in excerpts), excerpts)
    if len(part.build().ids) <= task.room:
        yield part
    elif len(group) == 1:
        raise no_room(replace(task, documents=()))
    else:
        yield from _parts(task, group[: len(group) // 2])
        yield from _parts(task, group[len(group) // 2 :])


def joined(documents: Sequence[Document], excerpts: Sequence[Excerpt]) -> list[Excerpt]:
    """Join excerpts that overlap, or have only white space between them.

    Args:
        documents: The documents.
        excerpts: The excerpts in the order of the documents.
    """
    merged: list[Excerpt] = []
    for excerpt in excerpts:
        if merged:
            last = merged[-1]
            gap = documents[excerpt.document].text[last.end : excerpt.start]
            if last.document == excerpt.document and not gap.strip():
                merged[-1] = replace(last, end=max(last.end, excerpt.end))
                continue
        merged.append(excerpt)
    return merged
