"""The layers of heads that attend to rows read before. Parameters are named as published."""

from typing import Any, Protocol

from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig, Qwen3Config
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    rotate_half,
)

from ngtcli.errors import ModelError

Rotation = tuple[Tensor, Tensor]  # cosines and sines, (batch, rows, size of a head) each
_FAMILIES = {"llama": LlamaConfig, "qwen3": Qwen3Config}  # those that published heads are made of


class Rows(Protocol):
    """What keeps the keys and values of rows: a HeadCache, or a cache of transformers."""

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Add (batch, heads, rows, size) of each; returns those of all rows."""


def layer_config(fields: dict[str, Any]) -> PreTrainedConfig:
    """The configuration of a head's layers. Raises ModelError for what is not supported."""
    kind = str(fields.get("model_type", "llama"))
    if kind not in _FAMILIES:
        raise ModelError(f"a head of {kind} layers", "Supported are those of llama and qwen3.")
    config = _FAMILIES[kind](**{"mlp_bias": False, **fields})
    if config.rope_parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError("a head with partial_rotary_factor", "Such heads are not supported.")
    return config


def norm(size: int, config: PreTrainedConfig) -> nn.Module:
    """An RMS norm."""
    made: nn.Module = LlamaRMSNorm(size, eps=config.rms_norm_eps)
    return made


def perceptron(config: PreTrainedConfig) -> nn.Module:
    """A gated perceptron."""
    made: nn.Module = LlamaMLP(config)
    return made


def rotary(config: PreTrainedConfig) -> nn.Module:
    """Gives the rotation of positions (batch, rows) for rows of a dtype and a device."""
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

    def remember(self, rows: Tensor, rotation: Rotation, kept: Rows) -> tuple[Tensor, Tensor]:
        """Give `kept` the keys and values of rows (batch, rows, inputs); returns those of all."""
        keys = self.k_norm(self._split(self.k_proj(rows))).transpose(1, 2)
        values = self._split(self.v_proj(rows)).transpose(1, 2)
        return kept.update(_rotated(keys, rotation), values, self.layer)

    def forward(self, rows: Tensor, rotation: Rotation, mask: Tensor, kept: Rows) -> Tensor:
        """(batch, rows, hidden size); `mask`, bool (rows, all rows), says what each row sees."""
        keys, values = self.remember(rows, rotation, kept)
        queries = self.q_norm(self._split(self.q_proj(rows))).transpose(1, 2)
        seen = nn.functional.scaled_dot_product_attention(
            _rotated(queries, rotation), keys, values, attn_mask=mask, enable_gqa=True
        )
        out: Tensor = self.o_proj(seen.transpose(1, 2).flatten(2))
        return out

    def _split(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:-1], -1, self.size)


def _rotated(heads: Tensor, rotation: Rotation) -> Tensor:
    cosines, sines = (part[:, None] for part in rotation)
    turned: Tensor = heads * cosines + rotate_half(heads) * sines
    return turned
