"""Models whose linear layers are quantised, tensor by tensor as their weights come.

What comes of a weight goes to a file of the cache (`Weights`), which the model is then filled from,
at this start as at later ones; where nothing can be kept, it stays in memory. Which weights are
quantised stands in int8_places.py.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ngtcli.system.storage import DamagedFileError
from ngtcli.weights.int8 import Int8Linear, Way, quantized
from ngtcli.weights.int8_order import Packer, makes_opaque
from ngtcli.weights.int8_places import Int8Place, quantizable
from ngtcli.weights.places import Taken, tie
from ngtcli.weights.quantized_weights import Tensors, Weights

_SCALE = ":scale"  # behind the name of a quantised weight, whose scale it is


@dataclass(slots=True)
class Layers(Taken[Int8Place]):
    """Where weights of a model are quantised, and what was; an empty model's."""

    way: Way = field(kw_only=True)
    weights: Weights = field(default_factory=Weights)
    packer: Packer = field(default_factory=Packer)

    def find(self, hf: Any, stored: Collection[str] = ()) -> None:
        """Find them in a model whose weights have no values yet.

        An embedding and a head whose weights are both `stored` are not tied.
        """
        tie(hf)
        names = {id(module): name for name, module in hf.named_modules()}
        places = quantizable(hf, hf.device.type)
        if makes_opaque():  # they share one tensor of the file
            for place in places:
                if place.experts:
                    self.places[f"{names[id(place.parent)]}.{place.name}"] = place
        layers = [place for place in places if not place.experts]
        self.add(hf, layers, lambda *both: not {*both} <= {*stored})

    def put(self, name: str, weight: Tensor) -> None:
        """Quantise a weight, which the model does not hold from then on."""
        place = self.places[name]
        own, *other = self.names(name)
        data, scales = [], []
        for matrix in place.matrices(weight):
            whole, scale = quantized(matrix)
            data.append(self.packer.pack(whole))
            scales.append(scale)
        self.weights.add(own, torch.cat(data) if len(data) > 1 else data[0])
        self.weights.add(own + _SCALE, torch.cat(scales))
        if other and self.packer.known[place.size].order is None:
            self.weights.add(other[0], weight)
        place.empty()
        self.done |= {own, *other}

    def fill(self, hf: Any, tensors: Tensors, dtype: torch.dtype) -> None:
        """Give the model these tensors, and `dtype` between the layers.

        Raises DamagedFileError where it has others.
        """
        rest = {name: tensor for name, tensor in tensors.items() if name + _SCALE not in tensors}
        for name, tensor in rest.items():
            if not name.endswith(_SCALE):
                _set(hf, name, tensor)
        for name, place in self.places.items():
            if name not in rest and name in tensors:
                self._place(place, tensors[name], tensors[name + _SCALE], dtype)
        tie(hf)
        if any(tensor.is_meta for tensor in (*hf.parameters(), *hf.buffers())):
            raise DamagedFileError("it lacks tensors")

    def _place(self, place: Int8Place, data: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        """Put quantised layers in the place of a weight."""
        size, count = place.size, max(1, place.experts)
        shape = (count * size[0],)
        if scale.shape != shape or scale.dtype != torch.float32 or size not in self.packer.known:
            raise DamagedFileError("it holds layers of other sizes")
        bias = None if place.experts else place.layer.bias
        try:
            layers = [
                Int8Linear(self.packer.opaque(part, *size), own, bias, self.way, part)
                for part, own in zip(
                    data.chunk(count) if count > 1 else [data], scale.chunk(count), strict=True
                )
            ]
        except (RuntimeError, ValueError):
            raise DamagedFileError("it holds layers of other sizes") from None
        place.put(layers, self.packer.known[size].order, dtype)


def _set(hf: Any, name: str, tensor: Tensor) -> None:
    """Give a model a parameter or a buffer. Raises DamagedFileError where it has another."""
    parent, _, own = name.rpartition(".")
    try:
        module = hf.get_submodule(parent)
        old = getattr(module, own)
    except AttributeError:
        raise DamagedFileError("it holds other tensors") from None
    if not isinstance(old, Tensor) or old.shape != tensor.shape:
        raise DamagedFileError("it holds tensors of other shapes")
    if own in module._buffers:
        module._buffers[own] = tensor.clone()  # some change when the model is run
    else:
        setattr(module, own, nn.Parameter(tensor, requires_grad=False))


def quantized_bytes(empty: Any, between: torch.dtype) -> int:
    """The bytes of a model's weights where it is quantised; `empty` has no memory for them.

    What is not quantised is in the dtype `between` the layers, embeddings in a narrower one stay.
    Scales are left out: in layers with 2,000 inputs they are below 1%.
    """
    layers = Layers(way=Way())
    layers.find(empty)
    sizes = dict[int, int]()
    for module in empty.modules():
        for one in module.parameters(recurse=False):
            own = one.itemsize if isinstance(module, nn.Embedding) else between.itemsize
            sizes[id(one)] = one.numel() * min(own, between.itemsize)
    sizes |= {id(place.weight): place.weight.numel() for place in layers.places.values()}
    return sum(sizes.values())
