"""Gives weights of a model another form, one by one as they come, so that none is in memory twice.

`find` says where they stand in a model without values, `put` takes one: floats are laid in blocks
at once, integers go to a store, mostly a file, of which `fill` fills the model. Weights that did
not come one by one, as those of pickles, are laid in blocks at the end (`pack_rest`).
"""

import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ngtcli.models.weights.formats import WeightFormat, prepacks
from ngtcli.models.weights.gguf_weights import GgufWeight
from ngtcli.models.weights.linear import (
    MappedEmbedding,
    PackedLinear,
    PrepackedInt8,
    prepack_floats,
    quantize_weight,
)
from ngtcli.models.weights.onednn import PackedLayouts, opaque_tensor, prepack
from ngtcli.models.weights.places import Site, is_embedding, sites, tie
from ngtcli.models.weights.tensor_store import Tensors, TensorStore
from ngtcli.system.files import DamagedFileError
from ngtcli.system.machine import return_memory

Notify = Callable[[str], None]
NOTHING: Mapping[str, Any] = MappingProxyType({})
SCALE = ":scale"  # follows the name of a quantized weight in the names of its scale
# Weights of a layer that is packed. A packed product takes 10 to 25 µs more to start; a row of the
# built-in model, whose layers have up to 180,000, took 14% longer (measured, one thread).
_SMALLEST = 1 << 20
# In half precision: one row of a layer that is not packed has other bits, and its product may be a
# hundred times as slow (2,048 × 2,048, bfloat16, Zen 4: 30 ms, packed 0.2). Guess.
_SMALLEST_HALF = 1 << 10
_COMPARED = 4096  # rows of a weight that are compared at once; guess


class Place(NamedTuple):
    """What takes a weight: a layer or experts, an embedding, or both where it is tied."""

    layer: Site | None
    rows: Site | None


@dataclass(slots=True)
class Conversion:
    """The weights of one model that get a `form`; those that came stand in `done`.

    A weight of two names stands under both. `store` takes integers; `sizes` are the orders of 8-bit
    weights that are known. `progress` gets what was done.
    """

    format: WeightFormat
    store: TensorStore = field(default_factory=TensorStore)
    sizes: PackedLayouts = field(default_factory=dict)
    progress: Notify = lambda _: None
    places: dict[str, Place] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    _stored: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    _bytes: int = 0
    _begin: float = field(default_factory=time.perf_counter)
    _left: list[Any] = field(default_factory=list)  # layers that cannot be packed

    def find(
        self, hf: Any, stored: Mapping[str, Any] = NOTHING, only: Container[str] | None = None
    ) -> None:
        """Find the places in a model whose weights have no values yet; `stored` is what will come.

        An embedding and a head whose weights are both stored are not tied. Where the names of those
        that are quantised are known (`only`), another that is tied stays as it is.
        """
        tie(hf)
        self._stored = stored
        if not stored and not self.format.bits:
            return  # it is not known what comes: see `pack_rest`
        for site in convertible(hf, self.format):
            own = site.weight_name
            if (rows := site.tied) is None:
                self._add(hf, Place(site, None), own)
                continue
            if only is not None and own not in only and rows.weight_name not in only:
                continue
            if own in stored and rows.weight_name in stored:
                self._add(hf, Place(site, None), own)
                self._add(hf, Place(None, rows), rows.weight_name)
            else:
                self._add(hf, Place(site, rows), own, rows.weight_name)

    def _add(self, hf: Any, place: Place, *names: str) -> None:
        """Add the place of a weight of these names, which the model does not tie any more."""
        for name in names:
            self.places[name] = place
            hf.all_tied_weights_keys.pop(name, None)

    def names(self, name: str) -> list[str]:
        """The names of the weight of this name."""
        return [own for own, place in self.places.items() if place is self.places[name]]

    def takes(self, place: Place, weight: Tensor) -> bool:
        """Whether a weight is taken there: it has its size."""
        site = place.layer or place.rows
        return site is not None and weight.shape == site.weight.shape

    def put(self, name: str, weight: Tensor) -> None:
        """Take a weight, which the model does not hold in that form from then on."""
        self.done.update(self.names(name))
        if self.format.bits:
            self._quantise(self.places[name], weight)
        else:
            self._pack(self.places[name], weight)
        return_memory()  # else what was freed between weights stays: up to half as much again

    def _quantise(self, place: Place, weight: Tensor) -> None:
        if (site := place.layer) is not None:
            integers, scale = self._integers(site, weight)
            self.store.add(site.weight_name, integers)
            self.store.add(site.weight_name + SCALE, scale)
        if (rows := place.rows) is not None:
            self.store.add(rows.weight_name, weight)
        for one in filter(None, place):
            one.set_weight(_parameter(one.weight.detach().to("meta")))

    def _integers(self, site: Site, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Quantize a weight: int8 in oneDNN's order, and the scales of its outputs, float32."""
        blocks = []
        scales = []
        for matrix in site.matrices(weight):
            integers, scale = quantize_weight(matrix)
            blocks.append(prepack(integers, self.sizes))
            scales.append(scale)
        return torch.cat(blocks) if len(blocks) > 1 else blocks[0], torch.cat(scales)

    def fill(self, hf: Any, tensors: Tensors) -> None:
        """Give the model the tensors of the store. Raises DamagedFileError where it has others."""
        rest = {name: tensor for name, tensor in tensors.items() if name + SCALE not in tensors}
        for name, tensor in rest.items():
            if not name.endswith(SCALE):
                _set(hf, name, tensor)
        for name, (site, _) in self.places.items():
            if site is not None and site.weight_name == name and name + SCALE in tensors:
                site.put(self._int8_layers(site, tensors[name], tensors[name + SCALE]))
        tie(hf)
        if any(tensor.is_meta for tensor in (*hf.parameters(), *hf.buffers())):
            raise DamagedFileError("it lacks tensors")

    def _int8_layers(self, site: Site, data: Tensor, scale: Tensor) -> list[PackedLinear]:
        size, count, kernel = site.size, max(1, site.experts), self.format.kernel
        is_known = scale.dtype == torch.float32 and size in self.sizes
        if kernel is None or scale.shape != (count * size[0],) or not is_known:
            raise DamagedFileError("it holds layers of other sizes")
        try:
            return [
                PackedLinear(
                    PrepackedInt8(opaque_tensor(part, size, self.sizes), size, own, kernel, part),
                    site.bias,
                )
                for part, own in zip(data.chunk(count), scale.chunk(count), strict=True)
            ]
        except (RuntimeError, ValueError):
            raise DamagedFileError("it holds layers of other sizes") from None

    def _pack(self, place: Place, weight: Tensor) -> None:
        """Lay a weight in blocks; it stays as it is where this CPU has no kernel for it."""
        site, rows = place
        blocks = None if site is None else prepack_floats(next(site.matrices(weight)))
        if site is not None and blocks is None:
            own = _parameter(weight)
            for one in filter(None, place):
                one.set_weight(own)
            self._left.append(site.layer)
            return
        if rows is not None:
            narrow = self._narrow(rows.weight_name, weight)
            rows.put([MappedEmbedding(narrow, weight.dtype, rows.layer)])
        if site is not None and blocks is not None:
            site.put([PackedLinear(blocks, site.bias)])
            self._bytes += weight.nbytes

    def _narrow(self, name: str, weight: Tensor) -> Tensor:
        """The weight of an embedding as it is in a mapped file, or else in as few bytes as hold it.

        The names of a tied one are two, of which one is stored.
        """
        for own in self.names(name) if name in self.places else ():
            raw: Any = self._stored.get(own)
            if raw is not None and not isinstance(getattr(raw, "one", raw), GgufWeight):
                with torch.device("cpu"):  # the model is made on another
                    found: Tensor = raw[...]
                if found.shape == weight.shape and found.is_floating_point():
                    if torch.equal(found[:_COMPARED].to(weight.dtype), weight[:_COMPARED]):
                        return found
        for dtype in (torch.bfloat16, torch.float16) if weight.dtype == torch.float32 else ():
            parts = torch.split(weight, _COMPARED)
            if all(torch.equal(part.to(dtype).float(), part) for part in parts):
                return weight.to(dtype)
        return weight

    def pack_rest(self, hf: Any) -> None:
        """Lay in blocks the layers of a loaded model that are not, if its form wants it."""
        weight_format = WeightFormat(hf.dtype, self.format.packed)
        rest = [site for site in convertible(hf, weight_format) if site.layer not in self._left]
        if rest:
            self.progress("Packing weights …")
        for site in rest:
            self._pack(Place(site, site.tied), site.weight.detach())
            return_memory()
        if self._bytes:
            seconds = time.perf_counter() - self._begin
            self.progress(f"Packed {self._bytes / 1e6:.0f} MB of weights in {seconds:.1f} s.")


def convertible(hf: Any, weight_format: WeightFormat) -> list[Site]:
    """The sites of a model whose weights get a form: layers that are not too small, for floats.

    What chooses experts is not quantised: a small error there is another expert.
    """
    found = sites(hf, hf.device.type)
    if weight_format.bits:
        return [one for one in found if not one.chooses_experts]
    if not (weight_format.packed and prepacks(hf.dtype)):
        return []
    least = _SMALLEST if hf.dtype == torch.float32 else _SMALLEST_HALF
    # A weight of another dtype than the model's would come in that of the model.
    return [
        one
        for one in found
        if not one.experts and one.weight.dtype == hf.dtype and one.weight.numel() >= least
    ]


def quantized_bytes(empty: Any, between: torch.dtype) -> int:
    """The bytes of a model's weights where it is quantised; `empty` has no memory for them.

    What is not quantised is in the dtype `between` the layers, embeddings in a narrower one stay.
    Scales are left out: in layers with 2,000 inputs they are below 1%.
    """
    tie(empty)
    sizes = dict[int, int]()
    for module in empty.modules():
        for one in module.parameters(recurse=False):
            own = one.itemsize if is_embedding(module) else between.itemsize
            size = one.numel() * min(own, between.itemsize)
            sizes[id(one)] = min(size, sizes.get(id(one), size))
    total = sum(sizes.values())
    for site in convertible(empty, WeightFormat(between, bits=8)):
        total += site.weight.numel() - (0 if site.tied else sizes[id(site.weight)])
    return total


def _parameter(weight: Tensor) -> nn.Parameter:
    own = nn.Parameter(weight.detach(), requires_grad=False)
    own._is_hf_initialized = True  # type: ignore[attr-defined]
    return own


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
