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
WHOLE = 10**15 - 1
LARGEST = 2**53 - 1  # of bounds that are given; derived: float64 holds all whole numbers up to it
_LONGEST = 100_000  # characters, items or keys, above the room of any answer; guess
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
NUMERIC = (*_LOWER, *_UPPER, "multipleOf")
_KINDS = ("number", "whole number")
COUNTS = {
    "minLength": "maxLength", "minItems": "maxItems", "minProperties": "maxProperties",
}  # fmt: skip
_EXACT = Context(prec=400)

Refuse = Callable[[str, str], NoReturn]  # by the keyword and what is wrong with it


def with_counts(own: Schema, refuse: Refuse) -> Schema:
    """A part whose lengths are whole numbers that an answer can have."""
    found = dict(own)
    for least, most in COUNTS.items():
        for name in {least, most} & {*own}:
            value = own[name]
            is_whole = isinstance(value, int | float) and value == value // 1
            if not is_whole or isinstance(value, bool) or value < 0:
                refuse(name, f"{shown(value)} is no whole number of at least 0")
            found[name] = int(min(value, _LONGEST))
        if own.get(least, 0) > _LONGEST:
            refuse(least, f"{shown(own[least])} is more than any answer has")
        if found.get(least, 0) > found.get(most, _LONGEST):
            refuse(least, f"{least} ({own[least]}) is greater than {most} ({own[most]})")
    return found


def with_range(own: Schema, is_whole: bool, refuse: Refuse) -> Schema:
    """A part for numbers with a `minimum` and a `maximum` that some number has.

    `is_whole`: for integers alone. Exclusive bounds become inclusive ones.
    """
    given = {name: _exact(own[name], name, refuse) for name in NUMERIC if name in own}
    multiple = given.pop("multipleOf", None)
    if multiple is not None and not 0 < multiple < math.inf:
        refuse("multipleOf", f"{shown(own['multipleOf'])} is not greater than 0")
    low = max((given[n] for n in _LOWER if n in given), default=None)
    high = min((given[n] for n in _UPPER if n in given), default=None)
    lower = next((n for n in _LOWER if n in given), "minimum")
    upper = next((n for n in _UPPER if n in given), "maximum")
    if low is not None and high is not None and low > high:
        refuse(lower, f"{lower} ({own[lower]}) is greater than {upper} ({own[upper]})")
    if low is not None and low > LARGEST:
        refuse(lower, f"numbers beyond {LARGEST} are not exact in JSON")
    if high is not None and high < -LARGEST:
        refuse(upper, f"numbers beyond -{LARGEST} are not exact in JSON")
    if low is None:
        low = Decimal(-WHOLE) if high is None else min(Decimal(-WHOLE), 10 * high)
    if high is None:
        high = max(Decimal(WHOLE), 10 * low)
    low, high = max(low, Decimal(-LARGEST)), min(high, Decimal(LARGEST))
    step = _step(multiple, is_whole, high - low)
    first, last = _up(low, step), _down(high, step)
    if first == given.get("exclusiveMinimum"):
        first += step
    if last == given.get("exclusiveMaximum"):
        last -= step
    if first > last:
        what = f"multiple of {own['multipleOf']}" if multiple else _KINDS[is_whole]
        keyword = next(name for name in ("multipleOf", *NUMERIC) if name in own)
        refuse(keyword, f"no {what} lies between its bounds")
    found = {key: value for key, value in own.items() if key not in NUMERIC}
    found |= {"minimum": _plain(first), "maximum": _plain(last)}
    if multiple is not None and (not is_whole or step != 1):
        found["multipleOf"] = _plain(step)
    return found


def in_range(value: Any, own: Schema, refuse: Refuse) -> bool:
    """Whether the bounds of a part allow a value of its `enum` or `const`, if it is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    number = _exact(value, "enum", refuse)
    given = {name: _exact(own[name], name, refuse) for name in NUMERIC if name in own}
    multiple = given.get("multipleOf")
    if multiple is not None and not 0 < multiple < math.inf:
        refuse("multipleOf", f"{shown(own['multipleOf'])} is not greater than 0")
    return not (
        "minimum" in given
        and number < given["minimum"]
        or "maximum" in given
        and number > given["maximum"]
        or "exclusiveMinimum" in given
        and number <= given["exclusiveMinimum"]
        or "exclusiveMaximum" in given
        and number >= given["exclusiveMaximum"]
        or multiple is not None
        and Fraction(number) % Fraction(multiple) != 0
    )


def digits(low: float, high: float) -> float:
    """The multiple that numbers of a range have where none is given: a bound for their digits."""
    return 1e-6 if high - low >= 1 else 1e-9


def _exact(value: Any, name: str, refuse: Refuse) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        refuse(name, f"{shown(value)} is no number")
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def _step(multiple: Decimal | None, is_whole: bool, span: Decimal) -> Decimal:
    """The distance of two numbers that may be answers."""
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
