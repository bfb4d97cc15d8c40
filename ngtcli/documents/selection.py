"""Where passages stand, and their scores. Loads nothing heavy."""

from dataclasses import dataclass


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
