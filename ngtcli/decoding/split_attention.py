"""Attention of one sequence in half precision on a GPU, in two parts without a large mask.

The cached prefix is seen by all query tokens: the kernel that is fastest knows no mask, and reads
it by itself. What the query tokens see of each other is computed under a small mask, and both
results are joined by the logarithms of the sums of their softmaxes.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ngtcli.decoding.attention import GROUPED, group_size, grouped
from ngtcli.models.hf import AttentionCall, SingleAttention, attention_name

# Keys from which on the prefix is read by itself. Derived, from forward passes of an 8B on an H100
# (bfloat16, 8 / 32 / 64 query tokens): in ms under a mask 11.3 / 12.1 / 12.4 at 2,048 keys and
# 21.5 / 23.1 / 23.7 at 16,384, without one 11.6 / 12.8 / 14.0 and 12.3 / 13.5 / 14.9: the lines
# cross at 2,400 to 4,300.
SPLIT_FROM = 4096
ALIGNED = 8  # query tokens are a multiple of it: the kernel wants masks that are aligned
_BLOCKS = 128  # parts of all heads, read at the same time; derived: an H100 has 132 processors
_MAX_DIFFERENCE = 0.05  # of outputs about 0.2 large, as rounding gives at most (guess)
# Families whose attention is a softmax of products, and nothing more.
_FAMILIES = {"llama", "mistral", "mixtral", "gemma", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"}


@dataclass(frozen=True)
class PrefixAndTree:
    """The attention of a forward pass over a draft tree.

    The prefix is read in parts, at the same time.

    Attributes:
        write_at: The KV positions of the query tokens, int64 (queries,).
        prefix: The number of keys before them, an int64 on the device.
        mask: What the query tokens see of each other, (1, 1, queries, queries).
    """

    write_at: Tensor
    prefix: Tensor
    mask: Tensor
    # By key heads and folded queries, for all layers: see `_parts_for`.
    _parts: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    def _parts_for(self, heads: int, folded: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the starts of each part's queries, the ends of its keys, and the folded mask."""
        if (heads, folded) not in self._parts:
            count = -(-_BLOCKS // heads)
            parts = torch.arange(count + 1, device=self.write_at.device)
            ends = torch.minimum(parts * ((self.prefix + count - 1) // count), self.prefix)
            queries = len(self.write_at)
            groups = folded // queries
            mask = self.mask.expand(1, groups, queries, queries).flatten(1, 2)[:, None]
            mask = mask.expand(1, heads, folded, queries)
            self._parts[heads, folded] = (parts * folded).int(), ends.int(), mask
        return self._parts[heads, folded]

    def attend(self, call: AttentionCall, single: SingleAttention) -> Tensor:
        """As `PassAttention`."""
        return self.compute(call.query, call.key, call.value, call.scale)

    def compute(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """As `grouped` under one mask of all keys, but (1, queries, heads, head_dim)."""
        ops = torch.ops.aten
        tree_query = query.reshape(key.shape[1], -1, query.shape[3])
        key_heads, folded, width = tree_query.shape
        begins, ends, mask = self._parts_for(key_heads, folded)
        parts = len(ends) - 1

        of_prefix, prefix_sums, *_rest = ops._flash_attention_forward(
            tree_query.transpose(0, 1).repeat(parts, 1, 1),
            key[0].transpose(0, 1),
            value[0].transpose(0, 1),
            begins,
            ends,
            folded,
            key.shape[2],
            0.0,  # dropout
            False,  # not causal
            False,  # no debug mask
            scale=scale,
        )
        is_empty = (ends[1:] == ends[:-1])[:, None]
        prefix_sums = prefix_sums.view(key_heads, parts, folded).masked_fill(is_empty, -torch.inf)

        of_tree, tree_sums, *_rest = ops._scaled_dot_product_efficient_attention(
            tree_query[None],
            key.index_select(2, self.write_at),
            value.index_select(2, self.write_at),
            mask,
            True,  # with the log-sum-exp of each query
            scale=scale,
        )

        shares = torch.cat([prefix_sums, tree_sums[0, :, None, :folded]], 1).softmax(1)
        of_prefix = of_prefix.view(parts, folded, key_heads, width).permute(2, 0, 1, 3)
        joined = torch.cat([of_prefix, of_tree[0, :, None]], 1) * shares[..., None]
        return joined.sum(1).to(query.dtype).view(query.shape).transpose(1, 2)


class PrefillChunk:
    """The attention of a forward pass over a chunk of a prompt, whose last token sees all keys."""

    def attend(self, call: AttentionCall, single: SingleAttention) -> Tensor:
        """As `PassAttention`."""
        return self.compute(call.query, call.key, call.value, call.scale)

    def compute(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """As `PrefixAndTree.compute`, causal."""
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        out: Tensor = flash(query, key, value, 0.0, True, False, scale=scale)[0]
        return out.transpose(1, 2)


@torch.inference_mode()
def can_split(hf: Any) -> bool:
    """Return whether a model can attend so: its kernels exist and give the model's own results."""
    config = hf.config.get_text_config()
    is_half = hf.dtype in (torch.bfloat16, torch.float16)
    if hf.device.type != "cuda" or not is_half or config.model_type not in _FAMILIES:
        return False
    if attention_name(config) not in ("sdpa", GROUPED):
        return False

    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    draw = partial(torch.randn, dtype=hf.dtype, device=hf.device)
    positions = torch.arange(128, device=hf.device)
    tree = slice(100, 108)
    end = slice(tree.stop)
    query = draw(1, heads, 8, width)
    key = draw(1, heads // group_size(config), 128, width)
    value = draw(1, heads // group_size(config), 128, width)

    seen = positions <= positions[tree, None]
    truth = grouped(query, key, value, seen[None, None], None).transpose(1, 2).float()
    mask = torch.where(seen[:, tree], 0.0, torch.finfo(hf.dtype).min).to(hf.dtype)[None, None]
    try:
        by_tree = PrefixAndTree(positions[tree], positions[100], mask).compute(
            query, key, value, None
        )
        by_chunk = PrefillChunk().compute(query, key[:, :, end], value[:, :, end], None)
    except (RuntimeError, AttributeError, TypeError):  # no such kernel for this GPU or these sizes
        return False
    differences = [(result.float() - truth).abs().max() for result in (by_tree, by_chunk)]
    return all(float(difference) < _MAX_DIFFERENCE for difference in differences)
