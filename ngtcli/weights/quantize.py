"""Models whose linear layers are quantised, tensor by tensor as their weights come.

What comes of a weight goes to a file of the cache (`Weights`), which the model is then filled from,
at this start as at later ones; where nothing can be kept, it stays in memory. Which weights are
quantised stands in int8_places.py. Of a checkpoint that is quantised already the integers are taken
as they are (stored.py).
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ngtcli.errors import ModelError
from ngtcli.system.files import DamagedFileError
from ngtcli.weights.int4 import Int4Linear, packed
from ngtcli.weights.int8 import Int8Linear, Way, quantized
from ngtcli.weights.int8_order import Packer, makes_opaque
from ngtcli.weights.int8_places import Int8Place, quantizable
from ngtcli.weights.places import NOTHING, Taken, named, tie
from ngtcli.weights.quantized_weights import Tensors, Weights
from ngtcli.weights.stored import StoredLayer

SCALE, _ORDER = ":scale", ":order"  # behind a quantised weight's name: its scale, its inputs'


@dataclass(slots=True)
class Layers(Taken[Int8Place]):
    """Where weights of a model are quantised, and what was; an empty model's.

    `way` is that of 8-bit products; with None the 4 bits of a checkpoint stay. Of a checkpoint that
    is quantised already only its own (`stored`) are.
    """

    way: Way | None = field(kw_only=True)
    weights: Weights = field(default_factory=Weights)
    packer: Packer = field(default_factory=Packer)
    stored: bool = False

    def find(
        self, hf: Any, stored: Mapping[str, Any] = NOTHING, only: Container[str] | None = None
    ) -> None:
        """Find them in a model whose weights have no values yet.

        An embedding and a head whose weights are both `stored` are not tied. Where the names of
        those that are quantised are known (`only`), another that is tied stays as it is.
        """
        tie(hf)
        own_layers = {name for name, one in stored.items() if isinstance(one, StoredLayer)}
        self.stored, only = bool(own_layers), own_layers or only
        names = {id(module): name for name, module in hf.named_modules()}
        places = quantizable(hf, hf.device.type)
        if makes_opaque():  # they share one tensor of the file
            for place in places:
                if place.experts:
                    self.places[f"{names[id(place.parent)]}.{place.name}"] = place
        for own, other, place in named(hf, [place for place in places if not place.experts]):
            if place.tied is not None:
                if only is not None and own not in only and other not in only:
                    continue
                if own in stored and other in stored:
                    place, other = replace(place, tied=None), own
                elif self.way is None:
                    what = f"{own} has 4 bits and is the embedding, too"
                    raise ModelError(what, "Give --quantize int8, with which it is both.")
            self.add(hf, place, own, other)

    def takes(self, place: Int8Place, weight: Tensor | StoredLayer) -> bool:
        """Whether a weight of a checkpoint is quantised there: it has its size."""
        if isinstance(weight, StoredLayer):
            return weight.size == place.size
        return not self.stored and weight.shape == place.weight.shape

    def put(self, name: str, weight: Tensor | StoredLayer) -> None:
        """Quantise a weight, or take a layer's; the model does not hold it from then on."""
        place = self.places[name]
        own, *other = self.names(name)
        self.done |= {own, *other}
        if isinstance(weight, StoredLayer) and self.way is None:
            whole, scales, zeros, order = weight.four_bits()
            for key, tensor in zip((own, own + SCALE), packed(whole, scales, zeros), strict=True):
                self.weights.add(key, tensor)
            if order is not None:
                self.weights.add(own + _ORDER, order)
            place.empty()
            return
        data, parts = [], []
        made: Iterator[tuple[Tensor, Tensor]]
        if isinstance(weight, StoredLayer):
            eight = weight.scheme.bits == 8
            made = iter([weight.integers() if eight else quantized(weight.dequantised())])
        else:
            made = map(quantized, place.matrices(weight))
        for integers, scale in made:
            data.append(self.packer.pack(integers))
            parts.append(scale)
        self.weights.add(own, torch.cat(data) if len(data) > 1 else data[0])
        self.weights.add(own + SCALE, torch.cat(parts))
        if other and self.packer.known[place.size].order is None:
            whole = weight.dequantised() if isinstance(weight, StoredLayer) else weight
            self.weights.add(other[0], whole)
        place.empty()

    def fill(self, hf: Any, tensors: Tensors, dtype: torch.dtype) -> None:
        """Give the model these tensors, and `dtype` between the layers.

        Raises DamagedFileError where it has others.
        """
        rest = {name: tensor for name, tensor in tensors.items() if name + SCALE not in tensors}
        for name, tensor in rest.items():
            if not name.endswith((SCALE, _ORDER)):
                _set(hf, name, tensor)
        for name, place in self.places.items():
            if name not in rest and name in tensors:
                if tensors[name].dtype == torch.uint8:
                    given = tensors[name], tensors[name + SCALE], place.layer.bias, place.size[0]
                    place.put([Int4Linear(*given, tensors.get(name + _ORDER))], None, dtype)
                    continue
                self._place(place, tensors[name], tensors[name + SCALE], dtype)
        tie(hf)
        if any(tensor.is_meta for tensor in (*hf.parameters(), *hf.buffers())):
            raise DamagedFileError("it lacks tensors")

    def _place(self, place: Int8Place, data: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        """Put quantised layers in the place of a weight."""
        size, count = place.size, max(1, place.experts)
        shape = (count * size[0],)
        known = scale.dtype == torch.float32 and size in self.packer.known
        if self.way is None or scale.shape != shape or not known:
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
