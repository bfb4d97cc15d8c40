"""What is found out by trying a model on this machine: once, then it is stored.

There are four trials: how a model is run (probe.py), whether its passes are exact (exact_check.py),
whether packed weights pay (packed.py), and what passes cost (calibration.py).
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from ngtcli.system.remembered import Remembered

Found = TypeVar("Found")


def remembered(
    kind: str,
    hf: Any,
    read: Callable[[Any], Found],
    *parts: object,
    write: Callable[[Any], Any] = asdict,
    **more: Any,
) -> Remembered[Found]:
    """Where the result of a kind of trial is kept for a model: `Remembered`, whose rest is `more`.

    It depends on the dtype, the attention, the class and the configuration of the model, and on
    `parts`.
    """
    attention = getattr(hf.config, "_attn_implementation", None)
    own = (hf.dtype, attention, type(hf).__name__, hf.config.to_json_string(use_diff=False))
    return Remembered(kind, hf.device, (*own, *parts), read, write, **more)
