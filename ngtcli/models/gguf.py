"""GGUF files, made into a folder that `transformers` can load, except for the weights.

Configuration, tokenizer and chat template are written once to a folder of the cache. The weights
stay in the GGUF file; weights/gguf_weights.py reads them from there.
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

# Tokens that end a turn, besides those whose ids are in the metadata. They are those of the list
# in llama.cpp's llama-vocab.cpp that have no other meaning in another family.
_END_TOKENS = {
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<|eom_id|>",
}
# Entries of transformers' list that are no decoders, and families of which transformers 5.23 leaves
# out weights or rotary parameters.
_UNSUPPORTED = {"general", "tokenizer", "t5", "umt5", "gpt_oss", "gemma4"}
# Model types by families whose configuration is made by transformers' table: its own reader takes
# 10 s and more for a vocabulary of 128,000 tokens (measured).
_TABLE_MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
}
# Metadata that transformers does not copy in some families, and its names in a configuration.
_UNCOPIED_SIZES = {
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "expert_feed_forward_length": "moe_intermediate_size",
}
# Numbers of layers of Gemma 2 and 3 with 27 billion parameters, which scale attention differently
# (llama.cpp).
_LAYERS_OF_GEMMA_27B = (46, 62)
FACTORS = "rope_freqs.weight"  # the tensor with factors of rotary frequencies
# The rotary scaling of Llama 3.1 to 3.3. A file has its factors but not these parameters.
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def unpack(name: str, file: Path) -> str:
    """Return the folder of the cache with the configuration and tokenizer of a GGUF file.

    Raises:
        ModelError: The file cannot be read, or the package gguf is not installed.
    """
    file = file.resolve()
    with loading(name):
        return stand_in((file, stamp_of(file)), lambda folder: _write_folder(name, file, folder))


def read_header(name: str, file: str) -> tuple[dict[str, Any], Any]:
    """Read the header of a GGUF file, which is everything before the weights.

    The reader of the gguf package would take seconds for the vocabulary.

    Args:
        name: The model's name, for messages.
        file: Path of the file.

    Returns:
        The metadata, in which lists of strings are replaced by their lengths, and the `GgufHeader`
        of `transformers`.

    Raises:
        ModelError: The file is damaged or incomplete, or the package gguf is not installed.
    """
    require(f"{name}: reading a GGUF file", ["gguf"], "'ngtcli[gguf]'")
    from gguf.constants import GGML_QUANT_SIZES
    from transformers.integrations.gguf import GgufHeader, read_gguf_metadata

    from ngtcli.models.hf import add_gguf_types

    # transformers knows no Q5_0, Q5_1 and MXFP4.
    block_sizes = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items() if sizes[0] > 1}
    add_gguf_types(block_sizes)
    try:
        metadata = read_gguf_metadata(file)[0]
        header = GgufHeader.from_file(file)
    except (struct.error, UnicodeDecodeError, OverflowError) as error:
        raise ModelError(
            f"{name}: the GGUF file is damaged or incomplete ({error})", hint="Download it again."
        ) from None
    tensor_ends = [tensor.offset + tensor.nbytes for tensor in header.tensors]
    expected_size = header.data_start + max(tensor_ends, default=0)
    size = os.path.getsize(file)
    if size < expected_size:
        raise ModelError(
            f"{name}: the GGUF file is incomplete: {size:,} of {expected_size:,} bytes",
            hint="Download it again.",
        )
    return metadata, header


def _write_folder(name: str, file: Path, folder: Path) -> Source:
    """Write configuration and tokenizer to `folder`. Raises ModelError."""
    metadata, header = read_header(name, str(file))
    part_count = metadata.get("split.count", 0)
    if part_count > 1:
        raise ModelError(
            f"{name}: this is one of {part_count} parts of a GGUF file",
            hint="Join them: llama-gguf-split --merge FIRST-PART WHOLE.gguf",
        )
    if metadata.get("tokenizer.ggml.model") in (None, "none", "no_vocab"):
        raise ModelError(
            f"{name}: the GGUF file has no tokenizer", hint="Use another file of this model."
        )
    from gguf import GGMLQuantizationType

    # Number of weights of each type; vectors (norms, biases) do not count.
    weight_counts = Counter[str]()
    for tensor in header.tensors:
        if len(tensor.shape) > 1:
            weight_counts[GGMLQuantizationType(tensor.ggml_type).name] += prod(tensor.shape)
    weight_types = [weight_type for weight_type, _ in weight_counts.most_common()]

    config = _make_config(name, file, metadata, header)
    dtype = {"F32": "float32", "F16": "float16"}.get(weight_types[0], "bfloat16")
    config.dtype = dtype
    (folder / "config.json").write_text(config.to_json_string(), encoding="utf-8")

    end_ids = _write_tokenizer(file, folder)
    for end in ("eos", "eot", "eom"):
        end_id = metadata.get(f"tokenizer.ggml.{end}_token_id")
        if end_id is not None:
            end_ids.add(end_id)
    generation = json.dumps({"eos_token_id": sorted(end_ids)} if end_ids else {})
    (folder / "generation_config.json").write_text(generation, encoding="utf-8")

    description = f"a GGUF file with weights in {' and '.join(weight_types)}"
    if dtype == "bfloat16":
        description += ", dequantized to bfloat16"
    return Source(str(file), description)


def _write_tokenizer(file: Path, folder: Path) -> set[int]:
    """Write the tokenizer with its chat template; return the ids of tokens in _END_TOKENS."""
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    architecture, parts, options = get_gguf_tokenizer(str(file))
    backend, special_tokens = convert_gguf_tokenizer(architecture, parts)
    # The conversion may add an end token of GPT-2 that is not in the file's vocabulary.
    state = json.loads(backend.to_str())
    vocab_size = len(parts["tokens"])
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < vocab_size]
    backend = type(backend).from_str(json.dumps(state))
    tokenizer = transformers_quiet().TokenizersBackend(
        tokenizer_object=backend, **options, **special_tokens
    )
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    return {
        token_id
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token.special and token.content in _END_TOKENS
    }


def _make_config(name: str, file: Path, metadata: Mapping[str, Any], header: Any) -> Any:
    """Make the `PreTrainedConfig`, with the values that `transformers` leaves out.

    Raises ModelError for an architecture or rotary factors that are not supported.
    """
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    architecture = header.architecture
    family = architecture.replace("-", "_").replace("moe", "_moe")
    supported = sorted({*GGUF_SUPPORTED_ARCHITECTURES} - _UNSUPPORTED)
    if family not in supported:
        raise ModelError(
            f"{name}: GGUF files of the architecture {architecture} are not supported",
            hint=f"Supported are: {', '.join(supported)}.",
        )
    if family in _TABLE_MODEL_TYPES:
        config = _config_by_table(family, metadata, header)
    else:
        auto_config = transformers_quiet().AutoConfig
        config = auto_config.from_pretrained(file.parent, gguf_file=file.name)

    for key, attribute in _UNCOPIED_SIZES.items():
        size = metadata.get(f"{architecture}.{key}")
        if size and hasattr(config, attribute):
            setattr(config, attribute, size)
    if architecture.startswith("gemma") and config.num_hidden_layers in _LAYERS_OF_GEMMA_27B:
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads

    rope = getattr(config, "rope_parameters", None)
    if rope:
        rope = rope.get("full_attention", rope)
        scaling = f"{architecture}.rope.scaling"
        rope_type = metadata.get(f"{scaling}.type")
        values = {
            "rope_theta": metadata.get(f"{architecture}.rope.freq_base"),
            "rope_type": rope_type if rope_type in ("linear", "yarn") else None,
            "factor": metadata.get(f"{scaling}.factor"),
            "original_max_position_embeddings": metadata.get(f"{scaling}.original_context_length"),
        }
        rope |= {key: value for key, value in values.items() if value}
        _add_rope_factors(name, config, header)
    return config


def _config_by_table(family: str, metadata: Mapping[str, Any], header: Any) -> Any:
    """Make the `PreTrainedConfig` of a family by the table in `transformers`."""
    library = transformers_quiet()
    table = library.integrations.GGUF_CONFIG_MAPPING
    attributes = {f"{header.architecture}.{key}": name for key, name in table[family].items()}
    attributes |= {f"tokenizer.{key}": name for key, name in table["tokenizer"].items()}
    values = {"vocab_size": metadata["tokenizer.ggml.tokens"]}
    for key, attribute in attributes.items():
        if attribute and key in metadata:
            values[attribute] = metadata[key]
    values["tie_word_embeddings"] = "output.weight" not in header.ggml_types
    return library.AutoConfig.for_model(_TABLE_MODEL_TYPES[family], **values)


def _add_rope_factors(name: str, config: Any, header: Any) -> None:
    """Set Llama 3's rotary parameters if the file's rotary factors are those that they give.

    Raises:
        ModelError: The file has other factors, which a configuration cannot hold.
    """
    import numpy as np  # imported here: light commands import this file
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    prefixes = ("rope_freqs", "rope_factors")
    stored = [tensor for tensor in header.tensors if tensor.name.startswith(prefixes)]
    if not stored:
        return
    if config.model_type == "llama" and stored[0].name == FACTORS:
        count = prod(stored[0].shape)
        offset = header.data_start + stored[0].offset
        factors = np.fromfile(header.path, np.float32, count, offset=offset)
        rope = config.rope_parameters
        rope |= _LLAMA3_ROPE | {"factor": float(round(factors.max(), 3))}
        scaled = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].numpy()
        unscaled = rope["rope_theta"] ** -(np.arange(count) / count)
        if scaled.shape == unscaled.shape and np.allclose(unscaled / scaled, factors, rtol=1e-3):
            return
    raise ModelError(
        f"{name}: transformers does not support the rotary factors of this GGUF file",
        hint="Use the folder or Hugging Face id of the model that the file was made from.",
    )
