"""Layers that networks of several kinds of heads are made of. Parameters are named as published."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig, Qwen3Config
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    rotate_half,
)

from ngtcli.heads.files import DAMAGED, HeadFiles, Target
from ngtcli.heads.places import HINT
from ngtcli.heads.rows import HeadPass

Rotation = tuple[Tensor, Tensor]  # cosines and sines, (batch, rows, size of a head) each
_FAMILIES = {"llama": LlamaConfig, "qwen3": Qwen3Config}  # those that published heads are made of


class ResidualBlock(nn.Module):
    """x + silu(linear(x)) on (…, width), named as Medusa and Hydra publish it.

    With `more` the input is (…, (1 + more) width), and `res_connection` makes x of it.
    """

    def __init__(self, width: int, more: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear((1 + more) * width, width)
        self.res_connection = nn.Linear((1 + more) * width, width) if more else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """(…, width)."""
        kept: Tensor = self.res_connection(inputs)
        return kept + nn.functional.silu(self.linear(inputs))


def layer_config(fields: Mapping[str, Any], most: int | None = None) -> PreTrainedConfig:
    """That of a head's layers, `most` at most. Raises ValueError for what is not supported."""
    kind = str(fields.get("model_type", "llama"))
    if kind not in _FAMILIES:
        raise ValueError(f"layers of {kind}, not {' or '.join(_FAMILIES)}")
    config = _FAMILIES[kind](**{"mlp_bias": False, **fields})
    if config.rope_parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("partial_rotary_factor")
    if config.max_position_embeddings < 1:
        raise ValueError(f"max_position_embeddings {config.max_position_embeddings}")
    if most is not None and config.num_hidden_layers > most:
        raise ValueError(f"{config.num_hidden_layers} layers")
    return config


class _Norm(LlamaRMSNorm):  # type: ignore[misc]  # transformers ships no types
    """An RMS norm, one kernel on a GPU, where that of transformers, quicker on a CPU, is eight."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The same shape."""
        if hidden_states.device.type == "cuda":
            own, eps = self.weight, self.variance_epsilon
            return nn.functional.rms_norm(hidden_states, own.shape, own, eps)
        normed: Tensor = super().forward(hidden_states)
        return normed


def norm(size: int, config: PreTrainedConfig) -> nn.Module:
    """An RMS norm."""
    return _Norm(size, eps=config.rms_norm_eps)


def rotary(config: PreTrainedConfig, target: Target) -> nn.Module:
    """Gives the rotation of positions (batch, rows) for rows of a dtype; it is in no file."""
    with target.device:
        made: nn.Module = LlamaRotaryEmbedding(config)
    return made


class HeadAttention(nn.Module):
    """Attention whose rows come in with `inputs` numbers and leave with the hidden size."""

    def __init__(self, config: PreTrainedConfig, inputs: int, layer: int = 0) -> None:
        super().__init__()
        self.size, self.layer = int(config.head_dim), layer
        heads, pairs = config.num_attention_heads, config.num_key_value_heads
        bias = bool(config.attention_bias)
        self.q_proj = nn.Linear(inputs, heads * self.size, bias=bias)
        self.k_proj = nn.Linear(inputs, pairs * self.size, bias=bias)
        self.v_proj = nn.Linear(inputs, pairs * self.size, bias=bias)
        self.o_proj = nn.Linear(heads * self.size, config.hidden_size, bias=bias)
        normed = config.model_type == "qwen3"
        self.q_norm = norm(self.size, config) if normed else nn.Identity()
        self.k_norm = norm(self.size, config) if normed else nn.Identity()

    def remember(self, rows: Tensor, rotation: Rotation, given: HeadPass) -> tuple[Tensor, Tensor]:
        """Keep the keys and values of rows (batch, rows, inputs); returns those of all rows."""
        keys = self.k_norm(self._split(self.k_proj(rows))).transpose(1, 2)
        values = self._split(self.v_proj(rows)).transpose(1, 2)
        kept: tuple[Tensor, Tensor] = given.cache.update(
            _rotated(keys, rotation), values, self.layer
        )
        return kept

    def forward(self, rows: Tensor, rotation: Rotation, given: HeadPass) -> Tensor:
        """(batch, rows, hidden size)."""
        keys, values = self.remember(rows, rotation, given)
        queries = self.q_norm(self._split(self.q_proj(rows))).transpose(1, 2)
        seen = nn.functional.scaled_dot_product_attention(
            _rotated(queries, rotation),
            keys,
            values,
            attn_mask=given.mask(self.layer),
            enable_gqa=True,
        )
        out: Tensor = self.o_proj(seen.transpose(1, 2).flatten(2))
        return out

    def _split(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:-1], -1, self.size)


class HeadLayer(nn.Module):
    """A layer of llama or qwen3; unless `normed`, nothing is normed before its attention.

    Its attention reads `inputs` vectors of the hidden size side by side.
    """

    def __init__(
        self, config: PreTrainedConfig, layer: int = 0, normed: bool = True, inputs: int = 1
    ) -> None:
        super().__init__()
        size = config.hidden_size
        self.self_attn = HeadAttention(config, inputs * size, layer)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = norm(size, config) if normed else nn.Identity()
        self.post_attention_layernorm = norm(size, config)

    def forward(self, rows: Tensor, rotation: Rotation, given: HeadPass) -> Tensor:
        """(batch, rows, hidden size), as are `rows`."""
        return self.perceived(rows + self.self_attn(self.input_layernorm(rows), rotation, given))

    def perceived(self, rows: Tensor) -> Tensor:
        """The same behind the perceptron."""
        return torch.add(rows, self.mlp(self.post_attention_layernorm(rows)))


def _rotated(heads: Tensor, rotation: Rotation) -> Tensor:
    cosines, sines = (part[:, None] for part in rotation)
    turned: Tensor = heads * cosines + rotate_half(heads) * sines
    return turned


def own_ids(files: HeadFiles, target: Target, size: int) -> Tensor | None:
    """The token, int64 (size,), at each place of a head's own vocabulary; None: the target's.

    The file has how far each token is from its place. Raises ModelError for what does not fit.
    """
    if "d2t" not in files.shapes:
        files.check(target, target.width, size)
        return None
    if files.shape("d2t", 1) != (size,):
        raise files.refused(f"d2t is not of {size} tokens, which config.json says", DAMAGED)
    with torch.device("cpu"):  # not where the network is built
        ids = (files.tensor("d2t").long() + torch.arange(size)).to(target.device)
    if not bool(((ids >= 0) & (ids < target.vocabulary)).all()):
        raise files.refused("d2t has tokens that the model does not know", HINT)
    return ids
