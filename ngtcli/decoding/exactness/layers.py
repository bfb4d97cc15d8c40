"""Tries whether each layer of a model gives a row the same bits in any number of rows.

One that adds up in another order shows in one number of ten thousand once it is rounded to half
precision: the forward passes of a model show too few numbers, so each kind and size of layer is
given random rows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_COMPARED = 1 << 17  # numbers of each layer and size (guess: ten times what shows a difference)
_MAX_SINGLE_ROWS = 8  # rows of each draw that are computed in the smallest size (guess)


def layers_are_invariant(hf: Any, sizes: Sequence[int]) -> bool:
    """Return whether layers of each kind and size give a row the same bits in passes of `sizes`.

    A layer is a module without a parameter of several dimensions but `weight`, (out, in): routers
    of experts, too. False if a module has others, as experts have; a bias is only added.
    """
    layers: dict[tuple[Any, ...], Any] = {}
    for module in hf.modules():
        if hasattr(module, "in_features") and hasattr(module, "out_features"):
            size = module.out_features, module.in_features
        else:
            parameters = module.named_parameters(recurse=False)
            matrices = {name: p.shape for name, p in parameters if p.ndim > 1}
            shapes = [shape for name, shape in matrices.items() if not name.endswith("bias")]
            if not shapes or hasattr(module, "num_embeddings"):
                continue
            if shapes != [matrices.get("weight")] or len(shapes[0]) != 2:
                return False
            size = shapes[0]
        layers.setdefault((type(module), *size), module)
    dtype = getattr(hf, "dtype", None) or next(hf.parameters()).dtype
    return all(
        layer_is_invariant(layer, (outputs, inputs), dtype, sizes)
        for (_, outputs, inputs), layer in layers.items()
    )


@torch.inference_mode()
def layer_is_invariant(
    layer: Any, size: tuple[int, int], dtype: torch.dtype, sizes: Sequence[int]
) -> bool:
    """Return whether one layer gives a row the same bits in each of several numbers of rows.

    Args:
        layer: A module; all tensors that it returns are compared.
        size: Its (out, in).
        dtype: Of the rows that it is given.
        sizes: Numbers of rows, rising.
    """

    def outputs_of(rows: Tensor) -> list[Tensor]:
        # Routers of experts are given rows without a batch dimension.
        outputs = layer(rows if hasattr(layer, "in_features") else rows[0])
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return [output.reshape(rows.shape[1], -1) for output in outputs]

    out_features, in_features = size
    smallest = min(sizes[0], _MAX_SINGLE_ROWS)
    generator = torch.Generator().manual_seed(0)
    for _ in range(-(-_COMPARED // (_MAX_SINGLE_ROWS * out_features))):
        shape = 1, max(_MAX_SINGLE_ROWS, sizes[-1]), in_features
        rows = torch.randn(shape, generator=generator).to(dtype)
        parts = [
            outputs_of(rows[:, first : first + smallest])
            for first in range(0, _MAX_SINGLE_ROWS - smallest + 1, smallest)
        ]
        expected = [torch.cat(part) for part in zip(*parts, strict=True)]
        for count in sizes:
            for output, single in zip(outputs_of(rows[:, :count]), expected, strict=True):
                if not torch.equal(output[: len(single)], single[:count]):
                    return False
    return True


def has_experts(hf: Any) -> bool:
    """Return whether parts of a model are named as experts are."""
    names = (f"{name}.{type(module).__name__}" for name, module in hf.named_modules())
    return any("expert" in name.lower() for name in names)
