"""The slots of a model: what each sequence that is decoded has in memory.

A model that verifies draft trees has a KV cache with a slot for each sequence (`TreeSlots`). A
model that ignores a tree mask, or whose layers keep a state, has a cache of its own, for one
sequence (`StateSlots`). It takes drafts without branches; if those change its logits, it takes one
token per forward pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from ngtcli.decoding.captured import Outputs, Passes, Shape
from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.kv_cache import CHUNK, CachePolicy, KVCache, KVSlot, runs
from ngtcli.decoding.layout import (
    Layout,
    Root,
    Span,
    capacity_of_sequence,
    pack,
    pass_size,
)
from ngtcli.decoding.prefixes import FoundPrefix, Prefixes, PromptPrefix
from ngtcli.decoding.runner import ModelRunner
from ngtcli.decoding.sizes import capacity_for, row_size
from ngtcli.decoding.state_slot import StateSlot
from ngtcli.decoding.support import ExecutionMode
from ngtcli.drafting.guesses import StateReader
from ngtcli.drafting.steps import Reused
from ngtcli.drafting.tree import DraftTree
from ngtcli.system.machine import free_memory

_SPARE = 64  # KV positions after the last draft, for padding (guess; more are added when needed)
# The maximum share of a GPU's free memory for buffers that stay (guess: the rest is for several
# sequences, for the prefix cache, and for forward passes).
_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Need:
    """The needs of a sequence that is opened.

    Attributes:
        tokens: The number of KV positions, including those for drafts.
        numerics: Which sizes its forward passes have.
        token_ids: The token ids of its prompt; (): do not look for cached prefixes.
        cache_policy: How the prompt may use the prefix cache; None: it is not cached.
        reader: Gets the hidden states of all tokens that are prefilled or kept.
        length: The number of tokens that the sequence begins with; 0: it is not known.
    """

    tokens: int
    numerics: Numerics = NOT_EXACT
    token_ids: Sequence[int] = ()
    cache_policy: CachePolicy | None = None
    reader: StateReader | None = None
    length: int = 0

    @property
    def state_layers(self) -> Sequence[int]:
        """The layers of which the reader wants the hidden states of every token, not of the last.

        Empty if it wants those of the last token alone.
        """
        return self.reader.layers if self.reader is not None and self.reader.reads_all else ()


class Slot(Protocol):
    """The memory of one sequence."""

    @property
    def length(self) -> int:
        """The number of tokens that are in it."""

    def prefill(self, ids: Sequence[int], chunk: int, progress: Callable[[int], object]) -> None:
        """Read `ids` in chunks; `progress` is called before each with the number that was read."""

    def keep(self, nodes: Sequence[int]) -> None:
        """Keep the root and these nodes of the tree of the last forward pass."""

    def cut(self, length: int) -> None:
        """Drop all tokens from `length` on.

        Layers with a sliding window may have dropped tokens before `length` that they would need;
        then the cut is earlier.
        """


class TreeSlot:
    """A slot of `TreeSlots`, by its number."""

    def __init__(self, slots: "TreeSlots", number: int) -> None:
        self._slots = slots
        self.number = number

    @property
    def _kv(self) -> KVSlot:
        return self._slots.cache.slots[self.number]

    @property
    def length(self) -> int:
        """The tokens that are in it."""
        return self._kv.length

    def prefill(
        self,
        ids: Sequence[int],
        chunk: int = CHUNK,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        """As `Slot`; the model computes logits for only one token of each chunk."""
        for first in range(0, len(ids), chunk):
            progress(first)
            self._slots.prefill_chunk(self._kv, ids[first : first + chunk])

    def keep(self, nodes: Sequence[int]) -> None:
        """As `Slot`, of a forward pass over the first slot alone."""
        self._slots.keep([nodes])

    @torch.inference_mode()
    def cut(self, length: int) -> None:
        """As `Slot`."""
        self._slots.cache.cut(self._kv, length)


class TreeSlots:
    """The slots of a model that verifies draft trees.

    Attributes:
        cache: The KV cache.
        prefixes: The prefix cache; None: there is none.
        reader: Gets the hidden states of the sequence that was opened last; None if there is none.
    """

    def __init__(
        self,
        runner: ModelRunner,
        graphs: Passes,
        *,
        device: torch.device,
        fixed_buffers: bool,
        use_batches: Callable[[], object],
    ) -> None:
        self.runner = runner
        self.cache = KVCache(runner.sliding_layers, 0, fixed_buffers, runner.window)
        self.prefixes: Prefixes | None = None
        self.reader: StateReader | None = None
        self._graphs = graphs
        self._device = device
        self._use_batches = use_batches
        self._last = TreeSlot(self, 0)
        self._numerics = NOT_EXACT  # of the sequence that was opened last
        self._has_long_rope = False  # as in the plans of its forward passes
        # The token ids and hidden states of the last forward pass over one sequence.
        self._last_states: tuple[list[int], Tensor] = [], torch.empty(0)

    @property
    def last(self) -> TreeSlot:
        """The slot that was opened last."""
        return self._last

    def use_any_rows(self) -> None:
        """End exact decoding: from now on each forward pass has as many rows as it needs."""
        self._numerics = NOT_EXACT

    @property
    def max_length(self) -> int | None:
        """The number of tokens after which the sequence must be opened again; None: there is none.

        Beyond the border of LongRoPE all tokens have other rotary positions.
        """
        return None if self._has_long_rope else self.runner.long_rope.border

    # --- sequences that come and go ---

    @torch.inference_mode()
    def open(self, number: int, need: Need, context: int) -> tuple[TreeSlot, Reused]:
        """Open a slot for a sequence; later slots are discarded.

        This is one transaction:

        1. Find the cached prefixes of the prompt.
        2. Cache what the slot has and will lose.
        3. Copy in the chunks that are in other slots.
        4. Make room. For slots other than the first, `resize` has made it.
        5. Copy in the other chunks.

        Args:
            number: The index of the slot.
            need: What the sequence needs.
            context: The maximum number of tokens of the model.

        Raises:
            MemoryError: There is not enough memory; torch may raise its own errors instead.
        """
        started = perf_counter()
        cache = self.cache
        slot = cache.slots[number]
        self.reader = need.reader
        self._numerics = need.numerics
        self._has_long_rope = self.runner.long_rope.is_long(need.length or need.tokens)
        self._last = TreeSlot(self, number)
        capacity = self._capacity(need, context) if number == 0 else cache.slot_capacity

        prefix = FoundPrefix()
        if self.prefixes is not None:
            prefix = self.prefixes.find(cache, slot, self._prompt(need), capacity)
            self.prefixes.keep(cache, slot, prefix.in_place)
        cache.reset(slot, prefix.in_place)
        if self.prefixes is not None:
            slot.cache_policy = need.cache_policy
            slot.root = prefix.root
        # Chunks in other slots come first: they may be overwritten when room is made.
        for chunk, states in prefix.following[: prefix.volatile]:
            cache.restore(slot, chunk, states)
        if number == 0 and not self._is_single(capacity, need.numerics):
            self.resize(1, capacity, whole_windows=need.numerics.is_exact)
        for chunk, states in prefix.following[prefix.volatile :]:
            cache.restore(slot, chunk, states)
        if prefix.window is not None:
            cache.restore_window(slot, prefix.window)
            slot.windows[len(slot.chunks) - 1] = prefix.window

        self._begin_reader(slot, need)
        if not slot.chunks:
            return self._last, Reused()
        return self._last, Reused(
            tokens=slot.length,
            from_disk=prefix.from_disk,
            seconds=perf_counter() - started,
            read_s=sum(chunk.seconds for chunk in slot.chunks),
        )

    def _is_single(self, capacity: int, numerics: Numerics) -> bool:
        """Return whether there is one slot of this capacity, and its windows are as wanted."""
        cache = self.cache
        are_whole = cache.has_whole_windows == numerics.is_exact
        return capacity == cache.slot_capacity and len(cache.slots) == 1 and are_whole

    def _prompt(self, need: Need) -> PromptPrefix:
        """Return the part of a prompt that may be cached, and how."""
        token_ids = need.token_ids
        if need.reader is not None and not need.reader.reads_all:
            # The reader wants the hidden states of the last token, so that it must be prefilled.
            token_ids = token_ids[:-1]
        is_split = self.runner.can_split and need.numerics.allows_any_kernel
        kernel = "apart" if is_split else ""
        if self._has_long_rope:
            kernel += " long rope"
        return PromptPrefix(token_ids, need.cache_policy, need.state_layers, kernel)

    def _begin_reader(self, slot: KVSlot, need: Need) -> None:
        """Begin the reader's sequence with the hidden states of the cached chunks."""
        if need.reader is None:
            return
        layers = need.state_layers
        need.reader.reset(0 if layers else slot.length)
        if layers:
            for chunk in slot.chunks:
                states = [chunk.states[layer] for layer in layers]
                need.reader.add(chunk.tokens, torch.stack(states, dim=1))

    def _capacity(self, need: Need, context: int) -> int:
        """Return the number of KV positions for a sequence that is decoded alone."""
        cache = self.cache
        capacity = capacity_of_sequence(need.tokens, need.numerics, spare=_SPARE, context=context)
        if cache.fixed_buffers:
            return self._staying_capacity(capacity, context)
        # Exact passes get buffers of exactly this size: how far apart heads lie may change bits.
        if len(cache.slots) == 1 and not need.numerics.is_exact:
            return max(capacity, cache.slot_capacity)
        return capacity

    def _staying_capacity(self, needed: int, context: int) -> int:
        """Return the number of KV positions of buffers that stay, as captured passes need.

        It is enough for the whole context, or for as much as a share of the memory allows.
        """
        cache = self.cache
        if needed <= cache.capacity:
            return cache.capacity
        if not cache.bytes_of(1):  # Only a forward pass shows how large keys and values are.
            reader = self.reader
            self.reader = None
            self.resize(1, capacity_for(1))
            self._forward_chunk(cache.slots[0], [0])
            cache.cut(cache.slots[0], 0)
            self.reader = reader
        free = free_memory(str(self._device)) or 0
        fitting = cache.length_in(int(_SHARE * free))
        return max(needed, min(capacity_for(context + _SPARE), fitting))

    @torch.inference_mode()
    def resize(self, count: int, capacity: int, whole_windows: bool = False) -> None:
        """Change the number of slots and their capacity, as `KVCache.resize`."""
        if count > 1:
            self._use_batches()
        if self.cache.resize(count, capacity, whole_windows):
            self._graphs.forget()
        self._last = TreeSlot(self, min(self._last.number, count - 1))

    @torch.inference_mode()
    def close(self, number: int, last: int) -> None:
        """Free the slot of a sequence of a batch; the sequence in the slot `last` moves there.

        After the last sequence the memory of the slots is freed.
        """
        if len(self.cache.slots) > 1:
            self.cache.close(number, last)
            if not last:
                self.resize(1, 0)

    # --- forward passes ---

    @torch.inference_mode()
    def prefill_chunk(self, slot: KVSlot, ids: Sequence[int]) -> None:
        """Prefill one chunk, and offer it to the prefix cache."""
        started = perf_counter()
        states = self._forward_chunk(slot, ids)
        if self.prefixes is not None:
            finish_device_work(self._device)
            self.prefixes.add(self.cache, slot, ids, perf_counter() - started, states)

    def _forward_chunk(self, slot: KVSlot, ids: Sequence[int]) -> dict[int, Tensor]:
        """Prefill a chunk.

        Returns:
            The hidden states to cache with it, (tokens, hidden size), by layer.
        """
        self._reserve(slot.length + len(ids), slot)
        reader = self.reader
        _, *states = self.runner.prefill(
            self.cache,
            slot,
            ids,
            any_kernel=self._numerics.allows_any_kernel,
            layers=reader.layers if reader is not None else (),
            has_long_rope=self._has_long_rope,
        )
        slot.length += len(ids)
        if reader is None or not states:
            return {}
        reader.add(list(ids), states[0])
        if not reader.reads_all:
            return {}
        return {layer: states[0][:, number] for number, layer in enumerate(reader.layers)}

    @torch.inference_mode()
    def lay_out(self, roots: Sequence[Root], context: int) -> Layout:
        """Lay out one forward pass over a last token and a draft tree for each sequence."""
        ids: list[int] = []
        for token, tree in roots:
            ids += (token, *tree.tokens)
        rows_each = self.rows_of([tree for _, tree in roots])
        slots = self.cache.slots[: len(roots)]
        lengths = [
            slot.length + len(tree) + 1 for slot, (_, tree) in zip(slots, roots, strict=True)
        ]

        count = len(ids)
        capacity = max(lengths)
        if len(roots) == 1:
            size = pass_size(
                count,
                capacity - count,
                self._numerics,
                device=self._device.type,
                context=context,
                doubled=self.cache.fixed_buffers,
            )
            self._reserve(size.reserved, self.cache.slots[0])
            count = rows_each = size.rows
            capacity = min(size.capacity, self.cache.slot_capacity)
        elif rows_each:
            count = rows_each * len(roots)
            capacity = capacity_for(capacity + rows_each, doubled=True)
            capacity = min(capacity, self.cache.slot_capacity)
        for slot, length in zip(slots, lengths, strict=True):
            self._reserve(max(length, slot.length + rows_each), slot)

        # Spans are computed after room has been made, as that may move the slots.
        spans: list[Span] = []
        first = 0
        for slot, length in zip(self.cache.slots, lengths, strict=False):
            stop = first + length - slot.length
            spans.append(Span(slice(first, stop), slot.start, length, slot.window_origin))
            first = len(spans) * rows_each or stop
        packed = pack(roots, spans, count)
        if self._device.type == "cuda":  # else the host would wait for its copy
            packed = packed.pin_memory()
        return Layout(ids, tuple(spans), count, capacity, packed)

    def rows_of(self, trees: Sequence[DraftTree]) -> int:
        """Return the rows of each sequence of a batch where all are padded to the same number.

        That is so where forward passes are captured. 0 if each sequence has as many rows as it
        needs: on a CPU all rows take time.
        """
        if not self.cache.fixed_buffers or len(trees) == 1:
            return 0
        return row_size(self._device.type, max(map(len, trees)) + 1)

    def _reserve(self, positions: int, slot: KVSlot) -> None:
        if self.cache.reserve(positions, slot):
            self._graphs.forget()

    @torch.inference_mode()
    def score(self, layout: Layout) -> list[Tensor]:
        """Compute the logits (k + 1, vocab_size) of each sequence after its root and its k nodes.

        They are valid until the next forward pass.
        """
        layers = self.reader.layers if self.reader is not None else ()
        count = len(layout.spans)
        capacity = self.cache.slot_capacity if count > 1 else 0
        any_kernel = self._numerics.allows_any_kernel
        shape = Shape(layout.rows, layout.capacity, count, capacity, layers, any_kernel)
        is_narrow = self.runner.is_narrow(self.cache, shape, self._graphs.captures)
        shape = shape._replace(narrow=is_narrow, has_long_rope=self._has_long_rope)
        if count > 1 and not self.cache.fixed_buffers:
            self._graphs.was_unusually_slow = False
            logits, *states = self.run(layout.packed, shape, 0, layout.spans)
        else:
            logits, *states = self._graphs.run(layout.packed, shape, layout.spans[0].own.start)
        if states:
            self._last_states = layout.ids, states[0]
        return [logits[span.rows] for span in layout.spans]

    def run(self, packed: Tensor, shape: Shape, length: int, spans: Sequence[Span] = ()) -> Outputs:
        """Run one forward pass eagerly."""
        captures = self._graphs.captures
        return self.runner.verify(self.cache, packed, shape, length, spans, captures=captures)

    @torch.inference_mode()
    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep the root and these nodes of each sequence in the last forward pass."""
        numbers = [[0, *(node + 1 for node in path)] for path in paths]
        self.cache.keep(numbers)
        if self.reader is not None and self.reader.layers:
            ids, states = self._last_states
            accepted = [states[source : source + count] for source, _, count in runs(numbers[0])]
            self.reader.add([ids[number] for number in numbers[0]], torch.cat(accepted))


class StateSlots:
    """The only slot of a model with a cache of its own; it begins anew with each sequence."""

    def __init__(self, hf: Any, mode: ExecutionMode) -> None:
        self._hf = hf
        self._mode = mode
        self.cache = KVCache((), 0)  # nothing is in it
        self.prefixes: Prefixes | None = None
        self.reader: StateReader | None = None
        self.last = StateSlot(hf, mode)
        self.max_length: int | None = None

    def open(self, number: int, need: Need, context: int) -> tuple[StateSlot, Reused]:
        """Open a slot; see `TreeSlots.open`. Prompts are not cached, and hidden states not read."""
        self.last = StateSlot(self._hf, self._mode)
        return self.last, Reused()

    def use_any_rows(self) -> None:
        """Forward passes have as many rows as they need."""

    def resize(self, count: int, capacity: int) -> None:
        """The cache grows by itself."""

    def close(self, number: int, last: int) -> None:
        """The next sequence begins anew."""

    def lay_out(self, roots: Sequence[Root], context: int) -> Layout:
        """As `TreeSlots.lay_out`. Raises ValueError for a draft with branches."""
        token, tree = roots[0]
        if tree.first_chain() is not tree:
            raise ValueError("a draft with branches")
        ids = [token, *tree.tokens]
        span = Span(slice(0, len(ids)), 0, self.last.length + len(ids))
        return Layout(ids, (span,), len(ids), 0, torch.empty(0))

    def rows_of(self, trees: Sequence[DraftTree]) -> int:
        """Return 0: trees are not padded."""
        return 0

    @torch.inference_mode()
    def score(self, layout: Layout) -> list[Tensor]:
        """As `TreeSlots.score`."""
        return [self.last.score(layout.ids)]

    def run(self, *_: Any) -> Outputs:
        """Nothing is captured."""
        raise NotImplementedError

    @torch.inference_mode()
    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """As `TreeSlots.keep`."""
        self.last.keep(paths[0])


def finish_device_work(device: torch.device) -> None:
    """Wait until the device has done its queued work, so that a clock read next is right."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
