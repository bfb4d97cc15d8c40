"""The rows that a head's layers keep of a text, and those of a draft behind them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ngtcli.decoding.kv_cache import KVCache, PlannedCache
from ngtcli.decoding.pass_plan import PassPlan

_LEAST = 4096  # places that there is room for on a device, where more are captured anew; guess


@dataclass(frozen=True, slots=True)
class Sight:
    """What a row sees in a layer: rows less than `window` positions away, and none behind it.

    Unless `causal`, it does see those behind it in a block, whose rows all see each other.
    """

    window: int | None = None
    causal: bool = True


@dataclass(frozen=True, slots=True)
class HeadPass:
    """Rows that a head computes at once.

    Layers give their keys and values to `cache`, as those of transformers do. `positions` are int64
    (rows,), and `mask` gives a layer's: (1, 1, rows, places), 0 where a row sees, else the lowest
    number; in training bool (rows, places). `last` is the number of the last row that counts, int64
    (1,); None: of all.
    """

    cache: Any
    positions: Tensor
    mask: Callable[[int], Tensor]
    last: Tensor | None = None

    def last_of(self, rows: Tensor) -> Tensor:
        """That of the last row, (1, size), of what a network gives for all, (rows, size)."""
        return rows[-1:] if self.last is None else rows.index_select(0, self.last)


class DraftRows:
    """Rows that are kept, one for each position in turn, and the rows of a draft behind them.

    Positions count from the first row that is kept: only differences matter. A `length`, of rows
    that are kept, may be an int64 tensor (1,): it may be another when what is done with a pass is
    done again, so such a pass sees all places, which `reserve` has to make room for.

    >>> rows = DraftRows([Sight(3)], torch.device("cpu"), torch.float32)
    >>> given = rows.chain(rows.go_to(10), 4)
    >>> (given.mask(0)[0, 0] == 0).int().tolist(), given.positions.tolist()
    ([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]], [0, 1, 2, 3])
    """

    def __init__(self, sights: Sequence[Sight], device: torch.device, dtype: torch.dtype) -> None:
        self.device, self._sights, self._dtype = device, tuple(sights), dtype
        self._window = max((one.window or 0 for one in sights), default=0)
        self._cache = KVCache([one.window is not None for one in sights], 0)
        self.clear()

    @torch.inference_mode()
    def clear(self) -> None:
        """Forget all rows; the buffers stay, without what a text left there, which may be NaN."""
        self._cache.reset(self._cache.slots[0])
        self._end = 0  # the position in the text behind the rows that are kept

    def go_to(self, start: int) -> int:
        """How many rows are kept; they are forgotten if they do not reach to position `start`."""
        if start != self._end:
            self.clear()
            self._end = start
        return self._cache.length

    def keep(self, rows: int) -> None:
        """Keep the first `rows` of a pass, which are a chain."""
        self._cache.length += rows
        self._end += rows

    def reserve(self, rows: int) -> bool:
        """Make room for so many rows behind those kept; whether buffers have moved."""
        places = max(_LEAST, 1 << (self._cache.length + rows - 1).bit_length())
        return self._cache.reserve(places)

    def chain(self, length: int | Tensor, rows: int, last: Tensor | None = None) -> HeadPass:
        """A pass over the next rows of a text."""
        depths = torch.arange(rows, device=self.device)
        return self.given(length, depths <= depths[:, None], depths, last=last)

    def given(
        self, length: int | Tensor, sees: Tensor, depths: Tensor, start: int = 0,
        last: Tensor | None = None,
    ) -> HeadPass:  # fmt: skip
        """A pass over the rows of a draft, behind `length` rows, from its row number `start` on.

        They see of its rows, which have such `depths`, int64 (n,), rising, those where `sees`, bool
        (rows, n), is true. `last`, int64 (1,), is the number of its last row.
        """
        own = torch.arange(len(depths), device=self.device) + length
        at, rows = depths + length, len(sees)
        first, end = 0, self._cache.slot_capacity
        if isinstance(length, int):  # layers with windows get the places that some row sees
            first = min(length, max(0, length + int(depths[start]) - self._window + 1))
            self._cache.reserve(end := length + len(depths))
        slots, asking = own[start : start + rows], at[start : start + rows]
        plan = PassPlan(slots, range(end), range(first, end), end - len(depths))

        @cache
        def mask(sight: Sight) -> Tensor:
            low = 0 if sight.window is None else first
            places = torch.arange(low, end, device=self.device)
            seen = (places < length).expand(rows, -1).index_copy(1, own - low, sees)
            positions = places.index_copy(0, own - low, at)
            if sight.causal:
                seen &= positions <= asking[:, None]
            if sight.window is not None:
                seen &= (positions - asking[:, None]).abs() < sight.window
            lowest = torch.finfo(self._dtype).min
            added = torch.zeros_like(seen, dtype=self._dtype).masked_fill_(~seen, lowest)
            return added[None, None]

        planned = PlannedCache(self._cache, plan)
        return HeadPass(planned, asking, lambda layer: mask(self._sights[layer]), last)
