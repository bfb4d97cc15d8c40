"""What to try: `n=8..16 lp=2..5` read into the cells of a grid. Knows nothing of measuring.

    name=a..b          every whole step from a to b, b included
    name=a..b+step     a, a + step, … up to b
    name=a..b*factor   a, a * factor, … up to b
    name=a,b,c         these; each of them may also be a range

`name` is any setting. Whole-number settings take whole numbers; words (methods, with their options
as in `trtllm:max_draft_len=8`) are listed with commas. What is wrong is shown with a caret.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product
from math import prod
from typing import Any

from ngtcli.config import SETTING_NAMES, Settings, check_value
from ngtcli.errors import GrammarError, UsageError, nearest
from ngtcli.render.sweep_rows import SkippedCell, as_written

Value = int | float | str | bool | tuple[str, ...]
MOST = 1000  # values of one name, and cells in all: more is a slip of the pen

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_NAME = re.compile(r"[A-Za-z][A-Za-z_-]*=")
_DEFAULTS = Settings()
_FORMS = "Write NAME=A..B, NAME=A..B+STEP, NAME=A..B*FACTOR or NAME=A,B,C."


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
    if name not in SETTING_NAMES:
        raise GrammarError(f"no setting {head!r} to sweep", text, 0, nearest(name, SETTING_NAMES))
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
            check_value(name, value)
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
    whole = kind is int
    numbers = list(_range(_Reader(name, whole, text, at, at + len(part))))
    return [int(x) for x in numbers] if whole else [float(x) for x in numbers]


class _Reader:
    """Reads numbers and signs from `text[at:end]`."""

    def __init__(self, name: str, whole: bool, text: str, at: int, end: int) -> None:
        self.name, self.whole, self.text, self.at, self.end = name, whole, text, at, end

    def number(self) -> Decimal:
        """The number at this place."""
        found = _NUMBER.match(self.text, self.at, self.end)
        if found is None:
            raise self.wrong("a number is missing")
        value = Decimal(found.group())
        if self.whole and value != value.to_integral_value():
            raise self.wrong(f"{self.name} takes whole numbers")
        if value and not -20 <= value.adjusted() <= 20:
            raise self.wrong("such a number is out of range")
        self.at = found.end()
        return value

    def sign(self, *signs: str) -> str:
        """The one of `signs` at this place, or ""."""
        for sign in signs:
            if self.text.startswith(sign, self.at, self.end):
                self.at += len(sign)
                return sign
        return ""

    def wrong(self, message: str, at: int | None = None) -> GrammarError:
        """The error to raise, about this place unless `at` is given."""
        return GrammarError(message, self.text, self.at if at is None else at, _FORMS)


def _range(reader: _Reader) -> Iterator[Decimal]:
    """The numbers of `a`, `a..b`, `a..b+step` or `a..b*factor`."""
    value = reader.number()
    if reader.at == reader.end:
        yield value
        return
    if not reader.sign(".."):
        raise reader.wrong("this cannot stand here")
    place = reader.at
    last = reader.number()
    if last < value:
        raise reader.wrong("the range runs backwards", place)
    how = reader.sign("+", "*")
    place = reader.at
    by = reader.number() if how else Decimal(1)
    if reader.at < reader.end:
        raise reader.wrong("this cannot stand here")
    if by <= (how == "*"):
        raise reader.wrong("the factor must be over 1" if how == "*" else "the step must be over 0",
                           place)  # fmt: skip
    if how == "*" and value <= 0:
        raise reader.wrong("a factor needs a range of numbers over 0", place)
    count = 0
    while value <= last:
        if (count := count + 1) > MOST:
            raise reader.wrong(f"these are over {MOST} values", place)
        yield value
        value = value * by if how == "*" else value + by


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
