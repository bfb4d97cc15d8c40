"""Converts weights to another format, one by one as they come, so that none is in memory twice.

`find` lists what takes them in a model without values, and `put` takes one: floats are prepacked at
once, integers go to a store, mostly a file, of which `fill` fills the model. Weights that did not
come one by one, as those of pickles, are prepacked at the end (`pack_rest`).
"""

import time
from collections.abc import Callable, Container, Iterator, Mapping
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
from ngtcli.models.weights.target_modules import TargetModule, is_embedding, target_modules, tie
from ngtcli.models.weights.tensor_store import Tensors, TensorStore
from ngtcli.system.files import DamagedFileError
from ngtcli.system.machine import return_memory

Notify = Callable[[str], None]
NOTHING: Mapping[str, Any] = MappingProxyType({})
SCALE = ":scale"  # follows the name of a quantized weight in the name of its scale
# The smallest weight that is prepacked, in elements. A prepacked matmul takes 10 to 25 µs more to
# start; a row of the built-in model, whose layers have up to 180,000, took 14% longer (measured,
# one thread).
_MIN_ELEMENTS = 1 << 20
# The same in half precision: one row of a layer that is not prepacked has other bits, and its
# matmul may be a hundred times as slow (2,048 × 2,048, bfloat16, Zen 4: 30 ms, prepacked 0.2).
# Guess.
_MIN_ELEMENTS_HALF = 1 << 10
_ROWS_COMPARED = 4096  # of a weight, at once; guess


class Destination(NamedTuple):
    """Destination of a weight: a linear layer or experts, an embedding, or both if it is tied."""

    linear: TargetModule | None
    embedding: TargetModule | None

    def modules(self) -> Iterator[TargetModule]:
        """Those that there are."""
        return (module for module in self if module is not None)


@dataclass(slots=True)
class Conversion:
    """The weights of one model that get another format.

    Attributes:
        format: What they get.
        store: Takes integers.
        layouts: Those of prepacked 8-bit weights that are known.
        progress: Gets a line of what was done.
        places: What takes each weight, by name; a weight with two names is there twice.
        done: Names of the weights that came.
    """

    format: WeightFormat
    store: TensorStore = field(default_factory=TensorStore)
    layouts: PackedLayouts = field(default_factory=dict)
    progress: Notify = lambda _: None
    places: dict[str, Destination] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    _stored: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    _bytes: int = 0
    _started: float = field(default_factory=time.perf_counter)
    _not_packed: list[Any] = field(default_factory=list)  # layers that cannot be

    def find(
        self, hf: Any, stored: Mapping[str, Any] = NOTHING, only: Container[str] | None = None
    ) -> None:
        """Find what takes weights in a model that has no values yet.

        An embedding and a linear layer whose weights are both stored are not tied.

        Args:
            stored: The weights that will come, by name.
            only: Names of those that are quantized; another one that is tied stays as it is.
        """
        tie(hf)
        self._stored = stored
        if not stored and not self.format.bits:
            return  # it is not known what comes: see `pack_rest`
        for linear in convertible(hf, self.format):
            name = linear.weight_name
            embedding = linear.tied
            if embedding is None:
                self._add(hf, Destination(linear, None), name)
                continue
            if only is not None and name not in only and embedding.weight_name not in only:
                continue
            if name in stored and embedding.weight_name in stored:
                self._add(hf, Destination(linear, None), name)
                self._add(hf, Destination(None, embedding), embedding.weight_name)
            else:
                self._add(hf, Destination(linear, embedding), name, embedding.weight_name)

    def _add(self, hf: Any, destination: Destination, *names: str) -> None:
        """Add what takes the weight of these names, which the model ties no more."""
        for name in names:
            self.places[name] = destination
            hf.all_tied_weights_keys.pop(name, None)

    def names(self, name: str) -> list[str]:
        """All names of the weight of this name."""
        destination = self.places[name]
        return [other for other, place in self.places.items() if place is destination]

    def takes(self, destination: Destination, weight: Tensor) -> bool:
        """Return whether a weight has the right shape."""
        return any(weight.shape == module.weight.shape for module in destination.modules())

    def put(self, name: str, weight: Tensor) -> None:
        """Take a weight, which the model itself holds no more."""
        self.done.update(self.names(name))
        if self.format.bits:
            self._quantize(self.places[name], weight)
        else:
            self._pack(self.places[name], weight)
        return_memory()  # else what was freed between weights stays: up to half as much again

    def _quantize(self, destination: Destination, weight: Tensor) -> None:
        linear, embedding = destination
        if linear is not None:
            integers, scale = self._integers(linear, weight)
            self.store.add(linear.weight_name, integers)
            self.store.add(linear.weight_name + SCALE, scale)
        if embedding is not None:
            self.store.add(embedding.weight_name, weight)
        for module in destination.modules():
            module.set_weight(_parameter(module.weight.detach().to("meta")))

    def _integers(self, target: TargetModule, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Quantize a weight: prepacked int8, and the scales of its outputs, float32."""
        buffers = []
        scales = []
        for matrix in target.matrices(weight):
            integers, scale = quantize_weight(matrix)
            buffers.append(prepack(integers, self.layouts))
            scales.append(scale)
        return torch.cat(buffers) if len(buffers) > 1 else buffers[0], torch.cat(scales)

    def fill(self, hf: Any, tensors: Tensors) -> None:
        """Give the model the tensors of the store. Raises DamagedFileError where it has others."""
        for name, tensor in tensors.items():
            is_integers = name + SCALE in tensors
            if not is_integers and not name.endswith(SCALE):
                _set(hf, name, tensor)
        for name, (linear, _) in self.places.items():
            if linear is not None and linear.weight_name == name and name + SCALE in tensors:
                linear.replace(self._int8_layers(linear, tensors[name], tensors[name + SCALE]))
        tie(hf)
        if any(tensor.is_meta for tensor in (*hf.parameters(), *hf.buffers())):
            raise DamagedFileError("it lacks tensors")

    def _int8_layers(
        self, target: TargetModule, integers: Tensor, scale: Tensor
    ) -> list[PackedLinear]:
        size = target.size
        count = max(1, target.experts)
        kernel = self.format.kernel
        is_known = scale.dtype == torch.float32 and size in self.layouts
        if kernel is None or scale.shape != (count * size[0],) or not is_known:
            raise DamagedFileError("it holds layers of other sizes")
        layers = []
        try:
            for part, part_scale in zip(integers.chunk(count), scale.chunk(count), strict=True):
                packed = opaque_tensor(part, size, self.layouts)
                weight = PrepackedInt8(packed, size, part_scale, kernel, part)
                layers.append(PackedLinear(weight, target.bias))
        except (RuntimeError, ValueError):
            raise DamagedFileError("it holds layers of other sizes") from None
        return layers

    def _pack(self, destination: Destination, weight: Tensor) -> None:
        """Prepack a weight; it stays as it is where this CPU has no kernel for it."""
        linear, embedding = destination
        packed = None if linear is None else prepack_floats(next(linear.matrices(weight)))
        if linear is not None and packed is None:
            parameter = _parameter(weight)
            for module in destination.modules():
                module.set_weight(parameter)
            self._not_packed.append(linear.layer)
            return
        if embedding is not None:
            narrow = self._narrow(embedding.weight_name, weight)
            embedding.replace([MappedEmbedding(narrow, weight.dtype, embedding.layer)])
        if linear is not None and packed is not None:
            linear.replace([PackedLinear(packed, linear.bias)])
            self._bytes += weight.nbytes

    def _narrow(self, name: str, weight: Tensor) -> Tensor:
        """Return the weight of an embedding in a mapped file, or in the narrowest dtype it fits.

        A tied one has two names, of which one is stored.
        """
        for stored_name in self.names(name) if name in self.places else ():
            mapped = self._mapped(stored_name)
            if mapped is None or mapped.shape != weight.shape:
                continue
            rows = slice(_ROWS_COMPARED)
            if torch.equal(mapped[rows].to(weight.dtype), weight[rows]):
                return mapped
        if weight.dtype == torch.float32:
            parts = torch.split(weight, _ROWS_COMPARED)
            for dtype in (torch.bfloat16, torch.float16):
                if all(torch.equal(part.to(dtype).float(), part) for part in parts):
                    return weight.to(dtype)
        return weight

    def _mapped(self, name: str) -> Tensor | None:
        """The floats of a weight in a mapped file; None where they are not there as such."""
        stored: Any = self._stored.get(name)
        if stored is None or isinstance(getattr(stored, "weight", stored), GgufWeight):
            return None
        with torch.device("cpu"):  # the model is made on another
            mapped: Tensor = stored[...]
        return mapped if mapped.is_floating_point() else None

    def pack_rest(self, hf: Any) -> None:
        """Prepack the layers of a loaded model that are not yet, if its format wants it."""
        weight_format = WeightFormat(hf.dtype, self.format.packed)
        rest = [
            target
            for target in convertible(hf, weight_format)
            if target.layer not in self._not_packed
        ]
        if rest:
            self.progress("Packing weights …")
        for target in rest:
            self._pack(Destination(target, target.tied), target.weight.detach())
            return_memory()
        if self._bytes:
            seconds = time.perf_counter() - self._started
            self.progress(f"Packed {self._bytes / 1e6:.0f} MB of weights in {seconds:.1f} s.")


def convertible(hf: Any, weight_format: WeightFormat) -> list[TargetModule]:
    """List the modules whose weights get a format: for floats, layers that are not too small.

    Routers of experts are not quantized: a small error there is another expert.
    """
    targets = target_modules(hf, hf.device.type)
    if weight_format.bits:
        return [target for target in targets if not target.chooses_experts]
    if not (weight_format.packed and prepacks(hf.dtype)):
        return []
    min_elements = _MIN_ELEMENTS if hf.dtype == torch.float32 else _MIN_ELEMENTS_HALF
    # A weight of another dtype than the model's would come in that of the model.
    return [
        target
        for target in targets
        if not target.experts
        and target.weight.dtype == hf.dtype
        and target.weight.numel() >= min_elements
    ]


def quantized_bytes(empty: Any, dtype: torch.dtype) -> int:
    """Return the bytes of a model's weights where it is quantized.

    Scales are left out: in layers with 2,000 inputs they are below 1%.

    Args:
        empty: The model without values.
        dtype: Of what is not quantized; embeddings in a narrower one keep theirs.
    """
    tie(empty)
    sizes: dict[int, int] = {}  # by id; the smaller one of a tied weight
    for module in empty.modules():
        for parameter in module.parameters(recurse=False):
            itemsize = dtype.itemsize
            if is_embedding(module):
                itemsize = min(parameter.itemsize, itemsize)
            size = parameter.numel() * itemsize
            sizes[id(parameter)] = min(size, sizes.get(id(parameter), size))
    total = sum(sizes.values())
    for target in convertible(empty, WeightFormat(dtype, bits=8)):
        total += target.weight.numel()
        if not target.tied:
            total -= sizes[id(target.weight)]
    return total


def _parameter(weight: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(weight.detach(), requires_grad=False)
    parameter._is_hf_initialized = True  # type: ignore[attr-defined]  # for transformers
    return parameter


def _set(hf: Any, full_name: str, tensor: Tensor) -> None:
    """Give a model a parameter or a buffer. Raises DamagedFileError where it has another."""
    parent, _, name = full_name.rpartition(".")
    try:
        module = hf.get_submodule(parent)
        old = getattr(module, name)
    except AttributeError:
        raise DamagedFileError("it holds other tensors") from None
    if not isinstance(old, Tensor) or old.shape != tensor.shape:
        raise DamagedFileError("it holds tensors of other shapes")
    if name in module._buffers:
        module._buffers[name] = tensor.clone()  # some change when the model is run
    else:
        setattr(module, name, nn.Parameter(tensor, requires_grad=False))
