"""A brute-force check of the spans of an answer: where they stand, how long, and what is missing.

Words are cut here character by character, and every place of every document is compared. Nothing
is taken from `grounding` but its results.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ngtcli.documents.text import UNSPACED
from ngtcli.grounding.sources import Span

LEAST = 4  # words of a stretch
_UNSPACED = re.compile(f"[{UNSPACED}]")
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """A word or a mark, and its range of characters."""

    text: str
    start: int
    end: int

    @property
    def is_word(self) -> bool:
        return self.text[0].isalnum() or self.text[0] == "_"


def pieces(text: str) -> list[Piece]:
    """The words and marks of a text.

    >>> [piece.text for piece in pieces("It isn't 3.5, no.")]
    ['It', "isn't", '3.5', ',', 'no', '.']
    """
    found, at = [], 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        end = _end(text, at)
        found.append(Piece(text[at:end], at, end))
        at = end
    return found


def _end(text: str, at: int) -> int:
    end = at + 1
    if _UNSPACED.match(text[at]):
        while end < len(text) and _combines(text[end]):
            end += 1
        return end
    if not _in_word(text[at]):
        return end
    while end < len(text) and (_in_word(text[end]) or _joins(text, end)):
        end += 1
    return end


def _combines(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _in_word(character: str) -> bool:
    if _UNSPACED.match(character):
        return False
    return character.isalnum() or character == "_" or _combines(character)


def _joins(text: str, at: int) -> bool:
    """Whether a mark within a word stands at `at`."""
    after = text[at + 1 : at + 2]
    if not after or not _in_word(after):
        return False
    if text[at] in "'’":
        return not after.isdecimal() and not _combines(after)
    return text[at] in ".,:" and text[at - 1].isdecimal() and after.isdecimal()


class Check:
    """An answer and its documents, in words and marks; `failures` says what is wrong with spans."""

    def __init__(self, answer: str, documents: Sequence[str]) -> None:
        self._answer, self._documents = answer, documents
        self._said = pieces(answer)
        self._read = [pieces(text) for text in documents]
        self._where: dict[str, list[tuple[int, int]]] = {}
        for d, read in enumerate(self._read):
            for place, piece in enumerate(read):
                self._where.setdefault(piece.text, []).append((d, place))

    def failures(self, spans: Sequence[Span]) -> list[str]:
        """A line for each thing that is wrong; none if all is as it should be."""
        wrong = [line for span in spans for line in self._stands(span)]
        if any(a.end > b.start for a, b in zip(spans, spans[1:], strict=False)):
            wrong.append("spans overlap or are out of order")
        wrong += [f"missing: {self._text(gap)!r}" for gap in self._missing(spans)]
        if not wrong:
            wrong += self._not_longest_first(spans)
            wrong += self._not_nearest(spans)
        return wrong

    def _stands(self, span: Span) -> Iterator[str]:
        said = self._answer[span.start : span.end]
        stands = self._documents[span.document][span.source_start : span.source_end]
        if said.split() != stands.split() and "".join(said.split()) != "".join(stands.split()):
            yield f"{said!r} is not {stands!r}"
        if sum(piece.is_word for piece in pieces(said)) < LEAST:
            yield f"{said!r} has fewer than {LEAST} words"

    def _missing(self, spans: Sequence[Span]) -> Iterator[Range]:
        """Stretches that stand in a document and that no span has."""
        at = 0
        for low, high in [*(self._range(span) for span in spans), (len(self._said),) * 2]:
            if self._words(best := self._longest(at, low)) >= LEAST:
                yield best
            at = high

    def _not_longest_first(self, spans: Sequence[Span]) -> Iterator[str]:
        found = {self._range(span) for span in spans}
        open_ranges = [(0, len(self._said))]
        while open_ranges:
            low, high = open_ranges.pop()
            best = self._longest(low, high)
            if self._words(best) < LEAST:
                continue
            if best not in found:
                yield f"not taken, though the longest: {self._text(best)!r}"
                return
            found.remove(best)
            open_ranges += [(low, best[0]), (best[1], high)]
        yield from (f"not the longest: {self._text(rest)!r}" for rest in found)

    def _not_nearest(self, spans: Sequence[Span]) -> Iterator[str]:
        """Spans of which the documents have a place nearer the span before."""
        first_of = [0]
        for read in self._read:
            first_of.append(first_of[-1] + len(read) + 1)
        near, near_document = 0, 0
        for span in spans:
            first, last = self._range(span)
            ranked = [
                (d != near_document, abs(first_of[d] + p - near), d, p)
                for d, p in self._places(first, last)
            ]
            *_, document, place = min(ranked)
            if (document, self._read[document][place].start) != (span.document, span.source_start):
                yield f"a nearer place: {self._text((first, last))!r}"
            near, near_document = first_of[document] + place + last - first, document

    def _longest(self, low: int, high: int) -> Range:
        """Of `said[low:high]` the stretch with the most words, the first of several."""
        best = (low, low)
        for first in range(low, high):
            if not self._said[first].is_word:
                continue
            last = max(
                (self._agree(first, high, d, p) for d, p in self._where_of(first)), default=first
            )
            if self._words((first, last)) > self._words(best):
                best = (first, last)
        return best

    def _where_of(self, first: int) -> list[tuple[int, int]]:
        return self._where.get(self._said[first].text, [])

    def _agree(self, first: int, high: int, document: int, place: int) -> int:
        """Up to where the answer from `first` on goes on as the document from `place` on."""
        read = self._read[document]
        last = first
        while last < high and place < len(read) and self._said[last].text == read[place].text:
            last, place = last + 1, place + 1
        return last

    def _places(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        for document, place in self._where_of(first):
            if self._agree(first, last, document, place) == last:
                yield document, place

    def _range(self, span: Span) -> Range:
        """The pieces that a span has."""
        inside = [i for i, p in enumerate(self._said) if span.start <= p.start < span.end]
        return (inside[0], inside[-1] + 1) if inside else (0, 0)

    def _words(self, pieces_: Range) -> int:
        return sum(piece.is_word for piece in self._said[slice(*pieces_)])

    def _text(self, pieces_: Range) -> str:
        first, last = pieces_
        return self._answer[self._said[first].start : self._said[last - 1].end]
