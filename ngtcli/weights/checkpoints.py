"""Reads checkpoints: `transformers` makes the model, and asks for each weight when it comes to it.

It is given what reads a weight then, of one file or of several. Weights that get another form,
packed or in 8 bits, are taken one by one as they come, so that none is in memory twice.
"""

import ctypes
import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.core_model_loading import ConversionOps
from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ngtcli.model_files.gguf import source_of
from ngtcli.weights.gguf_weights import gguf_weights
from ngtcli.weights.places import Taken

_METHOD = "ngt"
_DONTNEED = 4  # MADV_DONTNEED of Linux
_IN_USE = 4  # tensors that were read last: `transformers` converts so many at once
_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class _Config(QuantizationConfigMixin):  # type: ignore[misc]
    """What `transformers` is told of the layers; it never reaches a file."""

    def __init__(self, layers: Taken[Any], stored: Any) -> None:
        self.quant_method, self.layers, self.stored = _METHOD, layers, stored

    def __deepcopy__(self, memo: Any) -> "_Config":
        return self  # the layers are those of one model

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": self.quant_method}


class _Quantizer(HfQuantizer, ConversionOps):  # type: ignore[misc]
    """The hook of `transformers` that is called for each weight, and what it does with one."""

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        self.quantization_config.layers.find(model, self.quantization_config.stored)

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
        layers: Taken[Any] = self.quantization_config.layers
        rest, places = {}, layers.places
        for key, value in input_dict.items():
            weight = value[0] if isinstance(value, list) else value
            name = key if key in places else full_layer_name
            if name in layers.done:
                if missing_keys is not None:
                    missing_keys.discard(name)
                continue  # a pickle has a tied weight under both names
            if name not in places or weight.shape != places[name].weight.shape:
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
    layers: Taken[Any] | None = None,
    dtype: torch.dtype | str | None = None,
) -> tuple[Any, dict[str, Any]]:
    """What `transformers` makes of a checkpoint or a GGUF file, and its loading report.

    `layers` take their weights as they come; the others are in `dtype`, "auto" for that of the
    configuration, None for that of most weights. Weights of safetensors that are neither taken nor
    converted stay in the mapped files.
    """
    empty, source = empty_model(config), source_of(path)
    tensors = gguf_weights(source, empty) if source else _tensors(Path(path))
    told: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    if layers is not None:
        told["quantization_config"] = _Config(layers, tensors or {})
    if tensors is None:  # pickles, or an adapter
        # Left unset, trust_remote_code would ask on stdout and read the answer from a document.
        found: tuple[Any, dict[str, Any]] = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype or "auto", trust_remote_code=False, **told
        )
        return found
    if not dtype or (dtype == "auto" and not empty.config.dtype):
        dtype = _dtype(tensors.values())
    found = type(empty).from_pretrained(
        None, config=empty.config, state_dict=tensors, dtype=dtype, **told
    )
    tell_source(found[0], path)
    return found


def tell_source(hf: Any, path: str) -> None:
    """Give a model whose weights came by themselves its generation config and its folder."""
    with suppress(OSError):  # it has none
        hf.generation_config = GenerationConfig.from_pretrained(path)
    hf.config._name_or_path = path  # a part of what trials are stored under


def empty_model(config: Any, dtype: torch.dtype | None = None) -> Any:
    """A model without values, in the dtype of its configuration or in another."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, **({"dtype": dtype} if dtype else {}))


class _Files:
    """The tensors of a checkpoint by their names, each read when it is asked for.

    They lie in mapped files, whose pages are let go of when some more tensors have been read: those
    of a weight that was not copied come back when it is used.
    """

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = {name: _Stored(one, self) for name, one in tensors.items()}
        self._last: list[Tensor] = []

    def read(self, tensor: Tensor) -> None:
        """Count a tensor that was read."""
        self._last.append(tensor)
        if len(self._last) > _IN_USE:
            _let_go(self._last.pop(0))


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor in a file."""

    one: Any
    files: _Files

    def get_dtype(self) -> str:
        """Its dtype, as safetensors name them."""
        return str(self.one.get_dtype())

    def __getitem__(self, at: Any) -> Tensor:
        tensor: Tensor = self.one[at]
        self.files.read(tensor)
        return tensor


def _let_go(tensor: Tensor) -> None:
    """Free the memory that pages of a mapped file take; they are read again where they are used."""
    first, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    first, end = -(-first // PAGESIZE) * PAGESIZE, end // PAGESIZE * PAGESIZE
    if sys.platform == "linux" and end > first:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _DONTNEED)


def _tensors(folder: Path) -> dict[str, Any] | None:
    """What reads each tensor of a checkpoint when it is asked for; None without safetensors."""
    if (folder / "adapter_config.json").is_file():
        return None
    try:
        files = {_WHOLE}
        if not (folder / _WHOLE).is_file():
            index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
            files = set(index["weight_map"].values())
        opened: list[Any] = [safe_open(str(folder / file), "pt") for file in sorted(files)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    found: dict[str, Any] = {}
    for file in opened:
        found |= {name: file.get_slice(name) for name in file.offset_keys()}
    return _Files(found).tensors


def stores_integers(path: str) -> bool:
    """Whether weights in safetensors of a folder are integers of 8 bits; masks may be."""
    tensors = (_tensors(Path(path)) or {}).items()
    return any(name.endswith("weight") and one.get_dtype() in ("I8", "U8") for name, one in tensors)


def _dtype(slices: Iterable[Any]) -> torch.dtype:
    """The dtype of most tensors, so that none is converted before it is quantised."""
    found = [_DTYPES.get(one.get_dtype()) for one in slices]
    known = [dtype for dtype in found if dtype is not None]
    return max(set(known), key=known.count) if known else torch.float32
