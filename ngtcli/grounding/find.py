"""Which stretches of an answer stand word for word in a document, and where.

A stretch is at least `LEAST_WORDS` words long and continues, word by word and mark by mark, in one
document as it does in the answer; white space may differ. Stretches do not overlap. The longest
is taken first, then the longest of what is left on either side of it; of several places in the
documents the one nearest the place of the stretch before it is named. Copying is all that is
found: a stretch stands in a document, whether or not the document supports what is said.

Both texts are cut into words and marks, and every four in a row of the answer are looked up in the
documents. With r(i, p) the number of words and marks that agree from place i of the answer and
place p of the documents on, r(i, p) = 1 + r(i + 1, p + 1): one sweep from the answer's end finds
all of them in time proportional to the number of places looked up.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ngtcli.documents.scripts import UNSPACED
from ngtcli.grounding.span import Span

LEAST_WORDS = 4  # of a stretch: shorter ones stand in texts by chance; given by the users
# Places kept for four words in a row; derived: 1,000 words of an answer then take 64 MB at most.
# Text that repeats itself more often has the same stretch at a place that is kept.
_MOST_PLACES = 4096
_GRAM = LEAST_WORDS  # words and marks looked up together
# A word, one character of a script that puts no spaces between words, or one mark.
_PIECE = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}])\w)+|[^\w\s]")

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The words and marks of a text, with their places: characters from `starts` to `ends`."""

    texts: list[str]
    starts: list[int]
    ends: list[int]


def spans(answer: str, documents: Sequence[str], least_words: int = LEAST_WORDS) -> list[Span]:
    """The stretches of `answer` that stand in `documents`, in the answer's order.

    Raises ValueError for `least_words` below 4.

    >>> spans("He said the ship left port at noon.", ["At dawn the ship left port at noon"])
    [Span(start=8, end=34, document=0, source_start=8, source_end=34)]
    """
    if least_words < _GRAM:
        raise ValueError(f"a stretch has at least {_GRAM} words")
    said = _pieces(answer)
    read = [_pieces(text) for text in documents]
    matches = _Matches(said.texts, [pieces.texts for pieces in read])
    words = np.cumsum([0, *(_is_word(piece) for piece in said.texts)])
    found, before = [], 0
    for first, last in sorted(_longest_first(matches, words, said.texts, least_words)):
        place = matches.place(first, last - first, before)
        document, at = matches.document_of(place)
        source, before = read[document], place + last - first
        found.append(
            Span(
                said.starts[first], said.ends[last - 1], document,
                source.starts[at], source.ends[at + last - first - 1],
            )
        )  # fmt: skip
    return found


def _pieces(text: str) -> _Pieces:
    found = [(m.group(), *m.span()) for m in _PIECE.finditer(text)]
    return _Pieces([f[0] for f in found], [f[1] for f in found], [f[2] for f in found])


def _is_word(piece: str) -> bool:
    return piece[0].isalnum() or piece[0] == "_"


class _Matches:
    """For each place of the answer the places in the documents that go on as it does.

    All documents are laid end to end; a number that no word has stands between two.
    """

    def __init__(self, answer: Sequence[str], documents: Sequence[Sequence[str]]) -> None:
        number = {piece: i for i, piece in enumerate(dict.fromkeys(answer), 1)}
        said = np.array([number[piece] for piece in answer], np.int64)
        self._borders = [0]
        laid: list[int] = []
        for pieces in documents:
            laid += [number.get(piece, 0) for piece in pieces]  # 0: not in the answer
            laid.append(0)
            self._borders.append(len(laid))
        self._places, self._runs = _agreements(said, np.array(laid, np.int64))
        self.longest = np.array([int(r.max(initial=0)) for r in self._runs], np.int64)

    def place(self, at: int, length: int, near: int) -> int:
        """The place nearest `near` where `length` pieces of the answer from `at` on stand."""
        places = self._places[at][self._runs[at] >= length]
        return int(places[np.abs(places - near).argmin()])

    def document_of(self, place: int) -> tuple[int, int]:
        """The index of a document, and the place within it."""
        document = bisect_right(self._borders, place) - 1
        return document, place - self._borders[document]


def _agreements(said: Ints, laid: Ints) -> tuple[list[Ints], list[Ints]]:
    """For each place of `said`: places of `laid` that agree for four pieces, and for how many."""
    places: list[Ints] = [np.zeros(0, np.int64)] * len(said)
    runs = list(places)
    of_gram = _places_of_grams(said, laid)
    for i in range(len(said) - _GRAM, -1, -1):
        at = of_gram.get(said[i : i + _GRAM].tobytes())
        if at is None:
            continue
        length = np.full(len(at), _GRAM)
        after = places[i + 1] if i + 1 < len(said) else places[i]
        if len(after):
            index = np.minimum(np.searchsorted(after, at + 1), len(after) - 1)
            goes_on = after[index] == at + 1
            length[goes_on] = runs[i + 1][index[goes_on]] + 1
        places[i], runs[i] = at, length
    return places, runs


def _places_of_grams(said: Ints, laid: Ints) -> dict[bytes, Ints]:
    """Ascending places in `laid` of every four pieces in a row that `said` has."""
    if len(said) < _GRAM or len(laid) < _GRAM:
        return {}
    windows = np.lib.stride_tricks.sliding_window_view
    wanted = windows(said, _GRAM)
    rows = windows(laid, _GRAM)
    candidates = np.flatnonzero((rows > 0).all(axis=1))
    found: dict[bytes, list[int]] = {row.tobytes(): [] for row in wanted}
    for place in candidates.tolist():
        at = found.get(rows[place].tobytes())
        if at is not None and len(at) < _MOST_PLACES:
            at.append(place)
    return {gram: np.array(at, np.int64) for gram, at in found.items() if at}


def _longest_first(
    matches: _Matches, words: Ints, pieces: Sequence[str], least: int
) -> Iterator[tuple[int, int]]:
    """(first, behind last) of the stretches: the longest, then those on either side of it.

    `words[i]` counts the words before piece i. Marks at a stretch's beginning are left out.
    """
    open_ranges = [(0, len(pieces))]
    while open_ranges:
        low, high = open_ranges.pop()
        if high - low < least:
            continue
        at = np.arange(low, high)
        ends = np.minimum(at + matches.longest[low:high], high)
        best = int((words[ends] - words[at]).argmax())
        first, last = low + best, int(ends[best])
        while first < last and not _is_word(pieces[first]):
            first += 1
        if words[last] - words[first] < least:
            continue
        yield first, last
        open_ranges += [(low, first), (last, high)]
