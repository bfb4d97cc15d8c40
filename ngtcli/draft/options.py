"""Options written as text: how they become fields of a dataclass, and their ranges."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from ngtcli.config import KINDS
from ngtcli.errors import UsageError, nearest, plain_number

Options = TypeVar("Options")


def read_options(defaults: Options, options: Mapping[str, str]) -> Options:
    """`defaults`, a dataclass, with fields replaced by values written as text. Raises UsageError.

    Fields may be int, float, bool ("true" or "false") or str.
    """
    known = {f.name: getattr(defaults, f.name) for f in fields(defaults)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, text in options.items():
        if key not in known:
            raise UsageError(f"no option {key!r}", nearest(key, known) if known else "It has none.")
        values[key] = _read(key, text, type(known[key]))
    return replace(defaults, **values)  # type: ignore[type-var]


def _read(key: str, text: str, kind: type) -> Any:
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise UsageError(f"{key} is {text!r}", f"It must be {KINDS[kind]}.") from None


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise UsageError unless `low <= value <= high`."""
    if not low <= value <= high:
        raise UsageError(
            f"{name} is {plain_number(value)}",
            f"Give a value from {plain_number(low)} to {plain_number(high)}.",
        )
