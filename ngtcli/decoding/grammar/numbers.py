"""The numbers in a part of a JSON Schema, so that llguidance computes with them exactly.

It reads bounds as float64: from 2**53 on they would move, at the ends of int64 they make it recurse
without an end, and beyond the answer would be another than the schema allows. So bounds are clamped
where that only leaves values out, and refused where nothing would be left.
"""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any, NoReturn

from ngtcli.system.json_form import Schema
from ngtcli.system.yaml_file import shown

# Numbers without a bound of their own have one of 15 digits: every JSON reader keeps these.
WHOLE = 10**15 - 1  # the largest
LARGEST = 2**53 - 1  # of bounds that are given; derived: float64 holds all whole numbers up to it
_LONGEST = 100_000  # characters, items or keys, above the room of any answer (guess)
_LOWER = ("minimum", "exclusiveMinimum")
_UPPER = ("maximum", "exclusiveMaximum")
NUMERIC = (*_LOWER, *_UPPER, "multipleOf")
_KINDS = ("number", "whole number")
COUNTS = {
    "minLength": "maxLength",
    "minItems": "maxItems",
    "minProperties": "maxProperties",
}
_EXACT = Context(prec=400)

Refuse = Callable[[str, str], NoReturn]  # by the keyword and what is wrong with it


def with_counts(part: Schema, refuse: Refuse) -> Schema:
    """Return a part whose lengths are whole numbers that an answer can have.

    Args:
        part: A part of a schema.
        refuse: Raises the error for a keyword.
    """
    checked = dict(part)
    for min_name, max_name in COUNTS.items():
        for name in {min_name, max_name} & {*part}:
            value = part[name]
            is_whole = isinstance(value, int | float) and value == value // 1
            if not is_whole or isinstance(value, bool) or value < 0:
                refuse(name, f"{shown(value)} is not a whole number of at least 0")
            checked[name] = int(min(value, _LONGEST))
        if part.get(min_name, 0) > _LONGEST:
            refuse(min_name, f"{shown(part[min_name])} is more than any answer has")
        if checked.get(min_name, 0) > checked.get(max_name, _LONGEST):
            refuse(
                min_name,
                f"{min_name} ({part[min_name]}) is greater than {max_name} ({part[max_name]})",
            )
    return checked


def with_range(part: Schema, is_whole: bool, refuse: Refuse) -> Schema:
    """Return a part for numbers with a `minimum` and a `maximum` that some number has.

    Exclusive bounds become inclusive ones.

    Args:
        part: A part of a schema.
        is_whole: Whether it allows integers alone.
        refuse: Raises the error for a keyword.
    """
    bounds = {name: _exact(part[name], name, refuse) for name in NUMERIC if name in part}
    multiple = bounds.pop("multipleOf", None)
    if multiple is not None and not 0 < multiple < math.inf:
        refuse("multipleOf", f"{shown(part['multipleOf'])} is not greater than 0")
    low = max((bounds[name] for name in _LOWER if name in bounds), default=None)
    high = min((bounds[name] for name in _UPPER if name in bounds), default=None)
    lower = next((name for name in _LOWER if name in bounds), "minimum")
    upper = next((name for name in _UPPER if name in bounds), "maximum")
    if low is not None and high is not None and low > high:
        refuse(lower, f"{lower} ({part[lower]}) is greater than {upper} ({part[upper]})")
    if low is not None and low > LARGEST:
        refuse(lower, f"numbers beyond {LARGEST} are not exact in JSON")
    if high is not None and high < -LARGEST:
        refuse(upper, f"numbers beyond -{LARGEST} are not exact in JSON")
    if low is None:
        low = Decimal(-WHOLE) if high is None else min(Decimal(-WHOLE), 10 * high)
    if high is None:
        high = max(Decimal(WHOLE), 10 * low)
    low = max(low, Decimal(-LARGEST))
    high = min(high, Decimal(LARGEST))
    step = _step(multiple, is_whole, high - low)
    first = _up(low, step)
    last = _down(high, step)
    if first == bounds.get("exclusiveMinimum"):
        first += step
    if last == bounds.get("exclusiveMaximum"):
        last -= step
    if first > last:
        kind = f"multiple of {part['multipleOf']}" if multiple else _KINDS[is_whole]
        keyword = next(name for name in ("multipleOf", *NUMERIC) if name in part)
        refuse(keyword, f"no {kind} lies between its bounds")
    bounded = {key: value for key, value in part.items() if key not in NUMERIC}
    bounded |= {"minimum": _plain(first), "maximum": _plain(last)}
    if multiple is not None and (not is_whole or step != 1):
        bounded["multipleOf"] = _plain(step)
    return bounded


def in_range(value: Any, part: Schema, refuse: Refuse) -> bool:
    """Return whether the bounds of a part allow a value of its `enum` or `const`.

    Values that are no numbers are allowed.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    number = _exact(value, "enum", refuse)
    bounds = {name: _exact(part[name], name, refuse) for name in NUMERIC if name in part}
    multiple = bounds.get("multipleOf")
    if multiple is not None and not 0 < multiple < math.inf:
        refuse("multipleOf", f"{shown(part['multipleOf'])} is not greater than 0")
    if "minimum" in bounds and number < bounds["minimum"]:
        return False
    if "maximum" in bounds and number > bounds["maximum"]:
        return False
    if "exclusiveMinimum" in bounds and number <= bounds["exclusiveMinimum"]:
        return False
    if "exclusiveMaximum" in bounds and number >= bounds["exclusiveMaximum"]:
        return False
    return multiple is None or Fraction(number) % Fraction(multiple) == 0


def digits(low: float, high: float) -> float:
    """Return the `multipleOf` of a range that has none: it bounds the digits of a number."""
    return 1e-6 if high - low >= 1 else 1e-9


def _exact(value: Any, name: str, refuse: Refuse) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        refuse(name, f"{shown(value)} is not a number")
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def _step(multiple: Decimal | None, is_whole: bool, span: Decimal) -> Decimal:
    """Return the distance of two neighboring numbers that may be answers."""
    if is_whole:  # whole multiples of p/q are those of p
        return Decimal(Fraction(multiple or 1).numerator)
    return multiple or Decimal(repr(digits(0, float(span))))


def _up(value: Decimal, step: Decimal) -> Decimal:
    times = _EXACT.divide(value, step).to_integral_value(ROUND_CEILING, _EXACT)
    return _EXACT.multiply(times, step)


def _down(value: Decimal, step: Decimal) -> Decimal:
    times = _EXACT.divide(value, step).to_integral_value(ROUND_FLOOR, _EXACT)
    return _EXACT.multiply(times, step)


def _plain(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)
