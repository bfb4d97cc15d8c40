"""Lines to paragraphs: which lines belong together, and words parted at line ends."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from unicodedata import east_asian_width

from ngtcli.documents.formats.lines import SOFT_HYPHEN, UNKNOWN, Line
from ngtcli.documents.scripts import UNSPACED

# Set by looking at pages, not swept.
_LEADING = 1.0  # least white space between paragraphs, in line heights, where lines have less
_INDENT = 0.8  # least indent of a paragraph's first line, in line heights
_SHORT = 0.8  # share of the widest line beside it that a paragraph's last line is shorter than
_SPARSE = 1.6  # characters in a width of one line height that a table's row is below; text has 1.9
_SPARSER = 0.7  # the same, to those in the median line
LARGER = 1.12  # a heading's characters against those of the text
_OTHER = 1.08  # sizes that differ by more are not of one paragraph
_LONGEST = 150  # characters of a heading
_ITEM = re.compile(rf"(?:[•‣▪●○◦■□–—*{UNKNOWN}\ue000-\uf8ff-]|\(?\d{{1,3}}[.)]|\(?[a-z][.)])\s")
_LEADERS = re.compile(r"(?:[.…·_] ?){4}")
_SENTENCE_END = tuple('.!?:;…"”»)。！？؟۔׃')
_HYPHENS = f"-{SOFT_HYPHEN}\u2010"
_WORDS = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_NO_SPACE = re.compile(rf"[{UNSPACED}\u3001-\u303f\uff01-\uff60]{{2}}")


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph; `size` is the height of its lines in points."""

    text: str
    size: float

    def is_heading(self, size: float) -> bool:
        """Whether it is of larger words than text of `size`."""
        words = any(len(word) > 1 for word in _WORDS.findall(self.text))
        return words and self.size > LARGER * size and len(self.text) <= _LONGEST


def body_size(pages: Sequence[Sequence[Line]]) -> float:
    """The line height that most characters have, in points."""
    sizes: Counter[float] = Counter()
    for line in (line for page in pages for line in page):
        sizes[round(line.height, 1)] += len(line.text)
    return max(sizes, key=lambda s: sizes[s], default=0.0)


class Joiner:
    """Joins the lines of pages; words that stand whole anywhere decide what a hyphen means."""

    def __init__(self, pages: Sequence[Sequence[Line]]) -> None:
        lines = [line for page in pages for line in page]
        self._words = {word.lower() for line in lines for word in _WORDS.findall(line.text)}
        usual = median([_density(line) for line in lines] or [0.0])
        self._sparse = max(_SPARSE, _SPARSER * usual)

    def blocks(self, lines: Sequence[Line]) -> Iterator[Block]:
        """The paragraphs of a page."""
        block: list[Line] = []
        for line in lines:
            if block and _ends(block, line):
                yield self._block(block)
                block = []
            block.append(line)
        if block:
            yield self._block(block)

    def _block(self, lines: Sequence[Line]) -> Block:
        text = lines[0].text
        for last, line in pairwise(lines):
            rows = (self._is_row(last) or self._is_row(line)) and last.text[-1] not in _HYPHENS
            text = f"{text}\n{line.text}" if rows else self.joined(text, line.text)
        return Block(text.replace(SOFT_HYPHEN, "-"), max(line.height for line in lines))

    def _is_row(self, line: Line) -> bool:
        """Whether a line has gaps or dots in it, as between the cells of a table."""
        return _density(line) < self._sparse or _LEADERS.search(line.text) is not None

    def joined(self, before: str, after: str) -> str:
        """Two lines as one; a hyphen between them is undone unless the word has one elsewhere."""
        if not (before[-1:] in _HYPHENS and before[-2:-1].isalpha() and after[:1].isalpha()):
            return before + " " * (not _NO_SPACE.match(before[-1:] + after[:1])) + after
        first = before[:-1]
        head, tail = _WORDS.findall(first)[-1], _WORDS.findall(after)[0]
        known = f"{head}-{tail}".lower() in self._words or after[0].isupper()
        return first + "-" * (known and (head + tail).lower() not in self._words) + after


def _ends(block: Sequence[Line], line: Line) -> bool:
    """Whether a block ends before `line`."""
    last = block[-1]
    smaller, larger = sorted((line.height, last.height))
    if line.turn != last.turn or larger > _OTHER * smaller:
        return True
    gap = line.top - last.bottom
    if gap < -last.height:  # the head of the next column
        return not _runs_on(last, line)
    if gap > _spacing(block) or _ITEM.match(line.text):
        return True
    left, right = min(a.left for a in block), max(a.right for a in [*block, line])
    indented = line.left - last.left > _INDENT * line.height
    short = last.right - left < _SHORT * (right - left)
    return (indented or short) and last.text.endswith(_SENTENCE_END)


def _runs_on(last: Line, line: Line) -> bool:
    """Whether a sentence goes on from the foot of a column to the head of the next."""
    return not last.text.endswith(_SENTENCE_END) and (
        line.text[:1].islower() or last.text[-1:] in _HYPHENS
    )


def _spacing(block: Sequence[Line]) -> float:
    """The white space that is more than between two lines of this block."""
    height = block[-1].height
    gaps = [b.top - a.bottom for a, b in pairwise(block)]
    return (max(gaps) + 0.35 * height) if gaps else _LEADING * height


def _density(line: Line) -> float:
    """How many characters stand in a width of one line height; wide ones count twice."""
    count = sum(1 + (east_asian_width(c) in "WF") for c in line.text)
    return count * line.height / max(line.right - line.left, line.height)
