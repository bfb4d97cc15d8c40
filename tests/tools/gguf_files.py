"""Write GGUF files with the package gguf, as llama.cpp's converter does."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ngtcli.errors import UsageError

# Names of architectures in GGUF files, by model types of `transformers`.
ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
}
# Types of tokens in GGUF files.
NORMAL = 1
CONTROL = 3
USER_DEFINED = 4
Stored = tuple[str, Any, str]  # a tensor's name in the file, its numbers or blocks, its type


def names_of(config: Any) -> Any:
    """The map from names of `transformers` to GGUF's. Raises UsageError for an unknown type."""
    import gguf

    if config.model_type not in ARCHITECTURES:
        raise UsageError(
            f"no GGUF is written of {config.model_type}",
            hint=f"Choose one of {', '.join(ARCHITECTURES)}.",
        )
    name = ARCHITECTURES[config.model_type]
    architecture = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)
    return gguf.get_tensor_name_map(architecture, config.num_hidden_layers)


def write(
    path: Path, config: Any, tensors: Iterable[Stored], tokenizer: Any = None, **more: Any
) -> None:
    """Write a file. Raises UsageError for a model type that is not in ARCHITECTURES.

    Args:
        path: The file.
        config: The model's config.
        tensors: The tensors.
        tokenizer: A fast tokenizer of byte-level BPE with a chat template; None: the file has none.
        more: Further metadata, by names of the writer's methods without `add_`. A tuple has several
            arguments.
    """
    import gguf

    names_of(config)
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config.model_type])
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    metadata = {
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
    }
    for key, value in metadata.items():
        arguments = value if isinstance(value, tuple) else (value,)
        getattr(writer, f"add_{key}")(*arguments)
    _add_tokenizer(writer, tokenizer)
    for name, data, tensor_type in tensors:
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[tensor_type])

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, tokenizer: Any) -> None:
    if tokenizer is None:
        writer.add_tokenizer_model("none")
        return
    state: Mapping[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    added = {token["id"]: token for token in state["added_tokens"]}
    tokens = {id: token for token, id in tokenizer.get_vocab().items()}
    types = []
    for id in range(len(tokens)):
        if id not in added:
            types.append(NORMAL)
        elif added[id]["special"]:
            types.append(CONTROL)
        else:
            types.append(USER_DEFINED)

    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([tokens[id] for id in range(len(tokens))])
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    writer.add_chat_template(tokenizer.chat_template)
    for name in ("bos", "eos", "pad"):
        id = getattr(tokenizer, f"{name}_token_id")
        if id is not None:
            getattr(writer, f"add_{name}_token_id")(id)


def stored(config: Any, weights: Mapping[str, Any], kind: str) -> list[Stored]:
    """The tensors of a file for weights of `transformers`.

    Vectors are float32. Query and key matrices are permuted as in llama.cpp, 1 is added to Gemma's
    norms, and the gate and up matrices of experts are separate tensors.

    Args:
        config: The model's config.
        weights: float32 arrays by their names.
        kind: The type of matrices.
    """
    import gguf

    names = names_of(config)
    quantization = gguf.GGMLQuantizationType[kind]
    tensors: list[Stored] = []
    for name, weight in weights.items():
        for gguf_name, part in _gguf_parts(config, names, name, weight):
            values = np.ascontiguousarray(part, dtype=np.float32)
            if values.ndim > 1 and kind != "F32":
                tensors.append((gguf_name, gguf.quants.quantize(values, quantization), kind))
            else:
                tensors.append((gguf_name, values, "F32"))
    return tensors


def _gguf_parts(config: Any, names: Any, name: str, weight: Any) -> list[tuple[str, Any]]:
    """The names and values that a weight has in a file."""
    gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if config.model_type == "llama" and ("q_proj" in name or "k_proj" in name):
        # The two halves of a head alternate in llama.cpp.
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
        return [(gguf_name, halves.swapaxes(1, 2).reshape(weight.shape))]
    if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
        return [(gguf_name, weight + 1)]
    if name.endswith("experts.gate_up_proj"):
        layer = name.split(".")[2]
        gate, up = np.split(weight, 2, axis=1)
        return [
            (f"blk.{layer}.ffn_gate_exps.weight", gate),
            (f"blk.{layer}.ffn_up_exps.weight", up),
        ]
    if name.endswith("experts.down_proj"):
        return [(f"{gguf_name.removesuffix('.weight')}.weight", weight)]
    return [(gguf_name, weight)]
