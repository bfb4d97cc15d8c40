"""Layers of 8-bit weights, and what they are to give."""

from typing import Any

import torch
from torch import Tensor, nn

from ngtcli.models.weights.convert import convertible
from ngtcli.models.weights.formats import WeightFormat
from ngtcli.models.weights.linear import (
    MappedEmbedding,
    PackedLinear,
    PrepackedInt8,
    quantize_weight,
)
from ngtcli.models.weights.onednn import Int8Kernel, PackedLayouts, opaque_tensor, prepack

KERNELS = [Int8Kernel(qmax=127), Int8Kernel(qmax=63), Int8Kernel(signed=True)]
KERNELS = [kernel for kernel in KERNELS if kernel.is_correct()]
KERNEL = KERNELS[0] if KERNELS else None
INT8 = WeightFormat(torch.float32, packed=True, bits=8, kernel=KERNEL)


def layer_of(
    weight: Tensor, bias: Any, kernel: Int8Kernel, sizes: PackedLayouts | None = None
) -> PackedLinear:
    """The layer of a weight (out, in) of any floating dtype."""
    sizes = {} if sizes is None else sizes
    whole, scale = quantize_weight(weight)
    data = prepack(whole, sizes)
    size = whole.shape[0], whole.shape[1]
    packed = opaque_tensor(data, size, sizes)
    return PackedLinear(PrepackedInt8(packed, size, scale, kernel, data), bias)


def expected_matmul(layer: PackedLinear, weight: Tensor, rows: Tensor) -> Tensor:
    """What the layer is to give, in float64 from the definition: integers times scales."""
    whole, scale = quantize_weight(weight)
    packed: Any = layer.packed_weight
    steps = packed.kernel.qmax
    most = rows.double().abs().amax(1, keepdim=True).clamp_min(1e-30)
    given = (rows.double() * steps / most).round()
    out = given @ whole.double().T * scale.double() * most / steps
    return out if layer.bias is None else out + layer.bias.double()


def named_tensors(hf: nn.Module) -> dict[str, Tensor]:
    """All tensors of a model by name; of quantized layers their integers and scales."""
    tensors = dict(hf.named_buffers())
    for name, parameter in hf.named_parameters():
        if not parameter.is_mkldnn:
            tensors[name] = parameter.detach()
    for name, module in hf.named_modules():
        if isinstance(module, MappedEmbedding):
            tensors[f"{name}.weight"] = module.weight
        if isinstance(module, PackedLinear):
            if isinstance(module.packed_weight, PrepackedInt8):
                tensors[f"{name}.integers"] = module.packed_weight.buffer
                tensors[f"{name}.scale"] = module.packed_weight.scale
            else:
                tensors[f"{name}.weight"] = module.weight
    return tensors


@torch.no_grad()
def dequantize(hf: Any) -> Any:
    """The model with the weights that its integers stand for, in float32; changed in place.

    An embedding that is tied to a layer keeps the values that it had.
    """
    for place in convertible(hf, INT8):
        if place.tied is not None:
            place.set_weight(nn.Parameter(place.weight.clone(), requires_grad=False))
        own = place.weight if place.experts else place.weight[None]
        for at, one in enumerate(place.matrices(place.weight.clone())):
            whole, scale = quantize_weight(one)
            back = whole * scale[:, None]
            own[at] = back.t() if place.transposed else back
    return hf
