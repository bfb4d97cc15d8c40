"""The KV cache: keys and values of one or more sequences, in fixed buffers that can be rolled back.

Buffers are allocated ahead and divided into slots of equal capacity, one for each sequence. The
first `length` KV positions of a slot are valid. A forward pass writes where its plan says
(pass_plan.py), and its mask says what it sees. `keep` copies the accepted positions next to each
other and raises `length`; the next forward pass overwrites the positions from there on.

Layers with a sliding window have buffers of their own, whose slots hold the last tokens only: the
window, the query tokens of the longest forward pass, and some that a rollback may need. When a slot
is full, its last entries move to its beginning:

    tokens     0 1 2 3 4 5 6 7 8 9        window 4, ten tokens; the slot has eight positions
    entries            4 5 6 7 8 9 . .    `dropped` is 4; token 0 would be 4 positions before it
    moved                  6 7 8 9 . . .  the next forward pass may see tokens 7, 8 and 9

So the entries of a slot are contiguous in both kinds of buffers. A rollback to a token that was
dropped returns to the end of an earlier chunk whose window was saved (`windows`), or empties the
slot.
"""

import math
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from ngtcli.decoding.kv_buffers import KVBuffers, Move
from ngtcli.decoding.pass_plan import PassPlan
from ngtcli.decoding.sizes import capacity_for

CHUNK = 1024  # tokens of a prompt that one forward pass reads, and that are cached as one
# Tokens before the window that sliding layers keep for rollbacks, if their slot has room (guess:
# more than a draft has, even if tentative tokens are taken back with it).
_ROLLBACK = 256
# The saved windows of a prompt have at most a quarter as many tokens as the prompt (guess).
_WINDOWS_SHARE = 4
_UNBOUNDED = 1 << 40  # tokens
# Keys and values by layer, (1, heads, tokens, head_dim) each: of a chunk, or of a window.
ChunkStates = Mapping[int, tuple[Tensor, Tensor]]


def window_positions(window: int) -> int:
    """The KV positions that a slot of sliding layers has for a window of so many tokens.

    Most of them are for the prefill: the query tokens of a chunk attend to each other, so that a
    forward pass needs the whole chunk and the window before its first token side by side. Behind
    the prompt they hold what a rollback may need, and the tokens until the next move.

    >>> window_positions(128), window_positions(4096)
    (1280, 5120)
    """
    return capacity_for(CHUNK + window - 1)


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
        """Return whether this is the same chunk of the same prompt, with the states of `layers`."""
        is_equal = (self.before, self.key, self.ids) == (other.before, other.key, other.ids)
        return is_equal and self.states.keys() >= set(layers)

    @property
    def tokens(self) -> list[int]:
        """Its token ids."""
        return array("q", self.ids).tolist()


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """The rights of a prompt in the prefix cache.

    Attributes:
        owner: The client that sent the prompt, "" for the user. No prompt gets what was computed
            for another owner.
        reads_disk: Whether chunks on disk are used.
        min_disk_s: The minimum time of the prefill, in seconds, for a prompt to be written to disk.
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
        dirty: The positions that may have been written.
        window_start: Its first position in the buffers of sliding layers.
        window_dirty: The positions there that may have been written.
        dropped: The tokens at its beginning that have no positions there any more.
        missing: The tokens at its beginning that have no entries there; at least `dropped`. With
            the window of 4 above, ten tokens that came from the prefix cache bring the entries of
            tokens 7, 8 and 9 alone. In a slot of 16 positions these are at 7, 8 and 9: `dropped` is
            0, `missing` is 7. In a slot of eight they are at its beginning, and both are 7.
        chunks: The chunks at its start that can be cached.
        windows: The keys and values that sliding layers need after a chunk, by the chunk's number.
        cache_policy: The rights of its prompt in the prefix cache; None: it has none.
        root: A key of everything that the chunks depend on besides the token ids.
        refused: The chunks could not be written to disk.
    """

    start: int
    window_start: int = 0
    length: int = 0
    dirty: int = 0
    window_dirty: int = 0
    dropped: int = 0
    missing: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    windows: dict[int, ChunkStates] = field(default_factory=dict)
    cache_policy: CachePolicy | None = None
    root: str = ""
    refused: bool = False

    @property
    def window_origin(self) -> int:
        """The position of its first token in the buffers of sliding layers, present or not."""
        return self.window_start - self.dropped

    def forget_chunks(self, first: int) -> None:
        """Forget the chunks from number `first` on."""
        del self.chunks[first:]
        self.windows = {number: states for number, states in self.windows.items() if number < first}


class KVLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers ships no types
    """One layer's keys and values, of shape (1, heads, capacity, head_dim)."""

    is_sliding = False

    def __init__(self, slides: bool) -> None:
        super().__init__()
        self.slides = slides
        self.buffers: KVBuffers

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.buffers.make(self, key_states, value_states)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Refuse: nothing is written without a plan, see `PlannedCache`."""
        raise NotImplementedError("a forward pass without a plan")

    def write(self, plan: PassPlan, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values as a forward pass plans; return those that it attends to."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        write_at = plan.write_at
        if self.slides and plan.write_windows_at is not None:
            write_at = plan.write_windows_at
        write_at = write_at.to(self.keys.device)  # layers may be on several
        self.keys.index_copy_(2, write_at, keys)
        self.values.index_copy_(2, write_at, values)
        attended = plan.sliding if self.slides else plan.full
        if isinstance(attended, Tensor):
            attended = attended.to(self.keys.device)
            return self.keys.index_select(2, attended), self.values.index_select(2, attended)
        if attended.start == 0 and attended.stop == self.keys.shape[2]:
            return self.keys, self.values
        return self.keys[:, :, _part(attended)], self.values[:, :, _part(attended)]

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

    Args:
        sliding_layers: Which layers slide.
        slot_capacity: The positions of each slot.
        fixed_buffers: Whether buffers stay where they are while their capacity suffices, as
            captured forward passes want.
        window: The tokens that sliding layers attend to, the query token included. None: they have
            the same buffers as other layers.

    Attributes:
        slots: In the order of their positions.
        slot_capacity: The positions of each.
        window_capacity: The positions of each in the buffers of sliding layers.
        has_whole_windows: Whether slots of sliding layers are as large as those of others.
        capacity: The positions of the buffers.
        fixed_buffers: Whether buffers stay where they are while their capacity suffices, as
            captured forward passes want.
    """

    def __init__(
        self,
        sliding_layers: Sequence[bool],
        slot_capacity: int,
        fixed_buffers: bool = False,
        window: int | None = None,
    ) -> None:
        self.slots = [KVSlot(0)]
        self.slot_capacity = slot_capacity
        self.fixed_buffers = fixed_buffers
        self.has_whole_windows = False
        # Tokens in front of a query token that sliding layers attend to.
        self._before = None if window is None else window - 1
        # Positions that a slot of sliding layers needs; more where a forward pass has more tokens.
        self._window_need = window_positions(window or 1)
        self.window_capacity = self._window_capacity(slot_capacity)
        self.layers = [KVLayer(slides) for slides in sliding_layers]
        in_windows = [layer for layer in self.layers if layer.slides and self.has_windows]
        full_layers = [layer for layer in self.layers if layer not in in_windows]
        self._full = KVBuffers(full_layers, slot_capacity)
        self._windowed = KVBuffers(in_windows, self.window_capacity)
        for layer in self.layers:
            layer.buffers = self._windowed if layer in in_windows else self._full

    @property
    def has_windows(self) -> bool:
        """Return whether sliding layers have buffers of their own."""
        return self._before is not None

    @property
    def capacity(self) -> int:
        """The positions of the buffers, of those with all tokens."""
        return self._full.capacity

    @property
    def buffers(self) -> list[Tensor]:
        """All buffers, (layers' keys or values, heads, capacity, head_dim) each."""
        return [*self._full.tensors, *self._windowed.tensors]

    @property
    def length(self) -> int:
        """The valid positions of the first slot."""
        return self.slots[0].length

    @length.setter
    def length(self, length: int) -> None:
        """Set the number of valid positions of the first slot."""
        slot = self.slots[0]
        slot.length = length
        if self.has_windows and length > slot.dropped + self.window_capacity:
            slot.dropped = slot.missing = length - self.window_capacity

    def rows(self) -> list[Tensor]:
        """Keys and values of each layer, as far as the first slot has them: views.

        Those of sliding layers may begin later than those of others.
        """
        slot = self.slots[0]
        rows = []
        for layer in self.layers:
            if not layer.is_initialized:
                continue
            positions = slice(slot.start, slot.start + slot.length)
            if layer.buffers is self._windowed:
                origin = slot.window_origin
                positions = slice(origin + slot.missing, origin + slot.length)
            rows += [layer.keys[:, :, positions], layer.values[:, :, positions]]
        return rows

    def bytes_of(self, length: int) -> int:
        """Return the bytes of a sequence of `length` tokens; 0 before the first forward pass."""
        in_windows = length if self.has_whole_windows else min(length, self._window_need)
        return self._full.bytes_of(length) + self._windowed.bytes_of(in_windows)

    @property
    def chunk_bytes(self) -> int:
        """The bytes of the keys and values of a chunk, as `chunk` returns them."""
        return self._full.bytes_of(CHUNK)

    def length_in(self, size: int) -> int:
        """Return how many tokens a sequence may have if its keys and values take `size` bytes."""
        left = size - self._windowed.bytes_of(self._window_need)
        if self._windowed.bytes_of(1) and left < 0:
            return size // self.bytes_of(1)
        bytes_each = self._full.bytes_of(1)
        return left // bytes_each if bytes_each else _UNBOUNDED

    # --- slots ---

    def reset(self, slot: KVSlot, chunks: int = 0) -> None:
        """Empty a slot except for the first `chunks` chunks, whose window has to be restored."""
        kept = chunks * CHUNK
        # The bookkeeping goes before the data: an interrupt in between must not leave chunks listed
        # whose keys and values are gone.
        slot.cache_policy = None
        slot.length = kept
        slot.refused = False
        slot.forget_chunks(chunks)
        self._clear(slot, kept, slot.dirty)
        slot.dirty = kept
        self._clear_window(slot, 0, slot.window_dirty)
        slot.window_dirty = 0
        slot.dropped = 0
        slot.missing = kept

    def cut(self, slot: KVSlot, length: int) -> None:
        """Drop all tokens from `length` on.

        If the window of those before is gone, more are dropped: the caller looks at the length.
        """
        slot.length = min(slot.length, length)
        slot.forget_chunks(slot.length // CHUNK)
        if self._before is None or slot.missing <= max(0, slot.length - self._before):
            return
        number = max(slot.windows, default=-1)
        slot.forget_chunks(number + 1)
        slot.length = CHUNK * (number + 1)
        if number >= 0:
            self.restore_window(slot, slot.windows[number])
        else:
            slot.dropped = 0
            slot.missing = 0

    def resize(self, count: int, capacity: int, whole_windows: bool | None = None) -> bool:
        """Have `count` slots of this capacity. The first keep what they have, as far as it fits.

        Args:
            count: Of the slots.
            capacity: Of each.
            whole_windows: Whether sliding layers have as many positions; None: as before.

        Returns:
            Whether buffers moved.

        Raises:
            MemoryError: And the like; all is as it was then.
        """
        if whole_windows is None:
            whole_windows = self.has_whole_windows
        window_capacity = self._window_capacity(capacity, whole_windows)
        kept = self.slots[:count]
        # What is not kept yet may be seen by the next forward pass, as that of a head's draft.
        lengths = [min(max(slot.length, slot.dirty), capacity) for slot in kept]
        moves = [
            (slot.start, number * capacity, length)
            for number, (slot, length) in enumerate(zip(kept, lengths, strict=True))
        ]
        dropped = [self._to_drop(min(slot.length, capacity), window_capacity) for slot in kept]
        window_moves = [
            _window_move(slot, number * window_capacity - drop, drop, capacity)
            for number, (slot, drop) in enumerate(zip(kept, dropped, strict=True))
        ]
        windows = count * window_capacity
        is_moved = not (
            self.fixed_buffers
            and count * capacity <= self.capacity
            and windows <= self._windowed.capacity
        )
        if is_moved:
            self._move_to_new(
                (count * capacity, windows), (moves, window_moves), is_empty=not any(lengths)
            )
        else:
            _move_within(self._full, moves, capacity < self.slot_capacity)
            _move_within(self._windowed, window_moves, window_capacity < self.window_capacity)
        self.slot_capacity = capacity
        self.window_capacity = window_capacity
        self.has_whole_windows = whole_windows
        self.slots = kept
        for number, (slot, length) in enumerate(zip(kept, lengths, strict=True)):
            slot.dirty = length
            self._place(slot, number, dropped[number])
        self.slots += [
            KVSlot(number * capacity, number * window_capacity)
            for number in range(len(kept), count)
        ]
        if not is_moved:
            for slot in self.slots:
                self._clear(slot, slot.dirty, capacity)
                self._clear_window(slot, 0, slot.missing - slot.dropped)
                self._clear_window(slot, slot.window_dirty, window_capacity)
        return is_moved

    def _place(self, slot: KVSlot, number: int, dropped: int) -> None:
        """Note where a slot is now, and cut it to its capacity."""
        slot.start = number * self.slot_capacity
        slot.window_start = number * self.window_capacity
        slot.dropped = dropped
        slot.missing = max(slot.missing, dropped)
        slot.window_dirty = max(0, min(slot.length, self.slot_capacity) - dropped)
        if slot.length > self.slot_capacity:
            self.cut(slot, self.slot_capacity)

    def _move_to_new(
        self, capacities: tuple[int, int], moves: Sequence[Sequence[Move]], is_empty: bool
    ) -> None:
        """Have buffers of these capacities, with what `moves` names of each kind."""
        kinds = list(zip((self._full, self._windowed), capacities, moves, strict=True))
        if is_empty:  # new ones are made by the next forward pass, when the old ones are gone
            for buffers, capacity, _ in kinds:
                buffers.drop()
                buffers.capacity = capacity
            return
        new = [buffers.copied(capacity, moving) for buffers, capacity, moving in kinds]
        for (buffers, _, _), copied in zip(kinds, new, strict=True):
            buffers.use(copied)

    def close(self, number: int, last: int) -> None:
        """Free a slot, whose sequence is done: that of the `last` slot takes its place."""
        closed = self.slots[number]
        moving = self.slots[last]
        self.reset(closed)
        if closed is moving:
            return
        self._full.move(moving.start, closed.start, moving.length)
        count = moving.length - moving.dropped
        self._windowed.move(moving.window_start, closed.window_start, count)
        self.slots[number] = moving
        self.slots[last] = closed
        closed.start, moving.start = moving.start, closed.start
        closed.window_start, moving.window_start = moving.window_start, closed.window_start
        closed.dirty = moving.dirty
        closed.window_dirty = moving.window_dirty

    # --- chunks ---

    def find(
        self, number: int, chunk: Chunk, layers: Collection[int], without: KVSlot
    ) -> KVSlot | None:
        """Find a slot that has a chunk; None if none has it.

        Args:
            number: Of the chunk in its prompt.
            chunk: The chunk.
            layers: Those whose hidden states it must have.
            without: A slot that is left out, as it is about to be emptied.
        """
        for slot in self.slots:
            if slot is without or number >= len(slot.chunks):
                continue
            if slot.chunks[number].is_for(chunk, layers):
                return slot
        return None

    def chunk(self, slot: KVSlot, number: int) -> ChunkStates:
        """Return views of a chunk's keys and values in all layers that keep all tokens."""
        start = slot.start + number * CHUNK
        positions = slice(start, start + CHUNK)
        return {
            layer_number: (layer.keys[:, :, positions], layer.values[:, :, positions])
            for layer_number, layer in enumerate(self.layers)
            if layer.is_initialized and layer.buffers is self._full
        }

    def restore(self, slot: KVSlot, chunk: Chunk, states: ChunkStates) -> None:
        """Append a chunk to the chunks of a slot; `states` is a result of `chunk`.

        After the last chunk, `restore_window` has to be called if there are windows.
        """
        self._put(states, slot.start + slot.length)
        slot.chunks.append(chunk)
        slot.length += CHUNK
        slot.dirty = slot.length
        slot.missing = slot.length if self.has_windows else 0

    def saves_window_after(self, number: int) -> bool:
        """Return whether the window after a chunk is saved although the prompt continues.

        All saved windows take at most a quarter of the memory that the sliding layers would take if
        they kept all tokens.
        """
        chunks_apart = -(-_WINDOWS_SHARE * (self._before or 0) // CHUNK)
        return (number + 1) % max(1, chunks_apart) == 0

    def window(self, slot: KVSlot) -> ChunkStates:
        """Return views of the keys and values of sliding layers that a slot's next token sees."""
        first = max(0, slot.length - (self._before or 0))
        positions = slice(slot.window_origin + first, slot.window_origin + slot.length)
        return {
            layer_number: (layer.keys[:, :, positions], layer.values[:, :, positions])
            for layer_number, layer in enumerate(self.layers)
            if layer.is_initialized and layer.buffers is self._windowed
        }

    def restore_window(self, slot: KVSlot, states: ChunkStates) -> None:
        """Write the keys and values that `window` returned at this length."""
        count = min(slot.length, self._before or 0)
        slot.missing = slot.length - count
        slot.dropped = 0 if slot.length <= self.window_capacity else slot.missing
        slot.window_dirty = max(slot.window_dirty, slot.length - slot.dropped)
        self._put(states, slot.window_origin + slot.missing)

    def _put(self, states: ChunkStates, start: int) -> None:
        """Write keys and values from the position `start` of the buffers on."""
        for layer_number, (keys, values) in states.items():
            layer = self.layers[layer_number]
            if not layer.is_initialized:
                layer.buffers.make(layer, keys, values)
            end = start + keys.shape[2]
            layer.keys[:, :, start:end] = keys
            layer.values[:, :, start:end] = values

    # --- positions ---

    def reserve(self, positions: int, slot: KVSlot | None = None) -> bool:
        """Make room for writing `positions` positions of a slot, by a copy if needed.

        Only the first slot can grow here; `resize` makes room for the others, and has the errors.

        Returns:
            Whether buffers moved.
        """
        is_moved = positions > self.slot_capacity and self.resize(1, capacity_for(positions))
        slot = slot or self.slots[0]
        slot.dirty = max(slot.dirty, positions)
        if self._before is not None:
            is_moved |= self._reserve_window(slot, positions, self._before)
        return is_moved

    def _reserve_window(self, slot: KVSlot, positions: int, before: int) -> bool:
        """Make room in the buffers of sliding layers, by dropping tokens in front of the window."""
        is_moved = False
        if positions > slot.dropped + self.window_capacity:
            needed = before + positions - slot.length
            if needed > self.window_capacity:
                need_before = self._window_need
                self._window_need = capacity_for(needed)
                try:
                    is_moved = self.resize(len(self.slots), self.slot_capacity)
                except BaseException:
                    self._window_need = need_before
                    raise
            dropped = self._to_drop(slot.length, self.window_capacity, positions)
            if dropped > slot.dropped:
                origin = slot.window_start - dropped
                self._windowed.move(*_window_move(slot, origin, dropped, slot.length))
                slot.dropped = dropped
                slot.missing = max(slot.missing, dropped)
        slot.window_dirty = max(slot.window_dirty, positions - slot.dropped)
        return is_moved

    def _to_drop(self, length: int, capacity: int, positions: int = 0) -> int:
        """Compute how many tokens of a sequence to drop from the slot of sliding layers.

        Args:
            length: Of the sequence.
            capacity: The positions of the slot.
            positions: Those that the sequence is to have, with query tokens.
        """
        positions = max(positions, length)
        if self._before is None or positions <= capacity:
            return 0
        spare = capacity - self._before - (positions - length)
        return max(0, length - self._before - min(_ROLLBACK, spare // 2))

    def _window_capacity(self, capacity: int, whole_windows: bool = False) -> int:
        """Return the positions of sliding layers in a slot of this capacity."""
        if self._before is None:
            return 0
        return capacity if whole_windows else min(capacity, self._window_need)

    def keep(self, accepted: Sequence[Sequence[int]]) -> None:
        """Keep the accepted query tokens of the last forward pass; the others are overwritten.

        Args:
            accepted: Of each sequence their numbers, ascending. 0, 1, 2, … at the start are in
                place already and are not copied.
        """
        for slot, numbers in zip(self.slots, accepted, strict=False):
            end = slot.start + slot.length
            window_end = slot.window_origin + slot.length
            for source, to, count in runs(numbers):
                self._full.move(end + source, end + to, count)
                self._windowed.move(window_end + source, window_end + to, count)
            slot.length += len(numbers)

    def repeat(self, length: int) -> None:
        """Repeat what the first slot has until there are `length` positions."""
        slot = self.slots[0]
        while 0 < slot.length < length:
            count = min(slot.length, length - slot.length)
            self._full.move(0, slot.length, count)
            if slot.length + count <= self.window_capacity:
                self._windowed.move(0, slot.length, count)
            slot.length += count
        slot.dirty = max(slot.dirty, length)
        slot.window_dirty = min(slot.dirty, self.window_capacity)
        self.length = slot.length

    def _clear(self, slot: KVSlot, first: int, end: int) -> None:
        """Write zeros to these positions: a NaN must not outlive its sequence."""
        self._full.clear(slot.start + first, slot.start + end)

    def _clear_window(self, slot: KVSlot, first: int, end: int) -> None:
        """As `_clear`, in the buffers of sliding layers."""
        self._windowed.clear(slot.window_start + first, slot.window_start + end)


def _window_move(slot: KVSlot, origin: int, first: int, end: int) -> Move:
    """Return the move of the tokens from `first` to `end` that brings token 0 to `origin`."""
    first = max(first, slot.missing)
    count = max(0, min(slot.length, end) - first)
    return slot.window_origin + first, origin + first, count


def _move_within(buffers: KVBuffers, moves: Sequence[Move], is_smaller: bool) -> None:
    """Move the entries of slots, none over those of another that has not moved yet."""
    for move in moves if is_smaller else reversed(moves):
        buffers.move(*move)


def _part(positions: range) -> slice:
    return slice(positions.start, positions.stop)


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the moves that bring these positions side by side: source, target and length each.

    A move goes downwards, if anywhere, and overwrites nothing that a later one moves.

    >>> list(runs([0, 1, 4, 5, 8]))
    [(0, 0, 2), (4, 2, 2), (8, 4, 1)]
    """
    first = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            yield numbers[first], first, end - first
            first = end
