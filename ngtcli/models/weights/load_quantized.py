"""Load a quantized model from the cache, or quantize its checkpoint and cache the result."""

import json
import shutil
import time
from collections import Counter
from contextlib import closing
from math import prod
from typing import Any

import torch
from torch import nn

from ngtcli.errors import ModelError
from ngtcli.models.pretrained import read_config
from ngtcli.models.quantized import QUANTIZED, cache_path, identity
from ngtcli.models.weights.checkpoints import empty_model, read_checkpoint, set_source
from ngtcli.models.weights.convert import SCALE, Conversion, quantized_bytes
from ngtcli.models.weights.formats import WeightFormat
from ngtcli.models.weights.linear import (
    VERSION,
    MappedEmbedding,
    PackedLinear,
    packed_weights,
    quantized_bits,
)
from ngtcli.models.weights.target_modules import is_embedding
from ngtcli.models.weights.tensor_store import TensorStore, to_tensors
from ngtcli.system import reporting
from ngtcli.system.arrays import ArrayWriter
from ngtcli.system.files import DamagedFileError, parse_json
from ngtcli.system.progress import sized
from ngtcli.words import reason_of

Report = dict[str, Any]
_Layout = tuple[int, int, str]  # out, in, and the layout in hexadecimal: metadata of a cached file
# Bytes of quantized weights with their scales, relative to those without (derived: a scale of 4
# bytes adds 2% to 200 inputs, and most layers have more).
_SCALE_OVERHEAD = 1.02
_FEW = 0.5  # A warning is given if a smaller share of the weights is quantized.


def load_quantized(path: str, weight_format: WeightFormat) -> tuple[Any, Report]:
    """Load the quantized model of a folder.

    Args:
        path: The folder of the checkpoint.
        weight_format: A format with integers.

    Returns:
        The model, and the loading report of `transformers`. Weights that the checkpoint lacks have
        no values.

    Raises:
        ModelError: The weights are quantized already. Errors of `transformers` pass through.
    """
    started = time.perf_counter()
    config = read_config(path, path)
    if getattr(config, "quantization_config", None):
        raise ModelError(f"{path}: the weights are already quantized", hint="Leave out --quantize.")
    for part in (config, config.get_text_config()):
        # An empty entry would have transformers build quantized layers.
        vars(part).pop("quantization_config", None)
    source = _source(path)
    folder = source["folder"]
    conversion = Conversion(weight_format)
    action = "Read"
    try:
        hf, report = _from_cache(source, config, conversion)
    except (OSError, DamagedFileError) as error:
        if isinstance(error, DamagedFileError):
            reporting.warn_once(f"{folder}: the quantized weights are made again: {error}")
        reporting.status(f"Quantizing {folder} …")
        action = "Quantized"
        hf, report, conversion = _from_checkpoint(path, source, config, weight_format)
    set_source(hf, path)
    hf = set_activation_dtype(hf, weight_format.dtype)
    share, line = summary(hf, time.perf_counter() - started, action)
    reporting.status(line)
    if share < _FEW:
        reporting.warn_once(
            f"{folder}: only {share:.0%} of the weights are in 8 bits; --quantize int8 leaves the"
            " others unchanged"
        )
    if not _is_incomplete(report):
        conversion.pack_rest(hf)
    return hf, report


def _source(path: str) -> dict[str, Any]:
    """Return everything that a cached file depends on, as values of JSON."""
    return {"scheme": VERSION, **identity(path)}


def _is_incomplete(report: Report) -> bool:
    return bool(report["missing_keys"] or report["mismatched_keys"])


def _from_cache(source: dict[str, Any], config: Any, conversion: Conversion) -> tuple[Any, Report]:
    """Fill the model from a cached file.

    Raises:
        OSError: There is no file, or it cannot be read.
        DamagedFileError: The file does not fit the model.
    """
    arrays, metadata = QUANTIZED.map(cache_path(source), {"about": json.dumps(source)})
    try:
        for out_features, in_features, layout in parse_json(metadata["sizes"], list[_Layout]):
            conversion.layouts[out_features, in_features] = bytes.fromhex(layout)
        unused = parse_json(metadata["unused"], list[str])
    except (KeyError, ValueError):
        raise DamagedFileError('its metadata ("sizes", "unused") is missing or malformed') from None
    hf = empty_model(config)
    quantized = {name.removesuffix(SCALE) for name in arrays if name.endswith(SCALE)}
    conversion.find_destinations(hf, arrays, quantized)
    conversion.fill(hf, to_tensors(arrays))
    return hf, {"missing_keys": [], "mismatched_keys": [], "unexpected_keys": unused}


def _from_checkpoint(
    path: str,
    source: dict[str, Any],
    config: Any,
    weight_format: WeightFormat,
) -> tuple[Any, Report, Conversion]:
    """Quantize a checkpoint while it is read, and cache the result if possible."""

    def read(writer: ArrayWriter | None) -> tuple[Any, Report, Conversion]:
        conversion = Conversion(weight_format, TensorStore(writer))
        hf, report = read_checkpoint(path, config, conversion)
        if _is_incomplete(report):
            return hf, report, conversion
        for name, tensor in (*hf.named_parameters(), *hf.named_buffers()):
            if not tensor.is_meta:
                conversion.store.add(name, tensor.detach())
        layouts = [[*size, layout.hex()] for size, layout in conversion.layouts.items()]
        metadata = {
            "about": source,
            "sizes": layouts,
            "unused": sorted(report["unexpected_keys"]),
        }
        is_unchanged = source == _source(path)
        file = cache_path(source) if is_unchanged else None
        conversion.fill(hf, conversion.store.finish(file, metadata))
        return hf, report, conversion

    try:
        with closing(_writer(source, config)) as writer:
            return read(writer)
    except OSError as error:
        reporting.warn_once(f"the quantized weights are not cached: {reason_of(error)}")
        return read(None)


def _writer(source: dict[str, Any], config: Any) -> ArrayWriter:
    """Open a file to cache a model in. Raises OSError if the disk has no room for it."""
    folder = cache_path(source).parent
    writer = ArrayWriter(folder)
    empty = empty_model(config)
    needed = int(_SCALE_OVERHEAD * quantized_bytes(empty, empty.dtype))
    free = shutil.disk_usage(folder).free
    if free < needed:
        writer.close()
        raise OSError(f"{sized(needed)} are needed, {sized(free)} are free")
    return writer


def set_activation_dtype(hf: Any, dtype: torch.dtype) -> Any:
    """Let a model compute in a dtype between its quantized layers; buffers keep their dtypes.

    Floating parameters are cast one at a time. Embeddings in a narrower dtype keep it, because they
    may be most of what is not quantized. Their scale (Gemma) is computed again, because it was
    rounded to the dtype that the model was read in.
    """
    for module in hf.modules():
        if isinstance(module, PackedLinear):
            module.dtype = dtype
        if isinstance(module, nn.Embedding) and hasattr(module, "scalar_embed_scale"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale)
    users = Counter(id(p) for m in hf.modules() for p in m.parameters(recurse=False))
    for parent in list(hf.modules()):
        for name, layer in list(parent.named_children()):
            if is_embedding(layer) and users[id(layer.weight)] == 1:
                weight = layer.weight.detach()
                if weight.is_floating_point() and weight.itemsize < dtype.itemsize:
                    setattr(parent, name, MappedEmbedding(weight, dtype, layer))
    for parameter in hf.parameters():
        if parameter.is_floating_point() and parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
    hf.config.dtype = hf.config.get_text_config().dtype = dtype
    return hf.requires_grad_(False).eval()


def summary(hf: Any, seconds: float, action: str = "Quantized") -> tuple[float, str]:
    """Return the share of a model's weights that are integers, and a status line.

    Args:
        hf: The model.
        seconds: How long loading took.
        action: The first word of the line.
    """
    integers = sum(prod(weight.size) for weight in packed_weights(hf) if weight.bits)
    floats = [module.weight for module in hf.modules() if isinstance(module, MappedEmbedding)]
    floats += [parameter for parameter in hf.parameters() if parameter.is_floating_point()]
    bits = quantized_bits(hf)
    float_bytes = sum(tensor.nbytes for tensor in floats)
    share = integers / max(1, integers + sum(tensor.numel() for tensor in floats))
    line = (
        f"{action} {integers * bits / 8e6:,.0f} MB of weights in int{bits} in {seconds:.1f} s;"
        f" {float_bytes / 1e6:,.0f} MB of others."
    )
    return share, line
