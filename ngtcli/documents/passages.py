"""Documents cut into passages: paragraphs packed to a size, by offsets into the text.

A passage never crosses from one document into the next. A heading begins a new one unless the one
before it is short; tables are kept whole, up to a size. Tokens are estimated, so that passages do
not depend on a tokenizer: four characters are one, and so is each character of a script without
spaces between words. What a prompt holds is counted exactly where it is made.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ngtcli.documents.content import BETWEEN_CELLS, Section
from ngtcli.documents.load import Document
from ngtcli.documents.text import UNSPACED

_LETTERS = 4  # characters that are counted as one token; guess, near English text with 30k tokens
_SHORT = 4  # a passage below 1 / _SHORT of the size goes on over a heading; guess
_TABLE = 4  # tables up to this many times the size are kept whole; guess
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
_UNSPACED = re.compile(f"[{UNSPACED}]")
_WORD_START = re.compile(r"(?<=\s)\S")
# Where a long paragraph is cut, the best first.
_ENDS = (re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？]"), re.compile(r"\n"), re.compile(r"\s+"))


@dataclass(frozen=True, slots=True)
class Cutting:
    """About `tokens` a passage; each repeats about `overlap` tokens of the one before it."""

    tokens: int
    overlap: int = 0


@dataclass(frozen=True, slots=True)
class Passage:
    """`text[start:end]` of a document, without white space at its ends."""

    start: int
    end: int


def passages(document: Document, cutting: Cutting) -> list[Passage]:
    r"""The passages of a document, in its order; together they have all of its text.

    >>> text = "One. Two.\n\nThree."
    >>> passages(Document("a", text), Cutting(3)), passages(Document("a", text), Cutting(4))
    ([Passage(start=0, end=9), Passage(start=11, end=17)], [Passage(start=0, end=17)])
    """
    text, most, overlap = document.text, cutting.tokens * _LETTERS, cutting.overlap * _LETTERS
    done: list[Passage] = []
    start = end = size = 0  # of the passage that is open; size 0: none is
    for is_below_heading, first, last in _blocks(document, most):
        more = _size(text[first:last])
        is_apart = is_below_heading and size * _SHORT >= most
        if size and (is_apart or size + more > most):
            done.append(Passage(start, end))
            low = max(start + 1, first - overlap * (not is_apart))
            word = _WORD_START.search(text, low, first)
            start = word.start() if word else first
            size = _size(text[start:first])
        elif not size:
            start = first
        end = last
        size += more
    return [*done, Passage(start, end)] if size else done


def place(document: Document, at: int) -> Section:
    """The page and heading that a character stands below."""
    sections = document.about.sections
    before = bisect_right(sections, at, key=lambda section: section.start) - 1
    return sections[before] if before >= 0 else Section(0)


def _size(text: str) -> int:
    """The length that counts: a character without spaces between words counts as a token."""
    if text.isascii():
        return len(text)
    return len(text) + (_LETTERS - 1) * len(_UNSPACED.findall(text))


def _blocks(document: Document, most: int) -> Iterator[tuple[bool, int, int]]:
    """The paragraphs, long ones in pieces of at most `most`, and whether one is the first below a
    heading; a page alone is no border."""
    text = document.text
    pairs = pairwise([Section(0), *document.about.sections])
    borders = [section.start for before, section in pairs if section.heading != before.heading]
    for first, last in pairwise([0, *borders, len(text)]):
        is_below_heading = True
        gaps = [(gap.start(), gap.end()) for gap in _PARAGRAPH.finditer(text, first, last)]
        for (_, start), (end, _) in pairwise([(first, first), *gaps, (last, last)]):
            for piece in _pieces(text, *_stripped(text, start, end), most):
                begin, stop = _stripped(text, *piece)
                if begin < stop:
                    yield is_below_heading, begin, stop
                    is_below_heading = False


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    body = text[start:end]
    return start + len(body) - len(body.lstrip()), end - (len(body) - len(body.rstrip()))


def _pieces(text: str, start: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """A paragraph, cut behind sentences, lines or words where it is too long for one passage."""
    body = text[start:end]
    lines = body.splitlines()
    is_table = len(lines) > 1 and all(BETWEEN_CELLS in line or "\t" in line for line in lines)
    size = _size(body)
    if is_table and size <= _TABLE * most:
        yield start, end
        return
    ends = _ENDS[1:] if is_table else _ENDS
    while size > most:
        middle = text[start : start + most]
        limit = start + max(1, most * len(middle) // _size(middle))
        cut = next((c for e in ends if (c := _last(e, text, start, limit))), limit)
        yield start, cut
        size -= _size(text[start:cut])
        start = cut
    yield start, end


def _last(pattern: re.Pattern[str], text: str, start: int, limit: int) -> int:
    """Where the last match before `limit` ends, in the second half of the piece; 0: nowhere."""
    matches = pattern.finditer(text, start + (limit - start) // 2, limit)
    return max((match.end() for match in matches), default=0)
