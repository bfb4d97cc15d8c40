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
from collections.abc import Iterator, Mapping, Sequence
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


def spans(answer: str, documents: Sequence[str]) -> list[Span]:
    """The stretches of `answer` that stand in `documents`, in the answer's order.

    >>> spans("He said the ship left port at noon.", ["At dawn the ship left port at noon"])
    [Span(start=8, end=34, document=0, source_start=8, source_end=34)]
    """
    pieces = _piece(answer).findall(answer)
    number = {piece: i for i, piece in enumerate(dict.fromkeys(pieces), 1)}
    said, starts, ends, _ = _pieces([answer], number)
    read, read_starts, read_ends, texts = _pieces(documents, number)
    places = _places(said[:-1], read)
    longest = _longest(places, len(pieces), len(read))
    words = np.cumsum([0, *(piece[0].isalnum() or piece[0] == "_" for piece in pieces)])
    found, behind = [], 0  # `behind` the place of the last span
    for first, last in sorted(_longest_first(longest, words)):
        at = places[first]
        for k in range(_GRAM, last - first):
            at = at[read[at + k] == said[first + k]]
        within = at[texts[at] == texts[max(behind - 1, 0)]]
        at = within if len(within) else at
        place = int(at[np.abs(at - behind).argmin()])
        behind = place + last - first
        source = texts[place], read_starts[place], read_ends[behind - 1]
        found.append(Span(*map(int, (starts[first], ends[last - 1], *source))))
    return found


def _pieces(texts: Sequence[str], number: Mapping[str, int]) -> tuple[Ints, ...]:
    """The words and marks of texts laid end to end, behind each text one with number 0.

    Their numbers, 0 for all that `number` lacks; first characters, ends, and indices of texts.
    """
    found = array("i")
    for document, text in enumerate(texts):
        for match in _piece(text).finditer(text):
            found.extend((number.get(match.group(), 0), *match.span(), document))
        found.extend((0, 0, 0, document))
    return tuple(np.ascontiguousarray(np.array(found, np.int32).reshape(-1, 4).T))


def _piece(text: str) -> re.Pattern[str]:
    """A word, one character of a script that puts no spaces between words, or one mark.

    As in UAX #29, a word goes on over an apostrophe between letters ("don't") and a point, comma
    or colon between digits ("3.14"), and combining characters belong to what they follow.
    """
    combining, letter = "", r"\w"  # an ASCII text has no other letters
    if not text.isascii():
        marks = (c for c in sorted(set(text)) if unicodedata.category(c)[0] == "M")
        combining = "".join(map(re.escape, marks))
        letter = rf"(?:(?![{UNSPACED}])[\w{combining}])"
    word = rf"{letter}+(?:(?:['’](?=[^\W\d])|(?<=\d)[.,:](?=\d)){letter}+)*"
    single = rf"[{UNSPACED}][{combining}]*" if combining else f"[{UNSPACED}]"
    return re.compile(rf"{single}|{word}|[^\w\s]")


def _places(said: Ints, laid: Ints) -> list[Ints]:
    """For every four pieces in a row of `said` the places in `laid` where they stand, ascending."""
    if min(len(said), len(laid)) < _GRAM:
        return []
    windows = np.lib.stride_tricks.sliding_window_view
    grams = [row.tobytes() for row in windows(said, _GRAM)]
    rows = windows(laid, _GRAM)
    found: dict[bytes, list[int]] = {gram: [] for gram in grams}
    for place in map(int, np.flatnonzero((rows > 0).all(axis=1))):  # many: no list of them
        at = found.get(rows[place].tobytes())
        if at is not None and len(at) < _MOST_PLACES:
            at.append(place)
    arrays = {gram: np.array(at, np.int64) for gram, at in found.items()}
    return [arrays[gram] for gram in grams]


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
