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
    number; in training bool (rows, places).
    """

    cache: Any
    positions: Tensor
    mask: Callable[[int], Tensor]


class DraftRows:
    """Rows that are kept, one for each position in turn, and the rows of a draft behind them.

    A pass asks for the places of its rows by `chain`, `block` or `tree`; they are the draft's until
    `keep` or `drop`. Positions count from the first row that is kept: only differences matter.

    >>> rows = DraftRows([Sight(3)], torch.device("cpu"), torch.float32)
    >>> given = rows.chain(4, 10)
    >>> (given.mask(0)[0, 0] == 0).int().tolist(), given.positions.tolist()
    ([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]], [0, 1, 2, 3])
    """

    def __init__(self, sights: Sequence[Sight], device: torch.device, dtype: torch.dtype) -> None:
        self._sights, self._device, self._dtype = tuple(sights), device, dtype
        self._window = max((one.window or 0 for one in sights), default=0)
        self._cache = RollbackCache([one.window is not None for one in sights], 0)
        self._positions: list[int] = []  # of the draft's rows
        self.clear()

    def clear(self) -> None:
        """Forget all rows; the buffers stay."""
        self._cache.truncate(0)
        self._end = 0  # the position in the text behind the rows that are kept
        self.drop()

    def chain(self, rows: int, start: int) -> HeadPass:
        """The next rows of a text, from position `start` on.

        Kept rows that do not reach to there are forgotten.
        """
        if start != self._end:
            self.clear()
            self._end = start
        return self.block(rows, np.tri(rows, dtype=np.bool_))

    def block(self, rows: int, sees: Any = None) -> HeadPass:
        """A new draft, whose rows all see each other, or as `sees`, bool (rows, rows), says."""
        self._positions = [*range(self._cache.length, self._cache.length + rows)]
        self._sees = np.ones((rows, rows), np.bool_) if sees is None else sees
        return self._pass(rows)

    def tree(self, parents: Sequence[int]) -> HeadPass:
        """Further rows of a draft: each sees the kept rows, itself and what leads to it.

        A parent is a row of the draft, by number, or ROOT.
        """
        before, rows = len(self._positions), len(parents)
        sees = np.eye(before + rows, dtype=np.bool_)
        sees[:before, :before] = self._sees
        for row, parent in enumerate(parents, before):
            if parent != ROOT:
                sees[row] |= sees[parent]
            at = self._cache.length if parent == ROOT else self._positions[parent] + 1
            self._positions.append(at)
        self._sees = sees
        return self._pass(rows)

    def keep(self) -> None:
        """Keep the draft's rows, which are a chain."""
        self._cache.length += len(self._positions)
        self._end += len(self._positions)
        self.drop()

    def drop(self) -> None:
        """Drop the draft's rows."""
        self._positions.clear()
        self._sees = np.zeros((0, 0), np.bool_)  # which rows of the draft each of them sees

    def _pass(self, rows: int) -> HeadPass:
        """The last `rows` rows of the draft."""
        length, own = self._cache.length, np.asarray(self._positions)
        end, asking, sees = length + len(own), own[-rows:], self._sees[-rows:]
        # Layers with windows are given the places from here on, which some row sees.
        first = min(max(0, int(asking.min()) - self._window + 1), length)
        slots = torch.arange(end - rows, end, device=self._device)
        self._cache.reserve(end)
        self._cache.aim(slots, end, length, first)

        @cache
        def mask(sight: Sight) -> Tensor:
            low = 0 if sight.window is None else first
            behind = asking[:, None] < own if sight.causal else np.zeros_like(sees)
            seen = np.concatenate([np.ones((rows, length - low), np.bool_), sees & ~behind], axis=1)
            if sight.window is not None:
                at = np.concatenate([np.arange(low, length), own])
                seen &= abs(asking[:, None] - at) < sight.window
            return additive(torch.from_numpy(seen).to(self._device), self._dtype)

        positions = torch.from_numpy(asking).to(self._device)
        return HeadPass(self._cache, positions, lambda layer: mask(self._sights[layer]))


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask (1, 1, rows, places): 0 where `seen`, bool (rows, places), is true, else lowest."""
    lowest = torch.finfo(dtype).min
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, lowest)[None, None]
