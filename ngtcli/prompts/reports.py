"""Reports about prompts in answers: passages, documents that were cut, parts. Loads little."""

from dataclasses import dataclass, field

from ngtcli.documents.selection import Excerpt, Scores
from ngtcli.system.json_form import json_key, json_property


@dataclass(frozen=True, slots=True)
class Chosen:
    """A passage that was read.

    Attributes:
        scores: Its scores by each ranker.
        document: The index of its document.
        start: Its first character there.
        end: The character after its last one.
        page: Its page; None if the document has no pages.
        heading: The heading it is under; None if there is none.
        rank: Its rank; the best has 1.
    """

    scores: Scores = field(metadata=json_key(flat=True))
    document: int
    start: int
    end: int
    page: int | None
    heading: str | None
    rank: int


_MIN_NEXT = 5  # the fewest passages that `read_next` suggests (guess)


@dataclass(frozen=True, slots=True)
class Selection:
    """The passages that a prompt has.

    Attributes:
        passages: The passages, in the order of the prompt.
        excerpts: Where the documents of the prompt are in the documents of the request.
        of_passages: The number of all passages.
        of_documents: The number of all documents.
        index: Where the index came from; see `Index.status`.
        seconds: The time that choosing passages took.
        dense: The index of vectors; see `Ranking`.
        embedded: The number of passages that were embedded; see `Ranking`.
        fits: Whether everything would fit, but has more than `whole_tokens` tokens.
        earlier: How many of the excerpts belong to earlier turns.
    """

    passages: tuple[Chosen, ...]
    excerpts: tuple[Excerpt, ...] = field(metadata=json_key(hidden=True))
    of_passages: int
    of_documents: int
    index: str = field(metadata=json_key(choices=("cached", "built", "updated")))
    seconds: float = field(metadata=json_key(digits=6))
    dense: str | None = field(default=None, metadata=json_key(choices=("flat", "ivf-pq", None)))
    embedded: int = 0
    fits: bool = field(default=False, metadata=json_key(hidden=True))
    earlier: int = field(default=0, metadata=json_key(hidden=True))

    @property
    def new(self) -> tuple[Excerpt, ...]:
        """The excerpts that belong to the question."""
        return self.excerpts[self.earlier :]

    @property
    def read(self) -> int:
        """The number of passages in the prompt."""
        return len(self.passages)

    @property
    def read_next(self) -> int:
        """The number of passages to read for a fuller answer; 0 if all were read."""
        return max(_MIN_NEXT, 2 * self.read) if self.read < self.of_passages else 0

    @property
    @json_property(after="of_passages")
    def documents(self) -> int:
        """The number of documents that the passages come from."""
        return len({passage.document for passage in self.passages})


@dataclass(frozen=True, slots=True)
class Cut:
    """A document that was cut to fit.

    Attributes:
        name: Its name.
        tokens: Its tokens; None if it is too long to be counted.
        kept: The tokens that were kept.
        characters: Its characters.
        kept_characters: The characters that were kept.
    """

    name: str
    tokens: int | None
    kept: int
    characters: int
    kept_characters: int


@dataclass(frozen=True, slots=True)
class PartReport:
    """The summary of a part of long documents.

    Attributes:
        name: The name of the part.
        text: Its summary.
        kept: Whether the summary comes from an earlier run.
        level: 1 for a part of the documents, 2 for a part of the summaries of level 1, and so on.
        new_tokens: The tokens of the summary.
    """

    name: str
    text: str
    kept: bool
    level: int
    new_tokens: int
