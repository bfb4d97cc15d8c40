"""The keys and values of one sequence or several, in fixed buffers that can be rolled back.

Rows lie in buffers that are allocated ahead; the first `length` of them are valid. A pass writes
its rows where `aim` said, and its mask tells what it sees. `keep` copies the accepted rows next to
each other and raises `length`; the next pass overwrites the rows from there on. Several sequences
share buffers, with a stretch of them each (batch_target.py).
"""

import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from ngtcli.decode.layout import capacity_for

CHUNK = 1024  # tokens of a prompt that one pass reads; their rows can be kept (prefixes.py)


@dataclass(frozen=True, slots=True)
class Link:
    """A chunk of a prompt: its `ids` (int64), in bytes, and the `seconds` that reading it took.

    `key` stands for the prompt up to its end, `before` for that up to its start. `states` are the
    hidden states (CHUNK, hidden size) that a reader wanted of it, by layer.
    """

    before: str
    key: str
    ids: bytes
    seconds: float
    states: Mapping[int, Tensor] = field(default_factory=dict)

    def is_for(self, other: "Link", layers: Collection[int] = ()) -> bool:
        """Whether both are the same chunk behind the same ones, with the states of `layers`."""
        same = (self.before, self.key, self.ids) == (other.before, other.key, other.ids)
        return same and self.states.keys() >= set(layers)

    @property
    def tokens(self) -> list[int]:
        """Its ids."""
        return array("q", self.ids).tolist()


@dataclass(frozen=True, slots=True)
class Keeping:
    """Whose a prompt is, and what is kept of it; no prompt gets rows of another owner's.

    The user's own are those of "". `reads`: rows on disk are used. They are written if reading the
    prompt took `least_s` seconds and its rows have no more than `most` bytes.
    """

    owner: str = ""
    reads: bool = False
    least_s: float = math.inf
    most: int = 0


class RollbackLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers ships no types
    """One layer's rows: keys and values of shape (1, heads, capacity, head_dim)."""

    is_sliding = False

    def __init__(self, owner: "RollbackCache", narrow: bool) -> None:
        super().__init__()
        self.owner, self._narrow = owner, narrow

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        capacity = self.owner.capacity
        self.keys, self.values = _like(key_states, capacity), _like(value_states, capacity)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write rows at the owner's `slots`; returns the places that the pass attends to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner = self.owner
        slots = owner.slots.to(self.keys.device)  # layers may be on several
        self.keys.index_copy_(2, slots, key_states)
        self.values.index_copy_(2, slots, value_states)
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

    `capacity` is the number of places in every buffer; `reserve` makes it larger. `chain` are the
    chunks at the start whose rows can be kept, as `keeping` says; None: none can.
    """

    def __init__(self, narrow: Sequence[bool], capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self.slots = torch.empty(0, dtype=torch.long)  # int64 (rows,): where the pass writes
        self.first, self.end = 0, 0  # the places that the pass attends to
        self.past = 0  # the length that the model is given if it asks
        self._used = 0  # places of this sequence that may have been written
        self.chain: list[Link] = []
        self.keeping: Keeping | None = None
        super().__init__(layers=[RollbackLayer(self, n) for n in narrow])

    def aim(self, slots: Tensor, end: int, past: int, first: int = 0) -> None:
        """Tell where the next pass writes, and that it attends to the places before `end`.

        Narrow layers attend to those from `first` on. `past` is the length for a model that asks.
        """
        self.slots, self.end, self.past, self.first = slots, end, past, first

    def buffers(self) -> list[Tensor]:
        """Keys and values of each layer; one that shares another layer's rows has none."""
        filled = [layer for layer in self.layers if layer.is_initialized]
        return [buffer for layer in filled for buffer in (layer.keys, layer.values)]

    def rows(self) -> list[Tensor]:
        """The same as far as they are valid."""
        return [buffer[:, :, : self.length] for buffer in self.buffers()]

    def reset(self, links: Sequence[Link] = ()) -> None:
        """Empty the cache but for the chunks `links` at its start; its buffers stay."""
        kept = len(links) * CHUNK
        # First: where an interrupt comes between, no chunk may be known whose rows are gone.
        self.chain, self.keeping, self.length = list(links), None, kept
        self.clear(kept, self._used)
        self._used = kept

    def chunk(self, at: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and values of a chunk, by layer: views, (1, heads, CHUNK, head_dim) each."""
        place = slice(at * CHUNK, (at + 1) * CHUNK)
        return {
            n: (layer.keys[:, :, place], layer.values[:, :, place])
            for n, layer in enumerate(self.layers)
            if layer.is_initialized
        }

    def restore(self, link: Link, rows: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        """Append a chunk's rows, as `chunk` gave them, behind chunks."""
        end = self.length + CHUNK
        for n, (keys, values) in rows.items():
            layer = self.layers[n]
            if not layer.is_initialized:
                layer.lazy_initialization(keys, values)
            layer.keys[:, :, self.length : end] = keys
            layer.values[:, :, self.length : end] = values
        self.chain.append(link)
        self.length = self._used = end

    def bytes_of(self, length: int) -> int:
        """The bytes of so many rows of all layers."""
        return sum(buffer[:, :, :1].nbytes for buffer in self.buffers()) * length

    def clear(self, start: int, end: int) -> None:
        """Zeros at the places from `start` to `end`: a NaN must not outlive its sequence."""
        for buffer in self.buffers():
            buffer[:, :, start:end] = 0

    def reserve(self, places: int) -> bool:
        """Make room for writing below `places`, by a copy if need be; returns if buffers moved."""
        if places > self.capacity:
            self._grow(capacity_for(places))
            self._used = max(self._used, places)
            return True
        self._used = max(self._used, places)
        return False

    def _grow(self, capacity: int) -> None:
        """Larger buffers with the same rows; where memory does not suffice for all, the old ones.

        Raises MemoryError and the like.
        """
        filled = [layer for layer in self.layers if layer.is_initialized]
        larger = [[_like(rows, capacity) for rows in (one.keys, one.values)] for one in filled]
        for layer, (keys, values) in zip(filled, larger, strict=True):
            for buffer, rows in ((keys, layer.keys), (values, layer.values)):
                buffer[:, :, : rows.shape[2]] = rows
            layer.keys, layer.values = keys, values
        self.capacity = capacity

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows of the last pass (ascending, counted from `length`).

        The rows 0, 1, 2, … at the start of `rows` are in place already and are not copied.
        """
        moved = [(row, to) for to, row in enumerate(rows) if row != to]
        self.copy([self.length + row for row, _ in moved], [self.length + to for _, to in moved])
        self.length += len(rows)

    def repeat(self, length: int) -> None:
        """Repeat the rows until there are `length`."""
        new = range(self.length, length)
        self.copy([place % self.length for place in new], new)
        self.length = max(self.length, length)
        self._used = max(self._used, length)

    def copy(self, sources: Sequence[int], to: Sequence[int]) -> None:
        """Copy the rows at the places `sources` to the places `to`, all read before any written."""
        if not len(sources):
            return
        read, written = (torch.tensor(p, device=self.slots.device) for p in (sources, to))
        for buffer in self.buffers():
            on = buffer.device
            buffer.index_copy_(2, written.to(on), buffer.index_select(2, read.to(on)))

    def copy_from(self, other: "RollbackCache", start: int, to: int, length: int) -> None:
        """Copy `length` rows of a cache from place `start` on to the places from `to` on."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            if not (theirs.is_initialized and length):
                continue
            if not mine.is_initialized:
                mine.lazy_initialization(theirs.keys, theirs.values)
            mine.keys[:, :, to : to + length] = theirs.keys[:, :, start : start + length]
            mine.values[:, :, to : to + length] = theirs.values[:, :, start : start + length]

    def truncate(self, length: int) -> None:
        """Drop all rows from `length` on."""
        self.length = min(self.length, length)
        del self.chain[self.length // CHUNK :]


def _like(states: Tensor, capacity: int) -> Tensor:
    """A buffer of zeros for rows like these: (1, heads, capacity, head_dim)."""
    return states.new_zeros((*states.shape[:2], capacity, states.shape[3]))
