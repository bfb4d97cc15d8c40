"""What a prompt has of documents that do not fit, as answers report it. Loads nothing heavy."""

from dataclasses import dataclass, field

from ngtcli.system.json_form import json_key, json_property


@dataclass(frozen=True, slots=True)
class Excerpt:
    """One or more passages in a row of a document: its index, and their range there."""

    document: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Scores:
    """The score by the ranker that decides, and by each that was asked.

    `bm25` is 0 without a word of the question, `dense` a cosine, `fused` a sum of reciprocal ranks,
    `reranked` a logit; None where there is no such ranker, or for those that were not reranked.
    """

    score: float
    bm25: float
    dense: float | None = None
    fused: float | None = None
    reranked: float | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """A passage that was read: its scores, its document's index, its range there, its place.

    The best has `rank` 1.
    """

    scores: Scores = field(metadata=json_key(flat=True))
    document: int
    start: int
    end: int
    page: int
    heading: str
    rank: int


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
    @json_property(after="of_passages")
    def documents(self) -> int:
        """How many documents the passages are of."""
        return len({passage.document for passage in self.passages})
