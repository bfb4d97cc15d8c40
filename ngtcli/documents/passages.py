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
_MARKDOWN = (".md", ".markdown")
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*?)[ \t#]*$", re.MULTILINE)
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
    """The passages of a document, in its order; together they have all of its text.

    >>> text = "One. Two.\\n\\nThree."
    >>> passages(Document("a", text), Cutting(3)), passages(Document("a", text), Cutting(4))
    ([Passage(start=0, end=9), Passage(start=11, end=17)], [Passage(start=0, end=17)])
    """
    packing = _Packing(document.text, cutting)
    pairs = pairwise([Section(0), *_sections(document)])  # a page alone is no border
    borders = [section.start for before, section in pairs if section.heading != before.heading]
    for first, last in pairwise([0, *borders, len(document.text)]):
        packing.border()
        for start, end in _blocks(document.text, first, last, cutting.tokens * _LETTERS):
            packing.add(start, end)
    packing.close()
    return packing.done


def place(document: Document, at: int) -> Section:
    """The page and heading that a character stands below."""
    sections = _sections(document)
    before = bisect_right(sections, at, key=lambda section: section.start) - 1
    return sections[before] if before >= 0 else Section(0)


def _sections(document: Document) -> tuple[Section, ...]:
    """Those the reader found; of Markdown, which is read as plain text, its headings."""
    if document.about.sections or not document.path.lower().endswith(_MARKDOWN):
        return document.about.sections
    return tuple(Section(m.start(), 0, m.group(1)) for m in _HEADING.finditer(document.text))


class _Packing:
    """Puts neighbouring blocks together as long as they stay within the size."""

    def __init__(self, text: str, cutting: Cutting) -> None:
        self._text = text
        self._most, self._overlap = cutting.tokens * _LETTERS, cutting.overlap * _LETTERS
        self.done: list[Passage] = []
        self._start = self._end = -1  # of the passage that is open; -1: none is
        self._size = 0

    def add(self, start: int, end: int) -> None:
        """A block, which follows those before it."""
        size = _size(self._text[start:end])
        if self._start >= 0 and self._size + size > self._most:
            self.close()
            low = max(self.done[-1].start + 1, start - self._overlap)
            word = _WORD_START.search(self._text, low, start) if self._overlap else None
            self._start = word.start() if word else start
            self._size = _size(self._text[self._start : start])
        elif self._start < 0:
            self._start, self._size = start, 0
        self._end = end
        self._size += size

    def border(self) -> None:
        """A heading follows."""
        if self._start >= 0 and self._size * _SHORT >= self._most:
            self.close()

    def close(self) -> None:
        """End the passage that is open."""
        if self._start >= 0:
            self.done.append(Passage(self._start, self._end))
        self._start, self._size = -1, 0


def _size(text: str) -> int:
    """The length that counts: a character without spaces between words counts as a token."""
    if text.isascii():
        return len(text)
    return len(text) + (_LETTERS - 1) * len(_UNSPACED.findall(text))


def _blocks(text: str, first: int, last: int, most: int) -> Iterator[tuple[int, int]]:
    """The paragraphs of `text[first:last]`, and long ones in pieces of at most `most`."""
    at = first
    for gap in [*_PARAGRAPH.finditer(text, first, last), None]:
        start, end = _stripped(text, at, gap.start() if gap else last)
        at = gap.end() if gap else last
        if start < end:
            yield from _pieces(text, start, end, most)


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
        head = _stripped(text, start, cut)
        if head[0] < head[1]:
            yield head
        size -= _size(text[start:cut])
        start = cut
    start, end = _stripped(text, start, end)
    if start < end:
        yield start, end


def _last(pattern: re.Pattern[str], text: str, start: int, limit: int) -> int:
    """Where the last match before `limit` ends, in the second half of the piece; 0: nowhere."""
    matches = pattern.finditer(text, start + (limit - start) // 2, limit)
    return max((match.end() for match in matches), default=0)
