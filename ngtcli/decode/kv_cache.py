"""The keys and values of one sequence, in a cache that can be rolled back.

Rows lie in buffers that are allocated ahead; the first `length` of them are valid. A pass over a
draft tree writes its rows from `length` on; `keep` copies the accepted rows next to each other and
raises `length`. The next pass overwrites the rows from `length` on.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class RollbackLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers ships no types
    """One layer's rows: keys and values of shape (1, heads, capacity, head_dim)."""

    is_sliding = False

    def __init__(self, owner: "RollbackCache") -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = self._buffer(key_states)
        self.values = self._buffer(value_states)
        self.is_initialized = True

    def _buffer(self, states: Tensor) -> Tensor:
        rows, heads, _, width = states.shape
        return states.new_zeros((rows, heads, self.owner.capacity, width))

    def _grown(self, buffer: Tensor, rows: int) -> Tensor:
        more = max(rows, buffer.shape[2] + buffer.shape[2] // 4) - buffer.shape[2]
        shape = (*buffer.shape[:2], more, buffer.shape[3])
        return torch.cat([buffer, buffer.new_zeros(shape)], dim=2)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write rows from `length` on; returns all rows up to the last one written."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.owner.length
        end = start + key_states.shape[-2]
        if end > self.keys.shape[2]:  # more rows than were allocated
            self.keys, self.values = self._grown(self.keys, end), self._grown(self.values, end)
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.owner.length

    def get_max_length(self) -> int:
        return -1


class RollbackCache(Cache):  # type: ignore[misc]  # transformers ships no types
    """Cache for `layers` layers. Allocates `capacity` rows at first, more when needed."""

    def __init__(self, layers: int, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        super().__init__(layers=[RollbackLayer(self) for _ in range(layers)])

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows of the last pass (ascending, counted from `length`).

        The rows 0, 1, 2, … at the start of `rows` are in place already and are not copied.
        """
        in_place = 0
        while in_place < len(rows) and rows[in_place] == in_place:
            in_place += 1
        moved = rows[in_place:]
        if moved:
            self._move(moved, self.length + in_place)
        self.length += len(rows)

    def truncate(self, length: int) -> None:
        """Drop all rows from `length` on."""
        self.length = min(self.length, length)

    def rows(self) -> list[tuple[Tensor, Tensor]]:
        """Views of the valid keys and values, layer by layer; of layers that have their own."""
        return [
            (layer.keys[:, :, : self.length], layer.values[:, :, : self.length])
            for layer in self.layers
            if layer.is_initialized
        ]

    def _move(self, rows: Sequence[int], to: int) -> None:
        for layer in self.layers:
            if layer.is_initialized:  # layers that share another layer's rows write none
                source = torch.tensor([self.length + r for r in rows], device=layer.keys.device)
                layer.keys[:, :, to : to + len(rows)] = layer.keys.index_select(2, source)
                layer.values[:, :, to : to + len(rows)] = layer.values.index_select(2, source)
