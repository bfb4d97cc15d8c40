"""The position of a quotation, in the answer and in a document."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A quotation: `answer[start:end]` is `text[source_start:source_end]` of a document.

    White space, and how characters are written, may differ. `document` is the index of the
    document; offsets count characters from 0.
    """

    start: int
    end: int
    document: int
    source_start: int
    source_end: int
