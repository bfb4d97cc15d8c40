"""Where passages stand, and their scores. Loads nothing heavy."""

from dataclasses import dataclass, field

from ngtcli.system.json_form import json_key

_MOST_NAMED = 3  # words that a message names; guess


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
class Coverage:
    """How much of a question the nearest passage of the documents has.

    Attributes:
        share: Its part of the weight of the question's words, 0 to 1.
        enough: Whether the documents may have the answer, by that share.
        missing: The question's words that it lacks, the weightiest first, as they were asked.
    """

    share: float = field(metadata=json_key(digits=4))
    enough: bool
    missing: tuple[str, ...]

    @property
    def lacking(self) -> str:
        """What the nearest passage lacks, for a sentence: “France” or “capital”."""
        *first, last = [f"“{word}”" for word in self.missing[:_MOST_NAMED]]
        return f"{', '.join(first)} or {last}" if first else last
