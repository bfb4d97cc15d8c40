"""Whether a checkpoint's weights are those of the model that its configuration describes."""

from collections.abc import Callable, Iterable
from typing import Any

from ngtcli.errors import ModelError

Notify = Callable[[str], None]


def check_weights(name: str, told: dict[str, Any], warn: Notify) -> None:
    """Raise ModelError unless the weights fill the model; `warn` of those that it does not use.

    `told` is the loading report of `transformers`, which gives missing weights random values.
    """
    for key, stored, wanted in sorted(told["mismatched_keys"]):
        raise ModelError(
            f"{name}: {key} has shape {_shape(stored)} in the weights and {_shape(wanted)} by"
            " config.json",
            "The two are not of one model; download it again.",
        )
    if missing := sorted(told["missing_keys"]):
        raise ModelError(
            f"{name}: the weights lack {_some(missing)}",
            "They do not fill the model that config.json describes; download it again.",
        )
    if unused := sorted(told["unexpected_keys"]):
        warn(f"{name}: the model has no use for {_some(unused)} of its weights")


def _shape(shape: Iterable[int]) -> str:
    return "×".join(map(str, shape)) or "()"


def _some(keys: list[str]) -> str:
    """The first of some tensors' names, and how many more there are.

    >>> _some(["a", "b", "c"])
    'a, b and 1 more'
    """
    more = f" and {len(keys) - 2} more" if len(keys) > 2 else ""
    return ", ".join(keys[:2]) + more
