"""What answers report of prompts: passages, documents that were cut, parts. Loads little."""

from dataclasses import dataclass, field

from ngtcli.documents.selection import Excerpt, Scores
from ngtcli.system.json_form import json_key, json_property


@dataclass(frozen=True, slots=True)
class Chosen:
    """A passage that was read: its scores, its document's index, its range there, its place.

    The best has `rank` 1. `page` and `heading` are None where the document has none.
    """

    scores: Scores = field(metadata=json_key(flat=True))
    document: int
    start: int
    end: int
    page: int | None
    heading: str | None
    rank: int


_MIN_NEXT = 5  # passages that are advised where fewer than half of them were read; guess


@dataclass(frozen=True, slots=True)
class Selection:
    """Which passages a prompt has, in its order, out of `of_passages` from `of_documents`.

    `excerpts` say where the prompt's documents stand in those that were given. `index` is how the
    index was had (see `Index.status`); passages were chosen in `seconds`. For `dense` and
    `embedded` see `Ranking`. `fits`: everything would fit, but is more than `whole_tokens`. So many
    of the excerpts are `earlier` turns'.
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
        """The excerpts that stand before the question."""
        return self.excerpts[self.earlier :]

    @property
    def read(self) -> int:
        """How many passages the prompt has."""
        return len(self.passages)

    @property
    def read_next(self) -> int:
        """How many passages to read instead for a fuller answer; 0 where all were read."""
        return max(_MIN_NEXT, 2 * self.read) if self.read < self.of_passages else 0

    @property
    @json_property(after="of_passages")
    def documents(self) -> int:
        """How many documents the passages are of."""
        return len({passage.document for passage in self.passages})


@dataclass(frozen=True, slots=True)
class Cut:
    """A document that was cut to fit: its tokens and characters, and how many of them were kept.

    `tokens` is None for a document that is too long to be counted whole.
    """

    name: str
    tokens: int | None
    kept: int
    characters: int
    kept_characters: int


@dataclass(frozen=True, slots=True)
class PartReport:
    """A part: its name, its summary, whether that was kept from an earlier run, and its level.

    Parts of level 1 are of the documents, those of level 2 of summaries of level 1, and so on.
    """

    name: str
    text: str
    kept: bool
    level: int
    new_tokens: int
