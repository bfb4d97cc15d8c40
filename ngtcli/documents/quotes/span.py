"""Where a stretch of an answer stands in a document."""

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
