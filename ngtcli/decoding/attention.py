"""Attention of one sequence or several, in which the keys of a group are read where they lie.

`transformers` repeats keys and values for every head before SDPA wherever a mask is given and there
are several rows, which is each pass over a draft tree. Here the rows of a group's heads are put
below one another, or SDPA gets the groups.

In half precision on a CPU a row is to have the same bits whatever stands beside it. The kernel
multiplies one row or two by another product than more, so fewer than four are repeated.
Two matrix products in the place of SDPA took 0.6 to 0.8 of its time behind 8,000 places, 0.7 to 1.4
behind 2,000 (1 to 32 rows, a 1B's layer, bfloat16, AVX-512), and rounded the scores: not used.

All rows of a pass over several sequences lie in one flat batch, so that linear layers compute no
padding. Each sequence's rows attend by themselves to its region of the cache, by whatever attention
the model has; or all together, where each has as many and that costs less.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from ngtcli.decoding.exactness.kernels import min_block_rows
from ngtcli.decoding.exactness.rows import SDPA_BLOCK
from ngtcli.decoding.layout import Span

NAME = "ngt_grouped"
FOLDED = "ngt_folded"  # the same, for models without groups too, with enough rows in each block
# Arguments that, where given, leave a pass to the original.
_SPECIAL = ("softcap", "position_bias", "cache", "s_aux", "sinks", "dropout", "output_attentions")


def use_grouped(hf: Any) -> bool:
    """Let a model attend without copies of its keys; whether it does.

    It does where it attends by SDPA and has groups. In half precision on a CPU groups do not
    matter, and a row's bits do not depend on others.
    """
    config, least = hf.config.get_text_config(), min_block_rows(hf)
    name, fewest = (FOLDED, 1) if least else (NAME, 2)
    if getattr(config, "_attn_implementation", None) != "sdpa" or _groups(config) < fewest:
        return False
    AttentionInterface.register(name, partial(attend, least=least))
    AttentionMaskInterface.register(name, sdpa_mask)
    hf.set_attn_implementation(name)
    return bool(config._attn_implementation == name)


def _groups(config: Any) -> int:
    """How many heads share keys; 0 where the configuration does not tell."""
    heads = getattr(config, "num_attention_heads", None)
    of_keys = getattr(config, "num_key_value_heads", None)
    if type(heads) is not int or type(of_keys) is not int or of_keys < 1 or heads % of_keys:
        return 0
    return heads // of_keys


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    least: int = 0,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """As `transformers`' attention by SDPA: (1, rows, heads, head_dim), and no weights.

    What is not a pass of several rows under one mask for all heads is left to the original. No
    block of the kernel has fewer rows than `least`, which would get other bits.
    """
    mask, rows = attention_mask, query.shape[2]
    # On a CPU it is folded by the original, too; a GPU's kernels read groups themselves.
    one = rows == 1 and not least and query.device.type != "cuda"
    groups = getattr(module, "num_key_value_groups", 1)
    if (
        mask is None
        or one
        or _is_special(more)
        or query.shape[1] != key.shape[1] * groups
        or (query.shape[0], *mask.shape[:3]) != (1, 1, 1, rows)
    ):
        found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, **more)
        return found
    folded = rows * query.shape[1] // key.shape[1]
    if (times := -(-least // (folded if folded <= SDPA_BLOCK else rows))) > 1:
        query, mask = query.repeat(1, 1, times, 1), mask.repeat(1, 1, times, 1)
    out = grouped(query, key, value, mask, more.get("scaling"))
    if times > 1:
        out = out[:, :, :rows]
    return out.transpose(1, 2).contiguous(), None


def _is_special(arguments: Mapping[str, Any]) -> bool:
    given = [arguments.get(name) for name in _SPECIAL]
    return any(isinstance(argument, Tensor) or bool(argument) for argument in given)


def grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """(batch, heads, rows, head_dim), the keys of a group not copied for each of its heads.

    Keys are (batch, heads ÷ groups, length, head_dim). `mask` (batch, 1, rows, length) is added to
    the scores, or says which count.
    """
    batch, heads, rows, width = query.shape
    of_keys, length = key.shape[1:3]
    groups = heads // of_keys
    device = query.device.type
    if (device == "cpu" and groups * rows > SDPA_BLOCK) or (device == "cuda" and rows == 1):
        return scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=True)
    folded = mask.expand(batch, groups, rows, length).reshape(batch, 1, groups * rows, length)
    out = scaled_dot_product_attention(
        query.reshape(batch, of_keys, groups * rows, width), key, value, folded, scale=scale
    )
    return out.reshape(batch, heads, rows, value.shape[-1])


# --- passes whose rows all see what lies before them, on a GPU ---

# Places from which on that is read by itself. Derived, from passes of an 8B on an H100 (bfloat16,
# 8 / 32 / 64 rows): in ms under a mask 11.3 / 12.1 / 12.4 at 2,048 places and 21.5 / 23.1 / 23.7 at
# 16,384, without one 11.6 / 12.8 / 14.0 and 12.3 / 13.5 / 14.9: the lines cross at 2,400 to 4,300.
APART_FROM = 4096
ALIGNED = 8  # rows of these passes are a multiple of it: the kernel wants masks that are aligned
_BLOCKS = 128  # parts of all heads, read beside each other; derived: an H100 has 132 processors
# Families whose attention is a softmax of products, and nothing more.
_FAMILIES = {"llama", "mistral", "mixtral", "gemma", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"}


@dataclass(frozen=True)
class Prefix:
    """A pass over a draft tree at `slots`, int64 (rows,), in half precision on a GPU.

    All rows see the first `reach` places, an int64 of a device. These are read without a mask, of
    which the quickest kernel knows none, in parts. What rows see of themselves, by `mask` (1, 1,
    rows, rows), is joined to that by the logarithms of the sums of both softmaxes.
    """

    slots: Tensor
    reach: Tensor
    mask: Tensor
    _given: dict[tuple[int, int], list[Tensor]] = field(default_factory=dict)

    def _parts(self, heads: int, folded: int) -> list[Tensor]:
        """For all layers: where the parts' rows and places begin and end, and the folded mask."""
        count = -(-_BLOCKS // heads)
        parts = torch.arange(count + 1, device=self.slots.device)
        ends = torch.minimum(parts * ((self.reach + count - 1) // count), self.reach)
        groups, rows = folded // len(self.slots), len(self.slots)
        mask = self.mask.expand(1, groups, rows, rows).flatten(1, 2)[:, None]
        return [(parts * folded).int(), ends.int(), mask.expand(1, heads, folded, rows)]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None
    ) -> Tensor:
        """As `grouped` of all places under one mask, but (1, rows, heads, head_dim)."""
        own, ops = query.reshape(key.shape[1], -1, query.shape[3]), torch.ops.aten
        of_keys, folded, width = own.shape
        if (of_keys, folded) not in self._given:
            self._given[of_keys, folded] = self._parts(of_keys, folded)
        begins, ends, mask = self._given[of_keys, folded]
        parts = len(ends) - 1
        before, sums, *_rest = ops._flash_attention_forward(
            own.transpose(0, 1).repeat(parts, 1, 1), key[0].transpose(0, 1),
            value[0].transpose(0, 1), begins, ends, folded, key.shape[2], 0.0, False, False,
            scale=scale,
        )  # fmt: skip
        empty = (ends[1:] == ends[:-1])[:, None]
        sums = sums.view(of_keys, parts, folded).masked_fill(empty, -torch.inf)
        of_tree, sums_of_tree, *_rest = ops._scaled_dot_product_efficient_attention(
            own[None], key.index_select(2, self.slots), value.index_select(2, self.slots),
            mask, True, scale=scale,
        )  # fmt: skip
        shares = torch.cat([sums, sums_of_tree[0, :, None, :folded]], 1).softmax(1)
        before = before.view(parts, folded, of_keys, width).permute(2, 0, 1, 3)
        found = torch.cat([before, of_tree[0, :, None]], 1) * shares[..., None]
        return found.sum(1).to(query.dtype).view(query.shape).transpose(1, 2)


class Behind:
    """A pass over a chunk of a prompt in half precision on a GPU: its rows see all before them."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, _: Tensor, scale: float | None
    ) -> Tensor:
        """As `Prefix.attend`. The last row sees the last place."""
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        found: Tensor = flash(query, key, value, 0.0, True, False, scale=scale)[0]
        return found.transpose(1, 2)


@torch.inference_mode()
def reads_apart(hf: Any) -> bool:
    """Whether a model's passes can be computed so: the kernels are there, and give its scores."""
    config, device = hf.config.get_text_config(), hf.device
    groups, half = _groups(config), (torch.bfloat16, torch.float16)
    if device.type != "cuda" or hf.dtype not in half or config.model_type not in _FAMILIES:
        return False
    if getattr(config, "_attn_implementation", None) not in ("sdpa", NAME):
        return False
    heads, rows, end = config.num_attention_heads, slice(100, 108), slice(108)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    draw, at = partial(torch.randn, dtype=hf.dtype, device=device), torch.arange(128, device=device)
    query = draw(1, heads, 8, width)
    key, value = (draw(1, heads // groups, 128, width) for _ in range(2))
    seen = at <= at[rows, None]
    truth = grouped(query, key, value, seen[None, None], None).transpose(1, 2).float()
    own = torch.where(seen[:, rows], 0.0, torch.finfo(hf.dtype).min).to(hf.dtype)[None, None]
    try:
        found = Prefix(at[rows], at[100], own).attend(query, key, value, own, None)
        chunk = Behind().attend(query, key[:, :, end], value[:, :, end], own, None)
    except (RuntimeError, AttributeError, TypeError):  # no such kernel for this GPU or these sizes
        return False
    return all(float((one.float() - truth).abs().max()) < _NEAR for one in (found, chunk))


_NEAR = 0.05  # a difference of outputs about 0.2 large, as rounding gives at most; guess
_NAME = "ngt_batch"
# What one more call of attention takes, in products of a query and a key of all heads, times the
# width of these heads. Measured (two threads, 8 × 32 and 14 × 64 wide): 30 us a call.
_CALL = 125_000


@dataclass(frozen=True)
class Spans:
    """The rows of a pass over sequences in regions of `places` places each, region 0 first.

    Layers for which `narrow` is true attend to the last `window` positions. With `gathered` they
    are given so many places of each sequence, one sequence's behind the other's, and nothing else.
    """

    all: Sequence[Span]
    places: int
    narrow: Sequence[bool] = ()
    window: int | None = None
    gathered: int = 0

    def is_narrow(self, module: nn.Module) -> bool:
        """Whether a module is the attention of a layer that attends to a window."""
        if self.window is None or not self.narrow:
            return False
        layer = getattr(module, "layer_idx", None)
        return layer is not None and self.narrow[layer]

    def of_gathered(self) -> "Spans":
        """The same sequences among the places that narrow layers are given."""
        places = self.gathered
        every = [Span(span.rows, at * places, places) for at, span in enumerate(self.all)]
        return Spans(every, places)

    def firsts(self) -> list[int]:
        """The first place of each sequence's region that narrow layers attend to."""
        window = self.window or 1
        return [max(0, span.own.start - window + 1) for span in self.all]

    def at_once(self, query: Tensor) -> bool:
        """Whether one call for all sequences is possible, and costs less than one for each."""
        lengths = [span.length for span in self.all]
        if any(span.count != self.all[0].count for span in self.all):
            return False
        unused = (len(lengths) * max(lengths) - sum(lengths)) * self.all[0].count
        calls = (len(lengths) - 1) * _CALL / (query.shape[1] * query.shape[3])
        return query.device.type != "cpu" or unused <= calls  # elsewhere calls cost more

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None
    ) -> Tensor:
        """All sequences at once: (1, rows, heads, head_dim)."""
        count, longest = len(self.all), max(span.length for span in self.all)
        rows = torch.unflatten(query[0], 1, (count, -1)).transpose(0, 1)
        masks = torch.unflatten(mask[0, 0], 0, (count, -1))[:, None, :, :longest]
        keys, values = (  # (sequences, heads, longest, head_dim), views
            states[0]
            .view(states.shape[1], -1, self.places, states.shape[3])[:, :count, :longest]
            .transpose(0, 1)
            for states in (key, value)
        )
        return grouped(rows, keys, values, masks, scale).transpose(1, 2).flatten(0, 1)[None]


@contextmanager
def attending(config: Any, spans: Spans | Prefix | Behind) -> Iterator[None]:
    """Within it a model of this configuration attends so.

    The places of a mask's row are those of its own region.
    """
    own = config._attn_implementation

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **more: Any
    ) -> tuple[Tensor, None]:
        known = own in ("sdpa", NAME, FOLDED) and not _is_special(more)
        if not isinstance(spans, Spans):
            return spans.attend(query, key, value, mask, more.get("scaling")), None
        here, firsts = spans, [0] * len(spans.all)
        if spans.is_narrow(module):
            if spans.gathered:
                here = spans.of_gathered()
            elif query.device.type == "cpu":
                firsts = spans.firsts()
        # All at once they attend to all of their places, under the mask.
        if known and not any(firsts) and here.at_once(query):
            return here.attend(query, key, value, mask, more.get("scaling")), None
        # The eager attention is the model's own.
        eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        function = ALL_ATTENTION_FUNCTIONS.get_interface(own, eager)
        out = []
        for span, first in zip(here.all, firsts, strict=True):
            region = slice(span.start + first, span.start + span.length)
            masked = mask[:, :, span.rows, first : span.length]
            states = query[:, :, span.rows], key[:, :, region], value[:, :, region]
            out.append(function(module, *states, masked, **more)[0])
        return torch.cat(out, 1), None

    AttentionInterface.register(_NAME, attend)
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = own
