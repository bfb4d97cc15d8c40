"""Parts of a `transformers` model that a GPU computes by fewer kernels.

A pass over a draft tree reads few rows, so that each kernel takes little longer than its start.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from ngtcli.weights.trials import places_of

# A difference from the norm replaced, over the largest number, in steps of the dtype; guess: the
# last roundings give two, and a wrong weight more.
_NEAR = 8


class OneNorm(nn.RMSNorm):
    """An RMS norm by torch's own kernel, in the dtype of its weight; `transformers` takes eight."""

    def forward(self, given: Tensor) -> Tensor:
        """The rows (…, size), normed, in their dtype."""
        return super().forward(given.to(self.weight.dtype)).to(given.dtype)


@torch.inference_mode()
def use_few_kernels(hf: Any) -> None:
    """Replace the RMS norms of a model on one GPU, whose weights stay where they are."""
    if hf.device.type == "cpu" or places_of(hf):
        return
    for parent in [*hf.modules()]:
        for name, child in [*parent.named_children()]:
            if (norm := _one_norm(child)) is not None:
                setattr(parent, name, norm)


def _one_norm(norm: Any) -> OneNorm | None:
    """What gives the same numbers; None for what is no RMS norm of one weight.

    Some families multiply by one more than the weight, in float32.
    """
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    weights = dict(norm.named_parameters())
    takes = inspect.signature(norm.forward).parameters
    if not eps or isinstance(norm, nn.RMSNorm) or weights.keys() != {"weight"} or len(takes) != 1:
        return None
    weight = norm.weight
    # Rows with a mean, which other norms subtract.
    given = torch.rand(2, weight.shape[-1], dtype=weight.dtype, device=weight.device) + 0.5
    truth = norm(given).float()
    near = _NEAR * torch.finfo(weight.dtype).eps * truth.abs().max()
    for scale in (weight, 1.0 + weight.float()):
        made = OneNorm(scale.shape, eps, device="meta")
        made.weight = nn.Parameter(scale, requires_grad=False)
        if bool((made(given).float() - truth).abs().max() <= near):
            return made
    return None
