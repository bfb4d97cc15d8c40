"""Additive attention masks, made on the device: which rows of a pass attend to which places."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ngtcli.decode.layout import Inputs


@dataclass(frozen=True, slots=True)
class Masks:
    """Makes masks for one model; 0 where a row attends, else the lowest number of `dtype`.

    `window`: how many positions sliding layers attend to; None: all. `mixed`: the model has full
    and sliding layers, and takes a dict with a mask for each kind.
    """

    dtype: torch.dtype
    window: int | None
    mixed: bool

    def of_tree(self, inputs: Inputs, capacity: int) -> Any:
        """Masks (1, 1, rows, capacity) of a pass over a tree (paper, eq. 6)."""
        places = torch.arange(capacity, dtype=torch.int32, device=inputs.ids.device)
        reach = inputs.reach.int()[:, None]
        positions = inputs.positions.int()[:, None]
        cached, tree = places < reach, inputs.ancestors
        full = (
            self._added(cached, tree, inputs.slots) if self.window is None or self.mixed else None
        )
        if self.window is None:
            return full
        cached = cached & (places > positions - self.window)
        tree = tree & (positions - positions.T < self.window)
        return self._both(full, self._added(cached, tree, inputs.slots))

    def of_chunk(self, start: int, rows: int, first: int, device: torch.device) -> Any:
        """Masks of `rows` tokens of a prompt from position `start` on, which lie in a row.

        (1, 1, rows, start + rows); (1, 1, rows, start + rows - first) for sliding layers, whose
        keys begin at place `first`.
        """
        places = torch.arange(start + rows, dtype=torch.int32, device=device)
        positions = places[start:, None]
        full = None
        if self.window is None or self.mixed:
            full = self._additive(places <= positions)[None, None]
        if self.window is None:
            return full
        places = places[first:]
        near = (places <= positions) & (places > positions - self.window)
        return self._both(full, self._additive(near)[None, None])

    def _both(self, full: Tensor | None, near: Tensor) -> Any:
        return near if full is None else {"full_attention": full, "sliding_attention": near}

    def _added(self, cached: Tensor, tree: Tensor, slots: Tensor) -> Tensor:
        mask = self._additive(cached)
        mask.index_copy_(1, slots, self._additive(tree))
        return mask[None, None]

    def _additive(self, seen: Tensor) -> Tensor:
        # Both on the device: a number from the host would be sent there, which no CUDA graph can.
        zero = torch.zeros((), dtype=self.dtype, device=seen.device)
        lowest = torch.full_like(zero, torch.finfo(self.dtype).min)
        return torch.where(seen, zero, lowest)
