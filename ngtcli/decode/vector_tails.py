"""Do a pass's elementwise functions give a row the same bits whatever the number of rows?

torch computes exp and its like on whole vectors, and what is left at the end of a tensor, or of a
thread's part of it, one number at a time by another formula, whose last bit may differ. Rounded to
half precision one number in thousands shows that: trying does not find it. So each row must fill
whole vectors, and each thread get whole ones (ATen/native/cpu/Loops.h, ATen/Parallel-inl.h).
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ngtcli.decode.model import TargetModel
from ngtcli.draft.tree import DraftTree

# Functions whose two formulas differ; sums, products and square roots are the same in both.
_FUNCTIONS = {
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "elu", "erf", "exp", "exp2",
    "expm1", "gelu", "log", "log10", "log1p", "log2", "log_sigmoid_forward", "mish", "pow",
    "sigmoid", "silu", "sin", "sinh", "softplus", "tan", "tanh",
}  # fmt: skip
_BYTES = 128  # two of the largest vectors, which a loop takes at once
_GRAIN = 32_768  # numbers from which threads share a function (at::internal::GRAIN_SIZE)


class _Sizes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the numbers of what such functions give, and the bytes of one number."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[tuple[int, int]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")
        first = result[0] if isinstance(result, tuple) else result
        if name in _FUNCTIONS and isinstance(first, Tensor):
            squares = name == "pow" and args[1:] == (2,)  # a product
            if not squares:
                self.found.add((first.numel(), first.element_size()))
        return result


def rows_fill_vectors(model: TargetModel, sizes: Iterable[int]) -> bool:
    """Whether they do in passes of these sizes, the smallest first. Empties the cache."""
    rows, *_ = sizes = list(sizes)
    model.start(2 * rows)
    model.prefill([0])
    with _Sizes() as seen:
        model.forward(0, DraftTree((0,) * (rows - 1), tuple(range(-1, rows - 2))))
    return all(
        numbers % rows == 0 and _fills(numbers // rows * size, bytes_each)
        for numbers, bytes_each in seen.found
        for size in sizes
    )


def _fills(numbers: int, bytes_each: int) -> bool:
    """Whether the parts of so many numbers that threads get are whole vectors."""
    threads = min(torch.get_num_threads(), -(-numbers // _GRAIN))
    part = -(-numbers // threads)
    return part * bytes_each % _BYTES == 0
