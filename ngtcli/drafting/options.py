"""Options of methods: how they are declared, checked, and read from text."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ngtcli.config import KINDS
from ngtcli.errors import UsageError
from ngtcli.words import nearest, plain_number

if TYPE_CHECKING:  # a module of type checkers
    from _typeshed import DataclassInstance

AnyOptions = TypeVar("AnyOptions", bound="DataclassInstance")


def option(default: Any, low: float, high: float) -> Any:
    """Declare a field of `MethodOptions` with a value from `low` to `high`."""
    return field(default=default, metadata={"within": (low, high)})


@dataclass(frozen=True, slots=True)
class MethodOptions:
    """Base class of a method's options. Raises UsageError for a value out of range."""

    def __post_init__(self) -> None:
        for declared in fields(self):
            if "within" in declared.metadata:
                low, high = declared.metadata["within"]
                check_range(declared.name, getattr(self, declared.name), low, high)


def read_options(defaults: AnyOptions, options: Mapping[str, str]) -> AnyOptions:
    """Return a copy of a dataclass in which values written as text replace some fields.

    Args:
        defaults: The dataclass; its fields are int, float, bool ("true" or "false") or str.
        options: The values by the names of the fields.

    Raises:
        UsageError: There is no such field, or the value is not of its type or range.
    """
    names = [declared.name for declared in fields(defaults)]
    values: dict[str, Any] = {}
    for key, text in options.items():
        if key not in names:
            raise UsageError(
                f"no option {key!r}", hint=nearest(key, names) if names else "It has none."
            )
        values[key] = _read(key, text, type(getattr(defaults, key)))
    return replace(defaults, **values)


def _read(key: str, text: str, kind: type) -> Any:
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise UsageError(f"{key} is {text!r}", hint=f"It must be {KINDS[kind]}.") from None


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise UsageError unless `low <= value <= high`."""
    if not low <= value <= high:
        raise UsageError(
            f"{name} is {plain_number(value)}",
            hint=f"Give a value from {plain_number(low)} to {plain_number(high)}.",
        )
