"""GGUF files: all but their weights, as the files of a folder that loads as any model's does.

A GGUF file holds configuration, tokenizer, chat template and weights. All but the weights is
written once, as `transformers` reads it, to a folder of the cache; from then on the model has that
folder, which needs neither torch nor the package gguf for a tokenizer. The weights stay in the
file, from which weights/gguf_weights.py reads them.
"""

import json
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from ngtcli.errors import ModelError, reason_of
from ngtcli.model_files.checkpoint import GGUF_SOURCE
from ngtcli.model_files.packages import require
from ngtcli.model_files.pretrained import loading, transformers_quiet
from ngtcli.system.json_form import from_json, to_json
from ngtcli.system.storage import (
    DamagedFileError,
    home,
    key_of,
    mark_used,
    private_folder,
    read_json,
    write_file,
    write_json,
)

_VERSION = 1  # raised where the files of a folder are made in another way
_FOLDER = "gguf"  # of the cache
_SOURCE_BYTES = 100_000  # of what says what the folder was made of; guess
_MADE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_OWN_DTYPES = {"F32": "float32", "F16": "float16"}  # of most weights; others are dequantised
# Tokens that end a turn, beside those that the metadata has ids of: of llama.cpp's list in
# llama-vocab.cpp those that end nothing else in another family.
_ENDS = {
    "<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<turn|>", "<|endoftext|>", "<|end_of_text|>",
    "<end_of_utterance>", "<|eom_id|>",
}  # fmt: skip
_END_IDS = ("eos", "eot", "eom")
_NO_DECODERS = {"general", "t5", "umt5"}
# Sizes that transformers 5.23 leaves as a class of configurations has them, in some families.
_LEFT_OUT = {
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_OWN_SIZES = ("gemma4",)  # which mean other things by these names
_LAYERS_OF_27B = (46, 62)  # of Gemma 2 and 3, which scale attention in another way (llama.cpp)
# The rotary scaling of Llama 3.1 to 3.3, of which a file has the factors and not the parameters.
_LOW, _HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192  # the last in tokens
_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Source:
    """The GGUF `file` of a folder of the cache, and the `kinds` of its weights, most first."""

    file: str
    kinds: tuple[str, ...]

    @property
    def words(self) -> str:
        """What it holds, and as what that is read."""
        *first, last = self.kinds
        kinds = f"{', '.join(first)} and {last}" if first else last
        whole = self.kinds[0] in _OWN_DTYPES
        return f"a GGUF file with weights in {kinds}" + ("" if whole else ", read as bfloat16")


def source_of(folder: str | Path) -> Source | None:
    """What a folder that `unpacked` has made stands for; None for any other."""
    try:
        told = read_json(Path(folder) / GGUF_SOURCE, _SOURCE_BYTES)["source"]
        found: Source = from_json(Source, told)
        return found
    except (FileNotFoundError, DamagedFileError, KeyError, ValueError):
        return None


def unpacked(name: str, file: Path) -> str:
    """The folder of the cache with configuration and tokenizer of a GGUF file.

    Raises ModelError for a file that cannot be read, of which the package gguf or `transformers`
    does not know the architecture, and where the cache cannot be written to.
    """
    file = file.resolve()
    with loading(name):
        about = file.stat()
    versions = _VERSION, metadata.version("transformers")
    folder = home("cache") / _FOLDER / key_of(file, about.st_size, about.st_mtime_ns, *versions)
    if source_of(folder) is None or not all((folder / made).is_file() for made in _MADE):
        with loading(name), tempfile.TemporaryDirectory() as place:
            source = _unpack(name, file, Path(place))
            try:
                private_folder(folder)
                for made in _MADE:
                    write_file(folder / made, partial(shutil.copyfile, Path(place) / made))
                write_json(folder / GGUF_SOURCE, {"source": to_json(source)})
            except OSError as error:
                what = f"{name}: its tokenizer cannot be kept in {folder}: {reason_of(error)}"
                raise ModelError(what, "Make room there, or set NGT_HOME.") from None
    for made in _MADE:
        mark_used(folder / made)
    return os.path.realpath(folder)


def _unpack(name: str, file: Path, place: Path) -> Source:
    """Write the files of _MADE to a folder."""
    require(f"{name}: reading a GGUF file", ["gguf"], "'ngtcli[gguf]'")
    from gguf import GGUFReader

    reader = GGUFReader(file)
    value = partial(_value, reader)
    if (parts := value("split.count", 0)) > 1:
        hint = "Join them: llama-gguf-split --merge FIRST-PART WHOLE.gguf"
        raise ModelError(f"{name}: one of {parts} parts of a GGUF file", hint)
    if value("tokenizer.ggml.model") in (None, "none", "no_vocab"):
        hint = "Give another file of the model."
        raise ModelError(f"{name}: the GGUF file has no tokenizer", hint)
    sizes = Counter[str]()
    for tensor in reader.tensors:
        if len(tensor.shape) > 1:
            sizes[tensor.tensor_type.name] += int(tensor.n_elements)
    kinds = tuple(kind for kind, _ in sizes.most_common()) or ("F32",)
    config = _config(name, file, reader)
    config.dtype = _OWN_DTYPES.get(kinds[0], "bfloat16")
    (place / "config.json").write_text(config.to_json_string(), encoding="utf-8")
    ends = {value(f"tokenizer.ggml.{end}_token_id") for end in _END_IDS} - {None}
    ends |= _write_tokenizer(file, place)
    told = json.dumps({"eos_token_id": sorted(ends)} if ends else {})
    (place / "generation_config.json").write_text(told, encoding="utf-8")
    return Source(str(file), kinds)


def _value(reader: Any, key: str, default: Any = None) -> Any:
    field = reader.get_field(key)
    return default if field is None else field.contents()


def _write_tokenizer(file: Path, place: Path) -> set[int]:
    """Write the tokenizer, with its chat template; the ids of tokens of _ENDS that it has."""
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    architecture, parts, told = get_gguf_tokenizer(str(file))
    backend, more = convert_gguf_tokenizer(architecture, parts)
    made = transformers_quiet().TokenizersBackend(tokenizer_object=backend, **told, **more)
    made.save_pretrained(place, save_jinja_files=False)
    known = made.added_tokens_decoder.items()
    return {i for i, token in known if token.special and token.content in _ENDS}


def _config(name: str, file: Path, reader: Any) -> Any:
    """The configuration, with what `transformers` leaves out of it: rotary scaling, windows."""
    transformers = transformers_quiet()
    from transformers.modeling_gguf_pytorch_utils import (
        GGUF_SUPPORTED_ARCHITECTURES,
        load_gguf_checkpoint,
    )

    architecture = _value(reader, "general.architecture", "")
    try:
        values = load_gguf_checkpoint(str(file))["config"]
    except ValueError as error:
        if "not supported" not in str(error):
            raise
        known = sorted({*GGUF_SUPPORTED_ARCHITECTURES} - _NO_DECODERS)
        what = f"{name}: transformers reads no GGUF file of the architecture {architecture}"
        raise ModelError(what, f"It reads those of {', '.join(known)}.") from None
    config = transformers.AutoConfig.for_model(**values)
    value = partial(_value, reader)
    for key, own in _LEFT_OUT.items():
        told = value(f"{architecture}.{key}")
        if told and hasattr(config, own) and architecture not in _OWN_SIZES:
            setattr(config, own, told)
    if hasattr(config, "query_pre_attn_scalar"):
        by_heads = config.num_hidden_layers in _LAYERS_OF_27B
        width = config.hidden_size // config.num_attention_heads
        config.query_pre_attn_scalar = width if by_heads else config.head_dim
    if rope := getattr(config, "rope_parameters", None):
        rope = rope.get("full_attention", rope)
        rope |= _scaling(name, architecture, reader, rope.get("rope_theta", 0.0))
    return config


def _scaling(name: str, architecture: str, reader: Any, base: float) -> dict[str, Any]:
    """The rotary parameters of a file beside the base; raises ModelError for what has none."""
    value = partial(_value, reader)
    about = f"{architecture}.rope.scaling"
    kind, factor = value(f"{about}.type"), value(f"{about}.factor")
    if kind in ("linear", "yarn") and factor:
        length = value(f"{about}.original_context_length")
        told = {"rope_type": kind, "factor": float(factor)}
        return told | ({"original_max_position_embeddings": length} if length else {})
    stored = {tensor.name: tensor.data for tensor in reader.tensors}
    if architecture == "llama" and _FACTORS in stored:
        factors = stored[_FACTORS].tolist()
        if all(
            math.isclose(one, other, rel_tol=1e-3)
            for one, other in zip(factors, _llama3_factors(base, factors), strict=True)
        ):
            return {
                "rope_type": "llama3",
                "factor": float(round(max(factors), 3)),
                "low_freq_factor": _LOW,
                "high_freq_factor": _HIGH,
                "original_max_position_embeddings": _LLAMA3_CONTEXT,
            }
    elif not any(one.startswith("rope_factors_") for one in stored):
        return {}
    hint = "Name the folder or hub id of the model that it was made of."
    raise ModelError(f"{name}: transformers has no place for its rotary factors", hint)


def _llama3_factors(base: float, factors: Sequence[float]) -> list[float]:
    """By how much Llama 3.1 divides each rotary frequency; the largest factor is told.

    The formula is that of `_compute_llama3_parameters` in transformers' modeling_rope_utils.py.
    """
    made = []
    for i in range(len(factors)):
        wave = 2 * math.pi * base ** (i / len(factors))
        smooth = min(max((_LLAMA3_CONTEXT / wave - _LOW) / (_HIGH - _LOW), 0.0), 1.0)
        made.append(1 / ((1 - smooth) / max(factors) + smooth))
    return made
