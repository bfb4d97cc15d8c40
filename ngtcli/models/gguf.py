"""GGUF files: all but their weights, as the files of a folder that loads as any model's does.

Configuration, tokenizer and chat template are written once, as `transformers` reads them, to a
folder of the cache. The weights stay in the file, from which weights/gguf_weights.py reads them.
"""

import json
import os
import struct
from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from ngtcli.errors import ModelError
from ngtcli.models.pretrained import loading, transformers_quiet
from ngtcli.models.requirements import require
from ngtcli.models.stand_in import Source, stand_in
from ngtcli.system.files import stamp_of

# Tokens that end a turn, beside those that the metadata has ids of: of llama.cpp's list in
# llama-vocab.cpp those that end nothing else in another family.
_ENDS = {
    "<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<turn|>", "<|endoftext|>", "<|end_of_text|>",
    "<end_of_utterance>", "<|eom_id|>",
}  # fmt: skip
# No decoders; and those of which transformers 5.23 leaves out weights or rotary parameters.
_UNREAD = {"general", "tokenizer", "t5", "umt5", "gpt_oss", "gemma4"}
# Model types whose configuration is what the library's table says: its own reader takes 10 s and
# more for a vocabulary of 128,000.
_BY_TABLE = {one: one for one in ("llama", "qwen2", "qwen3", "gemma2")} | {"gemma3": "gemma3_text"}
# Sizes that it leaves as a class of configurations has them, in some families.
_LEFT_OUT = {
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_LAYERS_OF_27B = (46, 62)  # of Gemma 2 and 3, which scale attention in another way (llama.cpp)
FACTORS = "rope_freqs.weight"  # of rotary frequencies
# Llama 3.1 to 3.3, of whose rotary scaling a file has the factors and not the parameters.
_LLAMA3 = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def unpacked(name: str, file: Path) -> str:
    """The folder of the cache with configuration and tokenizer of a GGUF file.

    Raises ModelError for a file that cannot be read, and without the package gguf.
    """
    file = file.resolve()
    with loading(name):
        return stand_in((file, stamp_of(file)), lambda place: _unpack(name, file, place))


def read_header(name: str, file: str) -> tuple[dict[str, Any], Any]:
    """The metadata of a file, of each list of texts its length; and `GgufHeader` of `transformers`.

    Raises ModelError for a file that ends early, and without the package gguf, whose own reader
    takes seconds for a vocabulary.
    """
    require(f"{name}: reading a GGUF file", ["gguf"], "'ngtcli[gguf]'")
    from gguf.constants import GGML_QUANT_SIZES
    from transformers.integrations.gguf import GgufHeader, read_gguf_metadata

    from ngtcli.models.hf import know_gguf_types

    more = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items() if sizes[0] > 1}
    know_gguf_types(more)  # it has no Q5_0, Q5_1, MXFP4
    try:
        told, header = read_gguf_metadata(file)[0], GgufHeader.from_file(file)
    except (struct.error, UnicodeDecodeError, OverflowError) as error:
        what = f"{name}: the GGUF file is damaged or ends early ({error})"
        raise ModelError(what, hint="Download it again.") from None
    end = header.data_start + max((one.offset + one.nbytes for one in header.tensors), default=0)
    if end > (size := os.path.getsize(file)):
        what = f"{name}: the GGUF file ends early, after {size:,} of {end:,} bytes"
        raise ModelError(what, hint="Download it again.")
    return told, header


def _unpack(name: str, file: Path, place: Path) -> Source:
    """Write all but the weights to a folder."""
    told, header = read_header(name, str(file))
    if (parts := told.get("split.count", 0)) > 1:
        hint = "Join them: llama-gguf-split --merge FIRST-PART WHOLE.gguf"
        raise ModelError(f"{name}: one of {parts} parts of a GGUF file", hint=hint)
    if told.get("tokenizer.ggml.model") in (None, "none", "no_vocab"):
        raise ModelError(f"{name}: the GGUF file has no tokenizer", hint="Give another file of it.")
    from gguf import GGMLQuantizationType

    sizes = Counter[str]()
    for one in header.tensors:
        if len(one.shape) > 1:
            sizes[GGMLQuantizationType(one.ggml_type).name] += prod(one.shape)
    kinds = [kind for kind, _ in sizes.most_common()]
    config = _config(name, file, told, header)
    config.dtype = dtype = {"F32": "float32", "F16": "float16"}.get(kinds[0], "bfloat16")
    (place / "config.json").write_text(config.to_json_string(), encoding="utf-8")
    ends = {told.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom")} - {None}
    ends |= _write_tokenizer(file, place)
    generation = json.dumps({"eos_token_id": sorted(ends)} if ends else {})
    (place / "generation_config.json").write_text(generation, encoding="utf-8")
    own = f", dequantised to {dtype}" if dtype == "bfloat16" else ""
    return Source(str(file), f"a GGUF file with weights in {' and '.join(kinds)}{own}")


def _write_tokenizer(file: Path, place: Path) -> set[int]:
    """Write the tokenizer, with its chat template; the ids of tokens of _ENDS that it has."""
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    architecture, parts, told = get_gguf_tokenizer(str(file))
    backend, more = convert_gguf_tokenizer(architecture, parts)
    state = json.loads(backend.to_str())  # it may have an end token of GPT-2 that the file has not
    added, count = state["added_tokens"], len(parts["tokens"])
    state["added_tokens"] = [one for one in added if one["id"] < count]
    backend = type(backend).from_str(json.dumps(state))
    made = transformers_quiet().TokenizersBackend(tokenizer_object=backend, **told, **more)
    made.save_pretrained(place, save_jinja_files=False)
    known = made.added_tokens_decoder.items()
    return {i for i, token in known if token.special and token.content in _ENDS}


def _config(name: str, file: Path, told: Mapping[str, Any], header: Any) -> Any:
    """The configuration, with what `transformers` leaves out of it. Raises ModelError."""
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    own, library = header.architecture, transformers_quiet()
    family = own.replace("-", "_").replace("moe", "_moe")
    known = sorted({*GGUF_SUPPORTED_ARCHITECTURES} - _UNREAD)
    if family not in known:
        what = f"{name}: GGUF files of the architecture {own} are not read"
        raise ModelError(what, hint=f"These are: {', '.join(known)}.")
    if family in _BY_TABLE:
        table = library.integrations.GGUF_CONFIG_MAPPING
        keys = {f"{own}.{key}": to for key, to in table[family].items()}
        keys |= {f"tokenizer.{key}": to for key, to in table["tokenizer"].items()}
        values = {"vocab_size": told["tokenizer.ggml.tokens"]}
        values |= {to: told[key] for key, to in keys.items() if to and key in told}
        values["tie_word_embeddings"] = "output.weight" not in header.ggml_types
        config = library.AutoConfig.for_model(_BY_TABLE[family], **values)
    else:
        config = library.AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    for key, size in _LEFT_OUT.items():
        if (found := told.get(f"{own}.{key}")) and hasattr(config, size):
            setattr(config, size, found)
    if own.startswith("gemma") and config.num_hidden_layers in _LAYERS_OF_27B:
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
    if rope := getattr(config, "rope_parameters", None):
        rope = rope.get("full_attention", rope)
        scaling = f"{own}.rope.scaling"
        kind, first = told.get(f"{scaling}.type"), told.get(f"{scaling}.original_context_length")
        more = {
            "rope_theta": told.get(f"{own}.rope.freq_base"),
            "rope_type": kind if kind in ("linear", "yarn") else None,
            "factor": told.get(f"{scaling}.factor"),
            "original_max_position_embeddings": first,
        }
        rope |= {key: value for key, value in more.items() if value}
        _add_factors(name, config, header)
    return config


def _add_factors(name: str, config: Any, header: Any) -> None:
    """Give the configuration the parameters of Llama 3, where the file's rotary factors are its.

    Raises ModelError where they are others.
    """
    import numpy as np  # here: light commands import this file
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    stored = [one for one in header.tensors if one.name.startswith(("rope_freqs", "rope_factors"))]
    if not stored:
        return
    if config.model_type == "llama" and stored[0].name == FACTORS:
        place, count = header.data_start + stored[0].offset, prod(stored[0].shape)
        factors = np.fromfile(header.path, np.float32, count, offset=place)
        rope = config.rope_parameters
        rope |= _LLAMA3 | {"factor": float(round(factors.max(), 3))}
        made = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].numpy()
        plain = rope["rope_theta"] ** -(np.arange(count) / count)
        if made.shape == plain.shape and np.allclose(plain / made, factors, rtol=1e-3):
            return
    hint = "Name the folder or hub id of the model that it was made of."
    raise ModelError(f"{name}: transformers has no place for its rotary factors", hint=hint)
