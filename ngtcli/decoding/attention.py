"""Attention of one sequence, without copies of the keys and values that heads share.

`transformers` repeats keys and values for every head before SDPA if there is a mask and there are
several query tokens, as in each forward pass over a draft tree. Here the queries of the heads of a
group are concatenated, or SDPA gets the groups.

In half precision on a CPU a query must have the same bits whatever is computed beside it. The
kernel uses another matmul for one or two queries than for more, so fewer than four are repeated.
Two matmuls in place of SDPA are not used: they rounded the logits. They took 0.6 to 0.8 of its time
with 8,000 keys in the cache, 0.7 to 1.4 with 2,000 (1 to 32 queries, a layer of a 1B model,
bfloat16, AVX-512).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ngtcli.decoding.exactness.kernels import min_block_rows
from ngtcli.decoding.exactness.rows import MIN_BLOCK_ROWS, SDPA_BLOCK
from ngtcli.models.hf import (
    SingleAttention,
    attention_name,
    base_attention,
    register_attention,
    use_attention,
)

GROUPED = "ngt_grouped"
FOLDED = "ngt_folded"  # the same, with enough queries in each block; for models without groups, too
# For models that keep transformers' own, so that several sequences can share a forward pass.
_UNCHANGED = {"sdpa": "ngt_sdpa", "eager": "ngt_eager"}
# Options with which a forward pass is left to the original.
_SPECIAL = ("softcap", "position_bias", "cache", "s_aux", "sinks", "dropout", "output_attentions")


def use_grouped(hf: Any) -> bool:
    """Let a model attend without copies of its keys; whether it does.

    It does where it attends by SDPA and has groups. In half precision on a CPU groups do not
    matter, and a query's bits do not depend on others.
    """
    config = hf.config.get_text_config()
    name = FOLDED if min_block_rows(hf) else GROUPED
    min_groups = 1 if name == FOLDED else 2
    if attention_name(config) != "sdpa" or group_size(config) < min_groups:
        return False
    return use_attention(hf, name)


def use_registered(hf: Any) -> bool:
    """Let a model attend by an attention that forward passes can replace; whether it does.

    One sequence by itself is computed as before.
    """
    config = hf.config.get_text_config()
    name = attention_name(config)
    if name not in _UNCHANGED:
        return base_attention(config) != name
    return use_attention(hf, _UNCHANGED[name])


def use_own(hf: Any) -> None:
    """Undo `use_registered`."""
    config = hf.config.get_text_config()
    if attention_name(config) in _UNCHANGED.values():
        use_attention(hf, base_attention(config))


def group_size(config: Any) -> int:
    """Return how many heads share keys; 0 if the configuration does not say."""
    heads = getattr(config, "num_attention_heads", None)
    key_heads = getattr(config, "num_key_value_heads", None)
    if type(heads) is not int or type(key_heads) is not int or key_heads < 1 or heads % key_heads:
        return 0
    return heads // key_heads


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    min_rows: int = 0,
    **options: Any,
) -> tuple[Tensor, Any]:
    """As `transformers`' attention by SDPA: (1, queries, heads, head_dim), and no weights.

    What is not several queries under one mask for all heads is left to the original. No block of
    the kernel has fewer queries than `min_rows`, which would get other bits.
    """
    mask = attention_mask
    queries = query.shape[2]
    groups = getattr(module, "num_key_value_groups", 1)
    # On a CPU it is folded by the original, too; a GPU's kernels read groups themselves.
    is_left = queries == 1 and not min_rows and query.device.type != "cuda"
    if (
        mask is None
        or is_left
        or is_special(options)
        or query.shape[1] != key.shape[1] * groups
        or (query.shape[0], *mask.shape[:3]) != (1, 1, 1, queries)
    ):
        original: tuple[Tensor, Any] = sdpa_attention_forward(
            module, query, key, value, mask, **options
        )
        return original

    folded = queries * query.shape[1] // key.shape[1]
    block = folded if folded <= SDPA_BLOCK else queries
    repeats = -(-min_rows // block)
    if repeats > 1:
        query = query.repeat(1, 1, repeats, 1)
        mask = mask.repeat(1, 1, repeats, 1)
    out = grouped(query, key, value, mask, options.get("scaling"))
    if repeats > 1:
        out = out[:, :, :queries]
    return out.transpose(1, 2).contiguous(), None


def is_special(options: Mapping[str, Any]) -> bool:
    """Return whether attention is to do more than a softmax of products under a mask."""
    values = [options.get(name) for name in _SPECIAL]
    return any(isinstance(value, Tensor) or bool(value) for value in values)


def grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """Attention in which the keys of a group are not copied for each of its heads.

    Args:
        query: (batch, heads, queries, head_dim).
        key: (batch, heads ÷ groups, keys, head_dim).
        value: As `key`, its last dimension may differ.
        mask: (batch, 1, queries, keys), added to the logits, or bool: which count.
        scale: Of the logits; None: by the square root of head_dim.

    Returns:
        (batch, heads, queries, head_dim).
    """
    batch, heads, queries, width = query.shape
    key_heads, length = key.shape[1:3]
    groups = heads // key_heads
    device = query.device.type
    if (device == "cpu" and groups * queries > SDPA_BLOCK) or (device == "cuda" and queries == 1):
        return scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=True)
    folded = mask.expand(batch, groups, queries, length).reshape(batch, 1, groups * queries, length)
    out = scaled_dot_product_attention(
        query.reshape(batch, key_heads, groups * queries, width), key, value, folded, scale=scale
    )
    return out.reshape(batch, heads, queries, value.shape[-1])


register_attention(SingleAttention(GROUPED, "sdpa", attend))
register_attention(SingleAttention(FOLDED, "sdpa", partial(attend, min_rows=MIN_BLOCK_ROWS)))
for _base, _name in _UNCHANGED.items():
    register_attention(SingleAttention(_name, _base))
