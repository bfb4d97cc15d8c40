"""Attention of several sequences in one forward pass.

All query tokens lie in one flat batch, so that linear layers compute no padding. Each sequence
attends by itself to its slot of the KV cache, by whatever attention the model has; or all in one
call, where each has as many query tokens and that costs less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ngtcli.decoding.attention import grouped, is_special
from ngtcli.decoding.layout import Span
from ngtcli.models.hf import AttentionCall, SingleAttention

# What one more call of attention takes, in products of a query and a key of all heads, times the
# width of these heads. Measured (two threads, 8 × 32 and 14 × 64 wide): 30 us a call.
_CALL = 125_000


@dataclass(frozen=True)
class BatchKeys:
    """The places of the keys of sequences that share a forward pass.

    Attributes:
        spans: The query tokens of each sequence, and the KV positions that it attends to.
        capacity: KV positions from the start of one sequence to that of the next.
        firsts: The first of its own that each sequence attends to; (): all of them.
    """

    spans: Sequence[Span]
    capacity: int
    firsts: Sequence[int] = ()

    @classmethod
    def of_windows(cls, spans: Sequence[Span], capacity: int, window: int | None) -> "BatchKeys":
        """Those of sliding layers in buffers of their own; without a `window` all are attended."""
        in_windows = [replace(span, start=span.window_origin) for span in spans]
        firsts = [max(0, span.own.start - window + 1) if window else 0 for span in spans]
        return cls(in_windows, capacity, firsts if any(firsts) else ())

    def attend(self, call: AttentionCall, single: SingleAttention) -> Tensor:
        """As `PassAttention`."""
        assert call.mask is not None
        # In one call all keys of a slot count, under the mask.
        is_softmax = single.is_sdpa and not is_special(call.options)
        if is_softmax and not self.firsts and self._costs_less_at_once(call.query):
            return self._at_once(call.query, call.key, call.value, call.mask, call.scale)

        outputs = []
        for span, first in zip(self.spans, self.firsts or [0] * len(self.spans), strict=True):
            keys = slice(span.start + first, span.start + span.length)
            of_sequence = replace(
                call,
                query=call.query[:, :, span.rows],
                key=call.key[:, :, keys],
                value=call.value[:, :, keys],
                mask=call.mask[:, :, span.rows, first : span.length],
            )
            outputs.append(single.attend(of_sequence)[0])
        return torch.cat(outputs, 1)

    def _costs_less_at_once(self, query: Tensor) -> bool:
        """Return whether one call for all sequences is possible and costs less than several."""
        lengths = [span.length for span in self.spans]
        queries = self.spans[0].count
        if any(span.count != queries for span in self.spans):
            return False
        unused = (len(lengths) * max(lengths) - sum(lengths)) * queries
        calls = (len(lengths) - 1) * _CALL / (query.shape[1] * query.shape[3])
        return query.device.type != "cpu" or unused <= calls  # elsewhere calls cost more

    def _at_once(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None
    ) -> Tensor:
        """All sequences in one call: (1, queries, heads, head_dim)."""
        count = len(self.spans)
        longest = max(span.length for span in self.spans)
        queries = torch.unflatten(query[0], 1, (count, -1)).transpose(0, 1)
        masks = torch.unflatten(mask[0, 0], 0, (count, -1))[:, None, :, :longest]
        keys, values = (  # (sequences, heads, longest, head_dim), views
            states[0]
            .view(states.shape[1], -1, self.capacity, states.shape[3])[:, :count, :longest]
            .transpose(0, 1)
            for states in (key, value)
        )
        return grouped(queries, keys, values, masks, scale).transpose(1, 2).flatten(0, 1)[None]


@dataclass(frozen=True)
class BatchedAttention:
    """The attention of a forward pass over several sequences.

    Attributes:
        full: The keys of layers with full attention.
        in_windows: Those of layers with a sliding window; None: there are none.
        sliding_layers: Which layers have one.
    """

    full: BatchKeys
    in_windows: BatchKeys | None = None
    sliding_layers: Sequence[bool] = ()

    def attend(self, call: AttentionCall, single: SingleAttention) -> Tensor:
        """As `PassAttention`."""
        if self.in_windows is not None and self._slides(call.module):
            return self.in_windows.attend(call, single)
        return self.full.attend(call, single)

    def _slides(self, module: nn.Module) -> bool:
        """Return whether a module is the attention of a layer that attends to a window."""
        layer = getattr(module, "layer_idx", None)
        return layer is not None and self.sliding_layers[layer]
