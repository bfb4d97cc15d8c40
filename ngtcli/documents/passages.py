"""Cut documents into passages: paragraphs that are packed to a size, as offsets into the text.

A passage never crosses from one document into the next. A heading begins a new passage, unless the
one before it is short. Tables are not divided, up to a size. Tokens are estimated, so that passages
do not depend on a tokenizer: four characters count as one token, and so does each character of a
script without spaces between words. The tokens of a prompt are counted exactly, when it is built.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ngtcli.documents.content import BETWEEN_CELLS, Section
from ngtcli.documents.load import Document
from ngtcli.documents.text import UNSPACED

# All three are guesses; the first is near English text with a vocabulary of 30,000 tokens.
_CHARACTERS_PER_TOKEN = 4
_SHORT_FRACTION = 4  # a passage below 1 / _SHORT_FRACTION of the size continues over a heading
_MAX_TABLE_SIZES = 4  # tables up to this many times the size are not divided
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
_UNSPACED = re.compile(f"[{UNSPACED}]")
_WORD_START = re.compile(r"(?<=\s)\S")
# Where a long paragraph may be cut, the best places first.
_ENDS = (re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？]"), re.compile(r"\n"), re.compile(r"\s+"))


@dataclass(frozen=True, slots=True)
class Cutting:
    """How many tokens a passage has, and how many it repeats of the one before it, both roughly."""

    tokens: int
    overlap: int = 0


@dataclass(frozen=True, slots=True)
class Passage:
    """`text[start:end]` of a document, without white space at its ends."""

    start: int
    end: int


def passages(document: Document, cutting: Cutting) -> list[Passage]:
    r"""Cut a document into passages, in its order; together they have all of its text.

    >>> text = "One. Two.\n\nThree."
    >>> passages(Document("a", text), Cutting(3)), passages(Document("a", text), Cutting(4))
    ([Passage(start=0, end=9), Passage(start=11, end=17)], [Passage(start=0, end=17)])
    """
    text = document.text
    max_size = cutting.tokens * _CHARACTERS_PER_TOKEN
    overlap = cutting.overlap * _CHARACTERS_PER_TOKEN
    finished: list[Passage] = []
    # The open passage; size 0 means that there is none.
    start = end = size = 0
    for block in _blocks(document, max_size):
        block_size = _size(text[block.start : block.end])
        is_new_section = block.is_below_heading and size * _SHORT_FRACTION >= max_size
        if size and (is_new_section or size + block_size > max_size):
            finished.append(Passage(start, end))
            repeated = 0 if is_new_section else overlap
            earliest = max(start + 1, block.start - repeated)
            word = _WORD_START.search(text, earliest, block.start)
            start = word.start() if word else block.start
            size = _size(text[start : block.start])
        elif not size:
            start = block.start
        end = block.end
        size += block_size
    if size:
        finished.append(Passage(start, end))
    return finished


def place(document: Document, offset: int) -> Section:
    """The page and heading that the character at an offset is below."""
    sections = document.about.sections
    index = bisect_right(sections, offset, key=lambda section: section.start) - 1
    return sections[index] if index >= 0 else Section(0)


def _size(text: str) -> int:
    """The size of a text: four for a character of a script without spaces, one for any other."""
    if text.isascii():
        return len(text)
    return len(text) + (_CHARACTERS_PER_TOKEN - 1) * len(_UNSPACED.findall(text))


class _Block(NamedTuple):
    """A paragraph, or a piece of a long one, and whether it is the first below a heading."""

    start: int
    end: int
    is_below_heading: bool


def _blocks(document: Document, max_size: int) -> Iterator[_Block]:
    """Yield the paragraphs of a document, long ones in pieces of at most `max_size`.

    A page break is no reason to begin a new passage, a new heading is.
    """
    text = document.text
    pairs = pairwise([Section(0), *document.about.sections])
    borders = [section.start for before, section in pairs if section.heading != before.heading]
    for section_start, section_end in pairwise([0, *borders, len(text)]):
        is_below_heading = True
        for start, end in _paragraphs(text, section_start, section_end):
            for piece_start, piece_end in _pieces(text, *_stripped(text, start, end), max_size):
                stripped_start, stripped_end = _stripped(text, piece_start, piece_end)
                if stripped_start < stripped_end:
                    yield _Block(stripped_start, stripped_end, is_below_heading)
                    is_below_heading = False


def _paragraphs(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the range of each paragraph of `text[start:end]`."""
    for blank in _PARAGRAPH.finditer(text, start, end):
        yield start, blank.start()
        start = blank.end()
    yield start, end


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """The range without white space at its ends."""
    body = text[start:end]
    leading = len(body) - len(body.lstrip())
    trailing = len(body) - len(body.rstrip())
    return start + leading, end - trailing


def _pieces(text: str, start: int, end: int, max_size: int) -> Iterator[tuple[int, int]]:
    """Yield the range of a paragraph; of a long one, ranges that end after sentences or words."""
    body = text[start:end]
    lines = body.splitlines()
    is_table = len(lines) > 1 and all(BETWEEN_CELLS in line or "\t" in line for line in lines)
    size = _size(body)
    if is_table and size <= _MAX_TABLE_SIZES * max_size:
        yield start, end
        return
    patterns = _ENDS[1:] if is_table else _ENDS
    while size > max_size:
        sample = text[start : start + max_size]
        limit = start + max(1, max_size * len(sample) // _size(sample))
        cut = _best_cut(patterns, text, start, limit)
        yield start, cut
        size -= _size(text[start:cut])
        start = cut
    yield start, end


def _best_cut(patterns: Sequence[re.Pattern[str]], text: str, start: int, limit: int) -> int:
    """Where the last match of the first pattern ends that occurs in the second half of the piece.

    `limit` if no pattern does.
    """
    middle = start + (limit - start) // 2
    for pattern in patterns:
        cut = max((match.end() for match in pattern.finditer(text, middle, limit)), default=0)
        if cut:
            return cut
    return limit
