"""The numbers that LibreOffice shows before items of lists and headings of OpenDocument files."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ngtcli.documents.formats.numerals import numeral, parse_integer

TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
_ID = "{http://www.w3.org/XML/1998/namespace}id"
BULLET = "-"
_LEVELS = 10
_PLACE = re.compile(r"%(\d{1,2})%")
_NUMBER, _PARAGRAPHS = f"{TEXT}list-level-style-number", (f"{TEXT}p", f"{TEXT}h")


@dataclass(frozen=True, slots=True)
class _Level:
    style: str = ""  # of its numbers; "" for none
    prefix: str = ""
    suffix: str = ""
    start: int = 1
    shown: int = 1  # of how many levels the numbers are shown
    pattern: str = ""  # with places for numbers, as later LibreOffices write it
    is_bullet: bool = False

    @classmethod
    def of(cls, element: Any) -> "_Level":
        style = element.get(f"{STYLE}num-format", "")
        if element.get(f"{STYLE}num-letter-sync") == "true":
            style = {"a": "lowerLetter", "A": "upperLetter"}.get(style, style)
        patterns = (v for name, v in element.attrib.items() if name.endswith("}num-list-format"))
        return cls(
            style=style,
            prefix=element.get(f"{STYLE}num-prefix", ""),
            suffix=element.get(f"{STYLE}num-suffix", ""),
            start=parse_integer(element.get(f"{TEXT}start-value"), 1),
            shown=parse_integer(element.get(f"{TEXT}display-levels"), 1),
            pattern=next(patterns, ""),
            is_bullet=element.tag
            in (
                f"{TEXT}list-level-style-bullet",
                f"{TEXT}list-level-style-image",
            ),
        )


class _Counts:
    """The numbers of the levels of one list so far."""

    def __init__(self) -> None:
        self.numbers: list[int | None] = [None] * _LEVELS

    def mark(self, levels: dict[int, _Level], level: int, start: int | None) -> str:
        """Count an item of a level, from 0; what stands before it, "" for nothing."""
        for above in range(level):
            if self.numbers[above] is None and above in levels:
                self.numbers[above] = levels[above].start
        shown = levels.get(level, _Level())
        before = self.numbers[level]
        following = shown.start if before is None else before + 1
        self.numbers[level] = following if start is None else start
        self.numbers[level + 1 :] = [None] * (_LEVELS - level - 1)
        if shown.is_bullet:
            return BULLET
        if not shown.style:
            return f"{shown.prefix}{shown.suffix}".strip()
        if shown.pattern:
            return _PLACE.sub(lambda place: self._number(levels, int(place[1]) - 1), shown.pattern)
        first = max(0, level + 1 - shown.shown)
        numbers = (self._number(levels, index) for index in range(first, level + 1))
        return f"{shown.prefix}{'.'.join(filter(None, numbers))}{shown.suffix}".strip()

    def _number(self, levels: dict[int, _Level], index: int) -> str:
        style = levels.get(index, _Level()).style
        number = self.numbers[index] if 0 <= index < _LEVELS else None
        return numeral(number, style) if style and number is not None else ""


class Numbering:
    """Gives items of lists and headings in a tree what is shown before them."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self._styles: dict[str, dict[int, _Level]] = {}
        self._outline: dict[int, _Level] = {}
        self._of_lists: dict[str, _Counts] = {}  # by the ids of lists
        self._last: dict[str, _Counts] = {}  # by styles
        for root in roots:
            for style in root.iter(f"{TEXT}list-style"):
                self._styles[style.get(f"{STYLE}name", "")] = _levels(style)
            for style in root.iter(f"{TEXT}outline-style"):
                self._outline = _levels(style)

    def number(self, body: Any) -> None:
        """Set `mark` at paragraphs and headings that are shown with one, and their `level`."""
        headings = _Counts()
        for element in body.iter(f"{TEXT}list", f"{TEXT}h"):
            if element.tag == f"{TEXT}list":
                if not any(True for _ in element.iterancestors(f"{TEXT}list")):
                    self._number_list(element)
            elif element.get("mark") is None and element.get(f"{TEXT}is-list-header") != "true":
                level = parse_integer(element.get(f"{TEXT}outline-level"), 1) - 1
                if 0 <= level < _LEVELS:
                    start = self._start_of(element)
                    mark = headings.mark(self._outline, level, start)
                    element.set("mark", mark if mark != BULLET else "")

    def _number_list(self, outer: Any) -> None:
        name = outer.get(f"{TEXT}style-name", "")
        continued = self._of_lists.get(outer.get(f"{TEXT}continue-list", ""))
        if continued is None and outer.get(f"{TEXT}continue-numbering") == "true":
            continued = self._last.get(name)
        counts = continued or _Counts()
        self._last[name] = counts
        if outer.get(_ID):
            self._of_lists[outer.get(_ID)] = counts
        waiting = [(outer, 0, name)]
        while waiting:
            element, level, style = waiting.pop()
            if element.tag == f"{TEXT}list":
                style = element.get(f"{TEXT}style-name") or style
                waiting += [(child, level, style) for child in reversed(element)]
                continue
            is_item = element.tag == f"{TEXT}list-item"
            paragraph = next(iter(element), None) if is_item else None
            if paragraph is not None and paragraph.tag in _PARAGRAPHS and level < _LEVELS:
                levels = self._styles.get(style, {0: _Level(is_bullet=True)})
                levels = levels if style in self._styles else {level: _Level(is_bullet=True)}
                mark = counts.mark(levels, level, self._start_of(element))
                paragraph.set("mark", mark)
                paragraph.set("level", str(level if mark == BULLET else 0))
            waiting += [
                (child, level + 1, style)
                for child in reversed(element)
                if child.tag == f"{TEXT}list"
            ]

    @staticmethod
    def _start_of(element: Any) -> int | None:
        start = element.get(f"{TEXT}start-value")
        return None if start is None else parse_integer(start, 1)


def _levels(style: Any) -> dict[int, _Level]:
    return {
        parse_integer(e.get(f"{TEXT}level"), 1) - 1: _Level.of(e) for e in style.iterchildren("*")
    }
