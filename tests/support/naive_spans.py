"""The spans of an answer by brute force: words are cut here character by character, and every place
of every document is compared. Nothing is taken from `grounding` but the class of its results.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from ngtcli.documents.quotes.span import Span
from ngtcli.documents.text import UNSPACED

LEAST = 4  # words of a stretch
_UNSPACED = re.compile(f"[{UNSPACED}]")


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
        found.append(Piece(unicodedata.normalize("NFC", text[at:end]), at, end))
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
    """Whether a mark within a word is at `at`."""
    after = text[at + 1 : at + 2]
    if not after or not _in_word(after):
        return False
    if text[at] in "'’":
        return not after.isdecimal() and not _combines(after)
    return text[at] in ".,:" and text[at - 1].isdecimal() and after.isdecimal()


def brute_force(answer: str, documents: Sequence[str]) -> list[Span]:
    """What `grounding.find.spans` is to return."""
    said, read = pieces(answer), [pieces(text) for text in documents]
    everywhere = [(d, p) for d, of_one in enumerate(read) for p in range(len(of_one))]

    def agree(first: int, high: int, d: int, p: int) -> int:
        """Up to where `said[first:high]` goes on as document `d` from its piece `p` on."""
        last = first
        while last < high and p + last - first < len(read[d]):
            if said[last].text != read[d][p + last - first].text:
                break
            last += 1
        return last

    def words(first: int, last: int) -> int:
        return sum(piece.is_word for piece in said[first:last])

    def longest_first(low: int, high: int) -> list[tuple[int, int]]:
        """The stretch of `said[low:high]` with the most words, those before it, those after."""
        starts = [i for i in range(low, high) if said[i].is_word]
        found = [(i, max((agree(i, high, *at) for at in everywhere), default=i)) for i in starts]
        first, last = max(found, key=lambda stretch: words(*stretch), default=(0, 0))
        if words(first, last) < LEAST:
            return []
        return [*longest_first(low, first), (first, last), *longest_first(last, high)]

    places = dict(zip(everywhere, range(len(everywhere)), strict=True))
    spans: list[Span] = []
    near, near_document = 0, 0
    for first, last in longest_first(0, len(said)):
        d, p = min(
            (at for at in everywhere if agree(first, last, *at) == last),
            key=lambda at: (at[0] != near_document, abs(places[at] + at[0] - near)),
        )
        near, near_document = places[d, p] + d + last - first, d
        source = read[d][p].start, read[d][p + last - first - 1].end
        spans.append(Span(said[first].start, said[last - 1].end, d, *source))
    return spans
