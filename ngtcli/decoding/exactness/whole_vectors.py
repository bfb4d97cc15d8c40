"""Activation functions that give a number the same bits whatever the number of rows.

torch computes pointwise functions on whole SIMD vectors, but the rest at the end of a tensor, or of
a thread's part of it, one number at a time (ATen/native/cpu/Loops.h), for SiLU and its like by
another formula. Here such a function gets a tensor padded until the part of each thread is whole.
`RaggedFunctions` finds those that get other tensors.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.activations import ACT2CLS

from ngtcli.decoding.logits import rounds

_GRAIN = 32768  # numbers that one thread computes alone: ATen's GRAIN_SIZE
_GELU_GRAIN = 16384  # the same for GELU, which shares more among all threads
_STEP_BYTES = 128  # that a loop takes at once: two of the largest vectors
_TRIED = 1 << 16  # numbers: all of half precision, as many random ones of other dtypes


def whole_size(count: int, threads: int, step: int) -> int:
    """Return the smallest number, from `count` on, of which each thread gets a multiple of `step`.

    >>> whole_size(65, 1, 64), whole_size(65_600, 2, 64), whole_size(65_600, 3, 64)
    (128, 65664, 65664)
    """
    while True:
        parts = min(threads, -(-count // _GRAIN))
        gelu_parts = threads if count > _GELU_GRAIN else 1
        if count % (step * parts) == 0 and count % (step * gelu_parts) == 0:
            return count
        count += step - count % step


class WholeVectors(nn.Module):
    """An activation function of any tensor, computed on whole vectors."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        """As the function."""
        count = inputs.numel()
        step = _STEP_BYTES // inputs.itemsize
        padded_count = whole_size(count, torch.get_num_threads(), step)
        if padded_count == count and inputs.is_contiguous():
            outputs: Tensor = self.function(inputs)
            return outputs
        flat = nn.functional.pad(inputs.reshape(-1), (0, padded_count - count))
        padded_outputs: Tensor = self.function(flat)
        return padded_outputs[:count].view(inputs.shape)


@torch.inference_mode()
def use_whole_vectors(hf: Any) -> None:
    """Wrap the activation functions of a model that rounds, on a CPU.

    Those that compute all numbers by one formula stay as they are.
    """
    if hf.device.type != "cpu" or not rounds(hf):
        return
    activations = tuple(kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values())
    wrapped: dict[tuple[Any, ...], nn.Module] = {}  # by class and values
    for parent in [module for module in hf.modules() if not isinstance(module, WholeVectors)]:
        for name, child in list(parent.named_children()):
            has_parameters = any(True for _ in child.parameters())
            if not isinstance(child, activations) or has_parameters:
                continue
            values = {key: value for key, value in vars(child).items() if key[0] != "_"}
            key = type(child), str(values)
            if key not in wrapped:
                is_ragged = has_two_formulas(child, hf.dtype)
                wrapped[key] = WholeVectors(child) if is_ragged else child
            setattr(parent, name, wrapped[key])


def has_two_formulas(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> bool:
    """Return whether a function, which may work in place, shows which numbers fill a vector."""
    generator = torch.Generator().manual_seed(0)
    if dtype.itemsize == 2:  # all that are finite, shuffled
        order = torch.randperm(_TRIED, generator=generator) - _TRIED // 2
        inputs = order.to(torch.int16).view(dtype)
        inputs = inputs.where(inputs.isfinite(), 0.0)
    else:
        magnitudes = 10 ** (8 * torch.rand(_TRIED, generator=generator) - 4)
        inputs = (torch.randn(_TRIED, generator=generator) * magnitudes).to(dtype)
    # Numbers that do not lie side by side are computed one at a time.
    single = function(torch.stack((inputs, inputs), 1)[:, 0])
    return not torch.equal(function(inputs).nan_to_num(), single.nan_to_num())


class RaggedFunctions(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Finds functions of two formulas that are computed on parts of vectors within this context.

    Functions of several tensors are arithmetic, which has one formula.

    Attributes:
        found: Whether there was one.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.found = False
        self._has_two: dict[tuple[Any, ...], bool] = {}  # by function, dtype and other arguments

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; to be left out of that, torch loads its compiler

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.found and torch.Tag.pointwise in func.tags and isinstance(result, Tensor):
            inputs, *arguments = args
            is_single = not any(
                isinstance(argument, Tensor) and argument.ndim for argument in arguments
            )
            if is_single and _are_floats(inputs) and _are_floats(result) and not _is_whole(inputs):
                key = func, inputs.dtype, str(arguments), str(kwargs)
                if key not in self._has_two:
                    self._has_two[key] = has_two_formulas(
                        lambda numbers: func(numbers, *arguments, **kwargs), inputs.dtype
                    )
                self.found = self._has_two[key]
        return result


def _are_floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _is_whole(inputs: Tensor) -> bool:
    """Return whether a tensor is computed on whole vectors."""
    count = inputs.numel()
    step = _STEP_BYTES // inputs.itemsize
    rows_are_whole = inputs.ndim > 0 and inputs.stride(-1) == 1 and inputs.shape[-1] % step == 0
    is_shared_evenly = whole_size(count, torch.get_num_threads(), step) == count
    return is_shared_evenly and (inputs.is_contiguous() or rows_are_whole)
