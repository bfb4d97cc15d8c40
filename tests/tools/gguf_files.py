"""GGUF files, written by the package gguf as llama.cpp's converter writes them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ngtcli.errors import UsageError

# The names of architectures in such files, by model types of `transformers`.
ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
}
CONTROL, USER_DEFINED, NORMAL = 3, 4, 1  # kinds of tokens
Stored = tuple[str, Any, str]  # a tensor: its name there, its numbers or blocks, its kind


def names_of(config: Any) -> Any:
    """What finds the name of a weight there. Raises UsageError for other architectures."""
    import gguf

    if config.model_type not in ARCHITECTURES:
        hint = f"Choose one of {', '.join(ARCHITECTURES)}."
        raise UsageError(f"no GGUF is written of {config.model_type}", hint=hint)
    own = ARCHITECTURES[config.model_type]
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == own)
    return gguf.get_tensor_name_map(kind, config.num_hidden_layers)


def write(
    path: Path, config: Any, tensors: Iterable[Stored], tokenizer: Any = None, **more: Any
) -> None:
    """Write a file; of a tokenizer, a fast one of byte-level BPE, with its template.

    `more` are further metadata by the names of the writer's methods, without `add_`; a tuple is
    their arguments. Raises UsageError for architectures that are not known here.
    """
    import gguf

    names_of(config)
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config.model_type])
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    for key, value in {
        "vocab_size": config.vocab_size,
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "context_length": config.max_position_embeddings,
        "head_count": config.num_attention_heads,
        "feed_forward_length": config.intermediate_size,
        "key_length": width,
        "head_count_kv": config.num_key_value_heads,
        "value_length": width,
        "rope_freq_base": float(rope.get("full_attention", rope)["rope_theta"]),
        "rope_dimension_count": width,
        "layer_norm_rms_eps": config.rms_norm_eps,
        **more,
    }.items():
        getattr(writer, f"add_{key}")(*(value if isinstance(value, tuple) else [value]))
    _add_tokenizer(writer, tokenizer)
    for name, data, kind in tensors:
        stored = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, data, raw_dtype=stored)
    for part in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{part}_to_file")()
    writer.close()


def _add_tokenizer(writer: Any, tokenizer: Any) -> None:
    if tokenizer is None:
        writer.add_tokenizer_model("none")
        return
    state: Mapping[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    added = {token["id"]: token for token in state["added_tokens"]}
    tokens = {i: token for token, i in tokenizer.get_vocab().items()}
    kinds = [
        NORMAL if i not in added else CONTROL if added[i]["special"] else USER_DEFINED
        for i in range(len(tokens))
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([tokens[i] for i in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    writer.add_chat_template(tokenizer.chat_template)
    for mark in ("bos", "eos", "pad"):
        if (own := getattr(tokenizer, f"{mark}_token_id")) is not None:
            getattr(writer, f"add_{mark}_token_id")(own)


def stored(config: Any, weights: Mapping[str, Any], kind: str) -> list[Stored]:
    """What a file holds of weights, float32 arrays by the names of `transformers`.

    Matrices whose rows fill blocks are of `kind`, all else is float32. Rows of queries and keys are
    in llama.cpp's order, Gemma's norms have one added, and experts are apart.
    """
    import gguf

    names, made = names_of(config), list[Stored]()
    whole = gguf.GGMLQuantizationType[kind]
    for name, values in weights.items():
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if config.model_type == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            pairs = values.reshape(heads, 2, -1, *values.shape[1:])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        parts = [(own, values)]
        if name.endswith("experts.gate_up_proj"):
            layer = name.split(".")[2]
            both = zip(("gate", "up"), np.split(values, 2, axis=1), strict=True)
            parts = [(f"blk.{layer}.ffn_{which}_exps.weight", half) for which, half in both]
        elif name.endswith("experts.down_proj"):
            parts = [(f"{own}.weight".replace(".weight.weight", ".weight"), values)]
        for label, part in parts:
            part = np.ascontiguousarray(part, dtype=np.float32)
            packed = part.ndim > 1 and kind != "F32"
            data = gguf.quants.quantize(part, whole) if packed else part
            made.append((label, data, kind if packed else "F32"))
    return made
