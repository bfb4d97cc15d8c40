"""Which stretches of an answer stand word for word in a document, and where.

A stretch is at least `LEAST_WORDS` words long and continues, word by word and mark by mark, in one
document as it does in the answer; white space may differ. Stretches do not overlap. The longest
is taken first, then the longest of what is left on either side of it; of several places in the
documents the one nearest the stretch before it is named, in the same document if it is there.
Copying is all that is found: a stretch stands in a document, whether or not the document supports
what is said.

Both texts are cut into words and marks, and every four in a row of the answer are looked up in the
documents. With r(i, p) the number of words and marks that agree from place i of the answer and
place p of the documents on, r(i, p) = 1 + r(i + 1, p + 1): one sweep from the answer's end finds
all of them in time proportional to the number of places looked up.
"""

import re
import unicodedata
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.documents.text import UNSPACED
from ngtcli.grounding.sources import Span

LEAST_WORDS = 4  # of a stretch: shorter ones stand in texts by chance; guess
# Places kept for four words in a row; guess: an answer of 1,000 words, each four of which stand so
# often, then takes seconds. A stretch of text that repeats itself more often may be found shorter.
_MOST_PLACES = 200_000
_GRAM = LEAST_WORDS  # words and marks looked up together

Ints = npt.NDArray[np.integer[Any]]
_NOWHERE: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The words and marks of a text: their numbers, and the characters from `starts` to `ends`."""

    numbers: Ints
    starts: Ints
    ends: Ints


def spans(answer: str, documents: Sequence[str], least_words: int = LEAST_WORDS) -> list[Span]:
    """The stretches of `answer` that stand in `documents`, in the answer's order.

    Raises ValueError for `least_words` below 4.

    >>> spans("He said the ship left port at noon.", ["At dawn the ship left port at noon"])
    [Span(start=8, end=34, document=0, source_start=8, source_end=34)]
    """
    if least_words < _GRAM:
        raise ValueError(f"a stretch has at least {_GRAM} words")
    pieces = _piece(answer).findall(answer)
    number = {piece: i for i, piece in enumerate(dict.fromkeys(pieces), 1)}
    said = _pieces(answer, number)
    read = [_pieces(text, number) for text in documents]
    matches = _Matches(said.numbers, [text.numbers for text in read])
    words = np.cumsum([0, *(_is_word(piece) for piece in pieces)])
    found, before = [], 0
    for first, last in sorted(_longest_first(matches.longest, words, least_words)):
        place = matches.place(first, last - first, before)
        document, at = matches.document_of(place)
        source, before = read[document], place + last - first
        ends = int(said.ends[last - 1]), int(source.ends[at + last - first - 1])
        found.append(
            Span(int(said.starts[first]), ends[0], document, int(source.starts[at]), ends[1])
        )
    return found


def _pieces(text: str, number: Mapping[str, int]) -> _Pieces:
    """Those of a text; number 0 stands for all that `number` lacks."""
    found = array("i")
    for match in _piece(text).finditer(text):
        found.extend((number.get(match.group(), 0), *match.span()))
    return _Pieces(*np.array(found, np.int32).reshape(-1, 3).T)


def _piece(text: str) -> re.Pattern[str]:
    """A word, one character of a script that puts no spaces between words, or one mark.

    As in UAX #29, a word goes on over an apostrophe between letters ("don't") and a point, comma
    or colon between digits ("3.14"), and combining characters belong to what they follow.
    """
    combining, letter = "", r"\w"  # an ASCII text has no other letters
    if not text.isascii():
        combining = _combining(text)
        letter = rf"(?:(?![{UNSPACED}])[\w{combining}])"
    word = rf"{letter}+(?:(?:['’](?=[^\W\d])|(?<=\d)[.,:](?=\d)){letter}+)*"
    single = rf"[{UNSPACED}][{combining}]*" if combining else f"[{UNSPACED}]"
    return re.compile(rf"{single}|{word}|[^\w\s]")


def _combining(text: str) -> str:
    """The combining characters of a text, in a form for a regular expression's class."""
    return "".join(re.escape(c) for c in sorted(set(text)) if unicodedata.category(c)[0] == "M")


def _is_word(piece: str) -> bool:
    return piece[0].isalnum() or piece[0] == "_"


class _Matches:
    """For each place of the answer how far a document goes on as it does: `longest`, in pieces.

    All documents are laid end to end; 0, which no piece of the answer has, stands between two.
    """

    def __init__(self, answer: Ints, documents: Sequence[Ints]) -> None:
        self._said = np.ascontiguousarray(answer)
        between = np.zeros(1, np.int32)
        self._borders = [0, *accumulate(len(numbers) + 1 for numbers in documents)]
        self._laid = np.concatenate([a for d in documents for a in (d, between)] or [between])
        self._places = _places_of_grams(self._said, self._laid)
        self.longest = self._longest()

    def _longest(self) -> Ints:
        longest = np.zeros(len(self._said), np.int64)
        runs = np.zeros(len(self._laid) + 1, np.int64)  # r(i + 1, p) for all p
        before = _NOWHERE  # where `runs` is not 0
        for i in range(len(self._said) - _GRAM, -1, -1):
            at = self._at(i)
            after = runs[at + 1]
            runs[before] = 0
            runs[at] = np.where(after > 0, after + 1, _GRAM)
            longest[i] = runs[at].max(initial=0)
            before = at
        return longest

    def _at(self, i: int) -> Ints:
        """Where the four pieces of the answer from `i` on stand, ascending."""
        return self._places.get(self._said[i : i + _GRAM].tobytes(), _NOWHERE)

    def place(self, first: int, length: int, near: int) -> int:
        """The place nearest `near` where `length` pieces of the answer from `first` on stand.

        Places in the document of `near` come before all others.
        """
        places = self._at(first)
        for k in range(_GRAM, length):
            places = places[self._laid[places + k] == self._said[first + k]]
        document = self.document_of(max(near - 1, 0))[0]  # `near` is behind what stands there
        low, high = self._borders[document : document + 2]
        within = places[(places >= low) & (places < high)]
        places = within if len(within) else places
        return int(places[np.abs(places - near).argmin()])

    def document_of(self, place: int) -> tuple[int, int]:
        """The index of a document, and the place within it."""
        document = bisect_right(self._borders, place) - 1
        return document, place - self._borders[document]


def _places_of_grams(said: Ints, laid: Ints) -> dict[bytes, Ints]:
    """Ascending places in `laid` of every four pieces in a row that `said` has."""
    if len(said) < _GRAM or len(laid) < _GRAM:
        return {}
    windows = np.lib.stride_tricks.sliding_window_view
    wanted = windows(said, _GRAM)
    rows = windows(laid, _GRAM)
    candidates = np.flatnonzero((rows > 0).all(axis=1))
    found: dict[bytes, list[int]] = {row.tobytes(): [] for row in wanted}
    for place in map(int, candidates):  # no list: of a long text it may be most places
        at = found.get(rows[place].tobytes())
        if at is not None and len(at) < _MOST_PLACES:
            at.append(place)
    return {gram: np.array(at, np.int64) for gram, at in found.items() if at}


def _longest_first(longest: Ints, words: Ints, least: int) -> Iterator[tuple[int, int]]:
    """(first, behind last) of the stretches: the longest, then those on either side of it.

    `words[i]` counts the words before piece i, `longest[i]` the pieces from i on that stand
    together in a document. A stretch begins with a word.
    """
    open_ranges = [(0, len(longest))]
    while open_ranges:
        low, high = open_ranges.pop()
        at = low + np.flatnonzero(np.diff(words[low : high + 1]))
        if len(at) < least:
            continue
        ends = np.minimum(at + longest[at], high)
        best = int((words[ends] - words[at]).argmax())
        first, last = int(at[best]), int(ends[best])
        if words[last] - words[first] < least:
            continue
        yield first, last
        open_ranges += [(low, first), (last, high)]
