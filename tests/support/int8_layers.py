"""Layers of 8-bit weights, and what they are to give."""

from typing import Any

import torch
from torch import Tensor

from ngtcli.weights import int8
from ngtcli.weights.int8 import Int8Linear, Way, quantized
from ngtcli.weights.int8_order import Packer
from ngtcli.weights.int8_places import quantizable

WAYS = [way for way in (Way(most=127), Way(most=63), Way(signed=True)) if int8._is_right(way)]
WAY = WAYS[0] if WAYS else None


def layer_of(weight: Tensor, bias: Any, way: Way, packer: Packer) -> Int8Linear:
    """The layer of a weight (out, in) of any floating dtype."""
    whole, scale = quantized(weight)
    data = packer.pack(whole)
    return Int8Linear(packer.opaque(data, *whole.shape), scale, bias, way, data)


def true_product(layer: Int8Linear, weight: Tensor, rows: Tensor) -> Tensor:
    """What the layer is to give, in float64 from the definition: integers times scales."""
    whole, scale = quantized(weight)
    most = rows.double().abs().amax(1, keepdim=True).clamp_min(1e-30)
    given = (rows.double() * layer.way.most / most).round()
    out = given @ whole.double().T * scale.double() * most / layer.way.most
    return out if layer.bias is None else out + layer.bias.double()


@torch.no_grad()
def dequantized(hf: Any) -> Any:
    """The model with the weights that its integers stand for, in float32; changed in place."""
    for place in quantizable(hf):
        own = place.weight if place.experts else place.weight[None]
        for at, one in enumerate(place.matrices(place.weight.clone())):
            whole, scale = quantized(one)
            back = whole * scale[:, None]
            own[at] = back.t() if place.turned else back
    return hf
