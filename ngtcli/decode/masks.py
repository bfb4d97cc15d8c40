"""Additive attention masks, made on the device: which rows of a pass attend to which places."""

from typing import Any

import torch
from torch import Tensor

from ngtcli.decode.layout import Inputs


class Masks:
    """Makes masks for one model; 0 where a row attends, else the lowest number of `dtype`.

    `window`: how many positions sliding layers attend to; None: all. `mixed`: the model has full
    and sliding layers, and takes a dict with a mask for each kind. A mask holds until the next one.
    """

    def __init__(
        self, dtype: torch.dtype, device: torch.device, window: int | None, mixed: bool
    ) -> None:
        self.window, self._mixed, self._device = window, mixed, device
        # Made once: a number from the host would be sent at each use, which no CUDA graph can.
        self._zero = torch.zeros((), dtype=dtype, device=device)
        self._lowest = torch.full_like(self._zero, torch.finfo(dtype).min)
        self._places: dict[int, Tensor] = {}  # by capacity; kept, as captured passes read them
        self._room: dict[str, Tensor] = {}  # memory of masks, on a CPU

    def of_tree(self, inputs: Inputs, capacity: int) -> Any:
        """Masks (1, 1, rows, capacity) of a pass over a tree (paper, eq. 6)."""
        if capacity not in self._places:
            self._places[capacity] = torch.arange(capacity, device=self._device)
        places = self._places[capacity]
        positions = inputs.positions[:, None]
        cached, tree = places < inputs.reach[:, None], inputs.ancestors
        full = None
        if self.window is None or self._mixed:
            full = self._added("full", cached, tree, inputs.slots)
        if self.window is None:
            return full
        cached = cached & (places > positions - self.window)
        tree = tree & (positions - positions.T < self.window)
        return self._both(full, self._added("near", cached, tree, inputs.slots))

    def of_chunk(self, start: int, rows: int, first: int) -> Any:
        """Masks of `rows` tokens of a prompt from position `start` on, which lie in a row.

        (1, 1, rows, start + rows); (1, 1, rows, start + rows - first) for sliding layers, whose
        keys begin at place `first`.
        """
        places = torch.arange(start + rows, device=self._device)
        positions = places[start:, None]
        full = None
        if self.window is None or self._mixed:
            full = self._additive(places <= positions)[None, None]
        if self.window is None:
            return full
        places = places[first:]
        near = (places <= positions) & (places > positions - self.window)
        return self._both(full, self._additive(near)[None, None])

    def of_seen(self, full: Tensor, near: Tensor | None) -> Any:
        """Masks of a pass whose rows see the places where `full`, bool (rows, places), is true.

        `near` says it of sliding layers, where the model has some.
        """
        if near is None:
            return self._additive(full)[None, None]
        whole = self._additive(full)[None, None] if self._mixed else None
        return self._both(whole, self._additive(near)[None, None])

    def _both(self, full: Tensor | None, near: Tensor) -> Any:
        return near if full is None else {"full_attention": full, "sliding_attention": near}

    def _added(self, kind: str, cached: Tensor, tree: Tensor, slots: Tensor) -> Tensor:
        mask = torch.where(cached, self._zero, self._lowest, out=self._memory(kind, cached))
        mask.index_copy_(1, slots, self._additive(tree))
        return mask[None, None]

    def _memory(self, kind: str, like: Tensor) -> Tensor | None:
        """Memory for a mask. A CPU takes longer to get new memory of this size than to fill it."""
        if self._device.type != "cpu":
            return None
        if kind not in self._room or self._room[kind].numel() < like.numel():
            self._room[kind] = self._zero.new_empty(like.numel())
        return self._room[kind][: like.numel()].view(like.shape)

    def _additive(self, seen: Tensor) -> Tensor:
        return torch.where(seen, self._zero, self._lowest)
