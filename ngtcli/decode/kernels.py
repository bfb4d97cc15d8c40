"""Parts of a `transformers` model that a GPU computes by fewer kernels.

A pass over a draft tree has few rows: many of its kernels take little longer than their start. In
half precision these round less often than those they replace.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import rotate_half

from ngtcli.decode.attention import NAME
from ngtcli.weights.trials import places_of

# Attentions that do no more than Llama's, but that some norm queries and keys.
_JOINED = {
    "LlamaAttention", "MistralAttention", "MixtralAttention", "Qwen2Attention",
    "Qwen2MoeAttention", "Qwen3Attention", "Qwen3MoeAttention",
}  # fmt: skip
# Differences from what is replaced, over the largest number, that count as rounding; guesses.
_NEAR, _NEAR_FLOAT32 = 0.05, 1e-3


class OneNorm(nn.RMSNorm):
    """An RMS norm by torch's own kernel, in the dtype of its weight; `transformers` takes eight."""

    def forward(self, given: Tensor) -> Tensor:
        """The rows (…, size), normed, in their dtype."""
        return super().forward(given.to(self.weight.dtype)).to(given.dtype)


class JoinedAttention(nn.Module):
    """An attention with one product for queries, keys and values, whose positions come at once."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.config, self.layer_idx, self.is_causal = own.config, own.layer_idx, own.is_causal
        self.num_key_value_groups, self.scaling = own.num_key_value_groups, own.scaling
        parts = own.q_proj, own.k_proj, own.v_proj
        self.heads, self.size = [one.out_features // own.head_dim for one in parts], own.head_dim
        inputs, outputs = own.q_proj.in_features, sum(one.out_features for one in parts)
        self.qkv_proj = nn.Linear(inputs, outputs, device="meta")
        for name in ("weight", "bias"):
            every = [getattr(one, name) for one in parts]
            whole = None if every[0] is None else nn.Parameter(torch.cat(every), False)
            setattr(self.qkv_proj, name, whole)
        self.o_proj, self.norm = own.o_proj, getattr(own, "q_norm", None)
        if self.norm is not None:
            norms = zip((own.q_norm, own.k_norm), self.heads, strict=False)
            self.scale = torch.cat([norm.weight.expand(count, -1) for norm, count in norms])

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **more: Any,
    ) -> tuple[Tensor, Any]:
        """As `transformers`' attentions."""
        of_queries, of_keys, of_values = self.heads
        every = self.qkv_proj(hidden_states).unflatten(-1, (-1, self.size))
        both, value = every[:, :, :-of_values], every[:, :, -of_values:].transpose(1, 2)
        if self.norm is not None:  # values are normed with them: a part would be copied before
            normed = rms_norm(every, (self.size,), None, self.norm.variance_epsilon)
            both = normed[:, :, :-of_values] * self.scale
        cos, sin = (one[:, :, None] for one in position_embeddings)
        both = (both * cos + rotate_half(both) * sin).transpose(1, 2)
        query, key = both.split([of_queries, of_keys], 1)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        states = query, key, value, attention_mask
        out, weights = attend(self, *states, scaling=self.scaling, **more)
        return self.o_proj(out.flatten(2)), weights


@torch.inference_mode()
def use_few_kernels(hf: Any) -> None:
    """Replace norms and attentions of a model on one GPU, where that gives the same numbers."""
    if hf.device.type != "cpu" and not places_of(hf):
        _replace_in(hf)


def _replace_in(parent: nn.Module) -> None:
    """Layer by layer, so that the memory of one is free before the next."""
    for name, child in [*parent.named_children()]:
        made = _joined(child) or _one_norm(child)
        if made is None:
            _replace_in(child)
        else:
            setattr(parent, name, made)


def _joined(own: Any) -> JoinedAttention | None:
    """The same attention, None for one of another family, or whose layers are of other kinds."""
    parts: list[Any] = [getattr(own, f"{name}_proj", None) for name in "qkv"]
    if type(own).__name__ not in _JOINED or any(type(one) is not nn.Linear for one in parts):
        return None
    if own.config._attn_implementation not in ("sdpa", NAME):
        return None
    weight = parts[0].weight
    draw = torch.randn(3, 4, weight.shape[1], dtype=weight.dtype, device=weight.device)
    states, *turns = draw[:1], draw[1:2, :, : own.head_dim], draw[2:, :, : own.head_dim]
    made, given = JoinedAttention(own), (states, tuple(turns), None)
    return made if _difference(made(*given)[0], own(*given)[0]) is not None else None


def _one_norm(norm: Any) -> OneNorm | None:
    """The same norm, None for what is no RMS norm of one weight.

    Some families multiply by one more than the weight, in float32.
    """
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    weights, takes = dict(norm.named_parameters()), inspect.signature(norm.forward).parameters
    if not eps or isinstance(norm, nn.RMSNorm) or weights.keys() != {"weight"} or len(takes) != 1:
        return None
    weight, found = norm.weight, dict[float, OneNorm]()
    # Rows with a mean, which other norms subtract.
    given = torch.rand(2, weight.shape[-1], dtype=weight.dtype, device=weight.device) + 0.5
    for scale in (weight, 1.0 + weight.float()):
        made = OneNorm(scale.shape, eps, device="meta")
        made.weight = nn.Parameter(scale, requires_grad=False)
        if (difference := _difference(made(given), norm(given))) is not None:
            found.setdefault(difference, made)
    return found[min(found)] if found else None


def _difference(found: Tensor, truth: Tensor) -> float | None:
    """The largest, over the largest number; None where it is more than rounding."""
    near = _NEAR_FLOAT32 if truth.dtype == torch.float32 else _NEAR
    error = float((found.float() - truth.float()).abs().max() / truth.abs().max())
    return error if error <= near else None
