"""Layers that several kinds of heads share, with the parameter names of published files."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig, Qwen3Config
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm

from ngtcli.decoding.attention import GROUPED
from ngtcli.heads.files import DAMAGED, HeadFiles, Target
from ngtcli.heads.places import HINT
from ngtcli.heads.rows import HeadPass

# The families of layers in published heads.
_FAMILIES = {"llama": (LlamaConfig, LlamaDecoderLayer), "qwen3": (Qwen3Config, Qwen3DecoderLayer)}

_MAX_LAYERS = 1000  # layers of a head (guess: far more than any has)


def layer_config(fields: Mapping[str, Any], max_layers: int = _MAX_LAYERS) -> PreTrainedConfig:
    """Return the configuration of a head's layers.

    Raises:
        ValueError: It has more layers than `max_layers`, or something that is not supported.
    """
    kind = str(fields.get("model_type", "llama"))
    if kind not in _FAMILIES:
        raise ValueError(f"layers of {kind}, not {' or '.join(_FAMILIES)}")
    # Checked before transformers makes a list as long as this number.
    layers = fields.get("num_hidden_layers")
    if isinstance(layers, int | float) and layers > _MAX_LAYERS:
        raise ValueError(f"{layers} layers")
    config = _FAMILIES[kind][0](**{"mlp_bias": False, **fields})
    if config.rope_parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("partial_rotary_factor")
    if config.max_position_embeddings < 1:
        raise ValueError(f"max_position_embeddings {config.max_position_embeddings}")
    if config.num_hidden_layers > max_layers:
        raise ValueError(f"{config.num_hidden_layers} layers")
    config._attn_implementation = GROUPED  # no copies of keys
    return config


def layer(config: PreTrainedConfig, number: int = 0, inputs: int = 1) -> Any:
    """Make a decoder layer.

    Args:
        config: Its configuration, as `layer_config` returns it.
        number: Its index in the network.
        inputs: How many vectors of the hidden size its attention reads, concatenated.
    """
    decoder_layer = _FAMILIES[config.model_type][1](config, number)
    if inputs > 1:
        attention = decoder_layer.self_attn
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(attention, name)
            new = nn.Linear(inputs * old.in_features, old.out_features, old.bias is not None)
            setattr(attention, name, new)
    for name, module in [*decoder_layer.named_modules()]:
        # The norms of transformers take eight kernels on a GPU, that of torch one.
        if isinstance(module, LlamaRMSNorm | Qwen3RMSNorm):
            decoder_layer.set_submodule(name, norm(module.weight.shape[0], config))
    return decoder_layer


def norm(size: int, config: PreTrainedConfig) -> nn.Module:
    """Make an RMS norm of vectors of `size` numbers."""
    return nn.RMSNorm(size, config.rms_norm_eps)


def rotary(config: PreTrainedConfig, target: Target) -> nn.Module:
    """Make the rotary embedding, which is computed and in no file, on the target's device."""
    with target.device:
        embedding: nn.Module = LlamaRotaryEmbedding(config)
    return embedding


def run_layer(
    module: Any, rows: Tensor, rotation: tuple[Tensor, Tensor], head_pass: HeadPass
) -> Tensor:
    """Run a decoder layer, or its attention alone.

    Args:
        module: The layer or attention.
        rows: Its inputs, (batch, rows, inputs * hidden size).
        rotation: Cosines and sines of the rows' positions.
        head_pass: Mask and cache.

    Returns:
        The output, (batch, rows, hidden size).
    """
    number = getattr(module, "self_attn", module).layer_idx
    outputs = module(
        rows,
        position_embeddings=rotation,
        attention_mask=head_pass.mask(number),
        past_key_values=head_pass.cache,
    )
    output: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
    return output


def target_ids(files: HeadFiles, target: Target, size: int) -> Tensor | None:
    """Map a head's own vocabulary to the target's token ids.

    The file's tensor `d2t` has, for each of the head's ids, the difference to the target's id.

    Args:
        files: The head's files.
        target: The target model.
        size: Size of the head's vocabulary by config.json.

    Returns:
        The target's id of each of the head's ids, int64 (size,). None: both vocabularies are equal.

    Raises:
        ModelError: `d2t` has another size, or ids that the target does not have.
    """
    if "d2t" not in files.tensors:
        files.check(target, target.width, size)
        return None
    if files.shape("d2t", 1) != (size,):
        raise files.refused(f"d2t has not the {size} tokens that config.json names", DAMAGED)
    with torch.device("cpu"):  # the network is built on the device "meta"
        ids = (files.tensors["d2t"].long() + torch.arange(size)).to(target.device)
    if not bool(((ids >= 0) & (ids < target.vocab_size)).all()):
        raise files.refused("d2t has token ids that the model does not have", HINT)
    return ids
