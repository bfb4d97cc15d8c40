"""Decides by the memory that there is which sequences of a batch run, and which wait.

A sequence that runs has a slot in the model's cache (kv_cache.py), into which its prompt is
prefilled. Where memory ends, fewer run; those that are preempted wait, and are prefilled again when
there is room. None is lost.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ngtcli.decoding.memory_limits import fits, prefill_prompt, too_long
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.decoding.sizes import capacity_for
from ngtcli.drafting.tree import DraftTree
from ngtcli.errors import ContextOverflowError, ModelError, NgtError
from ngtcli.system.machine import free_memory

# Sequences of a batch unless a number is wanted; memory may allow fewer. Measured (built-in model,
# 200 documents, one thread, `auto`): 1, 4, 16 and 64 give 197, 345, 365 and 360 tokens for a second
# of the processor, and 64 take more than twice the memory of 16.
MAX_BATCH_SIZE = 16
# Tokens of output that there is room for at first; guess: more than most answers have.
EXPECTED_OUTPUT = 512
# Of the free memory, the share for the cache of a batch. Guess: the rest is for logits and what
# else the machine does.
_CACHE_SHARE = 0.5
# Steps after which the free memory is looked up again, while no sequence comes or goes. Guess: to
# look it up takes up to 10 ms on a busy machine.
_STEPS_BETWEEN_LOOKUPS = 64

Progress = Callable[[int, int], object]  # how many tokens of a prompt, of how many, are prefilled


class Scheduler:
    """The slots of one sequence by itself, or of a batch.

    A single sequence is prefilled into the first slot with room for all of its output. Captured
    forward passes, exactness and heads need that. In a batch slots grow.

    Attributes:
        running: In the order of their slots.
        waiting: Those for which there was no room, the first of them next.
        is_single: Whether one sequence runs at a time, by itself.
    """

    def __init__(self, model: TargetModel, size: int, progress: Progress) -> None:
        self.running: list[DecodedSequence] = []
        self.waiting: deque[DecodedSequence] = deque()
        self._model = model
        self._progress = progress
        self._may_retry = False  # whether memory may have become free for one that waits
        self._free_bytes: int | None = None  # when they were looked up last
        self._steps_to_lookup = 0
        self.set_size(size)

    def set_size(self, size: int) -> None:
        """Let up to `size` sequences run together; 0: as many as memory allows."""
        self.is_single = size == 1
        self._max_size = size or MAX_BATCH_SIZE
        self._may_retry = True

    @property
    def sequences(self) -> list[DecodedSequence]:
        """The sequences that run, and behind them those that wait."""
        return [*self.running, *self.waiting]

    @property
    def has_room(self) -> bool:
        """Return whether another sequence may run now."""
        batch_size = len(self.running)
        if batch_size == 0:
            return True
        if batch_size >= self._max_size:
            return False
        slots = len(self._model.cache.slots)
        return batch_size < max(slots, self._allowed_slots(self._needed_entries))

    # --- sequences that come ---

    def next_waiting(self) -> DecodedSequence | None:
        """Take out the next one that waits, if there may be room for it."""
        self._may_retry |= not self.running
        if self._may_retry and self.waiting and self.has_room:
            return self.waiting.popleft()
        return None

    def admit(self, sequence: DecodedSequence, max_nodes: int, started: float) -> bool:
        """Prefill a sequence, which runs from now on, or waits where memory does not suffice.

        Args:
            sequence: Its drafter has begun.
            max_nodes: Of a draft.
            started: When it came, by time.perf_counter; what it takes from then on counts as the
                time of its prompt.

        Returns:
            False where it does not fit by itself either: then it has an error.
        """
        error = self._prefill(sequence, max_nodes, started)
        self._may_retry = error is None
        self._steps_to_lookup = 0
        if error is None:
            self.running.append(sequence)
        elif self.running:
            self.waiting.appendleft(sequence)
        else:
            sequence.error = error
        return sequence.error is None

    def _prefill(
        self, sequence: DecodedSequence, max_nodes: int, started: float
    ) -> NgtError | None:
        """Prefill behind the slots of those that run; the error where memory does not suffice."""
        model = self._model
        token_ids = sequence.log.token_ids[: sequence.log.settled]
        total = len(token_ids)
        slot = len(self.running)
        entries = sequence.max_length
        if not self.is_single:
            entries = min(entries, total + EXPECTED_OUTPUT)
        if not sequence.numerics.is_exact:
            entries += max_nodes + 1
        sequence.needed_entries = min(entries, model.context)
        if slot and not self._make_room(sequence.needed_entries, more_slots=1):
            return too_long(total)
        assert sequence.drafter is not None
        try:
            prefill_prompt(
                model,
                token_ids[:-1],
                entries,
                lambda prefilled: self._progress(prefilled, total),
                numerics=sequence.numerics,
                cache_policy=sequence.cache_policy,
                reader=sequence.drafter.heads if self.is_single else None,
                slot=slot,
            )
        except (ContextOverflowError, ModelError) as error:
            return error
        sequence.statistics.add_prefill(time.perf_counter() - started, model.reused)
        return None

    # --- sequences that go ---

    def remove_ended(self) -> list[DecodedSequence]:
        """Take out those that have ended; of those that run the last takes the slot of each."""
        ended = [sequence for sequence in self.waiting if sequence.has_ended]
        for sequence in ended:
            self.waiting.remove(sequence)
            self._may_retry = True  # a smaller one behind it may have room
        for slot in reversed(range(len(self.running))):
            sequence = self.running[slot]
            if not sequence.has_ended:
                continue
            if self._max_size > 1:
                self._cache_prompt(slot)
            self.running[slot] = self.running[-1]
            self.running.pop()
            self._model.close(slot, len(self.running))
            self._may_retry = True
            self._steps_to_lookup = 0
            ended.append(sequence)
        return ended

    def preempt_long(self) -> None:
        """Let a sequence wait that is to be prefilled again, as all its tokens get new positions.

        That is so behind the border of LongRoPE, of one sequence by itself.
        """
        for sequence in self.running[:1]:
            if self._model.must_restart(sequence.log.settled):
                self.waiting.appendleft(self.running.pop())

    def preempt_half(self) -> None:
        """Let half as many run, since memory has ended; all of them are prefilled again.

        The last one, which does not fit by itself either, gets an error.
        """
        if len(self.running) == self._max_size == 1:
            self.running[0].error = too_long(self.running[0].log.settled)
            return
        self._model.close(0, 0)
        self._max_size = max(1, len(self.running) // 2)
        self._steps_to_lookup = 0
        self.waiting.extend(self.running)
        self.running = []

    def preempt_all(self) -> None:
        """Give all slots back, whatever is in them; their prompts are cached if that works.

        No slot may stay: a sequence that begins by itself gets the first one, over what others had
        there.
        """
        try:
            for slot in reversed(range(len(self.running))):
                self._cache_prompt(slot)
                self._model.close(slot, slot)
        except Exception:  # whatever a device raises that has just failed
            for kv_slot in self._model.cache.slots:
                kv_slot.forget_chunks(0)  # none is relied on
        self.waiting.extendleft(reversed(self.running))
        self.running = []

    def _cache_prompt(self, slot: int) -> None:
        """Keep the prompt of a slot that is about to go in the prefix cache."""
        model = self._model
        if model.prefixes and len(model.cache.slots) > 1:
            fits(model, partial(model.prefixes.keep, model.cache, model.cache.slots[slot]))

    # --- memory of a batch ---

    def begin_step(self) -> None:
        """Note that a step begins."""
        self._steps_to_lookup = max(0, self._steps_to_lookup - 1)

    def has_entries_for(self, trees: Sequence[DraftTree]) -> bool:
        """Make room for draft trees in the slots of a batch; return whether there is room."""
        if len(trees) == 1:
            return True
        slots = self._model.cache.slots[: len(trees)]
        rows = self._model.rows_of(trees)
        return self._make_room(
            max(
                slot.length + (rows or len(tree) + 1)
                for slot, tree in zip(slots, trees, strict=True)
            )
        )

    @property
    def _needed_entries(self) -> int:
        """KV entries that each slot needs, as all slots are equally large."""
        slots = self._model.cache.slots[: len(self.running)]
        return max(
            max(sequence.needed_entries, slot.length)
            for sequence, slot in zip(self.running, slots, strict=True)
        )

    def _allowed_slots(self, entries: int) -> int:
        """Compute how many slots of so many entries the free memory allows.

        Where the free memory is not known, all that may run are allowed.
        """
        cache = self._model.cache
        entries = capacity_for(entries)
        if not self._steps_to_lookup:
            self._free_bytes = free_memory(str(self._model.device))
            self._steps_to_lookup = _STEPS_BETWEEN_LOOKUPS
        slot_bytes = cache.bytes_of(entries)
        if self._free_bytes is None or not slot_bytes:
            return max(self._max_size, len(self.running) + 1)
        allowed = int(_CACHE_SHARE * self._free_bytes) // slot_bytes
        in_buffers = cache.capacity // entries if cache.fixed_buffers else 0
        return max(allowed, in_buffers)

    def _make_room(self, entries: int, more_slots: int = 0) -> bool:
        """Resize the cache to slots of so many entries, and more of them, where that is needed.

        Returns:
            False where memory is short.
        """
        cache = self._model.cache
        slots = len(self.running) + more_slots
        if entries <= cache.slot_capacity and slots <= len(cache.slots):
            return True
        entries = capacity_for(max(entries, self._needed_entries))
        self._steps_to_lookup = 0
        allowed = self._allowed_slots(entries)
        self._steps_to_lookup = 0  # buffers will take some of it
        if slots > max(1, allowed):
            return False
        # More slots than now needed where memory allows: each resize copies the buffers.
        count = max(slots, min(self._max_size, allowed))
        return fits(self._model, partial(self._model.resize, count, entries))
