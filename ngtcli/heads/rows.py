"""The KV cache of a head: the rows of a sequence, followed by those of a draft."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ngtcli.decoding.kv_cache import KVCache, PlannedCache
from ngtcli.decoding.pass_plan import PassPlan

# The KV positions of the first buffers (guess): larger buffers need new captures.
_MIN_CAPACITY = 4096


@dataclass(frozen=True, slots=True)
class AttentionSpan:
    """The rows that a row attends to in a layer.

    Attributes:
        window: A row attends only to rows that are fewer than so many positions away. None: to all
            rows.
        causal: Whether a row attends to no later rows. If not, the rows of a block attend to each
            other.
    """

    window: int | None = None
    causal: bool = True


@dataclass(frozen=True, slots=True)
class HeadPass:
    """Rows that a head computes at once.

    Attributes:
        cache: A cache with the interface of transformers' caches.
        positions: The positions of the rows, int64 (rows,).
        mask: Returns the mask of a layer, (1, 1, rows, keys): 0 for keys that a row attends to, the
            lowest number of the dtype for others. In training it is bool, (rows, keys).
        last: The index of the last row that is not padding, int64 (1,); None: there is no padding.
    """

    cache: Any
    positions: Tensor
    mask: Callable[[int], Tensor]
    last: Tensor | None = None

    def last_of(self, rows: Tensor) -> Tensor:
        """Return the last row without padding, (1, size), of a network's output (rows, size)."""
        return rows[-1:] if self.last is None else rows.index_select(0, self.last)


class DraftRows:
    """The cached rows of a sequence, one per position, followed by those of a draft.

    Positions count from the first cached row, because only differences matter. `length`, the number
    of cached rows, may be an int64 tensor (1,), because a captured pass is replayed with other
    lengths. Such a pass attends to all KV positions, for which `reserve` has to make room.

    >>> rows = DraftRows([AttentionSpan(3)], torch.device("cpu"), torch.float32)
    >>> chain = rows.chain(rows.go_to(10), 4)
    >>> (chain.mask(0)[0, 0] == 0).int().tolist(), chain.positions.tolist()
    ([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]], [0, 1, 2, 3])
    """

    def __init__(
        self, spans: Sequence[AttentionSpan], device: torch.device, dtype: torch.dtype
    ) -> None:
        self.device = device
        self._spans = tuple(spans)
        self._dtype = dtype
        self._window = max((span.window or 0 for span in spans), default=0)
        self._cache = KVCache([span.window is not None for span in spans], 0)
        self.clear()

    @torch.inference_mode()
    def clear(self) -> None:
        """Forget all rows. The buffers stay, and are zeroed, as a sequence may have left NaN."""
        self._cache.reset(self._cache.slots[0])
        self._end = 0  # the position in the sequence after the cached rows

    def go_to(self, start: int) -> int:
        """Return the number of cached rows, after forgetting them if they do not end at `start`."""
        if start != self._end:
            self.clear()
            self._end = start
        return self._cache.length

    def keep(self, rows: int) -> None:
        """Keep the first `rows` of a pass, which are a chain."""
        self._cache.length += rows
        self._end += rows

    def reserve(self, rows: int) -> bool:
        """Make room for `rows` rows after the cached ones; return whether buffers have moved."""
        needed = self._cache.length + rows
        return self._cache.reserve(max(_MIN_CAPACITY, 1 << (needed - 1).bit_length()))

    def chain(self, length: int | Tensor, rows: int, last: Tensor | None = None) -> HeadPass:
        """Make a pass over the next rows of a sequence; see `tree` for the arguments."""
        depths = torch.arange(rows, device=self.device)
        return self.tree(length, depths <= depths[:, None], depths, last=last)

    def tree(
        self,
        length: int | Tensor,
        sees: Tensor,
        depths: Tensor,
        start: int = 0,
        last: Tensor | None = None,
    ) -> HeadPass:
        """Make a pass over rows of a draft.

        Args:
            length: The number of cached rows before the draft.
            sees: The rows of the draft that each row of the pass attends to, bool (rows, n).
            depths: The depth of each row of the draft, int64 (n,), ascending.
            start: The index of the pass's first row in the draft.
            last: The index of the pass's last row that is not padding, int64 (1,).
        """
        kv_positions = torch.arange(len(depths), device=self.device) + length
        positions = depths + length
        rows = len(sees)
        first = 0
        end = self._cache.slot_capacity
        if isinstance(length, int):
            # Layers with windows get only the KV positions that some row attends to.
            first = min(length, max(0, length + int(depths[start]) - self._window + 1))
            end = length + len(depths)
            self._cache.reserve(end)
        write_at = kv_positions[start : start + rows]
        query_positions = positions[start : start + rows]
        plan = PassPlan(write_at, range(end), range(first, end), end - len(depths))

        @cache
        def mask(span: AttentionSpan) -> Tensor:
            low = 0 if span.window is None else first
            keys = torch.arange(low, end, device=self.device)
            seen = (keys < length).expand(rows, -1).index_copy(1, kv_positions - low, sees)
            key_positions = keys.index_copy(0, kv_positions - low, positions)
            if span.causal:
                seen &= key_positions <= query_positions[:, None]
            if span.window is not None:
                seen &= (key_positions - query_positions[:, None]).abs() < span.window
            lowest = torch.finfo(self._dtype).min
            added = torch.zeros_like(seen, dtype=self._dtype).masked_fill_(~seen, lowest)
            return added[None, None]

        planned = PlannedCache(self._cache, plan)
        return HeadPass(planned, query_positions, lambda layer: mask(self._spans[layer]), last)
