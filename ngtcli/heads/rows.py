"""The rows that a head's layers keep of a text, and those of a draft behind them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngtcli.decode.kv_cache import RollbackCache
from ngtcli.draft.tree import ROOT

Depths = Sequence[int]  # of nodes
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

    A pass asks for the places of its rows by `chain` or `tree`, and they are the draft's until
    `keep` or `drop`; or by `given`. Positions count from the first row that is kept: only
    differences matter.

    >>> rows = DraftRows([Sight(3)], torch.device("cpu"), torch.float32)
    >>> given = rows.chain(4, 10)
    >>> (given.mask(0)[0, 0] == 0).int().tolist(), given.positions.tolist()
    ([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]], [0, 1, 2, 3])
    """

    def __init__(self, sights: Sequence[Sight], device: torch.device, dtype: torch.dtype) -> None:
        self.device, self._sights, self._dtype = device, tuple(sights), dtype
        self._window = max((one.window or 0 for one in sights), default=0)
        self._cache = RollbackCache([one.window is not None for one in sights], 0)
        self._depths: list[int] = []  # of the draft's rows, which stand so far behind those kept
        self.clear()

    @torch.inference_mode()
    def clear(self) -> None:
        """Forget all rows; the buffers stay."""
        if self.device.type == "cpu":
            self._cache.truncate(0)
        else:  # passes see all places, and a NaN must not outlive its text
            self._cache.reset(self._cache.regions[0])
        self._end = 0  # the position in the text behind the rows that are kept
        self.drop()

    def go_to(self, start: int) -> int:
        """How many rows are kept; they are forgotten if they do not reach to position `start`."""
        if start != self._end:
            self.clear()
            self._end = start
        return self._cache.length

    def chain(self, rows: int, start: int) -> HeadPass:
        """The next rows of a text, from position `start` on."""
        self.go_to(start)
        self._depths, self._sees = [*range(rows)], np.tri(rows, dtype=np.bool_)
        return self._last(rows)

    def tree(self, parents: Sequence[int]) -> HeadPass:
        """Further rows of a draft: each sees the kept rows, itself and what leads to it.

        A parent is a row of the draft, by number, or ROOT.
        """
        before, rows = len(self._depths), len(parents)
        sees = np.eye(before + rows, dtype=np.bool_)
        sees[:before, :before] = self._sees
        for row, parent in enumerate(parents, before):
            if parent != ROOT:
                sees[row] |= sees[parent]
            self._depths.append(0 if parent == ROOT else self._depths[parent] + 1)
        self._sees = sees
        return self._last(rows)

    def keep(self, rows: int) -> None:
        """Keep the first `rows` of the last pass, which are a chain."""
        self._cache.length += rows
        self._end += rows
        self.drop()

    def drop(self) -> None:
        """Drop the draft's rows."""
        self._depths = []
        self._sees = np.zeros((0, 0), np.bool_)  # which rows of the draft each of them sees

    def reserve(self, rows: int) -> bool:
        """Make room for so many rows behind those kept; whether buffers have moved."""
        places = max(_LEAST, 1 << (self._cache.length + rows - 1).bit_length())
        return self._cache.reserve(places)

    @property
    def length(self) -> int:
        """Rows that are kept."""
        return self._cache.length

    def _last(self, rows: int) -> HeadPass:
        """A pass over the last `rows` rows of the draft."""
        length, depths = self._cache.length, torch.tensor(self._depths, device=self.device)
        sees = torch.from_numpy(self._sees[-rows:]).to(self.device)
        first = max(0, length + min(self._depths[-rows:]) - self._window + 1)
        return self.given(length, sees, depths, len(depths) - rows, min(first, length))

    def given(
        self, length: int | Tensor, sees: Tensor, depths: Tensor, start: int, first: int = 0,
        last: Tensor | None = None,
    ) -> HeadPass:  # fmt: skip
        """A pass over the rows of a draft, behind `length` rows, from its row number `start` on.

        They see of its rows, which have such `depths`, int64 (n,), those where `sees`, bool (rows,
        n), is true. Layers with windows are given the places from `first` on, which some row sees.
        A length that is a tensor may be another when what is done with it is done again: then a
        pass sees all places. `last`, int64 (1,), is the number of its last row.
        """
        own = torch.arange(len(depths), device=self.device) + length
        at, rows = depths + length, len(sees)
        end = self._cache.places
        if isinstance(length, int):
            end = length + len(depths)
            self._cache.reserve(end)
        slots, asking = own[start : start + rows], at[start : start + rows]
        self._cache.aim(slots, end, end - len(depths), first)

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
            return additive(seen, self._dtype)

        return HeadPass(self._cache, asking, lambda layer: mask(self._sights[layer]), last)


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask (1, 1, rows, places): 0 where `seen`, bool (rows, places), is true, else lowest."""
    lowest = torch.finfo(dtype).min
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, lowest)[None, None]
