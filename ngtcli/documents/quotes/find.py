"""Which stretches of an answer stand word for word in a document, and where.

A stretch is at least `LEAST_WORDS` words long and continues, word by word and mark by mark, in one
document as it does in the answer; white space may differ, and so may how a character is written
(`grounding/folding.py`). Stretches do not overlap. The longest is taken first, then the longest of
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
class _Laid:
    """What of documents laid end to end the answer has, too, with one gap for all between.

    `numbers` are those of the answer's pieces, 0 for a gap. `places` count all pieces, and one
    behind each document.
    """

    numbers: Ints
    starts: Ints
    ends: Ints
    documents: Ints
    places: Ints


def spans(answer: str, documents: Sequence[str]) -> list[Span]:
    """The stretches of `answer` that stand in `documents`, in the answer's order.

    >>> spans("He said the ship left port at noon.", ["At dawn the ship left port at noon"])
    [Span(start=8, end=34, document=0, source_start=8, source_end=34)]
    """
    asked, texts = folded(answer), list(map(folded, documents))
    pieces = _cut(asked.text)
    known, said = np.unique(pieces.hashes, return_inverse=True)
    said = said.reshape(-1) + 1
    laid = _lay(texts, known)
    places = _places(said, laid.numbers)
    longest = _longest(places, len(said), len(laid.numbers))
    words = np.cumsum([0, *pieces.are_words])
    found = []
    near, near_document = 0, 0  # behind the last span
    for first, last in sorted(_longest_first(longest, words)):
        at = places[first]
        for k in range(_GRAM, last - first):
            at = at[laid.numbers[at + k] == said[first + k]]
        within = at[laid.documents[at] == near_document]
        at = within if len(within) else at
        place = int(at[np.abs(laid.places[at] - near).argmin()])
        end = place + last - first - 1
        near, near_document = int(laid.places[end]) + 1, int(laid.documents[place])
        source = texts[near_document]
        said_range = int(pieces.starts[first]), int(pieces.ends[last - 1])
        read_range = int(laid.starts[place]), int(laid.ends[end])
        said_words, read_words = asked.text[slice(*said_range)], source.text[slice(*read_range)]
        if said_words == read_words or _squeezed(said_words) == _squeezed(read_words):
            read_at = source.original(*read_range)
            found.append(Span(*asked.original(*said_range), near_document, *read_at))
    return found


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _lay(texts: Sequence[Folded], known: npt.NDArray[np.uint64]) -> _Laid:
    """The documents, as far as the hashes `known` stand in them."""
    columns: list[list[Ints]] = [[], [], [], [], []]
    before = 0  # pieces, and one for each document
    for document, text in enumerate(texts):
        for begin, block in _blocks(text.text):
            pieces = _cut(block)
            at = np.searchsorted(known, pieces.hashes)
            is_known = np.zeros(len(at), np.bool_)
            if len(known):
                is_known = known[np.minimum(at, len(known) - 1)] == pieces.hashes
            numbers = np.where(is_known, at + 1, 0)
            # One of the pieces that are not known stays before each that is, and at the end.
            kept = is_known | np.concatenate([is_known[1:], [True]]) if len(at) else is_known
            rows = np.flatnonzero(kept)
            columns[0].append(numbers[rows])
            columns[1].append(pieces.starts[rows] + begin)
            columns[2].append(pieces.ends[rows] + begin)
            columns[3].append(np.full(len(rows), document))
            columns[4].append(rows + before)
            before += len(at)
        for column, value in zip(columns, (0, 0, 0, document, before), strict=True):
            column.append(np.array([value]))
        before += 1
    empty = [np.zeros(0, np.int64)]
    return _Laid(*(np.concatenate(column or empty).astype(np.int64) for column in columns))


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


def _places(said: Ints, laid: Ints) -> list[Ints]:
    """For every four pieces in a row of `said` the places in `laid` where they stand, ascending."""
    if min(len(said), len(laid)) < _GRAM:
        return []
    windows = np.lib.stride_tricks.sliding_window_view
    grams, which = np.unique(_keys(windows(said, _GRAM)), return_inverse=True)
    rows = windows(laid, _GRAM)
    places = np.flatnonzero((rows > 0).all(axis=1))
    keys = _keys(rows[places])
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


def _keys(rows: Ints) -> npt.NDArray[np.uint64]:
    """A number for each row; different rows have different ones but by an unlikely chance."""
    keys = np.zeros(len(rows), np.uint64)
    for column in rows.astype(np.uint64).T:
        keys = (keys + column) * _BASE
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
