"""Models whose linear layers are quantised, tensor by tensor as their weights come.

`transformers` reads a checkpoint and calls for each weight that is to be quantised; it is given
tensors that are read when they are asked for. What comes of it goes to a file of the cache
(`Weights`), which the model is then filled from, at this start as at later ones; where nothing can
be kept, it stays in memory. Which weights are quantised stands in int8_places.py. Of a checkpoint
that is quantised already the integers are taken as they are (stored.py).
"""

import json
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.core_model_loading import ConversionOps
from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ngtcli.errors import ModelError
from ngtcli.model_files.pretrained import check_weights
from ngtcli.model_files.scheme import Scheme
from ngtcli.model_files.stand_in import Source, source_of
from ngtcli.system.storage import DamagedFileError
from ngtcli.weights.gguf_weights import gguf_weights
from ngtcli.weights.int4 import Int4Linear, packed
from ngtcli.weights.int8 import Int8Linear, Way, quantized
from ngtcli.weights.int8_order import Packer, makes_opaque
from ngtcli.weights.int8_places import Int8Place, quantizable
from ngtcli.weights.quantized_weights import Tensors, Weights
from ngtcli.weights.stored import StoredLayer, stored_layers

_METHOD = "ngt_int8"
SCALE, _ORDER = ":scale", ":order"  # behind a quantised weight's name: its scale, its inputs'
_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(slots=True)
class Layers:
    """Where weights of a model are quantised, by their names, and what was; an empty model's.

    `way` is that of 8-bit products; with None the 4 bits of a checkpoint stay. Of a checkpoint that
    is quantised already only its own (`stored`) are.
    """

    way: Way | None
    weights: Weights = field(default_factory=Weights)
    packer: Packer = field(default_factory=Packer)
    places: dict[str, Int8Place] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    stored: bool = False

    def find(self, hf: Any, stored: Iterable[str] = (), only: Container[str] | None = None) -> None:
        """Find them in a model whose weights have no values yet.

        An embedding and a head whose weights are both `stored` are not tied. Where the names of
        those that are quantised are known (`only`), another that is tied stays as it is.
        """
        _tie(hf)  # it is not yet while a model loads
        names = {id(module): name for name, module in hf.named_modules()}
        both = set(stored)
        for place in quantizable(hf, hf.device.type):
            if place.experts:
                if makes_opaque():  # they share one tensor of the file
                    self.places[f"{names[id(place.parent)]}.{place.name}"] = place
                continue
            own = f"{names[id(place.layer)]}.weight"
            if place.tied is None:
                self.places[own] = place
                continue
            other = f"{names[id(getattr(*place.tied))]}.weight"
            if only is not None and own not in only and other not in only:
                continue
            if {own, other} <= both:
                place, other = replace(place, tied=None), own
            elif self.way is None:
                raise ModelError(
                    f"{own} has 4 bits and is the embedding, too",
                    "Give --quantize int8, with which it is both.",
                )
            self.places |= {own: place, other: place}
            for tied in (own, other):
                hf.all_tied_weights_keys.pop(tied, None)

    def names(self, name: str) -> list[str]:
        """The names of the weight of this name, of which it is kept under the first."""
        return [own for own, place in self.places.items() if place is self.places[name]]

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
        _tie(hf)
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


def _tie(hf: Any) -> None:
    for target, source in hf.all_tied_weights_keys.items():
        parent, _, own = target.rpartition(".")
        setattr(hf.get_submodule(parent), own, hf.get_parameter(source))


class _Config(QuantizationConfigMixin):  # type: ignore[misc]
    """What `transformers` is told of the quantisation; it never reaches a file."""

    def __init__(self, layers: Layers, stored: Mapping[str, Any]) -> None:
        self.quant_method, self.layers, self.stored = _METHOD, layers, stored

    def __deepcopy__(self, memo: Any) -> "_Config":
        return self  # the layers are those of one model

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": self.quant_method}


class _Quantizer(HfQuantizer, ConversionOps):  # type: ignore[misc]
    """The hook of `transformers` that is called for each weight, and what it does with one."""

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        layers, stored = self.quantization_config.layers, self.quantization_config.stored
        own = {name for name, one in stored.items() if isinstance(one, StoredLayer)}
        layers.stored = bool(own)
        layers.find(model, stored, own or None)

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> None:
        self.remove_quantization_config(model)

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        return param_name in self.quantization_config.layers.places

    def get_quantize_ops(self) -> ConversionOps:
        return self

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False

    def convert(
        self,
        input_dict: dict[str, Any],
        full_layer_name: str = "",
        missing_keys: set[str] | None = None,
        **_: Any,
    ) -> dict[str, Tensor]:
        """Puts the layers of weights in their places; returns those that do not fit."""
        layers: Layers = self.quantization_config.layers
        rest, places = {}, layers.places
        for key, value in input_dict.items():
            weight = value[0] if isinstance(value, list) else value
            name = key if key in places else full_layer_name
            if name in layers.done:
                if missing_keys is not None:
                    missing_keys.discard(name)
                continue  # a pickle has a tied weight under both names
            if name not in places or not layers.takes(places[name], weight):
                places.pop(name, None)  # a wrong shape is reported as any other's
                rest[name] = weight
                continue
            for own in layers.names(name):
                if missing_keys is not None:
                    missing_keys.discard(own)
            layers.put(name, weight)
        return rest


register_quantization_config(_METHOD)(_Config)
register_quantizer(_METHOD)(_Quantizer)


def read_checkpoint(
    path: str,
    config: Any,
    layers: Layers | None = None,
    dtype: torch.dtype | str | None = None,
    scheme: Scheme | None = None,
) -> tuple[Any, dict[str, Any]]:
    """What `transformers` makes of a checkpoint, GGUF file or adapter, and its loading report.

    What `layers` quantise has no values in it. The default of `dtype` is that of most weights. The
    `scheme` is that of a checkpoint whose layers are taken as they are; `config` has none then.
    Raises ModelError where they cannot be.
    """
    empty, source = empty_model(config), source_of(path)
    if source and source.base:
        tensors: dict[str, Any] | None = _merged(source, config, dtype)
    else:
        tensors = gguf_weights(source, empty) if source else _tensors(Path(path))
    if scheme is not None:
        if tensors is None:
            hint = "Name a checkpoint that has them there."
            raise ModelError(f"{path}: its quantised weights are in no safetensors files", hint)
        tensors = stored_layers(tensors, scheme)
    told: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    if layers is not None:
        told["quantization_config"] = _Config(layers, tensors or {})
    if tensors is None:  # a pickle
        auto = AutoModelForCausalLM.from_pretrained
        found: tuple[Any, dict[str, Any]] = auto(
            path, dtype="auto", trust_remote_code=False, **told
        )
        return found
    own = dtype or (config.dtype or torch.float32 if source else _dtype(tensors.values()))
    found = type(empty).from_pretrained(None, config=config, state_dict=tensors, dtype=own, **told)
    return found


def _merged(source: Source, config: Any, dtype: torch.dtype | str | None) -> dict[str, Tensor]:
    """The weights of a base model with an adapter, which the package peft merges into them."""
    from peft import PeftModel

    hf, report = read_checkpoint(source.base, config, dtype=dtype)
    check_weights(source.base, report, lambda _: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="Found missing adapter keys")
        hf = PeftModel.from_pretrained(hf, source.file).merge_and_unload()
    tied = hf.all_tied_weights_keys
    return {name: one for name, one in hf.state_dict().items() if name not in tied}


def tell_source(hf: Any, path: str) -> None:
    """Give a model whose weights came by themselves its generation config and its folder."""
    with suppress(OSError):  # it has none
        hf.generation_config = GenerationConfig.from_pretrained(path)
    hf.config._name_or_path = path  # a part of what trials are stored under


def empty_model(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _tensors(folder: Path) -> dict[str, Any] | None:
    """What reads each tensor of a checkpoint when it is asked for; None without safetensors.

    Read, not mapped: pages of a mapped file stay in memory until all of it is read.
    """
    try:
        files = {_WHOLE}
        if not (folder / _WHOLE).is_file():
            index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
            files = set(index["weight_map"].values())
        opened: list[Any] = [
            safe_open(str(folder / file), "pt", backend="pread") for file in sorted(files)
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    found: dict[str, Any] = {}
    for file in opened:
        found |= {name: file.get_slice(name) for name in file.offset_keys()}
    return found


def stores_integers(path: str) -> bool:
    """Whether weights in safetensors of a folder are integers of 8 bits; masks may be."""
    tensors = (_tensors(Path(path)) or {}).items()
    return any(name.endswith("weight") and one.get_dtype() in ("I8", "U8") for name, one in tensors)


def _dtype(slices: Iterable[Any]) -> torch.dtype:
    """The dtype of most tensors, so that none is converted before it is quantised."""
    found = [_DTYPES.get(one.get_dtype()) for one in slices]
    known = [dtype for dtype in found if dtype is not None]
    return max(set(known), key=known.count) if known else torch.float32


def quantized_bytes(empty: Any, between: torch.dtype) -> int:
    """The bytes of a model's weights where it is quantised; `empty` has no memory for them.

    What is not quantised is in the dtype `between` the layers, embeddings in a narrower one stay.
    Scales are left out: in layers with 2,000 inputs they are below 1%.
    """
    layers = Layers(Way())
    layers.find(empty)
    sizes = dict[int, int]()
    for module in empty.modules():
        for one in module.parameters(recurse=False):
            own = one.itemsize if isinstance(module, nn.Embedding) else between.itemsize
            sizes[id(one)] = one.numel() * min(own, between.itemsize)
    sizes |= {id(place.weight): place.weight.numel() for place in layers.places.values()}
    return sum(sizes.values())
