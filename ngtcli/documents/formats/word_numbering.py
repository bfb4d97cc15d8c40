"""The numbers that Word shows before paragraphs of lists, clauses and headings.

A file describes numberings twice. An abstract numbering (`abstractNum`) has the styles of up to
nine levels. A list (`num`), which paragraphs name, refers to an abstract numbering and may override
levels of it. All lists of one abstract numbering count on together.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ngtcli.documents.formats.numerals import numeral

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
BULLET = "-"
_MAX_LEVELS = 9
_PLACEHOLDER = re.compile(r"%([1-9])")  # stands for the number of a level, counted from 1


@lru_cache(256)
def _qualified_path(path: str) -> str:
    return "/".join(W + tag for tag in path.split("/"))


def value_of(parent: Any, path: str) -> str | None:
    """The attribute `val` of the element at `path` in `parent`; None if there is no element."""
    if parent is None:
        return None
    element = parent.find(_qualified_path(path))
    return None if element is None else element.get(f"{W}val", "")


def integer_of(parent: Any, path: str) -> int | None:
    """The attribute `val` of the element at `path` as a number; None if it is not a number."""
    text = value_of(parent, path) or ""
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else None


def is_on(element: Any) -> bool:
    """Whether an on/off element switches something on: it exists and does not say otherwise."""
    return element is not None and element.get(f"{W}val", "1") not in ("0", "false", "off")


@dataclass(frozen=True, slots=True)
class _Level:
    """How one level of a numbering counts, and how its numbers look.

    Attributes:
        start: The first number.
        style: Name of a numeral style of Word, "bullet", "none", or "zerosN" for N digits.
        text: What Word shows, with placeholders such as "%1" for the numbers of levels.
        is_legal: Whether the numbers of all levels are shown in digits.
        restart_level: A paragraph of a level above this one (from 1) restarts the count. None: any
            level above does; 0: none does.
        is_hidden: Whether the number is hidden text.
    """

    start: int = 1
    style: str = "decimal"
    text: str = ""
    is_legal: bool = False
    restart_level: int | None = None
    is_hidden: bool = False

    @classmethod
    def from_element(cls, element: Any) -> "_Level":
        style = "decimal"
        # There are two formats if the first is one that older versions of Word do not know.
        for number_format in element.iter(f"{W}numFmt"):
            style = number_format.get(f"{W}val", style)
            leading_zeros = re.match(r"(0+)1\b", number_format.get(f"{W}format", ""))
            if style == "custom" and leading_zeros:
                style = f"zeros{len(leading_zeros[1]) + 1}"
                break
        start = integer_of(element, "start")
        return cls(
            start=0 if start is None else start,
            style=style,
            text=value_of(element, "lvlText") or "",
            is_legal=is_on(element.find(f"{W}isLgl")),
            restart_level=integer_of(element, "lvlRestart"),
            is_hidden=is_on(element.find(f"{W}rPr/{W}vanish")),
        )

    def format_number(self, number: int) -> str:
        if self.style.startswith("zeros"):
            return str(number).zfill(int(self.style.removeprefix("zeros")))
        return numeral(number, self.style)


@dataclass(slots=True)
class _List:
    """A list that paragraphs name.

    Attributes:
        abstract_id: The abstract numbering that it refers to.
        start_overrides: Levels that it starts with another number.
        level_overrides: Levels that it replaces.
        started_levels: Levels that a paragraph of this list had.
    """

    abstract_id: str
    start_overrides: dict[int, int] = field(default_factory=dict)
    level_overrides: dict[int, _Level] = field(default_factory=dict)
    started_levels: set[int] = field(default_factory=set)

    def start_of(self, index: int, level: _Level) -> int:
        return self.start_overrides.get(index, level.start)


class Numbering:
    """Counts the paragraphs of a document; ask for their numbers in the order of the text."""

    def __init__(self, root: Any = None) -> None:
        self._abstract_elements: dict[str, Any] = {}
        self._abstract_levels: dict[str, dict[int, _Level]] = {}  # cache, by abstract id
        self._lists: dict[str, _List] = {}
        self._counts: dict[str, list[int | None]] = {}  # a number a level, by abstract id
        self._ids_by_style: dict[str, str] = {}  # abstract ids by the style that names them
        if root is None:
            return
        for element in root.iterfind(f"{W}abstractNum"):
            abstract_id = element.get(f"{W}abstractNumId", "")
            self._abstract_elements[abstract_id] = element
            style = value_of(element, "styleLink")
            if style:
                self._ids_by_style[style] = abstract_id
        for element in root.iterfind(f"{W}num"):
            self._add_list(element)

    def _add_list(self, element: Any) -> None:
        new_list = _List(value_of(element, "abstractNumId") or "")
        for override in element.iterfind(f"{W}lvlOverride"):
            start = integer_of(override, "startOverride")
            if start is not None:
                new_list.start_overrides[_level_index(override)] = start
            for level in override.iterfind(f"{W}lvl"):
                new_list.level_overrides[_level_index(level)] = _Level.from_element(level)
        self._lists[element.get(f"{W}numId", "")] = new_list

    def restart(self) -> None:
        """Forget all counts: headers and footers do not continue with the numbers of the body."""
        self._counts.clear()
        for numbered_list in self._lists.values():
            numbered_list.started_levels.clear()

    def has(self, list_id: str) -> bool:
        """Whether the file describes this list."""
        return list_id in self._lists

    def level_of_style(self, list_id: str, style: str) -> int:
        """The level of a list that belongs to a paragraph style; 0 if none does."""
        if list_id not in self._lists:
            return 0
        element = self._abstract_elements.get(self._lists[list_id].abstract_id)
        if element is None:
            return 0
        for level in element.iterfind(f"{W}lvl"):
            if value_of(level, "pStyle") == style:
                return _level_index(level)
        return 0

    def next_mark(self, list_id: str, index: int) -> str | None:
        """Count a paragraph, and return what Word shows before it; None for nothing.

        Args:
            list_id: The list of the paragraph.
            index: Its level, from 0.
        """
        if list_id not in self._lists or not 0 <= index < _MAX_LEVELS:
            return None
        numbered_list = self._lists[list_id]
        levels = self._levels_of(numbered_list.abstract_id) | numbered_list.level_overrides
        level = levels.get(index)
        if level is None:
            return None

        counts = self._counts.setdefault(numbered_list.abstract_id, [None] * _MAX_LEVELS)
        _advance(counts, numbered_list, levels, index)
        if level.is_hidden:
            return None
        if level.style == "bullet":
            return BULLET
        if level.style == "none" and not _PLACEHOLDER.search(level.text):
            return level.text.strip() or None

        def number_of_level(placeholder: re.Match[str]) -> str:
            shown_index = int(placeholder[1]) - 1
            shown_level = levels.get(shown_index, _Level())
            count = counts[shown_index]
            number = shown_level.start if count is None else count
            return str(number) if level.is_legal else shown_level.format_number(number)

        return _PLACEHOLDER.sub(number_of_level, level.text).strip() or None

    def _levels_of(self, abstract_id: str) -> dict[int, _Level]:
        """The levels of an abstract numbering, which may refer to those of a style."""
        if abstract_id not in self._abstract_levels:
            element = self._abstract_elements.get(abstract_id)
            style = value_of(element, "numStyleLink") or ""
            linked_id = self._ids_by_style.get(style, "")
            element = self._abstract_elements.get(linked_id, element)
            levels = {}
            if element is not None:
                for level in element.iterfind(f"{W}lvl"):
                    levels[_level_index(level)] = _Level.from_element(level)
            self._abstract_levels[abstract_id] = levels
        return self._abstract_levels[abstract_id]


def _advance(
    counts: list[int | None], numbered_list: _List, levels: dict[int, _Level], index: int
) -> None:
    """Count a paragraph, and restart the levels below it.

    A level above without a paragraph counts as if it had one, as in LibreOffice.

    Args:
        counts: The last number of each level, which is changed; None before the first.
        numbered_list: The list of the paragraph.
        levels: The levels of that list.
        index: The level of the paragraph, from 0.
    """
    for above in range(index):
        if counts[above] is None and above in levels:
            counts[above] = numbered_list.start_of(above, levels[above])

    previous = counts[index]
    is_first_of_override = (
        index in numbered_list.start_overrides and index not in numbered_list.started_levels
    )
    if previous is None or is_first_of_override:
        counts[index] = numbered_list.start_of(index, levels[index])
    else:
        counts[index] = previous + 1
    numbered_list.started_levels.add(index)

    for below in range(index + 1, _MAX_LEVELS):
        restart_level = levels.get(below, _Level()).restart_level
        if restart_level is None or index < restart_level:
            counts[below] = None


def _level_index(element: Any) -> int:
    """The level, from 0, that an element is about."""
    text = element.get(f"{W}ilvl", "0")
    return int(text) if text.isdecimal() and len(text) < 3 else 0
