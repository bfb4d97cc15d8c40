"""Which passages a prompt has, where not all documents fit."""

from dataclasses import dataclass, field

from ngtcli.retrieve.ranking import Scores
from ngtcli.system.json_form import json_key, json_property


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
    excerpts: tuple[Excerpt, ...] = field(metadata=json_key(hidden=True))
    of_passages: int
    of_documents: int
    index: str = field(metadata=json_key(choices=("cached", "built", "updated", "rebuilt")))
    seconds: float = field(metadata=json_key(digits=6))
    dense: str | None = field(default=None, metadata=json_key(choices=("flat", "ivf-pq", None)))
    embedded: int = 0
    fits: bool = field(default=False, metadata=json_key(hidden=True))

    @property
    def read(self) -> int:
        """How many passages the prompt has."""
        return len(self.passages)

    @property
    @json_property(after="of_passages")
    def documents(self) -> int:
        """How many documents the passages are of."""
        return len({passage.document for passage in self.passages})
