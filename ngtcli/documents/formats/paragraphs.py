"""Lines to paragraphs: which lines belong together, and words parted at line ends."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ngtcli.documents.formats.layout import Line

# Set by looking at pages, not swept.
_LEADING = 1.0  # least white space between paragraphs, in line heights, where lines have less
_INDENT = 0.8  # least indent of a paragraph's first line, in line heights
_SHORT = 0.8  # share of its column's width that a paragraph's last line is shorter than
LARGER = 1.12  # a heading's characters against those of the text
_OTHER = 1.08  # sizes that differ by more are not of one paragraph
_LONGEST = 150  # characters of a heading
_ITEM = re.compile(r"(?:[•‣▪●○–—*-]|\(?\d{1,3}[.)]|\(?[a-z][.)])\s")
_SENTENCE_END = tuple('.!?:;…"”»)')
_HYPHENS = "-\u00ad\u2010"
_WORDS = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, or rows of a table; `size` is the height of its lines in points."""

    text: str
    size: float
    table: bool = False

    def is_heading(self, size: float) -> bool:
        """Whether it stands out from text of `size`."""
        larger = self.size > LARGER * size
        return larger and not self.table and len(self.text) <= _LONGEST


def body_size(pages: Sequence[Sequence[Line]]) -> float:
    """The line height that most characters have, in points."""
    sizes: Counter[float] = Counter()
    for line in (line for page in pages for line in page):
        sizes[round(line.height, 1)] += len(line.text)
    return max(sizes, key=lambda s: sizes[s], default=0.0)


class Joiner:
    """Joins the lines of pages; words that stand whole anywhere decide what a hyphen means."""

    def __init__(self, pages: Sequence[Sequence[Line]]) -> None:
        self._words = {
            word.lower() for page in pages for line in page for word in _WORDS.findall(line.text)
        }

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
        size = max(line.height for line in lines)
        if lines[0].cells > 1:
            return Block("\n".join(line.text for line in lines), size, True)
        text = lines[0].text
        for line in lines[1:]:
            text = self.joined(text, line.text)
        return Block(text.replace("\u00ad", "-") if text.endswith("\u00ad") else text, size)

    def joined(self, before: str, after: str) -> str:
        """Two lines as one; a hyphen between them is undone unless the word has one elsewhere."""
        if not (before[-1:] in _HYPHENS and before[-2:-1].isalpha() and after[:1].isalpha()):
            return f"{before} {after}"
        first = before[:-1]
        head, tail = _WORDS.findall(first)[-1:], _WORDS.findall(after)[:1]
        if not (head and tail):
            return first + after
        whole, parted = (head[0] + between + tail[0] for between in ("", "-"))
        if (
            before[-1] != "\u00ad"
            and whole.lower() not in self._words
            and (parted.lower() in self._words or after[0].isupper())
        ):
            return f"{first}-{after}"
        return first + after


def _ends(block: Sequence[Line], line: Line) -> bool:
    """Whether a block ends before `line`."""
    last = block[-1]
    if (line.cells > 1) != (last.cells > 1) or line.column != last.column and _far(last, line):
        return True
    gap = line.top - last.bottom
    larger = max(line.height, last.height) > _OTHER * min(line.height, last.height)
    if larger or gap > _spacing(block) or gap < -last.height:
        return not (gap < -last.height and _runs_on(last, line)) or larger
    if line.cells > 1:
        return False
    if _ITEM.match(line.text):
        return True
    left, right = line.column
    indented = line.left - left > _INDENT * line.height and last.left - left < line.height / 2
    short = last.right - left < _SHORT * (right - left)
    return (
        indented
        and last.text.endswith(_SENTENCE_END)
        or (short and last.text.endswith(_SENTENCE_END))
    )


def _far(last: Line, line: Line) -> bool:
    return not _runs_on(last, line)


def _runs_on(last: Line, line: Line) -> bool:
    """Whether a sentence goes on from the foot of a column to the head of the next."""
    return not last.text.endswith(_SENTENCE_END) and (
        line.text[:1].islower() or last.text[-1:] in _HYPHENS
    )


def _spacing(block: Sequence[Line]) -> float:
    """The white space that is more than between two lines of this block."""
    height = block[-1].height
    gaps = [b.top - a.bottom for a, b in zip(block, block[1:], strict=False)]
    return (max(gaps) + 0.35 * height) if gaps else _LEADING * height
