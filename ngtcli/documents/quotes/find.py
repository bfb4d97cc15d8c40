"""Which stretches of an answer stand word for word in a document, and where.

A stretch is at least `LEAST_WORDS` words long and continues, word by word and mark by mark, in one
document as it does in the answer; white space may differ, and so may how a character is written
(`folding.py`). Stretches do not overlap. The longest is taken first, then the longest of
what is left on either side of it; of several places in the documents the one nearest the stretch
before it is named, in the same document if it is there. Copying is all that is found: a stretch
stands in a document, whether or not the document supports what is said.

Both texts are cut into words and marks, and every four in a row of the answer are looked up in the
documents. With r(i, p) the number of words and marks that agree from place i of the answer and
place p of the documents on, r(i, p) = 1 + r(i + 1, p + 1): one sweep from the answer's end finds
all of them in time proportional to the number of places looked up.

Words are compared by hashes that numpy computes, since documents are long: this takes a quarter of
the time that a regular expression takes (measured). A stretch is compared by its characters before
it is told.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.documents.quotes.folding import Folded, folded
from ngtcli.documents.quotes.span import Span
from ngtcli.documents.text import UNSPACED

LEAST_WORDS = 4  # of a stretch: shorter ones stand in texts by chance; guess
# Places kept for four words in a row; guess: an answer of 1,000 words, each four of which stand so
# often, then takes seconds. A stretch of text that repeats itself more often may be found shorter.
_MOST_PLACES = 200_000
_GRAM = LEAST_WORDS  # words and marks looked up together
_BLOCK = 1 << 20  # characters that are cut at once: it takes 60 bytes of memory for each
_BASE = np.uint64(0x9E3779B97F4A7C15)  # of hashes; odd, so that it has an inverse modulo 2^64
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
_MIX = np.uint64(0xBF58476D1CE4E5B9)  # of SplitMix64
_LOW_BITS = np.uint64(0xFFFF)

Ints = npt.NDArray[np.integer[Any]]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The words and marks of a text: their first characters, ends, hashes; which are words."""

    starts: Ints
    ends: Ints
    hashes: npt.NDArray[np.uint64]
    are_words: Bools


@dataclass(frozen=True, slots=True)
class _Comparison:
    """An answer beside the documents.

    `places[i]` are the places of the four pieces from i on; `longest[i]` is how many pieces from i
    on stand together in a document.
    """

    answer: Folded
    pieces: _Pieces
    places: list[Ints]
    longest: Ints

    def end(self, piece: int) -> int:
        """The character of the answer behind the piece before this one."""
        return self.answer.original(0, int(self.pieces.ends[piece - 1]))[1] if piece else 0


@dataclass(frozen=True, slots=True)
class SpansSoFar:
    """The stretches of the beginning of an answer that goes on behind white space.

    Attributes:
        spans: Those that are stretches of the whole answer, too, however it goes on.
        free_end: The character up to which no other stretch of the whole answer ends.
    """

    spans: list[Span]
    free_end: int


def spans(answer: str, documents: Sequence[str]) -> list[Span]:
    """The stretches of `answer` that stand in `documents`, in the answer's order.

    >>> spans("He said the ship left port at noon.", ["At dawn the ship left port at noon"])
    [Span(start=8, end=34, document=0, source_start=8, source_end=34)]
    """
    return QuoteFinder(documents).spans(answer)


class QuoteFinder:
    """Documents that are cut and hashed once, for an answer that grows or for several answers.

    The pieces of all documents stand in one row, with a gap behind each document.
    """

    def __init__(self, documents: Sequence[str]) -> None:
        self._texts = list(map(folded, documents))
        starts, ends, hashes = list[Ints](), list[Ints](), list[npt.NDArray[np.uint64]]()
        document_starts = [0]  # where the pieces of each document begin
        gap = np.zeros(1, np.int64)
        for text in self._texts:
            size = 1
            for begin, block in _blocks(text.text):
                pieces = _cut(block)
                starts.append(pieces.starts + begin)
                ends.append(pieces.ends + begin)
                hashes.append(pieces.hashes)
                size += len(pieces.hashes)
            starts.append(gap)
            ends.append(gap)
            hashes.append(gap.astype(np.uint64))  # no word or mark has this hash
            document_starts.append(document_starts[-1] + size)
        self._document_starts = np.array(document_starts)
        self._starts = np.concatenate([gap[:0], *starts])
        self._ends = np.concatenate([gap[:0], *ends])
        self._hashes = np.concatenate([np.zeros(0, np.uint64), *hashes])
        self._grams = _grams(self._hashes)

    def spans(self, answer: str) -> list[Span]:
        """The stretches of `answer` that stand in the documents, in the answer's order."""
        return self._spans(self._compare(answer))

    def spans_so_far(self, answer: str) -> SpansSoFar:
        """The stretches of an answer that is not complete; it ends with a whole word or mark.

        A stretch that may go on begins at `first_open` or behind it. Where none goes over a border,
        the stretches before the border do not depend on what is behind it.

        Of the stretches that may go on the one that began first is the longest now. A later one may
        become longer; then the first one ends where that one begins. So until the second begins
        nothing ends, whatever comes.
        """
        compared = self._compare(answer)
        size = len(compared.longest)
        first_open, second_open = self._open_starts(compared.pieces)
        at = np.arange(size)
        border = first_open
        while (crossing := np.flatnonzero((at < border) & (at + compared.longest > border))).size:
            border = int(crossing[0])
        free = second_open if border == first_open else border
        final_end = compared.end(border)
        spans = [span for span in self._spans(compared) if span.end <= final_end]
        return SpansSoFar(spans, compared.end(free))

    def _compare(self, answer: str) -> _Comparison:
        asked = folded(answer)
        pieces = _cut(asked.text)
        places = self._places(pieces.hashes)
        longest = _longest(places, len(pieces.hashes), len(self._hashes))
        return _Comparison(asked, pieces, places, longest)

    def _open_starts(self, pieces: _Pieces) -> tuple[int, int]:
        """The words where the first two stretches begin that end with the last piece.

        They may be shorter than `LEAST_WORDS`, and stand at different places. Where there is none,
        the number of pieces stands for it.
        """
        size = len(pieces.hashes)
        words = np.flatnonzero(pieces.are_words)
        starts = set[int]()
        at = np.flatnonzero(self._hashes == pieces.hashes[-1]) if size else np.zeros(0, np.int64)
        length = 1
        while len(at):
            before = at[at > 0] - 1
            goes_on = np.zeros(0, np.bool_)
            if length < size:
                goes_on = self._hashes[before] == pieces.hashes[size - length - 1]
            if np.count_nonzero(goes_on) < len(at):  # somewhere no more than these pieces agree
                word = int(np.searchsorted(words, size - length))
                starts.add(int(words[word]) if word < len(words) else size)
            at = before[goes_on] if len(goes_on) else at[:0]
            length += 1
        first, second, *_ = [*sorted(starts), size, size]
        return first, second

    def _spans(self, compared: _Comparison) -> list[Span]:
        asked, pieces, places = compared.answer, compared.pieces, compared.places
        longest = compared.longest
        words = np.cumsum([0, *pieces.are_words])
        found = []
        near, near_document = 0, 0  # behind the last span
        for first, last in sorted(_longest_first(longest, words)):
            at = places[first]
            for k in range(_GRAM, last - first):
                at = at[self._hashes[at + k] == pieces.hashes[first + k]]
            documents = np.searchsorted(self._document_starts, at, side="right") - 1
            within = at[documents == near_document]
            at = within if len(within) else at
            place = int(at[np.abs(at - near).argmin()])
            near = place + last - first
            near_document = int(np.searchsorted(self._document_starts, place, side="right")) - 1
            source = self._texts[near_document]
            said_range = int(pieces.starts[first]), int(pieces.ends[last - 1])
            read_range = int(self._starts[place]), int(self._ends[near - 1])
            said_words = asked.text[slice(*said_range)]
            read_words = source.text[slice(*read_range)]
            if said_words == read_words or _squeezed(said_words) == _squeezed(read_words):
                read_at = source.original(*read_range)
                found.append(Span(*asked.original(*said_range), near_document, *read_at))
        return found

    def _places(self, hashes: npt.NDArray[np.uint64]) -> list[Ints]:
        """For every four pieces in a row of an answer the places where they stand, ascending."""
        grams, which = np.unique(_grams(hashes), return_inverse=True)
        if not len(grams):
            return []
        # Nearly all places are ruled out by 16 bits of theirs, without a search among `grams`.
        is_possible = np.zeros(1 << 16, np.bool_)
        is_possible[grams & _LOW_BITS] = True
        places = np.flatnonzero(is_possible[self._grams & _LOW_BITS])
        keys = self._grams[places]
        at = np.minimum(np.searchsorted(grams, keys), len(grams) - 1)
        is_found = grams[at] == keys
        places, at = places[is_found], at[is_found]
        order = np.argsort(at, kind="stable")
        bounds = np.searchsorted(at[order], np.arange(len(grams) + 1))
        by_gram = [
            places[order[first:last]][:_MOST_PLACES]
            for first, last in zip(bounds[:-1], bounds[1:], strict=True)
        ]
        return [by_gram[gram] for gram in which.reshape(-1)]


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Parts of a text that end before white space, and where each begins."""
    begin = 0
    while len(text) - begin > _BLOCK:
        space = re.compile(r"\s").search(text, begin + _BLOCK)
        end = space.start() if space else len(text)
        yield begin, text[begin:end]
        begin = end
    yield begin, text[begin:]


def _cut(text: str) -> _Pieces:
    """A text cut into words, single characters of scripts without spaces, and marks.

    As in UAX #29, a word goes on over an apostrophe between letters ("don't") and a point, comma
    or colon between digits ("3.14"), and combining characters belong to what they follow.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    size = len(codes)
    kinds = _kinds(codes)
    is_mark = kinds == _COMBINING
    base = kinds
    if is_mark.any():  # a combining character is of the kind of what it follows
        last = np.maximum.accumulate(np.where(is_mark, -1, np.arange(size)))
        base = np.where(last >= 0, kinds[last], _LETTER).astype(np.uint8)
    is_single = base == _SINGLE
    in_word = (kinds == _LETTER) | (kinds == _DIGIT) | (is_mark & ~is_single)
    before, after = _moved(in_word, 1), _moved(in_word, -1)
    letter_after = _moved(kinds == _LETTER, -1)
    digits = _moved(kinds == _DIGIT, 1) & _moved(kinds == _DIGIT, -1)
    is_joint = (
        before & after & (((kinds == _APOSTROPHE) & letter_after) | ((kinds == _POINT) & digits))
    )
    in_word |= is_joint
    goes_on = in_word & _moved(in_word, 1) | (is_single & is_mark)
    is_seen = kinds != _SPACE
    starts = np.flatnonzero(is_seen & ~goes_on)
    ends = np.flatnonzero(is_seen & ~_moved(goes_on, -1)) + 1
    return _Pieces(starts, ends, _hashes(codes, starts, ends), in_word[starts] | is_single[starts])


def _moved(mask: Bools, by: int) -> Bools:
    """The mask moved by one place, behind (1) or ahead (-1)."""
    out = np.zeros_like(mask)
    if by > 0:
        out[1:] = mask[:-1]
    else:
        out[:-1] = mask[1:]
    return out


def _hashes(codes: Ints, starts: Ints, ends: Ints) -> npt.NDArray[np.uint64]:
    """A hash of each piece: a polynomial of its characters modulo 2^64."""
    if not len(codes):
        return np.zeros(0, np.uint64)
    values = (codes.astype(np.uint64) + np.uint64(1)) * _MIX
    values ^= values >> np.uint64(31)
    powers, inverses = _powers(_power_of_two(len(codes)))
    values *= powers[: len(codes)]
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum(values, out=sums[1:])
    return (sums[ends] - sums[starts]) * inverses[starts]


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 1).bit_length()


@cache
def _powers(size: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """The powers of the base of hashes, from 0 on, and of its inverse."""
    both = []
    for base in (_BASE, _INVERSE):
        powers = np.full(size, base, np.uint64)
        powers[0] = 1
        both.append(np.multiply.accumulate(powers))
    return both[0], both[1]


_SPACE, _LETTER, _DIGIT, _COMBINING, _SINGLE, _APOSTROPHE, _POINT, _OTHER = range(8)
_IS_SINGLE = re.compile(f"[{UNSPACED}]")


def _kinds(codes: Ints) -> npt.NDArray[np.uint8]:
    """The kind of each character."""
    if not len(codes):
        return np.zeros(0, np.uint8)
    table = np.zeros(int(codes.max()) + 1, np.uint8)
    table[: len(_ascii_kinds())] = _ascii_kinds()[: len(table)]
    for code in np.flatnonzero(np.bincount(codes[codes > 127])).tolist():
        table[code] = _kind(chr(code))
    return table[codes]


@cache
def _ascii_kinds() -> npt.NDArray[np.uint8]:
    return np.array([_kind(chr(code)) for code in range(128)], np.uint8)


@cache
def _kind(character: str) -> int:
    """The kind of a character, as regular expressions see it."""
    if character.isspace():
        return _SPACE
    if unicodedata.category(character)[0] == "M":
        return _COMBINING
    if _IS_SINGLE.match(character):
        return _SINGLE
    if character.isdecimal():
        return _DIGIT
    if character.isalnum() or character == "_":
        return _LETTER
    if character in "'’":
        return _APOSTROPHE
    return _POINT if character in ".,:" else _OTHER


def _grams(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A hash of every four pieces in a row, by the first of them."""
    size = max(0, len(hashes) - _GRAM + 1)
    keys = np.zeros(size, np.uint64)
    for offset in range(_GRAM):
        keys = (keys + hashes[offset : offset + size]) * _BASE
        keys ^= keys >> np.uint64(32)
    return keys


def _longest(places: Sequence[Ints], said: int, laid: int) -> Ints:
    """How many of `said` pieces agree from each on, at most, with some of `laid` pieces."""
    longest = np.zeros(said, np.int64)
    runs = np.zeros(laid + 1, np.int64)  # r(i + 1, p) for all p
    before: Any = []  # where `runs` is not 0
    for i in range(len(places) - 1, -1, -1):
        at = places[i]
        after = runs[at + 1]
        runs[before] = 0
        runs[at] = np.where(after > 0, after + 1, _GRAM)
        longest[i] = runs[at].max(initial=0)
        before = at
    return longest


def _longest_first(longest: Ints, words: Ints) -> Iterator[tuple[int, int]]:
    """(first, behind last) of the stretches: the longest, then those on either side of it.

    `words[i]` counts the words before piece i, `longest[i]` the pieces from i on that stand
    together in a document. A stretch begins with a word.
    """
    open_ranges = [(0, len(longest))]
    while open_ranges:
        low, high = open_ranges.pop()
        at = low + np.flatnonzero(np.diff(words[low : high + 1]))
        if len(at) < LEAST_WORDS:
            continue
        ends = np.minimum(at + longest[at], high)
        best = int((words[ends] - words[at]).argmax())
        first, last = int(at[best]), int(ends[best])
        if words[last] - words[first] >= LEAST_WORDS:
            yield first, last
            open_ranges += [(low, first), (last, high)]
