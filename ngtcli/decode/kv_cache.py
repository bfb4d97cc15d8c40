"""The keys and values of one sequence or several, in fixed buffers that can be rolled back.

Rows lie in buffers that are allocated ahead; the first `length` of them are valid. A pass writes
its rows at `slots` and attends to the buffers' first places, as many as `aim` said; what it may
see there its mask tells. `keep` copies the accepted rows next to each other and raises `length`.
The next pass overwrites the rows from `length` on. Several sequences have a region each of the same
buffers.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from ngtcli.decode.layout import capacity_for


class RollbackLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers ships no types
    """One layer's rows: keys and values of shape (1, heads, capacity, head_dim)."""

    is_sliding = False

    def __init__(self, owner: "RollbackCache", narrow: bool) -> None:
        super().__init__()
        self.owner, self._narrow = owner, narrow

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = self._buffer(key_states)
        self.values = self._buffer(value_states)
        self.is_initialized = True

    def _buffer(self, states: Tensor) -> Tensor:
        batch, heads, _, width = states.shape
        return states.new_zeros((batch, heads, self.owner.capacity, width))

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write rows at the owner's `slots`; returns the places that the pass attends to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner = self.owner
        self.keys.index_copy_(2, owner.slots, key_states)
        self.values.index_copy_(2, owner.slots, value_states)
        first = owner.first if self._narrow else 0
        if first == 0 and owner.end == owner.capacity:
            return self.keys, self.values
        return self.keys[:, :, first : owner.end], self.values[:, :, first : owner.end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.end, 0

    def get_seq_length(self) -> int:
        return self.owner.past

    def get_max_length(self) -> int:
        return -1


class RollbackCache(Cache):  # type: ignore[misc]  # transformers ships no types
    """Cache for as many layers as `narrow` has; those where it is true attend from `first` on.

    `capacity` is the number of places in every buffer; `reserve` makes it larger.
    """

    def __init__(self, narrow: Sequence[bool], capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self.slots = torch.empty(0, dtype=torch.long)  # int64 (rows,): where the pass writes
        self.first, self.end = 0, 0  # the places that the pass attends to
        self.past = 0  # the length that the model is given if it asks
        self._used = 0  # places of this sequence that may have been written
        self._chunks: list[tuple[int, ...]] = []  # the ids of whole chunks at the start
        super().__init__(layers=[RollbackLayer(self, n) for n in narrow])

    def aim(self, slots: Tensor, end: int, past: int, first: int = 0) -> None:
        """Tell where the next pass writes, and that it attends to the places before `end`.

        Narrow layers attend to those from `first` on. `past` is the length for a model that asks.
        """
        self.slots, self.end, self.past, self.first = slots, end, past, first

    def reset(self, ids: Sequence[int] = ()) -> None:
        """Empty the cache but for the whole chunks that `ids` begin with; its buffers stay.

        A NaN must not outlive a sequence.
        """
        kept, same = 0, 0
        while same < len(self._chunks) and self._chunks[same] == tuple(
            ids[kept : kept + len(self._chunks[same])]
        ):
            kept, same = kept + len(self._chunks[same]), same + 1
        for layer in self._filled():
            layer.keys[:, :, kept : self._used] = 0
            layer.values[:, :, kept : self._used] = 0
        self._chunks = self._chunks[:same]
        self.length = self._used = kept

    def read(self, ids: Sequence[int], whole: bool) -> None:
        """The last pass read these ids; a `whole` chunk may outlive its sequence, see `reset`."""
        if whole and self.length == sum(map(len, self._chunks)):
            self._chunks.append(tuple(ids))
        self.length += len(ids)

    def reserve(self, places: int) -> bool:
        """Make room for writing below `places`, by a copy if need be; returns if buffers moved."""
        self._used = max(self._used, places)
        if places <= self.capacity:
            return False
        self.capacity = capacity_for(places)
        for layer in self._filled():
            for name in ("keys", "values"):
                old = getattr(layer, name)
                batch, heads, there, width = old.shape
                new = old.new_zeros((batch, heads, self.capacity, width))
                new[:, :, :there] = old
                setattr(layer, name, new)
        return True

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

    def repeat(self, length: int) -> None:
        """Repeat the rows until there are `length`."""
        source = torch.arange(self.length, length, device=self.slots.device) % self.length
        for layer in self._filled():
            layer.keys[:, :, self.length : length] = layer.keys[:, :, source]
            layer.values[:, :, self.length : length] = layer.values[:, :, source]
        self.length = max(self.length, length)
        self._used = max(self._used, length)

    def rows(self) -> list[Tensor]:
        """Keys and values of each layer, as far as they are valid."""
        filled = self._filled()
        return [b[:, :, : self.length] for layer in filled for b in (layer.keys, layer.values)]

    def truncate(self, length: int) -> None:
        """Drop all rows from `length` on."""
        self.length = min(self.length, length)
        while sum(map(len, self._chunks)) > self.length:
            self._chunks.pop()

    def _move(self, rows: Sequence[int], to: int) -> None:
        source = torch.tensor([self.length + r for r in rows], device=self.slots.device)
        for layer in self._filled():
            layer.keys[:, :, to : to + len(rows)] = layer.keys.index_select(2, source)
            layer.values[:, :, to : to + len(rows)] = layer.values.index_select(2, source)

    def _filled(self) -> list[RollbackLayer]:
        """The layers with buffers; those that share another layer's rows have none."""
        return [layer for layer in self.layers if layer.is_initialized]


class Regions(RollbackCache):
    """`size` regions of `places` places each, one behind the other; region 0 begins at place 0.

    Which places of a region are valid its user knows.
    """

    def __init__(self, layers: int, size: int, places: int) -> None:
        super().__init__([False] * layers, size * places)
        self.size, self.places = size, places

    def resized(self, size: int, places: int, used: Sequence[int]) -> "Regions":
        """Others, with the first `used[i]` places of each region i, by a copy."""
        other = Regions(len(self.layers), size, places)
        for region, length in enumerate(used):
            other._copy_rows(self, region * self.places, region * places, length)
        return other

    def fill(self, region: int, sequence: RollbackCache) -> None:
        """Copy the valid rows of a single sequence to the beginning of a region."""
        self._copy_rows(sequence, 0, region * self.places, sequence.length)

    def move(self, source: int, to: int, length: int) -> None:
        """Copy the first `length` rows of region `source` to region `to`, which is another."""
        self._copy_rows(self, source * self.places, to * self.places, length)

    def _copy_rows(self, other: RollbackCache, start: int, to: int, length: int) -> None:
        """Copy `length` rows of a cache from place `start` on to the places from `to` on."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            if not (theirs.is_initialized and length):
                continue
            if not mine.is_initialized:
                mine.lazy_initialization(theirs.keys, theirs.values)
            mine.keys[:, :, to : to + length] = theirs.keys[:, :, start : start + length]
            mine.values[:, :, to : to + length] = theirs.values[:, :, start : start + length]

    def copy(self, sources: Sequence[int], to: Sequence[int]) -> None:
        """Copy the rows at the places `sources` to the places `to`, all read before any written."""
        if not len(sources):
            return
        read, written = (torch.tensor(p, device=self.slots.device) for p in (sources, to))
        for layer in self._filled():
            layer.keys.index_copy_(2, written, layer.keys.index_select(2, read))
            layer.values.index_copy_(2, written, layer.values.index_select(2, read))

    def clear(self, region: int) -> None:
        """Zeros: a NaN must not outlive its sequence."""
        start = region * self.places
        for layer in self._filled():
            layer.keys[:, :, start : start + self.places] = 0
            layer.values[:, :, start : start + self.places] = 0
