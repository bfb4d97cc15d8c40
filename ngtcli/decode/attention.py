"""Attention over grouped queries that does not copy the keys of a group for each of its heads.

`transformers` repeats keys and values for every head before SDPA wherever a mask is given and there
are several rows, which is each pass over a draft tree. Here the rows of a group's heads are put
below one another, or SDPA is told of the groups, and the keys are read where they lie.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

NAME = "ngt_grouped"
# Rows that SDPA's kernel on a CPU computes at a time. Within one block the keys are read once for a
# whole group; rows that fall into blocks of unequal size would not have equal bits.
_BLOCK = 32
# Arguments that, where given, leave a pass to the original.
SPECIAL = ("softcap", "position_bias", "cache", "s_aux", "sinks", "dropout", "output_attentions")
# Largest difference between weighted means of standard normal numbers. Derived: some roundings.
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def use_grouped(hf: Any) -> bool:
    """Let a model attend without copies of its keys; whether it does.

    It does where it attends by SDPA, has groups, and the two agree on arbitrary rows.
    """
    config = hf.config.get_text_config()
    groups = _groups(config)
    if getattr(config, "_attn_implementation", None) != "sdpa" or groups < 2:
        return False
    if not _agrees(config, groups, hf.device, hf.dtype):
        return False
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    hf.set_attn_implementation(NAME)
    return bool(config._attn_implementation == NAME)


def _groups(config: Any) -> int:
    """Query heads for each head of keys; 1 where they are not grouped."""
    heads = getattr(config, "num_attention_heads", None)
    of_keys = getattr(config, "num_key_value_heads", None)
    if type(heads) is not int or type(of_keys) is not int or of_keys < 1 or heads % of_keys:
        return 1
    return heads // of_keys


@torch.inference_mode()
def _agrees(config: Any, groups: int, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `grouped` attends as SDPA does over repeated keys; False where it cannot."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    of_keys = config.num_key_value_heads
    source = torch.Generator().manual_seed(0)
    try:
        for rows in (4, 2 * _BLOCK):
            shapes = [(groups * of_keys, rows)] + 2 * [(of_keys, 2 * rows)]
            query, keys, values = (
                torch.randn((1, *shape, width), generator=source).to(device, dtype)
                for shape in shapes
            )
            mask = torch.zeros((1, 1, rows, 2 * rows), dtype=dtype, device=device)
            mask += torch.full_like(mask, torch.finfo(dtype).min).triu(rows)
            true = scaled_dot_product_attention(
                query, repeat_kv(keys, groups), repeat_kv(values, groups), mask, scale=0.1
            )
            error = (grouped(query, keys, values, mask, 0.1) - true).abs().max()
            if not error <= _TOLERANCE.get(dtype, 0.0):
                return False
    except (RuntimeError, ValueError, TypeError):
        return False
    return True


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """As `transformers`' attention by SDPA: (1, rows, heads, head_dim), and no weights.

    What is not a pass of several rows under one mask for all heads is left to the original.
    """
    if (
        attention_mask is None
        or query.shape[0] != 1
        or query.shape[2] < 2  # one row is folded by the original, too
        or attention_mask.shape[:3] != (1, 1, query.shape[2])
        or query.shape[1] != key.shape[1] * getattr(module, "num_key_value_groups", 1)
        or any(given(more.get(name)) for name in SPECIAL)
    ):
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **more
        )
        return found
    out = grouped(query, key, value, attention_mask, more.get("scaling"))
    return out.transpose(1, 2).contiguous(), None


def given(argument: Any) -> bool:
    return isinstance(argument, Tensor) or bool(argument)


def grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """(batch, heads, rows, head_dim), the keys of a group not copied for each of its heads.

    Keys are (batch, heads ÷ groups, length, head_dim). `mask` (batch, 1, rows, length) is added to
    the scores, or says which count.
    """
    batch, heads, rows, width = query.shape
    of_keys, length = key.shape[1:3]
    groups = heads // of_keys
    if query.device.type == "cpu" and groups * rows > _BLOCK:
        return scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=True)
    folded = mask.expand(batch, groups, rows, length).reshape(batch, 1, groups * rows, length)
    out = scaled_dot_product_attention(
        query.reshape(batch, of_keys, groups * rows, width), key, value, folded, scale=scale
    )
    return out.reshape(batch, heads, rows, value.shape[-1])
