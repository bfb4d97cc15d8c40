"""Attention of several sequences' rows, each to the keys of its own sequence.

All rows of a pass lie in one flat batch, so that linear layers compute no padding. Here each
sequence's rows attend by themselves to its region of the cache, by whatever attention the model
has; or all together, padded to the most rows and the longest text, where that costs less.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from ngtcli.decode.attention import NAME, SPECIAL, given, grouped

_NAME = "ngt_batch"
# What one more call of attention takes, in products of a query and a key of all heads, times the
# width of these heads. Measured (two threads, 8 × 32 and 14 × 64 wide): 30 us a call.
_CALL = 125_000


@dataclass(frozen=True, slots=True)
class Span:
    """A sequence in a pass: rows `first` to `end`, which attend to `length` places from `start`."""

    first: int
    end: int
    start: int
    length: int


@dataclass(frozen=True)
class Rows:
    """The rows of a pass over sequences in regions of `places` places each, region 0 first."""

    spans: Sequence[Span]
    places: int
    device: torch.device

    @cached_property
    def most(self) -> int:
        """Rows of the sequence with the most."""
        return max(span.end - span.first for span in self.spans)

    @cached_property
    def longest(self) -> int:
        """Places of the sequence with the most."""
        return max(span.length for span in self.spans)

    def together(self, width: int) -> bool:
        """Whether all sequences at once, padded, cost less; `width` is that of all heads."""
        if self.device.type != "cpu":  # there calls cost more than what they compute
            return True
        own = sum((span.end - span.first) * span.length for span in self.spans)
        calls = (len(self.spans) - 1) * _CALL / width
        return len(self.spans) * self.most * self.longest <= own + calls

    @cached_property
    def padded(self) -> Tensor:
        """int64 (sequences × most,): the row in each place of the padded pass, or any other."""
        found = [min(s.first + i, s.end - 1) for s in self.spans for i in range(self.most)]
        return torch.tensor(found, device=self.device)

    @cached_property
    def flat(self) -> Tensor:
        """int64 (rows,): where in the padded pass each row is."""
        found = [
            i * self.most + row for i, s in enumerate(self.spans) for row in range(s.end - s.first)
        ]
        return torch.tensor(found, device=self.device)


@contextmanager
def attending(config: Any, rows: Rows) -> Iterator[None]:
    """Within it a model of this configuration attends so. It is given masks (1, 1, rows, longest).

    The places of a mask's row are those of the row's own region.
    """
    own = config._attn_implementation

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **more: Any
    ) -> tuple[Tensor, None]:
        known = own in ("sdpa", NAME) and not any(given(more.get(name)) for name in SPECIAL)
        if known and rows.together(query.shape[1] * query.shape[3]):
            return _together(rows, query, key, value, mask, more.get("scaling")), None
        return _one_by_one(rows, _function(own, module), module, query, key, value, mask, more)

    AttentionInterface.register(_NAME, attend)
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = own


def _function(name: str, module: nn.Module) -> Callable[..., tuple[Tensor, Any]]:
    """The attention of this name; the eager one is the model's own."""
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    found: Callable[..., tuple[Tensor, Any]] = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager)
    return found


def _one_by_one(
    rows: Rows,
    function: Callable[..., tuple[Tensor, Any]],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    more: dict[str, Any],
) -> tuple[Tensor, None]:
    out = []
    for span in rows.spans:
        own = slice(span.first, span.end)
        region = slice(span.start, span.start + span.length)
        found, _ = function(
            module, query[:, :, own], key[:, :, region], value[:, :, region],
            mask[:, :, own, : span.length], **more,
        )  # fmt: skip
        out.append(found)
    return torch.cat(out, 1), None


def _together(
    rows: Rows, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None
) -> Tensor:
    """(1, rows, heads, head_dim)."""
    count, heads, width = len(rows.spans), query.shape[1], query.shape[3]
    padded = query[0].index_select(1, rows.padded).view(heads, count, rows.most, width)
    masks = mask[0, 0].index_select(0, rows.padded).view(count, 1, rows.most, -1)
    out = grouped(padded.transpose(0, 1), _regions(rows, key), _regions(rows, value), masks, scale)
    return out.transpose(1, 2).flatten(0, 1).index_select(0, rows.flat)[None]


def _regions(rows: Rows, states: Tensor) -> Tensor:
    """(sequences, heads, longest, head_dim), a view."""
    regions = states[0].view(states.shape[1], -1, rows.places, states.shape[3])
    return regions[:, : len(rows.spans), : rows.longest].transpose(0, 1)
