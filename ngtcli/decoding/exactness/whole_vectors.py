"""Activation functions that give a number the same bits whatever the number of rows.

torch computes pointwise functions on whole vectors, but what is left at the end of a tensor, or of
a thread's part of it, one number at a time (ATen/native/cpu/Loops.h), for silu and its like by
another formula. Here such a function gets a tensor that is padded until each thread's part is
whole. `RaggedFunctions` finds those that get other tensors.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.activations import ACT2CLS

from ngtcli.decoding.scores import rounds

_GRAIN = 32768  # numbers that one thread computes alone: ATen's GRAIN_SIZE
_GELU_GRAIN = 16384  # the same of gelu, which more are shared among all threads
_STEP = 128  # bytes that a loop takes at once: two of the largest vectors
_TRIED = 1 << 16  # numbers: all of half precision, and as many random ones of other dtypes


def whole(count: int, threads: int, step: int) -> int:
    """The least number, from `count` on, of which each thread gets a multiple of `step`.

    >>> whole(65, 1, 64), whole(65_600, 2, 64), whole(65_600, 3, 64)
    (128, 65664, 65664)
    """
    while True:
        shared = min(threads, -(-count // _GRAIN)), threads if count > _GELU_GRAIN else 1
        if not any(count % (step * parts) for parts in shared):
            return count
        count += step - count % step


class WholeVectors(nn.Module):
    """An activation function of any tensor, computed in whole vectors."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, given: Tensor) -> Tensor:
        """As the function."""
        count = given.numel()
        places = whole(count, torch.get_num_threads(), _STEP // given.itemsize)
        if places == count and given.is_contiguous():
            return self.function(given)  # type: ignore[no-any-return]
        flat = nn.functional.pad(given.reshape(-1), (0, places - count))
        return self.function(flat)[:count].view(given.shape)  # type: ignore[no-any-return]


@torch.inference_mode()
def use_whole_vectors(hf: Any) -> None:
    """Prepare the activation functions of a model that rounds, on a CPU.

    Those that compute all numbers by one formula stay as they are.
    """
    if hf.device.type != "cpu" or not rounds(hf):
        return
    known = tuple(kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values())
    made: dict[tuple[Any, ...], nn.Module] = {}
    for parent in [module for module in hf.modules() if not isinstance(module, WholeVectors)]:
        for name, child in list(parent.named_children()):
            if not isinstance(child, known) or any(True for _ in child.parameters()):
                continue
            values = {key: value for key, value in vars(child).items() if key[0] != "_"}
            kind = type(child), str(values)
            if kind not in made:
                made[kind] = WholeVectors(child) if has_two_formulas(child, hf.dtype) else child
            setattr(parent, name, made[kind])


def has_two_formulas(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> bool:
    """Whether a function of such numbers, which may be one in place, shows which fill vectors."""
    source = torch.Generator().manual_seed(0)
    if dtype.itemsize == 2:  # all that are finite, shuffled
        order = torch.randperm(_TRIED, generator=source) - _TRIED // 2
        given = order.to(torch.int16).view(dtype)
        given = given.where(given.isfinite(), 0.0)
    else:
        magnitudes = 10 ** (8 * torch.rand(_TRIED, generator=source) - 4)
        given = (torch.randn(_TRIED, generator=source) * magnitudes).to(dtype)
    # Numbers that do not lie side by side are computed one at a time.
    single = function(torch.stack((given, given), 1)[:, 0])
    return not torch.equal(function(given).nan_to_num(), single.nan_to_num())


class RaggedFunctions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`found`: a function of two formulas was computed within it of parts of vectors.

    Of several tensors there is arithmetic alone, which has one.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False
        self._two: dict[tuple[Any, ...], bool] = {}  # by function, dtype and other arguments

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; to be left out of that, torch loads its compiler

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.found and torch.Tag.pointwise in func.tags and isinstance(result, Tensor):
            given, *others = args
            single = not any(isinstance(one, Tensor) and one.ndim for one in others)
            floats = isinstance(given, Tensor) and given.is_floating_point()
            if single and floats and result.is_floating_point() and not _is_whole(given):
                key = func, given.dtype, str(others), str(kwargs)
                if key not in self._two:
                    self._two[key] = has_two_formulas(
                        lambda some: func(some, *others, **(kwargs or {})), given.dtype
                    )
                self.found = self._two[key]
        return result


def _is_whole(given: Tensor) -> bool:
    """Whether it is computed in whole vectors."""
    count, step = given.numel(), _STEP // given.itemsize
    side_by_side = given.ndim > 0 and given.stride(-1) == 1 and given.shape[-1] % step == 0
    shared = whole(count, torch.get_num_threads(), step) == count
    return shared and (given.is_contiguous() or side_by_side)
