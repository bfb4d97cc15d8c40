"""Does a linear layer give a row the same bits whatever the number of rows?

Sums in another order differ in the last bit of float32, which one number in ten thousands shows
once it is rounded to half precision. A small model has too few numbers for that to be seen in its
passes, so each of its layers is given as many random rows as it takes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

_NUMBERS = 1 << 17  # compared of each layer and size; guess: ten times what shows a difference
_SINGLE = 8  # rows computed in passes of the smallest size, of each draw; guess


def layers_are_alike(hf: nn.Module, sizes: Sequence[int]) -> bool:
    """Whether all do in passes of these sizes, rising; of layers of one kind and size one.

    False where weights belong to no linear layer or embedding, as those of experts.
    """
    kinds: dict[tuple[Any, ...], nn.Module] = {}
    for module in hf.modules():
        if hasattr(module, "in_features") and hasattr(module, "out_features"):
            kinds.setdefault((type(module), module.in_features, module.out_features), module)
        elif not hasattr(module, "num_embeddings"):
            if any(parameter.ndim > 1 for parameter in module.parameters(recurse=False)):
                return False
    dtype = getattr(hf, "dtype", None) or next(hf.parameters()).dtype
    return all(is_alike(layer, dtype, sizes) for layer in kinds.values())


@torch.inference_mode()
def is_alike(layer: Any, dtype: torch.dtype, sizes: Sequence[int]) -> bool:
    """Whether a layer does, for rows of this dtype."""
    source = torch.Generator().manual_seed(0)
    most = max(_SINGLE, sizes[-1])
    for _ in range(-(-_NUMBERS // (_SINGLE * layer.out_features))):
        rows = torch.randn((1, most, layer.in_features), generator=source).to(dtype)
        least = min(sizes[0], _SINGLE)
        true = torch.cat(
            [layer(rows[:, at : at + least]) for at in range(0, _SINGLE - least + 1, least)], 1
        )
        for size in sizes:
            found = layer(rows[:, :size])[:, : true.shape[1]]
            if not torch.equal(found, true[:, : found.shape[1]]):
                return False
    return True
