"""From a PDF's lines to its text: running heads left out, lines joined to paragraphs."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any
from unicodedata import east_asian_width

from ngtcli.documents.formats.hyphens import is_compound
from ngtcli.documents.formats.pdf_page import SOFT_HYPHEN, UNKNOWN, Line, Rule
from ngtcli.documents.formats.pdf_tables import Table, with_tables
from ngtcli.documents.text import UNSPACED

# Set by looking at pages, not swept.
_LEADING = 1.0  # least white space between paragraphs, in line heights, where lines have less
_INDENT = 0.8  # least indent of a paragraph's first line, in line heights
_SHORT = 0.8  # share of the widest line near it that a paragraph's last line is shorter than
_SPARSE = 1.6  # characters in a width of one line height that a table's row is below; text has 1.9
_LARGER = 1.12  # a heading's characters against those of the text
_OTHER = 1.08  # sizes that differ by more are not of one paragraph
_LONGEST = 150  # characters of a heading
_ITEM = re.compile(rf"(?:[•‣▪●○◦■□–—*{UNKNOWN}\ue000-\uf8ff-]|\(?\d{{1,3}}[.)]|\(?[a-z][.)])\s")
_LEADERS = re.compile(r"(?:[.…·_] ?){4}")
_SENTENCE_END = tuple('.!?:;…"”»)。！？؟۔׃')
_DASHES = "\u2013\u2212"  # between numbers
_FIRST_WORD = re.compile(r"[^\W\d_]+[^\s]*\s*")
# A name in few words, a colon, and a value: "Invoice no.: 1005".
_LABEL = re.compile(r"[^\W\d_a-z][\w.'’/()&-]*(?: [\w.'’/()&-]+){0,4} ?:(?:\s|$)")
_HYPHENS = f"-{SOFT_HYPHEN}\u2010"
_WORDS = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_NO_SPACE = re.compile(rf"[{UNSPACED}\u3001-\u303f\uff01-\uff60]{{2}}")
_DEEP = 4  # lines from the top and the foot of a page that may be running heads; guess
_APART = 0.7  # least white space between a running head and the text, in line heights; guess
_BESIDE = 0.5  # least that lines side by side overlap, in line heights; guess
_PAGES = 3  # fewest pages of which it can be told; guess
_MOST = 0.5  # share of the pages that have the line; guess
_NUMBER = re.compile(r"\d{1,9}")
_MOST_NUMBERS = 2  # in a line that counts the pages, as in "2-7"; dates have three


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
    """Joins the lines of pages; words that stand whole anywhere decide what a hyphen means."""

    def __init__(self, pages: Sequence[Sequence[Line]]) -> None:
        self._size = body_size(pages)
        lines = chain.from_iterable(pages)
        self._words = {word.lower() for line in lines for word in _WORDS.findall(line.text)}

    def blocks(self, lines: Sequence[Line], rules: Sequence[Rule] = ()) -> Iterator[Block]:
        """The paragraphs and tables of a page. A heading is of few, larger words."""
        open_lines: list[Line] = []
        for item in with_tables(lines, rules, self.joined):
            if isinstance(item, Table):
                yield from self._block(open_lines)
                open_lines = []
                yield Block(rows=item.rows)
            elif open_lines and _ends(open_lines, item):
                yield from self._block(open_lines)
                open_lines = [item]
            else:
                open_lines.append(item)
        yield from self._block(open_lines)

    def _block(self, lines: Sequence[Line]) -> Iterator[Block]:
        if lines:
            text = self._joined(lines)
            large = max(line.height for line in lines) > _LARGER * self._size
            words = any(len(word) > 1 for word in _WORDS.findall(text))
            yield Block(text, large and words and len(text) <= _LONGEST)

    def _joined(self, lines: Sequence[Line]) -> str:
        text = lines[0].text
        for last, line in pairwise(lines):
            is_apart = _is_row(last) or _is_row(line) or _is_labelled(last, line)
            if is_apart and text[-1] not in _HYPHENS:
                text += f"\n{line.text}"
            else:
                text = self.joined(text, line.text)
        return text

    def joined(self, before: str, after: str) -> str:
        """Two lines as one; a hyphen between them is undone unless it belongs to the word."""
        if before[-1:] not in _HYPHENS or not before[-2:-1].isalnum() or not after[:1].isalnum():
            is_range = before[-1:] in _DASHES and before[-2:-1].isdigit() and after[:1].isdigit()
            is_joined = is_range or _NO_SPACE.match(before[-1:] + after[:1])
            return before + " " * (not is_joined) + after
        if not before[-2].isalpha() or not after[0].isalpha():
            return f"{before[:-1]}-{after}"  # "1999-2004", "COVID-19"
        head, tail = _WORDS.findall(before[:-1])[-1], _WORDS.findall(after)[0]
        return before[:-1] + "-" * self._is_compound(head, tail) + after

    def _is_compound(self, head: str, tail: str) -> bool:
        """Whether a word has a hyphen at the place where a line ends.

        What stands in the text counts first, then the words of English that are known.
        """
        if tail[0].isupper() or f"{head}-{tail}".lower() in self._words:
            return (head + tail).lower() not in self._words
        return (head + tail).lower() not in self._words and is_compound(head, tail, self._words)


def join_pages(pages: Sequence[list[Block]], joiner: Joiner) -> None:
    """Put words together that go on on the next page: there the rest of the text begins."""
    for blocks, following in pairwise(pages):
        if not blocks or not following or blocks[-1].rows or following[0].rows:
            continue
        before, after = blocks[-1].text, following[0].text
        parted = _FIRST_WORD.match(after)
        if before[-1:] in _HYPHENS and before[-2:-1].isalpha() and parted and after[0].islower():
            whole = joiner.joined(before, parted[0].rstrip())
            blocks[-1] = replace(blocks[-1], text=whole)
            following[0] = replace(following[0], text=after[parted.end() :])
            if not following[0].text:
                del following[0]
    for blocks in pages:
        blocks[:] = [replace(one, text=one.text.replace(SOFT_HYPHEN, "-")) for one in blocks]


def _is_labelled(last: Line, line: Line) -> bool:
    """Whether a line begins with a label, as in "Customer: Ada", and not in running text."""
    if not _LABEL.match(line.text):
        return False
    is_short = last.right - last.left < _SHORT * (line.right - line.left)
    return is_short or _LABEL.match(last.text) is not None or last.text.endswith(_SENTENCE_END)


def _is_row(line: Line) -> bool:
    """Whether a line has gaps or dots in it, as between the cells of a table."""
    characters = sum(1 + (east_asian_width(c) in "WF") for c in line.text)
    is_sparse = characters * line.height < _SPARSE * (line.right - line.left)
    return is_sparse or _LEADERS.search(line.text) is not None


def _ends(block: Sequence[Line], line: Line) -> bool:
    """Whether a block ends before `line`."""
    last = block[-1]
    smaller, larger = sorted((line.height, last.height))
    if line.turn != last.turn or larger > _OTHER * smaller:
        return True
    gap = line.top - last.bottom
    is_end = last.text.endswith(_SENTENCE_END)
    if gap < -last.height:  # the head of the next column, where a sentence may go on
        return is_end or not (line.text[:1].islower() or last.text[-1:] in _HYPHENS)
    gaps = [b.top - a.bottom for a, b in pairwise(block)]
    most = (max(gaps) + 0.35 * last.height) if gaps else _LEADING * last.height
    if gap > most or _ITEM.match(line.text):
        return True
    left, right = min(a.left for a in block), max(a.right for a in [*block, line])
    indented = line.left - last.left > _INDENT * line.height
    short = last.right - left < _SHORT * (right - left)
    return (indented or short) and is_end


def without_running_lines(pages: Sequence[Sequence[Line]]) -> tuple[list[list[Line]], int]:
    """The pages without their running heads, and the number of lines left out.

    They stand with other text on most pages, with the same words and numbers, or but for one number
    that counts the pages. What is the same everywhere stays where it stands first.
    """
    of_text = {number for number, page in enumerate(pages) if len(page) > 1}
    size = body_size(pages)
    groups: dict[tuple[Any, ...], list[tuple[int, Line]]] = defaultdict(list)
    for number, page in enumerate(pages if len(of_text) >= _PAGES else ()):
        lines = sorted((a for a in page if a.turn == page[0].turn), key=lambda a: a.bottom)
        for line in {*_edge(lines), *_edge(lines[::-1])}:
            for form in _forms(line, number, size):
                groups[form].append((number, line))
    gone: set[int] = set()
    for (*_, counted), found in groups.items():
        if len({number for number, _ in found} & of_text) > _MOST * len(of_text):
            gone |= {id(line) for _, line in (found[1:] if counted is None else found)}
    kept = [[line for line in page if id(line) not in gone] for page in pages]
    return kept, sum(map(len, pages)) - sum(map(len, kept))


def _forms(line: Line, page: int, size: float) -> Iterator[tuple[Any, ...]]:
    """What a line on a page, from 0, has in common with the same running head on others.

    It is its words, its numbers, and None; or for each number that may be the page's the other
    numbers, and by how much that one is above the page's.
    """
    text = line.text.lower()
    words, numbers = tuple(_NUMBER.split(text)), [int(n) for n in _NUMBER.findall(text)]
    yield words, tuple(numbers), None
    has_words = any(map(str.isalpha, text))
    if len(numbers) <= _MOST_NUMBERS and line.height <= _LARGER * size:
        for at, number in enumerate(numbers):
            if number <= page + 1 or not has_words:
                yield words, (at, *numbers[:at], *numbers[at + 1 :]), number - page


def _edge(lines: Sequence[Line]) -> Sequence[Line]:
    """The first of `lines` that stand apart from what comes next; several may be side by side."""
    apart = 0
    for count, (line, other) in enumerate(pairwise(lines), 1):
        height = min(line.height, other.height)
        gap = max(line.top, other.top) - min(line.bottom, other.bottom)
        if gap > _APART * height:
            apart = count
        elif gap > -_BESIDE * height:
            return lines[: min(apart, _DEEP)]
    return lines[:_DEEP]
