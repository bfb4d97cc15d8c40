"""What to try: `n=8..16 lp=2..5` read into the cells of a grid. Knows nothing of measuring.

    name=a..b          every whole step from a to b, b included
    name=a..b+step     a, a + step, … up to b
    name=a..b*factor   a, a * factor, … up to b
    name=a,b,c         these; each of them may also be a range

`name` is any setting. Whole-number settings take whole numbers; words (methods, with their options
as in `trtllm:max_draft_len=8`) are listed with commas. What is wrong is shown with a caret.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product
from math import prod
from typing import Any

from ngtcli.config import SETTINGS, Settings
from ngtcli.errors import GrammarError, UsageError, nearest
from ngtcli.measure.results import SkippedCell

Value = int | float | str | bool | tuple[str, ...]
MOST = 1000  # values of one name, and cells in all: more are a typing error

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_NAME = re.compile(r"[A-Za-z][A-Za-z_-]*=")
_DEFAULTS = Settings()
_FORMS = "Write NAME=A..B, NAME=A..B+STEP, NAME=A..B*FACTOR or NAME=A,B,C."


def as_written(value: Any) -> str:
    """A value as it is written on a command line.

    >>> [as_written(value) for value in (8, True, ("END", "STOP"))]
    ['8', 'true', 'END,STOP']
    """
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True, slots=True)
class Axis:
    """One name and the values it is to take, in the order given, each once."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of values, and all settings with them."""

    values: tuple[tuple[str, Value], ...]
    settings: Settings

    @property
    def label(self) -> str:
        """`n=8 lp=2`."""
        return " ".join(f"{name}={as_written(value)}" for name, value in self.values)


def is_axis(text: str) -> bool:
    """Whether an argument is meant as an axis and not as a file."""
    return _NAME.match(text) is not None


def parse_axis(text: str) -> Axis:
    """Read one axis. Raises GrammarError.

    >>> parse_axis("num_draft=8..64*2").values
    (8, 16, 32, 64)
    """
    head, equals, body = text.partition("=")
    name = head.replace("-", "_")
    if name not in SETTINGS:
        raise GrammarError(f"no setting {head!r} to sweep", text, 0, nearest(name, SETTINGS))
    if not equals or not body:
        raise GrammarError(f"{name} is given no values", text, len(text), _FORMS)
    values: dict[Value, None] = {}
    at = len(head) + 1
    for part in body.split(","):
        if not part:
            raise GrammarError("a value is missing", text, at, _FORMS)
        values |= dict.fromkeys(_checked(name, text, at, part))
        at += len(part) + 1
    return Axis(name, tuple(values))


def _checked(name: str, text: str, at: int, part: str) -> list[Value]:
    values = _values(name, text, at, part)
    try:
        for value in values:
            SETTINGS[name].check(value)
            if name == "method":
                _check_method(str(value))
    except UsageError as error:
        raise GrammarError(str(error), text, at, error.hint) from None
    return values


def _check_method(spec: str) -> None:
    from ngtcli.draft.drafter import DraftSettings  # here: numpy comes with it
    from ngtcli.draft.registry import parse_method

    parse_method(spec, DraftSettings())


def _values(name: str, text: str, at: int, part: str) -> list[Value]:
    """The values that one part between commas stands for."""
    kind = type(getattr(_DEFAULTS, name))
    if kind is tuple:
        return [(part,)]
    if kind is str:
        return [part]
    if kind is bool:
        known = {"true": True, "false": False}
        if part.lower() not in known:
            raise GrammarError(f"{name} is {part!r}", text, at, "It is true or false.")
        return [known[part.lower()]]
    numbers = _range(_Part(name, text, at, part, kind is int))
    return [kind(x) for x in numbers]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of `text` that begins at `at` and holds numbers; whole ones only, if `whole`."""

    name: str
    text: str
    at: int
    part: str
    whole: bool

    def number(self, place: int) -> tuple[Decimal, int]:
        """The number at `place` of the part, and where it ends."""
        found = _NUMBER.match(self.part, place)
        if found is None:
            raise self.wrong("a number is missing", place)
        value = Decimal(found.group())
        if self.whole and value != value.to_integral_value():
            raise self.wrong(f"{self.name} takes whole numbers", place)
        if value and not -20 <= value.adjusted() <= 20:
            raise self.wrong("such a number is out of range", place)
        return value, found.end()

    def wrong(self, message: str, place: int) -> GrammarError:
        """The error to raise about a place of the part."""
        return GrammarError(message, self.text, self.at + place, _FORMS)


def _range(read: _Part) -> list[Decimal]:
    """The numbers of `a`, `a..b`, `a..b+step` or `a..b*factor`."""
    first, end = read.number(0)
    if end == len(read.part):
        return [first]
    if not read.part.startswith("..", end):
        raise read.wrong("this cannot stand here", end)
    last, place = read.number(end + 2)
    if last < first:
        raise read.wrong("the range runs backwards", end + 2)
    sign, by, end = read.part[place : place + 1], Decimal(1), place
    if sign in ("+", "*"):
        place += 1
        by, end = read.number(place)
    if end < len(read.part):
        raise read.wrong("this cannot stand here", end)
    if by <= (sign == "*"):
        what = "the factor must be over 1" if sign == "*" else "the step must be over 0"
        raise read.wrong(what, place)
    if sign == "*" and first <= 0:
        raise read.wrong("a factor needs a range of numbers over 0", place)
    values = [first]
    while (following := values[-1] * by if sign == "*" else values[-1] + by) <= last:
        if len(values) == MOST:
            raise read.wrong(f"these are over {MOST} values", place)
        values.append(following)
    return values


def parse_sweep(texts: Sequence[str]) -> tuple[Axis, ...]:
    """All axes. Raises GrammarError, also where a name comes twice or the cells are too many."""
    axes: list[Axis] = []
    for text in texts:
        axis = parse_axis(text)
        if any(axis.name == other.name for other in axes):
            raise GrammarError(
                f"{axis.name} is swept twice", text, 0, "Give its values in one list."
            )
        axes.append(axis)
    count = prod(len(axis.values) for axis in axes)
    if count > MOST:
        raise UsageError(f"these are {count} cells, over {MOST}", "Sweep fewer values.")
    return tuple(axes)


def grid(axes: Sequence[Axis], base: Settings) -> tuple[list[Cell], list[SkippedCell]]:
    """Every combination over `base`; those that no settings can have (lp >= n) apart."""
    cells: list[Cell] = []
    skipped: list[SkippedCell] = []
    for values in product(*(axis.values for axis in axes)):
        named = tuple((axis.name, value) for axis, value in zip(axes, values, strict=True))
        try:
            cells.append(Cell(named, _settings(base, dict(named))))
        except UsageError as error:
            skipped.append(SkippedCell(dict(named), str(error)))
    if not cells:
        raise UsageError(f"no cell is left to measure: {skipped[0].reason}", "Sweep other values.")
    return cells, skipped


def _settings(base: Settings, values: Mapping[str, Any]) -> Settings:
    from ngtcli.draft.drafter import draft_settings
    from ngtcli.draft.registry import parse_method

    made = replace(base, **values)
    parse_method(made.method, draft_settings(made))
    return made
