"""Cells of settings to measure, and how `n=8..16 lp=2..5` is parsed into them.

    name=a..b          a, a + 1, … up to b
    name=a..b+step     a, a + step, … up to b
    name=a..b*factor   a, a * factor, … up to b
    name=a,b,c         these values; each may also be a range

`name` is any setting. Settings of whole numbers take whole numbers only. Words (such as methods,
with their options as in `trtllm:max_draft_len=8`) are listed with commas. An error has the position
of what is wrong.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from math import prod
from typing import Any

from ngtcli.config import SETTINGS, Settings
from ngtcli.errors import MarkedError, NgtError, UsageError
from ngtcli.words import nearest

Value = int | float | str | bool | tuple[str, ...]
Axes = Mapping[str, tuple[Value, ...]]  # the values of each setting, in order, without repeats
BASELINE = "none"  # plain decoding, which all other methods are compared with
AGAINST: dict[str, dict[str, int]] = {  # arguments of generate of `transformers`, by cell
    "hf": {},
    "hf-prompt-lookup": {"prompt_lookup_num_tokens": 10},
}
MAX_VALUES = 1000  # of a setting, and cells in total: more must be a typing error

_NUMBER = r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?"
_RANGE = re.compile(rf"({_NUMBER})(?:\.\.({_NUMBER})(?:([+*])({_NUMBER}))?)?", re.ASCII)
_NAME = re.compile(r"[A-Za-z][A-Za-z_-]*=")
_FORMS = "Write NAME=A..B, NAME=A..B+STEP, NAME=A..B*FACTOR or NAME=A,B,C."


def as_written(value: Any) -> str:
    """Write a value as on a command line.

    >>> [as_written(value) for value in (8, True, ("END", "STOP"))]
    ['8', 'true', 'END,STOP']
    """
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, list | tuple) else str(value)


def label_of(values: Mapping[str, Any]) -> str:
    """Write a combination of values in short: `n=8 lp=2`."""
    return " ".join(f"{name}={as_written(value)}" for name, value in values.items())


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of settings.

    Attributes:
        key: Its name.
        values: The settings that differ between cells.
        settings: All its settings.
    """

    key: str
    values: Mapping[str, Value]
    settings: Settings

    @property
    def num_draft(self) -> int | None:
        """The maximum nodes of a draft, if cells differ in it."""
        return self.settings.drafting.num_draft if "num_draft" in self.values else None


@dataclass(frozen=True, slots=True)
class SkippedCell:
    """A combination of values that is not possible, and why."""

    values: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True)
class Grid:
    """All combinations of the axes' values.

    Attributes:
        axes: The values of each setting.
        base: The settings that cells change.
        cells: The possible combinations.
        skipped: The impossible ones, such as lp >= n.
    """

    axes: Axes
    base: Settings
    cells: list[Cell]
    skipped: list[SkippedCell]


def cell_of(method: str, num_draft: int, base: Settings) -> Cell:
    """Make the cell of a method.

    Args:
        method: The method, with its options.
        num_draft: Maximum nodes of a draft, unless the method's options say another number.
        base: All other settings.

    Raises:
        UsageError: The method is unknown, or an option is wrong.
    """
    settings = base.replace(method=method, num_draft=num_draft)
    parsed = _method_of(settings)
    if parsed.name == BASELINE:
        return Cell(method, {"method": method}, settings.replace(method=BASELINE))
    nodes = parsed.settings.num_draft
    values: dict[str, Value] = {"method": method, "num_draft": nodes}
    return Cell(f"{method} at {nodes}", values, settings.replace(num_draft=nodes))


def is_axis(text: str) -> bool:
    """Return whether an argument is an axis and not a file."""
    return _NAME.match(text) is not None


def parse_axis(text: str) -> tuple[str, tuple[Value, ...]]:
    """Parse one axis. Raises MarkedError.

    >>> parse_axis("num_draft=8..64*2")
    ('num_draft', (8, 16, 32, 64))
    """
    head, _, body = text.partition("=")
    name = head.replace("-", "_")
    if name not in SETTINGS:
        raise MarkedError(f"no setting {head!r} to sweep", text, 0, nearest(name, SETTINGS))
    if not body:
        raise MarkedError(f"{name} has no values", text, len(text), _FORMS)
    values: dict[Value, None] = {}
    offset = len(head) + 1  # of the current part in `text`
    for part in body.split(","):
        try:
            for value in _values(name, part):
                SETTINGS[name].check(value)
                if name == "method":
                    _method_of(Settings().replace(method=str(value)))
                values[value] = None
        except UsageError as error:
            place = error.place if isinstance(error, MarkedError) else 0
            raise MarkedError(str(error), text, offset + place, error.hint) from None
        offset += len(part) + 1
    return name, tuple(values)


def _method_of(settings: Settings) -> Any:
    """Parse the method of `settings`, a `Method`. Raises UsageError if it or an option is wrong."""
    from ngtcli.drafting.drafter import draft_settings  # here: it imports numpy
    from ngtcli.drafting.registry import parse_method

    return parse_method(settings.drafting.method, draft_settings(settings))


def _values(name: str, part: str) -> list[Value]:
    """Return the values of one part between commas. Raises MarkedError."""
    kind = type(Settings().get(name))
    if not part:
        raise MarkedError("a value is missing", part, 0, _FORMS)
    if kind is tuple:
        return [(part,)]
    if kind is str:
        return [part]
    if kind is bool:
        if part.lower() not in ("true", "false"):
            raise MarkedError(
                f"{name} is {part!r}, not true or false", part, 0, "Write true or false."
            )
        return [part.lower() == "true"]
    return [kind(number) for number in _range(name, part, kind is int)]


def _range(name: str, part: str, integers: bool) -> list[Decimal]:
    """Return the numbers of `a`, `a..b`, `a..b+step` or `a..b*factor`.

    Args:
        name: The setting.
        part: The text.
        integers: Whether only whole numbers are valid.

    Raises:
        MarkedError: The text is malformed, or stands for too many numbers.
    """

    def check(is_valid: object, message: str) -> None:
        if not is_valid:
            raise MarkedError(message, part, 0, _FORMS)

    match = _RANGE.fullmatch(part)
    check(match, "not a number or a range")
    assert match is not None
    numbers = [Decimal(number) for number in match.group(1, 2, 4) if number]
    for number in numbers:
        check(not integers or number == number.to_integral_value(), f"{name} takes whole numbers")
        check(-20 <= number.adjusted() <= 20 or not number, "the number is out of range")
    first = numbers[0]
    last = numbers[1] if len(numbers) > 1 else first
    step = numbers[2] if len(numbers) > 2 else Decimal(1)
    is_factor = match[3] == "*"
    check(last >= first, "the range runs backwards")
    if is_factor:
        check(step > 1, "the factor must be greater than 1")
        check(first > 0, "a factor requires a range of numbers greater than 0")
    else:
        check(step > 0, "the step must be greater than 0")
    values: list[Decimal] = []
    value = first
    while value <= last:
        check(len(values) < MAX_VALUES, f"more than {MAX_VALUES} values")
        values.append(value)
        value = value * step if is_factor else value + step
    return values


def parse_sweep(texts: Sequence[str]) -> Axes:
    """Parse all axes. Raises MarkedError, UsageError if there are too many cells."""
    axes: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, values = parse_axis(text)
        if name in axes:
            raise MarkedError(f"{name} is swept twice", text, 0, "Give its values in one list.")
        axes[name] = values
    count = prod(map(len, axes.values()))
    if count > MAX_VALUES:
        raise UsageError(
            f"the sweep has {count} cells, more than {MAX_VALUES}", hint="Sweep fewer values."
        )
    return axes


def grid(axes: Axes, base: Settings) -> Grid:
    """Make every combination of the axes' values. Raises UsageError if none is possible."""
    cells: list[Cell] = []
    skipped: list[SkippedCell] = []
    for combination in product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        try:
            settings = base.replace(**dict[str, Any](values))
            _method_of(settings)
            cells.append(Cell(label_of(values), values, settings))
        except UsageError as error:
            skipped.append(SkippedCell(values, f"{error}. {error.hint}"))
    if not cells:
        raise UsageError(
            f"no cell can be measured: {skipped[0].reason}", hint="Sweep other values."
        )
    return Grid(axes, base, cells, skipped)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A method that does not take part, and why."""

    method: str
    reason: str


def refusal(method: str, error: Exception) -> Refusal:
    """Make the Refusal of a method from an error."""
    hint = error.hint if isinstance(error, NgtError) else ""
    return Refusal(method, f"{error}. {hint}" if hint else str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Options of `ngt bench`. Plain decoding always takes part.

    Attributes:
        methods: The methods to measure.
        num_drafts: Maximum nodes of a draft; each method is measured with each number.
        against: Whether generate of `transformers` takes part.
        rounds: Rounds over all prompts.
        fresh: Whether drafters forget everything at each prompt.
    """

    methods: Sequence[str] = ("trie",)
    num_drafts: Sequence[int] = (32,)
    against: bool = False
    rounds: int = 1
    fresh: bool = False


def cells_of(
    methods: Sequence[str], num_drafts: Sequence[int], settings: Settings
) -> tuple[list[Cell], list[Refusal]]:
    """Make a cell for each method and number of nodes; also return the methods that cannot run."""
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
    """Raise UsageError if none of `methods` has a cell."""
    if not any(cell.values["method"] in methods for cell in cells):
        reason = refused[0].reason if refused else "none was named"
        raise UsageError(f"no method can run: {reason}", hint="Choose others with --methods.")
