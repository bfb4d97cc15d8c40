"""The numbers that LibreOffice shows before items of lists and headings of OpenDocument files."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ngtcli.documents.formats.numerals import numeral, parse_integer

TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
BULLET = "-"
_ID = "{http://www.w3.org/XML/1998/namespace}id"
_MAX_LEVELS = 10
_PLACEHOLDER = re.compile(r"%(\d{1,2})%")  # stands for the number of a level, counted from 1
_BULLETS = (f"{TEXT}list-level-style-bullet", f"{TEXT}list-level-style-image")
_PARAGRAPHS = (f"{TEXT}p", f"{TEXT}h")


@dataclass(frozen=True, slots=True)
class _Level:
    """How one level of a list counts, and how its numbers look.

    Attributes:
        style: Name of a numeral style; "" if it shows no numbers.
        prefix: What precedes the numbers.
        suffix: What follows them.
        start: The first number.
        shown_levels: The number of levels, with those above, whose numbers are shown.
        pattern: The numbers as newer versions of LibreOffice write them, with placeholders such as
            "%1%"; "" in files of older ones.
        is_bullet: Whether it shows a bullet or a picture.
    """

    style: str = ""
    prefix: str = ""
    suffix: str = ""
    start: int = 1
    shown_levels: int = 1
    pattern: str = ""
    is_bullet: bool = False

    @classmethod
    def from_element(cls, element: Any) -> "_Level":
        style = element.get(f"{STYLE}num-format", "")
        if element.get(f"{STYLE}num-letter-sync") == "true":
            style = {"a": "lowerLetter", "A": "upperLetter"}.get(style, style)
        pattern = ""
        for name, value in element.attrib.items():
            if name.endswith("}num-list-format"):  # the namespace depends on the version
                pattern = value
                break
        return cls(
            style=style,
            prefix=element.get(f"{STYLE}num-prefix", ""),
            suffix=element.get(f"{STYLE}num-suffix", ""),
            start=parse_integer(element.get(f"{TEXT}start-value"), 1),
            shown_levels=parse_integer(element.get(f"{TEXT}display-levels"), 1),
            pattern=pattern,
            is_bullet=element.tag in _BULLETS,
        )


_Levels = dict[int, _Level]  # the levels of a list style, from 0


class _Counter:
    """The last number of each level of one list, or of the headings."""

    def __init__(self) -> None:
        self._numbers: list[int | None] = [None] * _MAX_LEVELS

    def next_mark(self, levels: _Levels, index: int, start: int | None) -> str:
        """Count an item, and return what is before it; "" for nothing.

        Args:
            levels: The levels of its list style.
            index: The level of the item, from 0.
            start: The number that the item itself names, if any.
        """
        level = levels.get(index, _Level())
        self._advance(levels, index, start)
        if level.is_bullet:
            return BULLET
        if not level.style:
            return f"{level.prefix}{level.suffix}".strip()
        if level.pattern:
            return _PLACEHOLDER.sub(
                lambda placeholder: self._numeral(levels, int(placeholder[1]) - 1), level.pattern
            )
        first_shown = max(0, index + 1 - level.shown_levels)
        numerals = (self._numeral(levels, i) for i in range(first_shown, index + 1))
        return f"{level.prefix}{'.'.join(filter(None, numerals))}{level.suffix}".strip()

    def _advance(self, levels: _Levels, index: int, start: int | None) -> None:
        """Count an item; levels above count as if they had one, and those below restart."""
        for above in range(index):
            if self._numbers[above] is None and above in levels:
                self._numbers[above] = levels[above].start

        previous = self._numbers[index]
        if start is not None:
            self._numbers[index] = start
        elif previous is None:
            self._numbers[index] = levels.get(index, _Level()).start
        else:
            self._numbers[index] = previous + 1

        for below in range(index + 1, _MAX_LEVELS):
            self._numbers[below] = None

    def _numeral(self, levels: _Levels, index: int) -> str:
        """The number of a level, as its style writes it; "" if it has none."""
        if not 0 <= index < _MAX_LEVELS:
            return ""
        style = levels.get(index, _Level()).style
        number = self._numbers[index]
        return numeral(number, style) if style and number is not None else ""


class Numbering:
    """Marks the items of lists and the headings of a tree with what is shown before them."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self._styles: dict[str, _Levels] = {}
        self._outline: _Levels = {}  # of headings
        self._counters_by_id: dict[str, _Counter] = {}  # by the ids of lists
        self._last_counters: dict[str, _Counter] = {}  # of the last list of each style
        for root in roots:
            for style in root.iter(f"{TEXT}list-style"):
                self._styles[style.get(f"{STYLE}name", "")] = _levels_of(style)
            for style in root.iter(f"{TEXT}outline-style"):
                self._outline = _levels_of(style)

    def set_marks(self, body: Any) -> None:
        """Set `mark` of paragraphs and headings that are shown with one; of items also `level`."""
        headings = _Counter()
        for element in body.iter(f"{TEXT}list", f"{TEXT}h"):
            if element.tag == f"{TEXT}list":
                is_inner_list = next(element.iterancestors(f"{TEXT}list"), None) is not None
                if not is_inner_list:
                    self._mark_list(element)
            elif element.get("mark") is None and element.get(f"{TEXT}is-list-header") != "true":
                self._mark_heading(element, headings)

    def _mark_heading(self, heading: Any, counter: _Counter) -> None:
        index = parse_integer(heading.get(f"{TEXT}outline-level"), 1) - 1
        if 0 <= index < _MAX_LEVELS:
            mark = counter.next_mark(self._outline, index, _start_of(heading))
            heading.set("mark", "" if mark == BULLET else mark)

    def _mark_list(self, outermost: Any) -> None:
        """Mark the items of a list and of all lists in it."""
        outermost_style = outermost.get(f"{TEXT}style-name", "")
        counter = self._counter_of(outermost, outermost_style)
        stack = [(outermost, 0, outermost_style)]  # elements, their level, and their style
        while stack:
            element, index, style = stack.pop()
            if element.tag == f"{TEXT}list":
                style = element.get(f"{TEXT}style-name") or style
                stack += [(child, index, style) for child in reversed(element)]
                continue
            if element.tag == f"{TEXT}list-item" and index < _MAX_LEVELS:
                self._mark_item(element, index, style, counter)
            for child in reversed(element):
                if child.tag == f"{TEXT}list":
                    stack.append((child, index + 1, style))

    def _counter_of(self, outermost: Any, style: str) -> _Counter:
        """The counter of a list, which is another list's if it continues that one."""
        counter = self._counters_by_id.get(outermost.get(f"{TEXT}continue-list", ""))
        if counter is None and outermost.get(f"{TEXT}continue-numbering") == "true":
            counter = self._last_counters.get(style)
        if counter is None:
            counter = _Counter()
        self._last_counters[style] = counter
        list_id = outermost.get(_ID)
        if list_id:
            self._counters_by_id[list_id] = counter
        return counter

    def _mark_item(self, item: Any, index: int, style: str, counter: _Counter) -> None:
        """Mark the first paragraph of an item; one that begins with a list has no mark.

        Args:
            item: The item of a list.
            index: Its level, from 0.
            style: The list style of the innermost list around it that names one.
            counter: Counts the items of the outermost list around it.
        """
        paragraph = next(iter(item), None)
        if paragraph is None or paragraph.tag not in _PARAGRAPHS:
            return
        # A list without a style has bullets.
        levels = self._styles.get(style, {index: _Level(is_bullet=True)})
        mark = counter.next_mark(levels, index, _start_of(item))
        paragraph.set("mark", mark)
        paragraph.set("level", str(index if mark == BULLET else 0))


def _start_of(element: Any) -> int | None:
    """The number that an item or a heading names, with which counting continues."""
    start = element.get(f"{TEXT}start-value")
    return None if start is None else parse_integer(start, 1)


def _levels_of(style: Any) -> _Levels:
    levels = {}
    for element in style.iterchildren("*"):
        levels[parse_integer(element.get(f"{TEXT}level"), 1) - 1] = _Level.from_element(element)
    return levels
