"""The numbers that Word shows before paragraphs of lists, clauses and headings."""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ngtcli.documents.formats.numerals import numeral

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
BULLET = "-"
_LEVELS = 9
_PLACE = re.compile(r"%([1-9])")


@lru_cache(256)
def _path(path: str) -> str:
    return "/".join(W + tag for tag in path.split("/"))


def value_of(parent: Any, path: str) -> str | None:
    """The attribute `val` of an element in `parent`; None where there is none."""
    found = None if parent is None else parent.find(_path(path))
    return None if found is None else found.get(f"{W}val", "")


def integer_of(parent: Any, path: str) -> int | None:
    """That attribute as a number; None where it is none."""
    text = value_of(parent, path) or ""
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else None


@dataclass(frozen=True, slots=True)
class _Level:
    start: int = 1
    style: str = "decimal"
    text: str = ""
    is_legal: bool = False  # all its numbers are in digits
    restarts_below: int | None = None  # the levels at which it begins anew; None: all above
    is_hidden: bool = False

    @classmethod
    def of(cls, element: Any) -> "_Level":
        style = "decimal"
        for form in element.iter(f"{W}numFmt"):  # in two forms where the first is of later Words
            style = form.get(f"{W}val", style)
            zeros = re.match(r"(0+)1\b", form.get(f"{W}format", ""))
            if style == "custom" and zeros:
                style = f"zeros{len(zeros[1]) + 1}"
                break
        start = integer_of(element, "start")
        return cls(
            start=0 if start is None else start,
            style=style,
            text=value_of(element, "lvlText") or "",
            is_legal=is_on(element.find(f"{W}isLgl")),
            restarts_below=integer_of(element, "lvlRestart"),
            is_hidden=is_on(element.find(f"{W}rPr/{W}vanish")),
        )


@dataclass(slots=True)
class _List:
    """A numbering that paragraphs name: its own, and what it changes of the one it is made of."""

    abstract: str
    starts: dict[int, int] = field(default_factory=dict)
    levels: dict[int, _Level] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)


class Numbering:
    """The numbers of a document's paragraphs, asked for in their order."""

    def __init__(self, root: Any = None) -> None:
        self._elements: dict[str, Any] = {}  # of abstract numberings
        self._abstract: dict[str, dict[int, _Level]] = {}
        self._lists: dict[str, _List] = {}
        self._counts: dict[str, list[int | None]] = {}  # of each abstract numbering
        self._style_links: dict[str, str] = {}  # abstract numberings by styles
        if root is None:
            return
        for element in root.iterfind(f"{W}abstractNum"):
            identifier = element.get(f"{W}abstractNumId", "")
            self._elements[identifier] = element
            if style := value_of(element, "styleLink"):
                self._style_links[style] = identifier
        for element in root.iterfind(f"{W}num"):
            self._add_list(element)

    def begin_anew(self) -> None:
        """Forget what was counted, as for headers and footers."""
        self._counts.clear()
        for made in self._lists.values():
            made.begun.clear()

    def _levels(self, identifier: str) -> dict[int, _Level]:
        """The levels of an abstract numbering, which may be those of a style's."""
        if identifier not in self._abstract:
            element = self._elements.get(identifier)
            link = self._style_links.get(value_of(element, "numStyleLink") or "")
            levels = self._elements.get(link or "", element)
            found = () if levels is None else levels.iterfind(f"{W}lvl")
            self._abstract[identifier] = {_index(level): _Level.of(level) for level in found}
        return self._abstract[identifier]

    def _add_list(self, element: Any) -> None:
        made = _List(value_of(element, "abstractNumId") or "")
        for change in element.iterfind(f"{W}lvlOverride"):
            start = integer_of(change, "startOverride")
            if start is not None:
                made.starts[_index(change)] = start
            for level in change.iterfind(f"{W}lvl"):
                made.levels[_index(level)] = _Level.of(level)
        self._lists[element.get(f"{W}numId", "")] = made

    def has(self, identifier: str) -> bool:
        """Whether the file describes this list."""
        return identifier in self._lists

    def level_of_style(self, identifier: str, style: str) -> int:
        """The level of a list at which paragraphs of a style are."""
        named = self._lists.get(identifier)
        element = self._elements.get(named.abstract) if named else None
        for level in () if element is None else element.iterfind(f"{W}lvl"):
            if value_of(level, "pStyle") == style:
                return _index(level)
        return 0

    def mark(self, identifier: str, level: int) -> str | None:
        """What stands before the next paragraph of this list and level; None for nothing."""
        named = self._lists.get(identifier)
        if named is None or not 0 <= level < _LEVELS:
            return None
        levels = self._levels(named.abstract) | named.levels
        shown = levels.get(level)
        if shown is None:
            return None
        counts = self._counts.setdefault(named.abstract, [None] * _LEVELS)
        self._advance(counts, named, levels, level)
        if shown.is_hidden:
            return None
        if shown.style == "bullet":
            return BULLET
        if shown.style == "none" and not _PLACE.search(shown.text):
            return shown.text.strip() or None

        def number(place: "re.Match[str]") -> str:
            index = int(place[1]) - 1
            form = levels.get(index, _Level())
            count = counts[index] if counts[index] is not None else form.start
            return _shown(count or 0, "decimal" if shown.is_legal else form.style)

        return _PLACE.sub(number, shown.text).strip() or None

    @staticmethod
    def _advance(
        counts: list[int | None], named: _List, levels: dict[int, _Level], level: int
    ) -> None:
        """Count a paragraph, and begin the levels below it anew.

        Levels above it that have no paragraph count as if they had one, as in LibreOffice.
        """
        for above in range(level):
            if counts[above] is None and above in levels:
                counts[above] = named.starts.get(above, levels[above].start)
        before = counts[level]
        if level in named.starts and level not in named.begun:
            counts[level] = named.starts[level]
        else:
            start = named.starts.get(level, levels[level].start)
            counts[level] = start if before is None else before + 1
        named.begun.add(level)
        for below in range(level + 1, _LEVELS):
            limit = levels.get(below, _Level()).restarts_below
            if limit is None or level < limit:
                counts[below] = None


def _index(level: Any) -> int:
    text = level.get(f"{W}ilvl", "0")
    return int(text) if text.isdecimal() and len(text) < 3 else 0


def _shown(count: int, style: str) -> str:
    if style.startswith("zeros"):
        return str(count).zfill(int(style.removeprefix("zeros")))
    return numeral(count, style)


def is_on(element: Any) -> bool:
    """Whether an element switches something on: it is there, and does not say otherwise."""
    return element is not None and element.get(f"{W}val", "1") not in ("0", "false", "off")
