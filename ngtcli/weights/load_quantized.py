"""Loading a quantised model: from the cache, or else from its checkpoint, and then it is kept."""

import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from ngtcli.errors import ModelError
from ngtcli.model_files.pretrained import read_config
from ngtcli.model_files.quantized import QUANTIZED, identity, kept_file
from ngtcli.model_files.scheme import Scheme, scheme_of
from ngtcli.system.cache import in_bounds
from ngtcli.system.files import DamagedFileError, parse_json
from ngtcli.weights.checkpoints import empty_model, read_checkpoint, tell_source
from ngtcli.weights.int4 import Int4Linear, bits_of
from ngtcli.weights.int8 import VERSION, Int8Linear, Way
from ngtcli.weights.int8_order import Packer, SizeOrder, makes_opaque
from ngtcli.weights.quantize import SCALE, Layers
from ngtcli.weights.quantized_weights import Weights, tensors_of

Notify = Callable[[str], None]
Report = dict[str, Any]
_MOST = 0.5  # of the weights; where fewer are quantised, one line says so


def load_quantized(
    path: str,
    dtype: torch.dtype,
    way: Way | None,
    warn: Notify = lambda _: None,
    progress: Notify = lambda _: None,
) -> tuple[Any, Report]:
    """The model in a folder, and the loading report of `transformers`.

    With a `way` in 8 bits, otherwise in the 4 of its checkpoint. `warn` gets what is wrong with
    what the cache holds, `progress` what is done. A model that its weights do not fill has no
    values. Raises what `transformers` raises, and ModelError for weights that are quantised already
    and not computed here.
    """
    begin, done = time.perf_counter(), "Read"
    config = read_config(path, path)
    scheme = scheme_of(path)
    if getattr(config, "quantization_config", None) and not scheme.bits:
        raise ModelError(f"{path}: its weights are quantised already", "Leave out --quantize.")
    for part in (config, config.get_text_config()):
        vars(part).pop("quantization_config", None)  # the layers are made here
    about = _about(path, way)
    shown = about["folder"]
    try:
        hf, report = _from_cache(about, config, dtype, way)
    except (OSError, DamagedFileError) as error:
        if isinstance(error, DamagedFileError):
            warn(f"{shown}: its quantised weights are made again: {error}")
        if scheme.bits != (8 if way else 4):
            progress(f"Quantising {shown} …")
            done = "Quantised"
        hf, report = _from_checkpoint(path, about, config, dtype, way, warn, scheme, progress)
    tell_source(hf, path)
    hf = use_between(hf, dtype)
    progress(words(hf, time.perf_counter() - begin, done))
    if (share := quantized_share(hf)) < _MOST and not scheme.bits:
        warn(
            f"{shown}: only {share:.0%} of its weights are in 8 bits; --quantize int8 leaves the"
            " others as they are"
        )
    return hf, report


def _about(path: str, way: Way | None) -> dict[str, Any]:
    """What a file of the cache is made of, as JSON."""
    bits = {} if way else {"bits": 4}
    return {"scheme": VERSION, **identity(path), **bits}


def _from_cache(
    wanted: dict[str, Any], config: Any, dtype: torch.dtype, way: Way | None
) -> tuple[Any, Report]:
    """The model of a file of the cache. Raises OSError, DamagedFileError."""
    arrays, about = QUANTIZED.map(kept_file(wanted), {"about": json.dumps(wanted)})
    try:
        known = {
            (outputs, inputs): SizeOrder(order, bytes.fromhex(told))
            for outputs, inputs, order, told in parse_json(about["orders"], list)
        }
        unused = [str(name) for name in parse_json(about["unused"], list)]
    except (KeyError, TypeError, ValueError):
        raise DamagedFileError("it is told otherwise") from None
    hf, layers = empty_model(config), Layers(way=way, packer=Packer(known))
    layers.find(hf, arrays, {name.removesuffix(SCALE) for name in arrays if name.endswith(SCALE)})
    layers.fill(hf, tensors_of(arrays), dtype)
    return hf, {"missing_keys": [], "mismatched_keys": [], "unexpected_keys": unused}


def _from_checkpoint(
    path: str,
    about: dict[str, Any],
    config: Any,
    dtype: torch.dtype,
    way: Way | None,
    warn: Notify,
    scheme: Scheme,
    progress: Notify,
) -> tuple[Any, Report]:
    """The model of a checkpoint, which is quantised while it is read, and kept."""
    room = sum(size for _, size, _ in about["files"])  # of integers it has no more
    folder = kept_file(about).parent if makes_opaque() or way is None else None
    weights = Weights(folder, room, warn)
    try:
        layers = Layers(way=way, weights=weights)
        own = scheme if scheme.bits else None
        hf, report = read_checkpoint(path, config, layers, progress=progress, scheme=own)
        if report["missing_keys"] or report["mismatched_keys"]:
            return hf, report
        for name, tensor in (*hf.named_parameters(), *hf.named_buffers()):
            if not tensor.is_meta:
                weights.add(name, tensor.detach())
        orders = [[*size, one.order, one.about.hex()] for size, one in layers.packer.known.items()]
        file = kept_file(about) if about == _about(path, way) else None
        told = {"about": about, "orders": orders, "unused": sorted(report["unexpected_keys"])}
        layers.fill(hf, weights.finish(file, told), dtype)
        with suppress(OSError):  # it could not be kept
            if file is not None and (size := file.stat().st_size) > in_bounds.most > 0:
                warn(
                    f"the quantised weights take {size / 1e9:.1f} GB of the cache, more than"
                    f" --cache-mb {in_bounds.most / 1e6:g}: no other model's stay beside them"
                )
        return hf, report
    finally:
        weights.discard()


class WideEmbedding(nn.Module):
    """An embedding whose rows are given in a wider dtype than that of its weight: the same values.

    Its `weight`, at which Llama 4 looks, is no parameter: those give a model its dtype.
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype, padding: int | None) -> None:
        super().__init__()
        self.weight, self.dtype, self.padding_idx = weight, dtype, padding
        self.num_embeddings, self.embedding_dim = weight.shape

    def forward(self, ids: Tensor) -> Tensor:
        """(…) to (…, embedding_dim)."""
        return nn.functional.embedding(ids, self.weight).to(self.dtype)


def use_between(hf: Any, dtype: torch.dtype) -> Any:
    """The model with its floating parameters in a dtype, changed one at a time; buffers stay.

    Embeddings in a narrower dtype keep it, for they may be the most of what is not quantised. Their
    scale (Gemma's) is made again, for it was rounded to the dtype that the model was read in.
    """
    for module in hf.modules():
        if isinstance(module, nn.Embedding) and hasattr(module, "scalar_embed_scale"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale)
    users = Counter(id(p) for m in hf.modules() for p in m.parameters(recurse=False))
    for parent in list(hf.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Embedding and layer.max_norm is None:
                weight = layer.weight.detach()
                is_own = users[id(layer.weight)] == 1
                if is_own and weight.is_floating_point() and weight.itemsize < dtype.itemsize:
                    setattr(parent, name, WideEmbedding(weight, dtype, layer.padding_idx))
    for parameter in hf.parameters():
        if parameter.is_floating_point() and parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
    hf.config.dtype = hf.config.get_text_config().dtype = dtype
    return hf.requires_grad_(False).eval()


def _weights_of(hf: Any) -> tuple[int, list[Tensor]]:
    """How many of a model's weights are integers, and its other weights."""
    made = [m for m in hf.modules() if isinstance(m, Int8Linear | Int4Linear)]
    whole = sum(m.in_features * m.out_features for m in made)
    wide = [m.weight for m in hf.modules() if isinstance(m, WideEmbedding)]
    return whole, [*wide, *(p for p in hf.parameters() if p.is_floating_point())]


def quantized_share(hf: Any) -> float:
    """The share of a model's weights that are integers."""
    whole, others = _weights_of(hf)
    return whole / max(1, whole + sum(one.numel() for one in others))


def words(hf: Any, seconds: float, done: str = "Quantised") -> str:
    """What was quantised, or read from the cache, as a line."""
    (whole, others), bits = _weights_of(hf), bits_of(hf)
    rest = sum(one.nbytes for one in others)
    return (
        f"{done} {whole * bits / 8e6:,.0f} MB of weights in int{bits} in {seconds:.1f} s;"
        f" {rest / 1e6:,.0f} MB of others."
    )
