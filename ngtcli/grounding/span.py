"""A stretch of an answer that stands in a document."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """`answer[start:end]` stands, but for white space, in document `document` at
    `text[source_start:source_end]`. Characters, counted from 0; `document` is an index.
    """

    start: int
    end: int
    document: int
    source_start: int
    source_end: int


def share_copied(answer: str, found: Sequence[Span]) -> float:
    """Share of the answer's characters, white space left out, that stand in `found`.

    >>> share_copied("ab cd", [Span(0, 2, 0, 0, 2)])
    0.5
    """
    said = len("".join(answer.split()))
    return sum(len("".join(answer[s.start : s.end].split())) for s in found) / said if said else 0.0
