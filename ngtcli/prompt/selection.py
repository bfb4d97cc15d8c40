"""Which passages a prompt has, where not all documents fit."""

from dataclasses import asdict, dataclass
from typing import Any

from ngtcli.retrieve.ranking import Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen(Scores):
    """A passage that was read: its document's index, its range there, its place, its scores.

    The best has `rank` 1.
    """

    document: int
    start: int
    end: int
    page: int
    heading: str
    rank: int


@dataclass(frozen=True, slots=True)
class Excerpt:
    """One or more passages in a row of a document: its index, and their range there."""

    document: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Which passages a prompt has, in its order, out of `of_passages` from `of_documents`.

    `excerpts` say where the prompt's documents stand in those that were given. `index` is how the
    index was had (see `Index.status`); passages were chosen in `seconds`. For `dense` and
    `embedded` see `Ranking`. `fits`: everything would fit, but is more than `whole_tokens`.
    """

    passages: tuple[Chosen, ...]
    excerpts: tuple[Excerpt, ...]
    of_passages: int
    of_documents: int
    index: str
    seconds: float
    dense: str | None = None
    embedded: int = 0
    fits: bool = False

    @property
    def read(self) -> int:
        """How many passages the prompt has."""
        return len(self.passages)

    @property
    def documents(self) -> int:
        """How many documents the passages are of."""
        return len({passage.document for passage in self.passages})

    def as_json(self) -> dict[str, Any]:
        """The numbers, and the passages with the documents as indices."""
        return {
            "passages": [asdict(passage) for passage in self.passages],
            "of_passages": self.of_passages,
            "documents": self.documents,
            "of_documents": self.of_documents,
            "index": self.index,
            "seconds": round(self.seconds, 6),
            "dense": self.dense,
            "embedded": self.embedded,
        }
