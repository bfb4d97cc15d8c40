"""Find the quotations in an answer: stretches that stand word for word in a document.

A quotation has at least `MIN_WORDS` words. Its words and marks are the same in the answer and in
one document; white space may differ, and so may how a character is written (`folding.py`).
Quotations do not overlap. The longest is taken first, then the longest on either side of it, and so
on. If a quotation is at several places, the one nearest to the quotation before it is reported,
in the same document if possible. Only copying is found: whether a document supports what the answer
says is another question.

Both texts are cut into pieces (words and marks), and every four pieces in a row of the answer are
looked up in the documents. Let r(i, p) be the number of pieces that agree from piece i of the
answer and piece p of the documents on. Then r(i, p) = 1 + r(i + 1, p + 1), so one sweep from the
end of the answer finds all r in time proportional to the number of positions looked up.

Pieces are compared by hashes that numpy computes, since documents are long: this takes a quarter of
the time of a regular expression (measured). A quotation is compared by its characters before it is
reported.
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

MIN_WORDS = 4  # words of a quotation: shorter ones occur by chance (guess)
# Positions kept for four pieces in a row (guess): an answer of 1,000 words, each four of which
# occur so often, then takes seconds. A quotation that occurs more often may be found shorter.
_MAX_POSITIONS = 200_000
_GRAM_SIZE = MIN_WORDS  # pieces that are looked up together
_BLOCK_SIZE = 1 << 20  # characters that are cut at once; each takes 60 bytes of memory
_BASE = np.uint64(0x9E3779B97F4A7C15)  # of hashes; odd, so that it has an inverse modulo 2^64
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
_MIX = np.uint64(0xBF58476D1CE4E5B9)  # of SplitMix64
_LOW_BITS = np.uint64(0xFFFF)

Ints = npt.NDArray[np.integer[Any]]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The words and marks of a text, by arrays of one entry for each.

    Attributes:
        starts: Offset of the first character.
        ends: Offset after the last character.
        hashes: Hash of the characters.
        are_words: Whether it is a word, and not a mark.
    """

    starts: Ints
    ends: Ints
    hashes: npt.NDArray[np.uint64]
    are_words: Bools


@dataclass(frozen=True, slots=True)
class _Comparison:
    """An answer, looked up in the documents.

    Attributes:
        answer: The folded answer.
        pieces: Its pieces.
        positions: For each four pieces in a row, by the first of them, the positions of their
            copies.
        match_lengths: For each piece, how many pieces from it on stand together in a document.
    """

    answer: Folded
    pieces: _Pieces
    positions: list[Ints]
    match_lengths: Ints

    def end_before(self, piece: int) -> int:
        """Offset of the answer after the piece that precedes `piece`."""
        if piece == 0:
            return 0
        return self.answer.original(0, int(self.pieces.ends[piece - 1]))[1]


@dataclass(frozen=True, slots=True)
class SpansSoFar:
    """The quotations in the beginning of an answer, which continues after white space.

    Attributes:
        spans: Those that are quotations of the complete answer, too, however it continues.
        free_end: Offset up to which no other quotation of the complete answer ends.
    """

    spans: list[Span]
    free_end: int


def spans(answer: str, documents: Sequence[str]) -> list[Span]:
    """Find the quotations of `documents` in `answer`, in the answer's order.

    >>> spans("He said the ship left port at noon.", ["At dawn the ship left port at noon"])
    [Span(start=8, end=34, document=0, source_start=8, source_end=34)]
    """
    return QuoteFinder(documents).spans(answer)


class QuoteFinder:
    """Finds quotations of documents that are cut and hashed only once.

    The pieces of all documents are in one array, with an empty piece after each document. A
    position is an index into it.
    """

    def __init__(self, documents: Sequence[str]) -> None:
        self._texts = list(map(folded, documents))
        starts = list[Ints]()
        ends = list[Ints]()
        hashes = list[npt.NDArray[np.uint64]]()
        document_starts = [0]  # the position of the first piece of each document
        gap = np.zeros(1, np.int64)
        for text in self._texts:
            size = 1
            for block_start, block in _blocks(text.text):
                pieces = _cut(block)
                starts.append(pieces.starts + block_start)
                ends.append(pieces.ends + block_start)
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
        """Find the quotations in `answer`, in its order."""
        return self._quotations(self._compare(answer))

    def spans_so_far(self, answer: str) -> SpansSoFar:
        """Find the quotations of an incomplete answer, which ends with a whole word or mark.

        A copy that the rest of the answer may extend begins at the piece `first_open` or later. If
        no match crosses a border, the quotations before it do not depend on the text after it.

        Of the copies that may be extended, the one that began first is the longest now. Another may
        become longer, and then the first ends where the other begins. So nothing ends before the
        second one begins, whatever follows.
        """
        comparison = self._compare(answer)
        lengths = comparison.match_lengths
        first_open, second_open = self._open_starts(comparison.pieces)
        starts = np.arange(len(lengths))
        border = first_open
        while True:
            crossing = np.flatnonzero((starts < border) & (starts + lengths > border))
            if not crossing.size:
                break
            border = int(crossing[0])
        final_end = comparison.end_before(border)
        free_border = second_open if border == first_open else border
        final_spans = [span for span in self._quotations(comparison) if span.end <= final_end]
        return SpansSoFar(final_spans, comparison.end_before(free_border))

    def _compare(self, answer: str) -> _Comparison:
        folded_answer = folded(answer)
        pieces = _cut(folded_answer.text)
        positions = self._gram_positions(pieces.hashes)
        lengths = _match_lengths(positions, len(pieces.hashes), len(self._hashes))
        return _Comparison(folded_answer, pieces, positions, lengths)

    def _open_starts(self, pieces: _Pieces) -> tuple[int, int]:
        """Find where the first two copies begin that end with the last piece of the answer.

        They may have fewer than `MIN_WORDS` words, and are at different positions.

        Returns:
            The first word of each; the number of pieces if there is none.
        """
        size = len(pieces.hashes)
        words = np.flatnonzero(pieces.are_words)
        starts = set[int]()
        positions = np.zeros(0, np.int64)  # at which the last `length` pieces of the answer begin
        if size:
            positions = np.flatnonzero(self._hashes == pieces.hashes[-1])
        length = 1
        while len(positions):
            previous = positions[positions > 0] - 1
            is_longer = np.zeros(len(previous), np.bool_)
            if length < size:
                is_longer = self._hashes[previous] == pieces.hashes[size - length - 1]
            if np.count_nonzero(is_longer) < len(positions):  # a copy of exactly this length
                word = int(np.searchsorted(words, size - length))
                starts.add(int(words[word]) if word < len(words) else size)
            positions = previous[is_longer]
            length += 1
        first, second, *_ = [*sorted(starts), size, size]
        return first, second

    def _quotations(self, comparison: _Comparison) -> list[Span]:
        """Choose the quotations of an answer, and the position of each in the documents."""
        pieces = comparison.pieces
        words_before = np.cumsum([0, *pieces.are_words])
        quotations = []
        previous_end = 0  # position after the last quotation
        document = 0  # of the last quotation
        for first, end in sorted(_longest_first(comparison.match_lengths, words_before)):
            hashes = pieces.hashes[first:end]
            copies = self._copies(comparison.positions[first], hashes)
            position = self._nearest(copies, previous_end, document)
            previous_end = position + end - first
            document = self._document_of(position)
            source = self._texts[document]
            answer_range = (int(pieces.starts[first]), int(pieces.ends[end - 1]))
            source_range = (int(self._starts[position]), int(self._ends[previous_end - 1]))
            quotation = comparison.answer.text[slice(*answer_range)]
            original = source.text[slice(*source_range)]
            # Compared by characters, because different words may have the same hash.
            if quotation == original or _squeezed(quotation) == _squeezed(original):
                start, end_offset = comparison.answer.original(*answer_range)
                source_start, source_end = source.original(*source_range)
                quotations.append(Span(start, end_offset, document, source_start, source_end))
        return quotations

    def _copies(self, positions: Ints, hashes: npt.NDArray[np.uint64]) -> Ints:
        """Keep the positions of the first four pieces at which all pieces stand."""
        for k in range(_GRAM_SIZE, len(hashes)):
            positions = positions[self._hashes[positions + k] == hashes[k]]
        return positions

    def _nearest(self, positions: Ints, previous_end: int, document: int) -> int:
        """Choose the position nearest to `previous_end`, in the same document if possible."""
        documents = np.searchsorted(self._document_starts, positions, side="right") - 1
        in_document = positions[documents == document]
        if len(in_document):
            positions = in_document
        return int(positions[np.abs(positions - previous_end).argmin()])

    def _document_of(self, position: int) -> int:
        return int(np.searchsorted(self._document_starts, position, side="right")) - 1

    def _gram_positions(self, hashes: npt.NDArray[np.uint64]) -> list[Ints]:
        """Look up every four pieces in a row of an answer; return their positions, ascending."""
        grams, gram_indices = np.unique(_grams(hashes), return_inverse=True)
        if not len(grams):
            return []
        # Comparing 16 bits rules out nearly all positions, without a search among `grams`.
        has_low_bits = np.zeros(1 << 16, np.bool_)
        has_low_bits[grams & _LOW_BITS] = True
        positions = np.flatnonzero(has_low_bits[self._grams & _LOW_BITS])
        keys = self._grams[positions]
        indices = np.minimum(np.searchsorted(grams, keys), len(grams) - 1)
        is_match = grams[indices] == keys
        positions = positions[is_match]
        indices = indices[is_match]
        order = np.argsort(indices, kind="stable")
        bounds = np.searchsorted(indices[order], np.arange(len(grams) + 1))
        by_gram = [
            positions[order[start:end]][:_MAX_POSITIONS]
            for start, end in zip(bounds[:-1], bounds[1:], strict=True)
        ]
        return [by_gram[index] for index in gram_indices.reshape(-1)]


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Divide a text before white space into blocks; yield the offset and the text of each."""
    start = 0
    while len(text) - start > _BLOCK_SIZE:
        space = re.compile(r"\s").search(text, start + _BLOCK_SIZE)
        end = space.start() if space else len(text)
        yield start, text[start:end]
        start = end
    yield start, text[start:]


def _cut(text: str) -> _Pieces:
    """Cut a text into words, single characters of scripts without spaces, and marks.

    As in UAX #29, a word may contain an apostrophe between letters ("don't") and a point, comma or
    colon between digits ("3.14"); combining characters belong to the character before them.
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    size = len(codes)
    kinds = _kinds(codes)
    is_mark = kinds == _COMBINING
    base = kinds
    if is_mark.any():  # a combining character is of the kind of the character that it follows
        last = np.maximum.accumulate(np.where(is_mark, -1, np.arange(size)))
        base = np.where(last >= 0, kinds[last], _LETTER).astype(np.uint8)
    is_single = base == _SINGLE
    in_word = (kinds == _LETTER) | (kinds == _DIGIT) | (is_mark & ~is_single)
    is_between = _shifted(in_word, 1) & _shifted(in_word, -1)
    is_before_letter = _shifted(kinds == _LETTER, -1)
    is_between_digits = _shifted(kinds == _DIGIT, 1) & _shifted(kinds == _DIGIT, -1)
    in_word |= is_between & (kinds == _APOSTROPHE) & is_before_letter
    in_word |= is_between & (kinds == _POINT) & is_between_digits
    continues = in_word & _shifted(in_word, 1) | (is_single & is_mark)
    is_visible = kinds != _SPACE
    starts = np.flatnonzero(is_visible & ~continues)
    ends = np.flatnonzero(is_visible & ~_shifted(continues, -1)) + 1
    return _Pieces(starts, ends, _hashes(codes, starts, ends), in_word[starts] | is_single[starts])


def _shifted(mask: Bools, offset: int) -> Bools:
    """Shift a mask by one entry, to the right (1) or to the left (-1)."""
    shifted = np.zeros_like(mask)
    if offset > 0:
        shifted[1:] = mask[:-1]
    else:
        shifted[:-1] = mask[1:]
    return shifted


def _hashes(codes: Ints, starts: Ints, ends: Ints) -> npt.NDArray[np.uint64]:
    """Hash each piece: a polynomial of its characters modulo 2^64."""
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
    """The powers of the base of hashes, from 0 on, and those of its inverse."""
    return _powers_of(_BASE, size), _powers_of(_INVERSE, size)


def _powers_of(base: np.uint64, size: int) -> npt.NDArray[np.uint64]:
    factors = np.full(size, base, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


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
    """Hash every four pieces in a row; the entry of each is that of its first piece."""
    size = max(0, len(hashes) - _GRAM_SIZE + 1)
    keys = np.zeros(size, np.uint64)
    for offset in range(_GRAM_SIZE):
        keys = (keys + hashes[offset : offset + size]) * _BASE
        keys ^= keys >> np.uint64(32)
    return keys


def _match_lengths(positions: Sequence[Ints], answer_size: int, source_size: int) -> Ints:
    """For each piece of an answer, how many pieces from it on stand together in the documents.

    Args:
        positions: For each four pieces of the answer, the positions where they stand.
        answer_size: Number of pieces of the answer.
        source_size: Number of pieces of the documents.
    """
    lengths = np.zeros(answer_size, np.int64)
    runs = np.zeros(source_size + 1, np.int64)  # r(i + 1, p) for all p
    nonzero: Ints = np.zeros(0, np.int64)  # where `runs` is not 0
    for i in range(len(positions) - 1, -1, -1):
        current = positions[i]
        next_runs = runs[current + 1]
        runs[nonzero] = 0
        runs[current] = np.where(next_runs > 0, next_runs + 1, _GRAM_SIZE)
        lengths[i] = runs[current].max(initial=0)
        nonzero = current
    return lengths


def _longest_first(lengths: Ints, words_before: Ints) -> Iterator[tuple[int, int]]:
    """Yield the first piece of each quotation and the one after its last.

    The longest comes first, then those on either side of it. A quotation begins with a word.

    Args:
        lengths: For each piece, how many from it on stand together in a document.
        words_before: The number of words before each piece, and at the end.
    """
    open_ranges = [(0, len(lengths))]
    while open_ranges:
        low, high = open_ranges.pop()
        words = low + np.flatnonzero(np.diff(words_before[low : high + 1]))
        if len(words) < MIN_WORDS:
            continue
        ends = np.minimum(words + lengths[words], high)
        longest = int((words_before[ends] - words_before[words]).argmax())
        first = int(words[longest])
        end = int(ends[longest])
        if words_before[end] - words_before[first] >= MIN_WORDS:
            yield first, end
            open_ranges += [(low, first), (end, high)]
