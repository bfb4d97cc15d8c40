"""The keys and values of one sequence or several, in fixed buffers that can be rolled back.

Buffers are allocated ahead and divided into regions of equally many places, one for each sequence.
The first `length` rows of a region are valid. A forward pass writes its rows where its plan says
(pass_plan.py), and its mask tells what it sees. `keep` copies the accepted rows next to each other
and raises `length`; the next pass overwrites the rows from there on.
"""

import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from ngtcli.decoding.pass_plan import PassPlan
from ngtcli.decoding.sizes import capacity_for

CHUNK = 1024  # tokens of a prompt that one pass reads; their rows can be kept (prefixes.py)
Rows = Mapping[int, tuple[Tensor, Tensor]]  # keys and values of a chunk, by layer


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a prompt: its `ids` (int64), in bytes, and the `seconds` that reading it took.

    `key` stands for the prompt up to its end, `before` for that up to its start. `states` are the
    hidden states (CHUNK, hidden size) that a reader wanted of it, by layer.
    """

    before: str
    key: str
    ids: bytes
    seconds: float
    states: Mapping[int, Tensor] = field(default_factory=dict)

    def is_for(self, other: "Chunk", layers: Collection[int] = ()) -> bool:
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


@dataclass(slots=True, eq=False)
class Region:
    """The places of a sequence, from `start` on; `used` of them may have been written.

    `chunks` are those at its start whose rows can be kept, as `keeping` says; None: none can.
    `root` stands for all that the bits of their rows depend on beside the token ids. `refused`:
    they were to be written to disk, and could not be.
    """

    start: int
    length: int = 0
    used: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    keeping: Keeping | None = None
    root: str = ""
    refused: bool = False

    def cut(self, length: int) -> None:
        """Drop all rows from `length` on."""
        self.length = min(self.length, length)
        del self.chunks[self.length // CHUNK :]


class RollbackLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers ships no types
    """One layer's keys and values, of shape (1, heads, capacity, head_dim)."""

    is_sliding = False

    def __init__(self, owner: "RollbackCache", slides: bool) -> None:
        super().__init__()
        self._owner = owner
        self.slides = slides

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self._owner.make_buffers(self, key_states, value_states)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Nothing is written without a plan, see `PlannedCache`."""
        raise NotImplementedError("a forward pass without a plan")

    def write(self, plan: PassPlan, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values as a forward pass plans; returns those that it attends to."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        write_at = plan.write_at.to(self.keys.device)  # layers may be on several
        self.keys.index_copy_(2, write_at, keys)
        self.values.index_copy_(2, write_at, values)
        wanted = plan.sliding if self.slides else plan.full
        if isinstance(wanted, Tensor):
            wanted = wanted.to(self.keys.device)
            return self.keys.index_select(2, wanted), self.values.index_select(2, wanted)
        if wanted.start == 0 and wanted.stop == self._owner.capacity:
            return self.keys, self.values
        kept = slice(wanted.start, wanted.stop)
        return self.keys[:, :, kept], self.values[:, :, kept]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        raise NotImplementedError("a forward pass without a plan")

    def get_seq_length(self) -> int:
        raise NotImplementedError("a forward pass without a plan")

    def get_max_length(self) -> int:
        return -1


class PlannedCache(Cache):  # type: ignore[misc]  # transformers ships no types
    """The cache as one forward pass sees it, which is planned."""

    def __init__(self, cache: "RollbackCache", plan: PassPlan) -> None:
        super().__init__(layers=cache.layers)
        self._plan = plan

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        layer: RollbackLayer = self.layers[layer_idx]
        return layer.write(self._plan, key_states, value_states)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return len(self._plan.full), 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._plan.length


class RollbackCache:
    """Cache for as many layers as `sliding_layers` has, which says which of them slide.

    At first it has one region of `places`; what names no region is meant for the first. Rows of all
    layers that are alike lie in one of the `buffers`, once a first pass has shown how they look.
    Those that are to `stay` are not made anew while their `capacity` suffices.
    """

    def __init__(self, sliding_layers: Sequence[bool], places: int, stay: bool = False) -> None:
        self.places, self.regions, self.stay = places, [Region(0)], stay
        self.capacity = places  # places in every buffer
        self.buffers: list[Tensor] = []  # (number, heads, capacity, head_dim) each
        self._known: dict[RollbackLayer, tuple[Tensor, Tensor]] = {}  # keys and values, no places
        self.layers = [RollbackLayer(self, slides) for slides in sliding_layers]

    @property
    def length(self) -> int:
        """Rows of the first region."""
        return self.regions[0].length

    @length.setter
    def length(self, length: int) -> None:
        self.regions[0].length = length

    def rows(self) -> list[Tensor]:
        """Keys and values of each layer as far as they are valid, of the first region."""
        filled = [layer for layer in self.layers if layer.is_initialized]
        return [one[:, :, : self.length] for layer in filled for one in (layer.keys, layer.values)]

    def make_buffers(self, layer: RollbackLayer, *states: Tensor) -> None:
        """Give a layer buffers for rows like its keys and values, and all layers that are known."""
        is_new = layer not in self._known
        self._known[layer] = _without_rows(states[0]), _without_rows(states[1])
        layers = [layer] if is_new else list(self._known)
        self._fill(layers, *self._allocated(layers, self.capacity))

    def _allocated(
        self, layers: Sequence[RollbackLayer], capacity: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Buffers of zeros, and of these each layer's part of keys and of values, in turns."""
        alike: dict[tuple[Any, ...], list[int]] = {}
        every = [one for layer in layers for one in self._known[layer]]
        for at, one in enumerate(every):
            alike.setdefault((one.shape, one.dtype, one.device), []).append(at)
        made, parts = list[Tensor](), dict[int, Tensor]()
        for numbers in alike.values():
            _, heads, _, width = (like := every[numbers[0]]).shape
            made.append(like.new_zeros((len(numbers), heads, capacity, width)))
            parts.update(zip(numbers, made[-1].chunk(len(numbers)), strict=True))
        return made, [parts[at] for at in range(len(every))]

    def _fill(
        self, layers: Sequence[RollbackLayer], made: Sequence[Tensor], parts: Sequence[Tensor]
    ) -> None:
        self.buffers += made
        for layer, keys, values in zip(layers, parts[::2], parts[1::2], strict=True):
            layer.keys, layer.values, layer.is_initialized = keys, values, True

    def _drop(self) -> None:
        """Have no buffers: the next pass makes them."""
        self.buffers = []
        for layer in self.layers:
            layer.keys, layer.values, layer.is_initialized = None, None, False

    def bytes_of(self, length: int) -> int:
        """The bytes of so many rows of all layers; 0 where no pass has shown them."""
        of_layers = (one for both in self._known.values() for one in both)
        return sum(one.shape[1] * one.shape[3] * one.itemsize for one in of_layers) * length

    # --- regions ---

    def reset(self, region: Region, chunks: int = 0) -> None:
        """Empty a region but for so many chunks at its start."""
        kept = chunks * CHUNK
        # First: where an interrupt comes between, no chunk may be known whose rows are gone.
        region.keeping, region.length, region.refused = None, kept, False
        del region.chunks[chunks:]
        self._clear(region, kept, region.used)
        region.used = kept

    def resize(self, count: int, places: int) -> bool:
        """Have `count` regions of `places` each; the first keep their rows, as far as these fit.

        Returns whether buffers moved. Raises MemoryError and the like; all is as it was then.
        """
        kept = self.regions[:count]
        # Rows that are not kept yet may be seen by the next pass, as those of a head's draft.
        lengths = [min(max(region.length, region.used), places) for region in kept]
        starts = [(region.start, at * places) for at, region in enumerate(kept)]
        moved = [(*both, length) for both, length in zip(starts, lengths, strict=True)]
        anew = not (self.stay and count * places <= self.capacity)
        if anew:
            self._move_to_new(count * places, moved if any(lengths) else ())
        else:  # those that move up the last first
            for part in moved if places < self.places else reversed(moved):
                self._move(*part)
        self.places, self.regions = places, kept
        for at, (region, length) in enumerate(zip(kept, lengths, strict=True)):
            region.start, region.used = at * places, length
            region.cut(places)
        self.regions += [Region(at * places) for at in range(len(kept), count)]
        for region in () if anew else self.regions:
            self._clear(region, region.used, places)
        return anew

    def _move_to_new(self, capacity: int, moved: Sequence[tuple[int, int, int]]) -> None:
        """Have buffers of this capacity, with the rows that are `moved` (from, to, number)."""
        if moved:
            layers = list(self._known)
            made, parts = self._allocated(layers, capacity)
            for n, layer in enumerate(layers):
                for new, old in zip(parts[2 * n :], (layer.keys, layer.values), strict=False):
                    for source, to, number in moved:
                        new[:, :, to : to + number] = old[:, :, source : source + number]
            self._drop()
            self._fill(layers, made, parts)
        else:  # new ones are made by the next pass, when the old ones are gone
            self._drop()
        self.capacity = capacity

    def close(self, at: int, last: int) -> None:
        """The sequence of a region is done: that of the `last` one takes its place."""
        gone, stays = self.regions[at], self.regions[last]
        self.reset(gone)
        if gone is stays:
            return
        self._move(stays.start, gone.start, stays.length)
        self.regions[at], self.regions[last] = stays, gone
        gone.start, stays.start, gone.used = stays.start, gone.start, stays.used

    # --- chunks ---

    def find(
        self, at: int, wanted: Chunk, layers: Collection[int], without: Region
    ) -> Region | None:
        """A region that has this chunk, with the states of `layers`, as its chunk number `at`.

        It is not `without`, whose rows are about to go.
        """
        for region in self.regions:
            if region is without or at >= len(region.chunks):
                continue
            if region.chunks[at].is_for(wanted, layers):
                return region
        return None

    def chunk(self, region: Region, at: int) -> Rows:
        """Keys and values of a chunk, by layer: views, (1, heads, CHUNK, head_dim) each."""
        start = region.start + at * CHUNK
        return {
            n: (layer.keys[:, :, start : start + CHUNK], layer.values[:, :, start : start + CHUNK])
            for n, layer in enumerate(self.layers)
            if layer.is_initialized
        }

    def restore(self, region: Region, chunk: Chunk, rows: Rows) -> None:
        """Append a chunk's rows, as `chunk` gave them, behind chunks."""
        start = region.start + region.length
        for n, states in rows.items():
            layer = self.layers[n]
            if not layer.is_initialized:
                self.make_buffers(layer, *states)
            for buffer, state in zip((layer.keys, layer.values), states, strict=True):
                buffer[:, :, start : start + CHUNK] = state
        region.chunks.append(chunk)
        region.length = region.used = region.length + CHUNK

    # --- rows ---

    def reserve(self, places: int, region: Region | None = None) -> bool:
        """Make room for writing below `places`, by a copy if need be; returns if buffers moved.

        Raises as `resize`, which other regions than the first are for.
        """
        moved = places > self.places and self.resize(1, capacity_for(places))
        region = region or self.regions[0]
        region.used = max(region.used, places)
        return moved

    def keep(self, kept: Sequence[Sequence[int]]) -> None:
        """Keep these rows of the last pass, of each sequence (ascending, from its `length` on).

        The rows 0, 1, 2, … at the start of them are in place already and are not copied.
        """
        for region, rows in zip(self.regions, kept, strict=False):
            end = region.start + region.length
            for source, to, number in runs(rows):
                self._move(end + source, end + to, number)
            region.length += len(rows)

    def repeat(self, length: int) -> None:
        """Repeat the rows until there are `length`."""
        while 0 < self.length < length:
            number = min(self.length, length - self.length)
            self._move(0, self.length, number)
            self.length += number
        self.regions[0].used = max(self.regions[0].used, length)

    def _move(self, source: int, to: int, number: int) -> None:
        """Copy so many rows from one place on to another, all read before any is written."""
        if not number or source == to:
            return
        apart = abs(source - to) >= number
        for buffer in self.buffers:
            rows = buffer[:, :, source : source + number]
            buffer[:, :, to : to + number] = rows if apart else rows.clone()

    def _clear(self, region: Region, first: int, end: int) -> None:
        """Zeros in these places: a NaN must not outlive its sequence."""
        for buffer in self.buffers:
            buffer[:, :, region.start + first : region.start + end] = 0


def _without_rows(states: Tensor) -> Tensor:
    """What tells how rows look: (1, heads, 0, head_dim)."""
    return states.new_empty((*states.shape[:2], 0, states.shape[3]))


def runs(rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """The rows by runs of neighbours: from where, to where they stand side by side, and number.

    Each goes downwards, if anywhere, and overwrites none behind it.

    >>> runs([0, 1, 4, 5, 8])
    [(0, 0, 2), (4, 2, 2), (8, 4, 1)]
    """
    found: list[tuple[int, int, int]] = []
    for place, row in enumerate(rows):
        if found and row == sum(found[-1][::2]):
            found[-1] = (*found[-1][:2], found[-1][2] + 1)
        else:
            found.append((row, place, 1))
    return found
