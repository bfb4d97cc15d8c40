"""From a PDF's lines to its text: leave out running heads, join lines to paragraphs."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import NamedTuple
from unicodedata import east_asian_width

from ngtcli.documents.formats.hyphens import is_compound
from ngtcli.documents.formats.pdf_page import SOFT_HYPHEN, UNKNOWN, Line, Rule
from ngtcli.documents.formats.pdf_tables import Table, with_tables
from ngtcli.documents.text import UNSPACED

# These values were set by looking at pages; no sweep was made. Lengths are in line heights.
_PARAGRAPH_GAP = 1.0  # white space between paragraphs, where lines have less
_GAP_TOLERANCE = 0.35  # by which gaps between the lines of one paragraph differ
_MIN_INDENT = 0.8  # indent of a paragraph's first line
_SHORT_LINE = 0.8  # share of the widest line near it that a paragraph's last line is shorter than
_SPARSE = 1.6  # characters in a width of one line height that a table's row is below; text has 1.9
_HEADING_SIZE = 1.12  # height of a heading's characters, relative to that of the text
_SIZE_TOLERANCE = 1.08  # ratio of heights that one paragraph may have
_MAX_HEADING = 150  # characters
_ITEM = re.compile(rf"(?:[•‣▪●○◦■□–—*{UNKNOWN}\ue000-\uf8ff-]|\(?\d{{1,3}}[.)]|\(?[a-z][.)])\s")
_LEADERS = re.compile(r"(?:[.…·_] ?){4}")
_SENTENCE_END = tuple('.!?:;…"”»)。！？؟۔׃')
_RANGE_DASHES = "\u2013\u2212"
_FIRST_WORD = re.compile(r"[^\W\d_]+[^\s]*\s*")
# A name in few words, a colon, and a value: "Invoice no.: 1005".
_LABEL = re.compile(r"[^\W\d_a-z][\w.'’/()&-]*(?: [\w.'’/()&-]+){0,4} ?:(?:\s|$)")
_HYPHENS = f"-{SOFT_HYPHEN}\u2010"
_WORDS = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_NO_SPACE = re.compile(rf"[{UNSPACED}\u3001-\u303f\uff01-\uff60]{{2}}")

# Running heads. All but the last value are guesses.
_EDGE_LINES = 4  # lines from the top and the foot of a page that may be running heads
_EDGE_GAP = 0.7  # white space between a running head and the text, in line heights
_MIN_OVERLAP = 0.5  # by which lines side by side overlap, in line heights
_MIN_PAGES = 3  # fewer pages are too few to tell a running head
_MIN_PAGE_SHARE = 0.5  # share of the pages that have the line
_NUMBER = re.compile(r"\d{1,9}")
_MAX_NUMBERS = 2  # numbers in a line that counts pages, as "2-7"; dates have three


def body_size(pages: Sequence[Sequence[Line]]) -> float:
    """The line height that most characters have, in points."""
    heights = Counter[float]()
    for line in chain.from_iterable(pages):
        heights[round(line.height, 1)] += len(line.text)
    return heights.most_common(1)[0][0] if heights else 0.0


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph or a heading; or the rows of a table, each of as many cells."""

    text: str = ""
    is_heading: bool = False
    rows: tuple[tuple[str, ...], ...] = ()


class Joiner:
    """Joins the lines of pages to blocks.

    Words that stand undivided anywhere on the pages decide whether a hyphen at the end of a line
    belongs to its word.
    """

    def __init__(self, pages: Sequence[Sequence[Line]]) -> None:
        self._body_size = body_size(pages)
        self._words = {
            word.lower()
            for line in chain.from_iterable(pages)
            for word in _WORDS.findall(line.text)
        }

    def blocks(self, lines: Sequence[Line], rules: Sequence[Rule] = ()) -> Iterator[Block]:
        """Yield the paragraphs, headings and tables of a page."""
        open_lines: list[Line] = []
        for item in with_tables(lines, rules, self.joined):
            if isinstance(item, Table):
                yield from self._block(open_lines)
                open_lines = []
                yield Block(rows=item.rows)
            elif open_lines and _is_new_block(open_lines, item):
                yield from self._block(open_lines)
                open_lines = [item]
            else:
                open_lines.append(item)
        yield from self._block(open_lines)

    def _block(self, lines: Sequence[Line]) -> Iterator[Block]:
        """Yield the block of these lines, if there are any. Few words in large type: a heading."""
        if not lines:
            return
        text = self._join_lines(lines)
        is_large = max(line.height for line in lines) > _HEADING_SIZE * self._body_size
        has_words = any(len(word) > 1 for word in _WORDS.findall(text))
        yield Block(text, is_large and has_words and len(text) <= _MAX_HEADING)

    def _join_lines(self, lines: Sequence[Line]) -> str:
        text = lines[0].text
        for previous, line in pairwise(lines):
            is_separate = _is_row(previous) or _is_row(line) or _is_labelled(previous, line)
            if is_separate and text[-1] not in _HYPHENS:
                text += f"\n{line.text}"
            else:
                text = self.joined(text, line.text)
        return text

    def joined(self, before: str, after: str) -> str:
        """Join two lines; the hyphen between them is removed unless it belongs to the word."""
        is_hyphenated = before[-1:] in _HYPHENS and before[-2:-1].isalnum() and after[:1].isalnum()
        if not is_hyphenated:
            is_range = (
                before[-1:] in _RANGE_DASHES and before[-2:-1].isdigit() and after[:1].isdigit()
            )
            if is_range or _NO_SPACE.match(before[-1:] + after[:1]):
                return before + after
            return f"{before} {after}"
        if not before[-2].isalpha() or not after[0].isalpha():
            return f"{before[:-1]}-{after}"  # "1999-2004", "COVID-19"
        head = _WORDS.findall(before[:-1])[-1]
        tail = _WORDS.findall(after)[0]
        hyphen = "-" if self._is_compound(head, tail) else ""
        return before[:-1] + hyphen + after

    def _is_compound(self, head: str, tail: str) -> bool:
        """Whether a word keeps the hyphen at which the line was broken.

        The words of the pages decide first, then a list of English words.
        """
        if (head + tail).lower() in self._words:
            return False
        if tail[0].isupper() or f"{head}-{tail}".lower() in self._words:
            return True
        return is_compound(head, tail, self._words)


def join_pages(pages: Sequence[list[Block]], joiner: Joiner) -> None:
    """Put the parts of words together that a page break divides, on the first of both pages."""
    for blocks, next_blocks in pairwise(pages):
        if not blocks or not next_blocks or blocks[-1].rows or next_blocks[0].rows:
            continue
        before = blocks[-1].text
        after = next_blocks[0].text
        first_word = _FIRST_WORD.match(after)
        is_divided = before[-1:] in _HYPHENS and before[-2:-1].isalpha() and after[:1].islower()
        if first_word is None or not is_divided:
            continue
        blocks[-1] = replace(blocks[-1], text=joiner.joined(before, first_word[0].rstrip()))
        remaining = after[first_word.end() :]
        if remaining:
            next_blocks[0] = replace(next_blocks[0], text=remaining)
        else:
            del next_blocks[0]
    for blocks in pages:
        blocks[:] = [replace(block, text=block.text.replace(SOFT_HYPHEN, "-")) for block in blocks]


def _is_labelled(previous: Line, line: Line) -> bool:
    """Whether a line begins with a label, as in "Customer: Ada", and is not running text."""
    if not _LABEL.match(line.text):
        return False
    if previous.width < _SHORT_LINE * line.width or _LABEL.match(previous.text):
        return True
    return previous.text.endswith(_SENTENCE_END)


def _is_row(line: Line) -> bool:
    """Whether a line has wide gaps or dots in it, as between the cells of a table."""
    wide_characters = sum(east_asian_width(character) in "WF" for character in line.text)
    columns = len(line.text) + wide_characters
    is_sparse = columns * line.height < _SPARSE * line.width
    return is_sparse or _LEADERS.search(line.text) is not None


def _is_new_block(block: Sequence[Line], line: Line) -> bool:
    """Whether `line` begins a new block, rather than going on with the lines of `block`."""
    last = block[-1]
    smaller, larger = sorted((line.height, last.height))
    if line.turn != last.turn or larger > _SIZE_TOLERANCE * smaller:
        return True

    is_sentence_end = last.text.endswith(_SENTENCE_END)
    gap = line.top - last.bottom
    if gap < -last.height:  # the head of the next column, where a sentence may continue
        goes_on = line.text[:1].islower() or last.text[-1:] in _HYPHENS
        return is_sentence_end or not goes_on

    gaps = [below.top - above.bottom for above, below in pairwise(block)]
    if gaps:
        max_gap = max(gaps) + _GAP_TOLERANCE * last.height
    else:
        max_gap = _PARAGRAPH_GAP * last.height
    if gap > max_gap or _ITEM.match(line.text):
        return True

    left = min(block_line.left for block_line in block)
    right = max(block_line.right for block_line in [*block, line])
    is_indented = line.left - last.left > _MIN_INDENT * line.height
    is_short = last.right - left < _SHORT_LINE * (right - left)
    return (is_indented or is_short) and is_sentence_end


class _Likeness(NamedTuple):
    """The features of a running head by which it is recognized on other pages.

    Attributes:
        words: The text between its numbers, in lower case.
        numbers: Its numbers; with `offset`, the index of the page number and the others.
        offset: By how much its page number exceeds the index of the page. None: it has none.
    """

    words: tuple[str, ...]
    numbers: tuple[int, ...]
    offset: int | None


def without_running_lines(pages: Sequence[Sequence[Line]]) -> tuple[list[list[Line]], int]:
    """Leave out running heads and feet; return the pages, and how many lines were left out.

    A running line stands with other text on most pages, with the same words and numbers, except for
    one number that may count the pages. A line without such a number stays where it is first.
    """
    text_pages = {index for index, page in enumerate(pages) if len(page) > 1}
    if len(text_pages) < _MIN_PAGES:
        return [list(page) for page in pages], 0

    size = body_size(pages)
    groups: dict[_Likeness, list[tuple[int, Line]]] = defaultdict(list)
    for index, page in enumerate(pages):
        upright = [line for line in page if line.turn == page[0].turn]
        upright.sort(key=lambda line: line.bottom)
        for line in {*_edge(upright), *_edge(upright[::-1])}:
            for likeness in _likenesses(line, index, size):
                groups[likeness].append((index, line))

    running = set[int]()  # ids, since equal lines may be on several pages
    for likeness, occurrences in groups.items():
        group_pages = {index for index, _ in occurrences} & text_pages
        if len(group_pages) > _MIN_PAGE_SHARE * len(text_pages):
            repeated = occurrences[1:] if likeness.offset is None else occurrences
            running |= {id(line) for _, line in repeated}
    remaining = [[line for line in page if id(line) not in running] for page in pages]
    return remaining, sum(map(len, pages)) - sum(map(len, remaining))


def _likenesses(line: Line, page: int, size: float) -> Iterator[_Likeness]:
    """Yield each likeness of a line on a page: as it is, and with each number as the page's.

    Args:
        line: The line.
        page: Index of its page, from 0.
        size: Line height of the text, in points.
    """
    text = line.text.lower()
    words = tuple(_NUMBER.split(text))
    numbers = tuple(int(digits) for digits in _NUMBER.findall(text))
    yield _Likeness(words, numbers, None)
    if len(numbers) > _MAX_NUMBERS or line.height > _HEADING_SIZE * size:
        return
    has_words = any(map(str.isalpha, text))
    for index, number in enumerate(numbers):
        if number <= page + 1 or not has_words:
            others = numbers[:index] + numbers[index + 1 :]
            yield _Likeness(words, (index, *others), number - page)


def _edge(lines: Sequence[Line]) -> Sequence[Line]:
    """The first of `lines` that a gap separates from the next; several may be side by side."""
    edge_size = 0
    for count, (line, following) in enumerate(pairwise(lines), 1):
        height = min(line.height, following.height)
        gap = max(line.top, following.top) - min(line.bottom, following.bottom)
        if gap > _EDGE_GAP * height:
            edge_size = count
        elif gap > -_MIN_OVERLAP * height:
            return lines[: min(edge_size, _EDGE_LINES)]
    return lines[:_EDGE_LINES]
