"""Convert weights to another format one by one, so that none is in memory twice.

`find_destinations` lists the modules of a model without values whose weights are converted.
`convert` takes one weight: floats are prepacked at once; integers go to a store, usually a file,
from which `fill` fills the model. Weights that do not come one by one, such as those of pickles,
are prepacked at the end (`pack_rest`).
"""

import time
from collections.abc import Container, Iterator, Mapping
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
from ngtcli.system import reporting
from ngtcli.system.files import DamagedFileError
from ngtcli.system.machine import return_memory

NOTHING: Mapping[str, Any] = MappingProxyType({})
SCALE = ":scale"  # follows the name of a quantized weight in the name of its scale
# The smallest weight that is prepacked, in elements. A prepacked matmul takes 10 to 25 µs longer to
# start: a forward pass of one token of the built-in model, whose layers have up to 180,000
# elements, took 14% longer (measured, one thread).
_MIN_ELEMENTS = 1 << 20
# The same in half precision (guess). It is lower because a single row through a layer that is not
# prepacked rounds differently, and its matmul may be a hundred times as slow (2,048 × 2,048,
# bfloat16, Zen 4: 30 ms, 0.2 ms when prepacked).
_MIN_ELEMENTS_HALF = 1 << 10
_ROWS_COMPARED = 4096  # rows of a weight that are compared at once (guess)


class Destination(NamedTuple):
    """Destination of a weight: a linear layer or experts, an embedding, or both if it is tied."""

    linear: TargetModule | None
    embedding: TargetModule | None

    def modules(self) -> Iterator[TargetModule]:
        """Iterate over the modules that are present."""
        return (module for module in self if module is not None)


@dataclass(slots=True)
class Conversion:
    """The conversion of one model's weights to another format.

    Attributes:
        format: The format that the weights get.
        store: Receives the integers.
        layouts: The layouts of prepacked 8-bit weights, by size; they are added as they are seen.
        destinations: The destination of each weight, by name; a weight with two names has two
            entries.
        done: The names of the weights that were converted.
    """

    format: WeightFormat
    store: TensorStore = field(default_factory=TensorStore)
    layouts: PackedLayouts = field(default_factory=dict)
    destinations: dict[str, Destination] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    _stored: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    _bytes: int = 0
    _started: float = field(default_factory=time.perf_counter)
    _not_packed: list[Any] = field(default_factory=list)  # layers that this CPU has no kernel for

    def find_destinations(
        self, hf: Any, stored: Mapping[str, Any] = NOTHING, only: Container[str] | None = None
    ) -> None:
        """List the destinations of weights in a model that has no values yet.

        An embedding and a linear layer whose weights are both stored are not tied.

        Args:
            hf: The model.
            stored: The weights of the checkpoint, by name.
            only: The names of quantized weights. Other tied weights stay as they are.
        """
        tie(hf)
        self._stored = stored
        if not stored and not self.format.bits:
            return  # The names of the weights are unknown: `pack_rest` converts them.
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
        """Add the destination of a weight under all its names; the model no longer ties them."""
        for name in names:
            self.destinations[name] = destination
            hf.all_tied_weights_keys.pop(name, None)

    def aliases(self, name: str) -> list[str]:
        """Return all names of the weight that has this name."""
        destination = self.destinations[name]
        return [other for other, entry in self.destinations.items() if entry is destination]

    def fits(self, destination: Destination, weight: Tensor) -> bool:
        """Return whether a weight has the right shape."""
        return any(weight.shape == module.weight.shape for module in destination.modules())

    def convert(self, name: str, weight: Tensor) -> None:
        """Convert a weight, which the model itself no longer holds."""
        self.done.update(self.aliases(name))
        if self.format.bits:
            self._quantize(self.destinations[name], weight)
        else:
            self._pack(self.destinations[name], weight)
        # Memory that was freed between weights would otherwise stay allocated: up to half as much
        # again as the model needs.
        return_memory()

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
        """Quantize a weight; return it as prepacked int8, with its float32 scales per output."""
        buffers = []
        scales = []
        for matrix in target.matrices(weight):
            integers, scale = quantize_weight(matrix)
            buffers.append(prepack(integers, self.layouts))
            scales.append(scale)
        return torch.cat(buffers) if len(buffers) > 1 else buffers[0], torch.cat(scales)

    def fill(self, hf: Any, tensors: Tensors) -> None:
        """Put the tensors of the store into the model.

        Raises:
            DamagedFileError: The tensors are not those of the model.
        """
        for name, tensor in tensors.items():
            is_integers = name + SCALE in tensors
            if not is_integers and not name.endswith(SCALE):
                _set(hf, name, tensor)
        for name, (linear, _) in self.destinations.items():
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
        """Prepack a weight, or leave it unchanged if this CPU has no kernel for it."""
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
        """Return an embedding's weight from a mapped file, or in the narrowest dtype that fits it.

        Args:
            name: Its name. A tied weight has two names, of which the file has one.
            weight: Its values (num_embeddings, embedding_dim).
        """
        for stored_name in self.aliases(name) if name in self.destinations else ():
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
        """Return a weight as a mapped file has it; None if no file has it as floats."""
        stored: Any = self._stored.get(name)
        if stored is None or isinstance(getattr(stored, "weight", stored), GgufWeight):
            return None
        with torch.device("cpu"):  # The default device is the one that the model is built on.
            mapped: Tensor = stored[...]
        return mapped if mapped.is_floating_point() else None

    def pack_rest(self, hf: Any) -> None:
        """Prepack the remaining layers of a loaded model, if its format says so."""
        weight_format = WeightFormat(hf.dtype, self.format.packed)
        rest = [
            target
            for target in convertible(hf, weight_format)
            if target.layer not in self._not_packed
        ]
        if rest:
            reporting.status("Packing weights …")
        for target in rest:
            self._pack(Destination(target, target.tied), target.weight.detach())
            return_memory()
        if self._bytes:
            seconds = time.perf_counter() - self._started
            reporting.status(f"Packed {self._bytes / 1e6:.0f} MB of weights in {seconds:.1f} s.")


def convertible(hf: Any, weight_format: WeightFormat) -> list[TargetModule]:
    """List the modules whose weights get a format; for floats, the layers that are large enough.

    Routers are not quantized, because a small error in one may choose another expert.
    """
    targets = target_modules(hf, hf.device.type)
    if weight_format.bits:
        return [target for target in targets if not target.chooses_experts]
    if not (weight_format.packed and prepacks(hf.dtype)):
        return []
    min_elements = _MIN_ELEMENTS if hf.dtype == torch.float32 else _MIN_ELEMENTS_HALF
    # transformers casts a weight of another dtype to the model's before it arrives.
    return [
        target
        for target in targets
        if not target.experts
        and target.weight.dtype == hf.dtype
        and target.weight.numel() >= min_elements
    ]


def quantized_bytes(empty: Any, dtype: torch.dtype) -> int:
    """Return the bytes that a model's weights take once the model is quantized.

    Scales are left out: they are below 1% in layers with 2,000 inputs.

    Args:
        empty: The model without values.
        dtype: The dtype of weights that are not quantized. Embeddings in a narrower dtype keep it.
    """
    tie(empty)
    sizes: dict[int, int] = {}  # bytes by the parameter's id; the smaller size of a tied weight
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
    # transformers initializes the parameters that lack this mark.
    parameter._is_hf_initialized = True  # type: ignore[attr-defined]
    return parameter


def _set(hf: Any, full_name: str, tensor: Tensor) -> None:
    """Set a parameter or a buffer of a model.

    Raises:
        DamagedFileError: The model has no such tensor, or one of another shape.
    """
    parent, _, name = full_name.rpartition(".")
    try:
        module = hf.get_submodule(parent)
        old = getattr(module, name)
    except AttributeError:
        raise DamagedFileError("it holds other tensors") from None
    if not isinstance(old, Tensor) or old.shape != tensor.shape:
        raise DamagedFileError("it holds tensors of other shapes")
    if name in module._buffers:
        module._buffers[name] = tensor.clone()  # Some models write to their buffers.
    else:
        setattr(module, name, nn.Parameter(tensor, requires_grad=False))
