"""Tensors of a device that knows no float64, as MPS; what they hold is on the CPU."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


class NoFloat64(Tensor):
    """Says that it is on "meta", and holds values. Raises TypeError where float64 is made of it."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "NoFloat64":
        if held.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device="meta"
        )
        made.held = held
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        leaves = torch.device(given.pop("device", "meta")).type == "cpu"
        if leaves:
            given["device"] = "cpu"
        plain, given = tree_map_only(NoFloat64, lambda one: one.held, (args, given))
        out = func(*plain, **given)
        return out if leaves else tree_map_only(Tensor, NoFloat64, out)
