"""The keys and values of one sequence or several, in fixed buffers that can be rolled back.

Buffers are allocated ahead and divided into slots of equal capacity, one for each sequence. The
first `length` KV positions of a slot are valid. A forward pass writes where its plan says
(pass_plan.py), and its mask says what it sees. `keep` copies the accepted positions next to each
other and raises `length`; the next forward pass overwrites the positions from there on.
"""

import math
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from ngtcli.decoding.pass_plan import PassPlan
from ngtcli.decoding.sizes import capacity_for

CHUNK = 1024  # tokens of a prompt that one forward pass reads, and that are cached as one
# Keys and values of a chunk by layer, (1, heads, CHUNK, head_dim) each.
ChunkStates = Mapping[int, tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a prompt that was prefilled in one forward pass.

    Attributes:
        before: Stands for the prompt up to its start.
        key: Stands for the prompt up to its end.
        ids: Its token ids, int64, in bytes.
        seconds: That its prefill took.
        states: The hidden states (CHUNK, hidden size) that heads wanted of it, by layer.
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
        """Its token ids."""
        return array("q", self.ids).tolist()


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """What the prefix cache may do for a prompt.

    Attributes:
        owner: The client that sent the prompt, "" for the user. No prompt gets what was computed
            for another owner.
        reads_disk: Whether chunks on disk are used.
        min_disk_s: The prefill of a prompt has to take so many seconds for it to be written to
            disk.
        max_disk_bytes: Prompts whose chunks are larger are not written to disk.
    """

    owner: str = ""
    reads_disk: bool = False
    min_disk_s: float = math.inf
    max_disk_bytes: int = 0


@dataclass(slots=True, eq=False)
class KVSlot:
    """The KV positions of one sequence.

    Attributes:
        start: Its first position in the buffers.
        length: The valid positions, from `start` on.
        used: The positions that may have been written.
        chunks: Those at its start that can be cached.
        cache_policy: What the prefix cache may do for its prompt; None: nothing.
        root: Stands for all that the bits of the chunks depend on beside the token ids.
        refused: They were to be written to disk, and could not be.
    """

    start: int
    length: int = 0
    used: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    cache_policy: CachePolicy | None = None
    root: str = ""
    refused: bool = False

    def cut(self, length: int) -> None:
        """Drop all positions from `length` on."""
        self.length = min(self.length, length)
        del self.chunks[self.length // CHUNK :]


class KVLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers ships no types
    """One layer's keys and values, of shape (1, heads, capacity, head_dim)."""

    is_sliding = False

    def __init__(self, owner: "KVCache", slides: bool) -> None:
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
        return self.keys[:, :, _part(wanted)], self.values[:, :, _part(wanted)]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        raise NotImplementedError("a forward pass without a plan")

    def get_seq_length(self) -> int:
        raise NotImplementedError("a forward pass without a plan")

    def get_max_length(self) -> int:
        return -1


class PlannedCache(Cache):  # type: ignore[misc]  # transformers ships no types
    """The cache as one forward pass sees it, which is planned."""

    def __init__(self, cache: "KVCache", plan: PassPlan) -> None:
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
        layer: KVLayer = self.layers[layer_idx]
        return layer.write(self._plan, key_states, value_states)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return len(self._plan.full), 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._plan.length


class KVCache:
    """The keys and values of all layers.

    At first it has one slot; what names no slot is meant for the first.

    Attributes:
        slots: In the order of their positions.
        slot_capacity: The positions of each.
        capacity: The positions of the buffers.
        stay: Whether buffers are not made anew while their capacity suffices.
        buffers: (layers' keys or values, heads, capacity, head_dim) each; one has all that are
            alike. They are made by the first forward pass, which shows their shapes.
    """

    def __init__(
        self, sliding_layers: Sequence[bool], slot_capacity: int, stay: bool = False
    ) -> None:
        self.slots = [KVSlot(0)]
        self.slot_capacity = slot_capacity
        self.capacity = slot_capacity
        self.stay = stay
        self.buffers: list[Tensor] = []
        self.layers = [KVLayer(self, slides) for slides in sliding_layers]
        # Keys and values of each layer that a forward pass has shown, without positions.
        self._shapes: dict[KVLayer, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:
        """The valid positions of the first slot."""
        return self.slots[0].length

    @length.setter
    def length(self, length: int) -> None:
        self.slots[0].length = length

    def rows(self) -> list[Tensor]:
        """Keys and values of each layer, as far as the first slot is valid: views."""
        filled = [layer for layer in self.layers if layer.is_initialized]
        return [
            states[:, :, : self.length] for layer in filled for states in (layer.keys, layer.values)
        ]

    def bytes_of(self, length: int) -> int:
        """The bytes of so many positions of all layers; 0 before the first forward pass."""
        of_layers = (states for both in self._shapes.values() for states in both)
        return length * sum(s.shape[1] * s.shape[3] * s.itemsize for s in of_layers)

    @property
    def max_chunks(self) -> int:
        """How many chunks fit into a slot."""
        return self.slot_capacity // CHUNK

    # --- buffers ---

    def make_buffers(self, layer: KVLayer, *states: Tensor) -> None:
        """Give a layer buffers for keys and values like these, and all layers that are known."""
        is_new = layer not in self._shapes
        self._shapes[layer] = _without_positions(states[0]), _without_positions(states[1])
        layers = [layer] if is_new else list(self._shapes)
        self._fill(layers, *self._allocated(layers, self.capacity))

    def _allocated(
        self, layers: Sequence[KVLayer], capacity: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Buffers of zeros, and of these each layer's part of keys and of values, in turns."""
        alike: dict[tuple[Any, ...], list[int]] = {}
        shapes = [states for layer in layers for states in self._shapes[layer]]
        for number, states in enumerate(shapes):
            alike.setdefault((states.shape, states.dtype, states.device), []).append(number)
        buffers: list[Tensor] = []
        parts: dict[int, Tensor] = {}
        for numbers in alike.values():
            like = shapes[numbers[0]]
            _, heads, _, width = like.shape
            buffers.append(like.new_zeros((len(numbers), heads, capacity, width)))
            parts.update(zip(numbers, buffers[-1].chunk(len(numbers)), strict=True))
        return buffers, [parts[number] for number in range(len(shapes))]

    def _fill(
        self, layers: Sequence[KVLayer], buffers: Sequence[Tensor], parts: Sequence[Tensor]
    ) -> None:
        self.buffers += buffers
        for layer, keys, values in zip(layers, parts[::2], parts[1::2], strict=True):
            layer.keys, layer.values, layer.is_initialized = keys, values, True

    def _drop(self) -> None:
        """Have no buffers: the next forward pass makes them."""
        self.buffers = []
        for layer in self.layers:
            layer.keys, layer.values, layer.is_initialized = None, None, False

    # --- slots ---

    def reset(self, slot: KVSlot, chunks: int = 0) -> None:
        """Empty a slot but for so many chunks at its start."""
        kept = chunks * CHUNK
        # First: where an interrupt comes between, no chunk may be known whose states are gone.
        slot.cache_policy = None
        slot.length = kept
        slot.refused = False
        del slot.chunks[chunks:]
        self._clear(slot, kept, slot.used)
        slot.used = kept

    def resize(self, count: int, capacity: int) -> bool:
        """Have `count` slots of this capacity; the first keep what they have, as far as it fits.

        Returns whether buffers moved. Raises MemoryError and the like; all is as it was then.
        """
        kept = self.slots[:count]
        # What is not kept yet may be seen by the next forward pass, as that of a head's draft.
        lengths = [min(max(slot.length, slot.used), capacity) for slot in kept]
        moves = [
            (slot.start, number * capacity, length)
            for number, (slot, length) in enumerate(zip(kept, lengths, strict=True))
        ]
        is_moved = not (self.stay and count * capacity <= self.capacity)
        if is_moved:
            self._move_to_new(count * capacity, moves if any(lengths) else ())
        else:  # those that move up the last first
            for move in moves if capacity < self.slot_capacity else reversed(moves):
                self._move(*move)
        self.slot_capacity = capacity
        self.slots = kept
        for number, (slot, length) in enumerate(zip(kept, lengths, strict=True)):
            slot.start = number * capacity
            slot.used = length
            slot.cut(capacity)
        self.slots += [KVSlot(number * capacity) for number in range(len(kept), count)]
        if not is_moved:
            for slot in self.slots:
                self._clear(slot, slot.used, capacity)
        return is_moved

    def _move_to_new(self, capacity: int, moves: Sequence[tuple[int, int, int]]) -> None:
        """Have buffers of this capacity, with what `moves` names (from, to, number)."""
        if moves:
            layers = list(self._shapes)
            buffers, parts = self._allocated(layers, capacity)
            for number, layer in enumerate(layers):
                for new, old in zip(parts[2 * number :], (layer.keys, layer.values), strict=False):
                    for source, to, count in moves:
                        new[:, :, to : to + count] = old[:, :, source : source + count]
            self._drop()
            self._fill(layers, buffers, parts)
        else:  # new ones are made by the next forward pass, when the old ones are gone
            self._drop()
        self.capacity = capacity

    def close(self, number: int, last: int) -> None:
        """The sequence of a slot is done: that of the `last` one takes its place."""
        closed = self.slots[number]
        moving = self.slots[last]
        self.reset(closed)
        if closed is moving:
            return
        self._move(moving.start, closed.start, moving.length)
        self.slots[number], self.slots[last] = moving, closed
        closed.start, moving.start = moving.start, closed.start
        closed.used = moving.used

    # --- chunks ---

    def find(
        self, number: int, wanted: Chunk, layers: Collection[int], without: KVSlot
    ) -> KVSlot | None:
        """A slot that has this chunk as its chunk `number`, with the states of `layers`.

        It is not `without`, which is about to be emptied.
        """
        for slot in self.slots:
            if slot is without or number >= len(slot.chunks):
                continue
            if slot.chunks[number].is_for(wanted, layers):
                return slot
        return None

    def chunk(self, slot: KVSlot, number: int) -> ChunkStates:
        """Keys and values of a chunk: views."""
        start = slot.start + number * CHUNK
        at = slice(start, start + CHUNK)
        return {
            layer_number: (layer.keys[:, :, at], layer.values[:, :, at])
            for layer_number, layer in enumerate(self.layers)
            if layer.is_initialized
        }

    def restore(self, slot: KVSlot, chunk: Chunk, states: ChunkStates) -> None:
        """Append a chunk, with the keys and values that `chunk` gave, behind other chunks."""
        start = slot.start + slot.length
        for layer_number, both in states.items():
            layer = self.layers[layer_number]
            if not layer.is_initialized:
                self.make_buffers(layer, *both)
            for buffer, state in zip((layer.keys, layer.values), both, strict=True):
                buffer[:, :, start : start + CHUNK] = state
        slot.chunks.append(chunk)
        slot.length += CHUNK
        slot.used = slot.length

    # --- positions ---

    def reserve(self, positions: int, slot: KVSlot | None = None) -> bool:
        """Make room for writing so many positions, by a copy if need be.

        Returns whether buffers moved. Raises as `resize`, which other slots than the first are for.
        """
        is_moved = positions > self.slot_capacity and self.resize(1, capacity_for(positions))
        slot = slot or self.slots[0]
        slot.used = max(slot.used, positions)
        return is_moved

    def keep(self, kept: Sequence[Sequence[int]]) -> None:
        """Keep these query tokens of the last forward pass, of each sequence (ascending).

        0, 1, 2, … at the start of them are in place already and are not copied.
        """
        for slot, numbers in zip(self.slots, kept, strict=False):
            end = slot.start + slot.length
            for source, to, count in runs(numbers):
                self._move(end + source, end + to, count)
            slot.length += len(numbers)

    def repeat(self, length: int) -> None:
        """Repeat what the first slot has until there are `length` positions."""
        while 0 < self.length < length:
            count = min(self.length, length - self.length)
            self._move(0, self.length, count)
            self.length += count
        self.slots[0].used = max(self.slots[0].used, length)

    def _move(self, source: int, to: int, count: int) -> None:
        """Copy so many positions to another place, all read before any is written."""
        if not count or source == to:
            return
        is_disjoint = abs(source - to) >= count
        for buffer in self.buffers:
            states = buffer[:, :, source : source + count]
            buffer[:, :, to : to + count] = states if is_disjoint else states.clone()

    def _clear(self, slot: KVSlot, first: int, end: int) -> None:
        """Write zeros to these positions: a NaN must not outlive its sequence."""
        for buffer in self.buffers:
            buffer[:, :, slot.start + first : slot.start + end] = 0


def _part(positions: range) -> slice:
    return slice(positions.start, positions.stop)


def _without_positions(states: Tensor) -> Tensor:
    """The heads, width, dtype and device of keys or values: (1, heads, 0, head_dim)."""
    return states.new_empty((*states.shape[:2], 0, states.shape[3]))


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Runs of neighbours: from where, to where they stand side by side, and how many.

    Each goes downwards, if anywhere, and overwrites none behind it.

    >>> list(runs([0, 1, 4, 5, 8]))
    [(0, 0, 2), (4, 2, 2), (8, 4, 1)]
    """
    first = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield numbers[first], first, at - first
            first = at
