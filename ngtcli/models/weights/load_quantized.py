"""Loading a quantised model: from the cache, or else from its checkpoint, and then it is kept."""

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from math import prod
from typing import Any

import torch
from torch import nn

from ngtcli.errors import ModelError, reason_of
from ngtcli.models.pretrained import read_config
from ngtcli.models.quantized import QUANTIZED, identity, kept_file
from ngtcli.models.weights.checkpoints import empty_model, read_checkpoint, tell_source
from ngtcli.models.weights.convert import SCALE, Conversion, quantized_bytes
from ngtcli.models.weights.formats import WeightFormat
from ngtcli.models.weights.linear import (
    VERSION,
    MappedEmbedding,
    PackedLinear,
    bits_of,
    packed_weights,
)
from ngtcli.models.weights.places import is_embedding
from ngtcli.models.weights.tensor_store import TensorStore, tensors_of
from ngtcli.system.arrays import ArrayWriter
from ngtcli.system.files import DamagedFileError, parse_json
from ngtcli.system.progress import sized

Notify = Callable[[str], None]
Report = dict[str, Any]
_Size = tuple[int, int, str]  # with what oneDNN has to know of it, in the metadata of a file
_SCALES = 1.02  # of the bytes of quantised weights, for their scales; derived: few have 400 inputs
_MOST = 0.5  # of the weights; where fewer are quantised, one line says so


def load_quantized(
    path: str,
    weight_format: WeightFormat,
    warn: Notify = lambda _: None,
    progress: Notify = lambda _: None,
) -> tuple[Any, Report]:
    """The quantized model of a folder, and the loading report of `transformers`.

    `warn` gets what is wrong with what the cache holds, `progress` what is done. A model that its
    weights do not fill has no values. Raises what `transformers` raises, and ModelError for weights
    that are quantised already and not computed here.
    """
    begin, done = time.perf_counter(), "Read"
    config = read_config(path, path)
    if getattr(config, "quantization_config", None):
        raise ModelError(f"{path}: its weights are quantized already", "Leave out --quantize.")
    for part in (config, config.get_text_config()):
        vars(part).pop("quantization_config", None)  # the layers are made here
    about = _about(path)
    shown, conversion = about["folder"], Conversion(weight_format, progress=progress)
    try:
        hf, report = _from_cache(about, config, conversion)
    except (OSError, DamagedFileError) as error:
        if isinstance(error, DamagedFileError):
            warn(f"{shown}: its quantised weights are made again: {error}")
        progress(f"Quantising {shown} …")
        done = "Quantised"
        hf, report, conversion = _from_checkpoint(
            path, about, config, weight_format, warn, progress
        )
    tell_source(hf, path)
    hf = use_between(hf, weight_format.dtype)
    share, told = words(hf, time.perf_counter() - begin, done)
    progress(told)
    if share < _MOST:
        warn(
            f"{shown}: only {share:.0%} of its weights are in 8 bits; --quantize int8 leaves the"
            " others as they are"
        )
    if not _lacks(report):
        conversion.pack_rest(hf)
    return hf, report


def _about(path: str) -> dict[str, Any]:
    """What a file of the cache is made of, as JSON."""
    return {"scheme": VERSION, **identity(path)}


def _lacks(report: Report) -> bool:
    return bool(report["missing_keys"] or report["mismatched_keys"])


def _from_cache(wanted: dict[str, Any], config: Any, conversion: Conversion) -> tuple[Any, Report]:
    """The model of a file of the cache. Raises OSError, DamagedFileError."""
    arrays, about = QUANTIZED.map(kept_file(wanted), {"about": json.dumps(wanted)})
    try:
        for outputs, inputs, told in parse_json(about["sizes"], list[_Size]):
            conversion.sizes[outputs, inputs] = bytes.fromhex(told)
        unused = parse_json(about["unused"], list[str])
    except (KeyError, ValueError):
        raise DamagedFileError("it is told otherwise") from None
    hf = empty_model(config)
    made = {name.removesuffix(SCALE) for name in arrays if name.endswith(SCALE)}
    conversion.find(hf, arrays, made)
    conversion.fill(hf, tensors_of(arrays))
    return hf, {"missing_keys": [], "mismatched_keys": [], "unexpected_keys": unused}


def _from_checkpoint(
    path: str,
    about: dict[str, Any],
    config: Any,
    weight_format: WeightFormat,
    warn: Notify,
    progress: Notify,
) -> tuple[Any, Report, Conversion]:
    """The model of a checkpoint, which is quantised while it is read, and kept if it can be."""

    def read(writer: ArrayWriter | None) -> tuple[Any, Report, Conversion]:
        conversion = Conversion(weight_format, TensorStore(writer), progress=progress)
        hf, report = read_checkpoint(path, config, conversion, progress=progress)
        if _lacks(report):
            return hf, report, conversion
        for name, tensor in (*hf.named_parameters(), *hf.named_buffers()):
            if not tensor.is_meta:
                conversion.store.add(name, tensor.detach())
        sizes = [[*size, one.hex()] for size, one in conversion.sizes.items()]
        told = {"about": about, "sizes": sizes, "unused": sorted(report["unexpected_keys"])}
        is_same = about == _about(path)
        conversion.fill(hf, conversion.store.finish(kept_file(about) if is_same else None, told))
        return hf, report, conversion

    try:
        with closing(_writer(about, config)) as writer:
            return read(writer)
    except OSError as error:
        warn(f"quantised weights are not kept: {reason_of(error)}")
        return read(None)


def _writer(about: dict[str, Any], config: Any) -> ArrayWriter:
    """What writes the file of a model. Raises OSError where there is no room for it."""
    writer = ArrayWriter(folder := kept_file(about).parent)
    empty = empty_model(config)
    room = int(_SCALES * quantized_bytes(empty, empty.dtype))
    if (free := shutil.disk_usage(folder).free) < room:
        writer.close()
        raise OSError(f"{sized(free)} are free, and {sized(room)} are wanted")
    return writer


def use_between(hf: Any, dtype: torch.dtype) -> Any:
    """The model with its floating parameters in a dtype, changed one at a time; buffers stay.

    Embeddings in a narrower dtype keep it, for they may be the most of what is not quantised. Their
    scale (Gemma's) is made again, for it was rounded to the dtype that the model was read in.
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


def words(hf: Any, seconds: float, done: str = "Quantised") -> tuple[float, str]:
    """The share of a model's weights that are integers; as a line, what was quantised or read."""
    whole = sum(prod(one.size) for one in packed_weights(hf) if one.bits)
    mapped = [m.weight for m in hf.modules() if isinstance(m, MappedEmbedding)]
    others = [*mapped, *(p for p in hf.parameters() if p.is_floating_point())]
    bits, rest = bits_of(hf), sum(one.nbytes for one in others)
    return whole / max(1, whole + sum(one.numel() for one in others)), (
        f"{done} {whole * bits / 8e6:,.0f} MB of weights in int{bits} in {seconds:.1f} s;"
        f" {rest / 1e6:,.0f} MB of others."
    )
