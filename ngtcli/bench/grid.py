"""What is measured: cells of settings, and `n=8..16 lp=2..5` read into them.

    name=a..b          every whole step from a to b, b included
    name=a..b+step     a, a + step, … up to b
    name=a..b*factor   a, a * factor, … up to b
    name=a,b,c         these; each of them may also be a range

`name` is any setting. Whole-number settings take whole numbers; words (methods, with their options
as in `trtllm:max_draft_len=8`) are listed with commas. What is wrong is shown with a caret.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from math import prod
from typing import Any

from ngtcli.config import SETTINGS, Settings
from ngtcli.errors import GrammarError, NgtError, UsageError
from ngtcli.words import nearest

Value = int | float | str | bool | tuple[str, ...]
Axes = Mapping[str, tuple[Value, ...]]  # by name the values it is to take, in order, each once
BASELINE = "none"  # plain decoding, which the others are set against
AGAINST: dict[str, dict[str, int]] = {  # generate of `transformers`, and what it is given
    "hf": {},
    "hf-prompt-lookup": {"prompt_lookup_num_tokens": 10},
}
MOST = 1000  # values of one name, and cells in all: more are a typing error

_NUMBER = r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?"
_RANGE = re.compile(rf"({_NUMBER})(?:\.\.({_NUMBER})(?:([+*])({_NUMBER}))?)?", re.ASCII)
_NAME = re.compile(r"[A-Za-z][A-Za-z_-]*=")
_FORMS = "Write NAME=A..B, NAME=A..B+STEP, NAME=A..B*FACTOR or NAME=A,B,C."


def as_written(value: Any) -> str:
    """A value as it is written on a command line.

    >>> [as_written(value) for value in (8, True, ("END", "STOP"))]
    ['8', 'true', 'END,STOP']
    """
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, list | tuple) else str(value)


def label_of(values: Mapping[str, Any]) -> str:
    """A combination of values in short: `n=8 lp=2`."""
    return " ".join(f"{name}={as_written(value)}" for name, value in values.items())


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of settings; `values` are those that tell it from others, `key` its name."""

    key: str
    values: Mapping[str, Value]
    settings: Settings

    @property
    def num_draft(self) -> int | None:
        """The most nodes of a draft, where that is measured."""
        return self.settings.drafting.num_draft if "num_draft" in self.values else None


@dataclass(frozen=True, slots=True)
class SkippedCell:
    """A combination that cannot be, and why."""

    values: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True)
class Grid:
    """All combinations of the axes' values, those that no settings can have (lp >= n) `skipped`."""

    axes: Axes
    base: Settings  # below the cells
    cells: list[Cell]
    skipped: list[SkippedCell]


def cell_of(method: str, num_draft: int, base: Settings) -> Cell:
    """A method with that many nodes at most, if it does not name another number itself.

    Raises UsageError for an unknown method or a wrong option.
    """
    settings = base.replace(method=method, num_draft=num_draft)
    parsed = _method_of(settings)
    if parsed.name == BASELINE:
        return Cell(method, {"method": method}, settings.replace(method=BASELINE))
    own = parsed.settings.num_draft
    values: dict[str, Value] = {"method": method, "num_draft": own}
    return Cell(f"{method} at {own}", values, settings.replace(num_draft=own))


def is_axis(text: str) -> bool:
    """Whether an argument is meant as an axis and not as a file."""
    return _NAME.match(text) is not None


def parse_axis(text: str) -> tuple[str, tuple[Value, ...]]:
    """Read one axis. Raises GrammarError.

    >>> parse_axis("num_draft=8..64*2")
    ('num_draft', (8, 16, 32, 64))
    """
    head, _, body = text.partition("=")
    name = head.replace("-", "_")
    if name not in SETTINGS:
        raise GrammarError(f"no setting {head!r} to sweep", text, 0, nearest(name, SETTINGS))
    if not body:
        raise GrammarError(f"{name} is given no values", text, len(text), _FORMS)
    values: dict[Value, None] = {}
    at = len(head) + 1
    for part in body.split(","):
        try:
            for value in _values(name, part):
                SETTINGS[name].check(value)
                if name == "method":
                    _method_of(Settings().replace(method=str(value)))
                values[value] = None
        except UsageError as error:
            place = error.place if isinstance(error, GrammarError) else 0
            raise GrammarError(str(error), text, at + place, error.hint) from None
        at += len(part) + 1
    return name, tuple(values)


def _method_of(settings: Settings) -> Any:
    """The method of `settings`. Raises UsageError if it is none, or not one with the others."""
    from ngtcli.drafting.drafter import draft_settings  # here: numpy comes with it
    from ngtcli.drafting.registry import parse_method

    return parse_method(settings.drafting.method, draft_settings(settings))


def _values(name: str, part: str) -> list[Value]:
    """The values that one part between commas stands for. Raises GrammarError."""
    kind = type(Settings().get(name))
    if not part:
        raise GrammarError("a value is missing", part, 0, _FORMS)
    if kind is tuple:
        return [(part,)]
    if kind is str:
        return [part]
    if kind is bool:
        if part.lower() not in ("true", "false"):
            raise GrammarError(f"{name} is {part!r}", part, 0, "It is true or false.")
        return [part.lower() == "true"]
    return [kind(x) for x in _range(name, part, kind is int)]


def _range(name: str, part: str, whole: bool) -> list[Decimal]:
    """The numbers of `a`, `a..b`, `a..b+step` or `a..b*factor`, whole ones only, if `whole`."""

    def check(right: object, message: str) -> None:
        if not right:
            raise GrammarError(message, part, 0, _FORMS)

    found = _RANGE.fullmatch(part)
    check(found, "this is no number and no range")
    assert found is not None
    numbers = [Decimal(number) for number in found.group(1, 2, 4) if number]
    for number in numbers:
        check(not whole or number == number.to_integral_value(), f"{name} takes whole numbers")
        check(-20 <= number.adjusted() <= 20 or not number, "such a number is out of range")
    first, last = numbers[0], numbers[min(1, len(numbers) - 1)]
    by = numbers[2] if len(numbers) > 2 else Decimal(1)
    factor = found[3] == "*"
    check(last >= first, "the range runs backwards")
    check(by > factor, "the factor must be over 1" if factor else "the step must be over 0")
    check(first > 0 or not factor, "a factor needs a range of numbers over 0")
    values = [first]
    while (following := values[-1] * by if factor else values[-1] + by) <= last:
        check(len(values) < MOST, f"these are over {MOST} values")
        values.append(following)
    return values


def parse_sweep(texts: Sequence[str]) -> Axes:
    """All axes. Raises GrammarError, also where a name comes twice or the cells are too many."""
    axes: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, values = parse_axis(text)
        if name in axes:
            raise GrammarError(f"{name} is swept twice", text, 0, "Give its values in one list.")
        axes[name] = values
    count = prod(map(len, axes.values()))
    if count > MOST:
        raise UsageError(f"these are {count} cells, over {MOST}", hint="Sweep fewer values.")
    return axes


def grid(axes: Axes, base: Settings) -> Grid:
    """Every combination over `base`. Raises UsageError where no settings can have any."""
    made = Grid(axes, base, [], [])
    for values in product(*axes.values()):
        named = dict(zip(axes, values, strict=True))
        try:
            settings = base.replace(**dict[str, Any](named))
            _method_of(settings)
            made.cells.append(Cell(label_of(named), named, settings))
        except UsageError as error:
            made.skipped.append(SkippedCell(named, f"{error}. {error.hint}"))
    if not made.cells:
        reason = made.skipped[0].reason
        raise UsageError(f"no cell is left to measure: {reason}", hint="Sweep other values.")
    return made


@dataclass(frozen=True, slots=True)
class Refusal:
    """A method that takes no part, and why."""

    method: str
    reason: str


def refusal(method: str, error: Exception) -> Refusal:
    """Why a method does not take part, as results name it."""
    hint = error.hint if isinstance(error, NgtError) else ""
    return Refusal(method, f"{error}. {hint}" if hint else str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is measured and how.

    Plain decoding always takes part: the others are set against it. With `against` generate of
    `transformers` does, too. With `fresh` drafters forget what they learned at each prompt.
    """

    methods: Sequence[str] = ("trie",)
    num_drafts: Sequence[int] = (32,)
    against: bool = False
    rounds: int = 1
    fresh: bool = False


def cells_of(
    methods: Sequence[str], num_drafts: Sequence[int], settings: Settings
) -> tuple[list[Cell], list[Refusal]]:
    """A cell for each method and number of nodes, each once; what cannot be is refused, once."""
    cells: dict[str, Cell] = {}
    refused: dict[Refusal, None] = {}
    for method, number in product(dict.fromkeys(methods), num_drafts):
        try:
            cell = cell_of(method, number, settings)
        except NgtError as error:
            refused[refusal(method, error)] = None
        else:
            cells[cell.key] = cell
    return list(cells.values()), list(refused)


def check_some_left(
    methods: Sequence[str], cells: Sequence[Cell], refused: Sequence[Refusal]
) -> None:
    """Raise UsageError where none of `methods` is left among the cells."""
    if not any(cell.values["method"] in methods for cell in cells):
        reason = next((r.reason for r in refused), "none is named")
        raise UsageError(f"no method can run: {reason}", hint="Choose others with --methods.")
