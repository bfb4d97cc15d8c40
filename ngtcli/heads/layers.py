"""Layers that networks of several kinds of heads are made of. Parameters are named as published."""

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

# Those that published heads are made of.
_FAMILIES = {"llama": (LlamaConfig, LlamaDecoderLayer), "qwen3": (Qwen3Config, Qwen3DecoderLayer)}

_MAX_LAYERS = 1000  # of a head; guess: far more than any has


def layer_config(fields: Mapping[str, Any], max_layers: int = _MAX_LAYERS) -> PreTrainedConfig:
    """Return the configuration of a head's layers.

    Raises:
        ValueError: It has more layers than `max_layers`, or something that is not supported.
    """
    kind = str(fields.get("model_type", "llama"))
    if kind not in _FAMILIES:
        raise ValueError(f"layers of {kind}, not {' or '.join(_FAMILIES)}")
    # Before transformers makes a list of them.
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
    """A layer, whose attention reads so many vectors of the hidden size side by side."""
    made = _FAMILIES[config.model_type][1](config, number)
    attention = made.self_attn
    for name in ("q_proj", "k_proj", "v_proj") if inputs > 1 else ():
        old = getattr(attention, name)
        new = nn.Linear(inputs * old.in_features, old.out_features, old.bias is not None)
        setattr(attention, name, new)
    for name, one in [*made.named_modules()]:
        if isinstance(one, LlamaRMSNorm | Qwen3RMSNorm):  # on a GPU eight kernels, torch's is one
            made.set_submodule(name, norm(one.weight.shape[0], config))
    return made


def norm(size: int, config: PreTrainedConfig) -> nn.Module:
    """An RMS norm."""
    return nn.RMSNorm(size, config.rms_norm_eps)


def rotary(config: PreTrainedConfig, target: Target) -> nn.Module:
    """Gives the rotation of positions (batch, rows) for rows of a dtype; it is in no file."""
    with target.device:
        made: nn.Module = LlamaRotaryEmbedding(config)
    return made


def through(
    layer: Any, rows: Tensor, rotation: tuple[Tensor, Tensor], head_pass: HeadPass
) -> Tensor:
    """What leaves a layer, or an attention, (batch, rows, hidden size), for rows of a pass."""
    number = getattr(layer, "self_attn", layer).layer_idx
    outputs = layer(
        rows,
        position_embeddings=rotation,
        attention_mask=head_pass.mask(number),
        past_key_values=head_pass.cache,
    )
    out: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
    return out


def own_ids(files: HeadFiles, target: Target, size: int) -> Tensor | None:
    """The token, int64 (size,), at each place of a head's own vocabulary; None: the target's.

    The file has how far each token is from its place. Raises ModelError for what does not fit.
    """
    if "d2t" not in files.tensors:
        files.check(target, target.width, size)
        return None
    if files.shape("d2t", 1) != (size,):
        raise files.refused(f"d2t is not of {size} tokens, which config.json says", DAMAGED)
    with torch.device("cpu"):  # not where the network is built
        ids = (files.tensors["d2t"].long() + torch.arange(size)).to(target.device)
    if not bool(((ids >= 0) & (ids < target.vocabulary)).all()):
        raise files.refused("d2t has tokens that the model does not know", HINT)
    return ids
