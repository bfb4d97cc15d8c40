"""The keys and values that one layer of a head keeps of a text, and of a draft behind it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOT = -1  # the parent of what follows the rows that are kept


class HeadCache:
    """Rows that are kept, one for each position in turn, and the rows of a draft behind them.

    A pass asks with `chain`, `block` or `tree` for the mask of its rows; its layer then gives their
    keys and values to `update`, as layers of transformers do. They are the draft's until `keep` or
    `drop`. A row sees none that is `window` positions away or farther; None: all.

    >>> cache = HeadCache(3)
    >>> cache.chain(4, 10).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]
    >>> cache.positions(4).tolist()
    [10, 11, 12, 13]
    """

    def __init__(self, window: int | None = None) -> None:
        self.window = window
        self._buffers: list[Tensor] = []  # keys and values, (1, heads, places, size of a head)
        self._asked: list[int] = []  # positions of the draft's rows, with those asked for last
        self.clear()

    def clear(self) -> None:
        """Forget all rows; the buffers stay."""
        self._kept, self._start = 0, 0  # rows, and the position of the first
        self._first = 0  # the kept rows before it are out of the window
        self.drop()

    @property
    def end(self) -> int:
        """The position behind the kept rows."""
        return self._start + self._kept

    def chain(self, rows: int, start: int) -> Tensor:
        """The mask, bool (rows, keys), of rows at the positions from `start` on; no draft is left.

        Kept rows that do not reach to `start` are forgotten.
        """
        self.put(rows, start)
        self._sees = np.tri(rows, dtype=np.bool_)
        return self._mask(rows)

    def put(self, rows: int, start: int) -> None:
        """The same where no mask is needed."""
        self.drop()
        if start != self.end:
            self.clear()
            self._start = start
        self._asked = [*range(start, start + rows)]
        self._limit(start)

    def block(self, rows: int, causal: bool) -> Tensor:
        """The same for a new draft, whose rows all see each other, if `causal` those before."""
        self.drop()
        self._asked = [*range(self.end, self.end + rows)]
        self._sees = np.tri(rows, dtype=np.bool_) if causal else np.ones((rows, rows), np.bool_)
        return self._mask(rows)

    def tree(self, parents: Sequence[int]) -> Tensor:
        """The same for further rows of a draft.

        Each sees the kept rows, itself and what leads to it: its parent is a row of the draft, by
        number, or `ROOT`.
        """
        before, rows = len(self._asked), len(parents)
        sees = np.zeros((before + rows,) * 2, np.bool_)
        sees[:before, :before] = self._sees
        for row, parent in enumerate(parents, before):
            if parent != ROOT:
                sees[row] = sees[parent]
            sees[row, row] = True
            self._asked.append(self.end if parent == ROOT else self._asked[parent] + 1)
        self._sees = sees
        return self._mask(rows)

    def _mask(self, rows: int) -> Tensor:
        own = np.asarray(self._asked)
        sees, asking = self._sees[-rows:], own[-rows:]
        self._limit(int(asking.min()))
        kept = np.arange(self._start + self._first, self.end)
        sees = np.concatenate([np.ones((rows, len(kept)), np.bool_), sees], axis=1)
        if self.window is not None:
            away = asking[:, None] - np.concatenate([kept, own])
            sees &= np.abs(away) < self.window
        return torch.from_numpy(sees)

    def _limit(self, position: int) -> None:
        """Leave out what rows from a position on do not see."""
        if self.window is not None:
            farthest = position - self.window + 1 - self._start
            self._first = min(max(0, farthest), self._kept)

    def positions(self, rows: int) -> Tensor:
        """The positions, int64 (rows,), of the last rows that were asked for."""
        return torch.tensor(self._asked[-rows:])

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add (1, heads, rows, size) of each to the draft; returns those that the mask is for."""
        rows = keys.shape[2]
        if not self._buffers or self._kept + self._written + rows > self._buffers[0].shape[2]:
            self._make_room(rows, (keys, values))
        at = self._kept + self._written
        for buffer, new in zip(self._buffers, (keys, values), strict=True):
            buffer[:, :, at : at + rows] = new
        self._written += rows
        own_keys, own_values = (b[:, :, self._first : at + rows] for b in self._buffers)
        return own_keys, own_values

    def _make_room(self, rows: int, like: tuple[Tensor, Tensor]) -> None:
        """Leave out what no row sees any more; where that is less than half, take new buffers."""
        seen, old = self._kept if self.window is None else self.window - 1, self._buffers
        out = max(0, self._kept - seen)  # rows that one at `end` does not see
        used = self._kept + self._written - out
        if not old or 2 * (used + rows) > old[0].shape[2]:
            places = 2 * (used + rows)
            self._buffers = [t.new_empty((*t.shape[:2], places, t.shape[3])) for t in like]
        for buffer, before in zip(self._buffers, old, strict=False):
            buffer[:, :, :used] = before[:, :, out : out + used].clone()
        self._kept, self._start, self._first = (
            self._kept - out,
            self._start + out,
            self._first - out,
        )

    def keep(self) -> None:
        """Keep the draft's rows, which are a chain."""
        self._kept += self._written
        self.drop()

    def drop(self) -> None:
        """Drop the draft's rows."""
        self._asked = []
        self._written = 0  # rows of the draft that have keys and values
        self._sees = np.zeros((0, 0), np.bool_)  # which rows of the draft each of them sees


def additive(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as layers of transformers take it: (1, 1, rows, keys), 0 where a row sees."""
    lowest = torch.finfo(like.dtype).min
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(~mask, lowest)[None, None]
