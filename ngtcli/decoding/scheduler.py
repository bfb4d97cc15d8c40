"""Decide by the free memory which sequences of a batch run, and which wait.

A running sequence has a slot in the KV cache (kv_cache.py), into which its prompt is prefilled. If
memory does not suffice, fewer run. Preempted sequences wait and are prefilled again when there is
room; none is lost.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from ngtcli.decoding.memory_limits import prefill_prompt, ran_within_memory, too_long
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.decoding.sizes import capacity_for
from ngtcli.drafting.tree import DraftTree
from ngtcli.errors import ContextOverflowError, ModelError, NgtError
from ngtcli.system.machine import free_memory

# The default for the maximum batch size; memory may allow fewer. Measured (built-in model, 200
# documents, one thread, `auto`): 1, 4, 16 and 64 sequences give 197, 345, 365 and 360 tokens per
# second of processor time, and 64 take more than twice the memory of 16.
MAX_BATCH_SIZE = 16
# Tokens of output for which a slot has room at first (guess: most answers have fewer).
EXPECTED_OUTPUT = 512
# The share of the free memory for the KV cache of a batch (guess: the rest is for logits and other
# programs).
_CACHE_SHARE = 0.5
# Steps between two queries of the free memory while no sequence joins or leaves (guess: a query
# takes up to 10 ms on a busy machine).
_STEPS_BETWEEN_LOOKUPS = 64

# Called with the number of prefilled tokens of a prompt, and with its length.
Progress = Callable[[int, int], object]


class Scheduler:
    """The sequences of a decoder, and their slots: a single sequence, or a batch.

    The first slot has room for the complete output of a single sequence, as captured forward
    passes, exact decoding and heads need. In a batch slots grow.

    Args:
        model: The target model.
        size: The maximum number of sequences that run; 0: as many as memory allows.
        progress: Called with the number of prefilled tokens of a prompt and its length.

    Attributes:
        running: The sequences that run, in the order of their slots.
        waiting: The sequences that wait for memory, in the order in which they will run.
        is_single: One sequence runs at a time.
    """

    def __init__(self, model: TargetModel, size: int, progress: Progress) -> None:
        self.running: list[DecodedSequence] = []
        self.waiting: deque[DecodedSequence] = deque()
        self._model = model
        self._progress = progress
        self._may_retry = False  # Memory may have become free for a waiting sequence.
        self._free_bytes: int | None = None  # the result of the last query
        self._steps_to_lookup = 0
        self.set_size(size)

    def set_size(self, size: int) -> None:
        """Let up to `size` sequences run in a batch; 0: as many as memory allows."""
        self.is_single = size == 1
        self._max_size = size or MAX_BATCH_SIZE
        self._may_retry = True

    @property
    def sequences(self) -> list[DecodedSequence]:
        """The sequences that run, followed by those that wait."""
        return [*self.running, *self.waiting]

    @property
    def has_room(self) -> bool:
        """Whether another sequence may run now."""
        batch_size = len(self.running)
        if batch_size == 0:
            return True
        if batch_size >= self._max_size:
            return False
        slots = len(self._model.cache.slots)
        return batch_size < max(slots, self._allowed_slots(self._needed_entries))

    # --- sequences that join ---

    def next_waiting(self) -> DecodedSequence | None:
        """Remove and return the first waiting sequence, if there may be room for it."""
        self._may_retry |= not self.running
        if self._may_retry and self.waiting and self.has_room:
            return self.waiting.popleft()
        return None

    def admit(self, sequence: DecodedSequence, max_nodes: int, started: float) -> bool:
        """Prefill a sequence and let it run, or let it wait if memory does not suffice.

        Args:
            sequence: The sequence; it has a drafter.
            max_nodes: The maximum number of nodes of a draft.
            started: When it was added, by time.perf_counter; its prefill time counts from then on.

        Returns:
            False if it does not fit alone either. Then its error is set.
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
        """Prefill into the slot after those in use; return an error if memory does not suffice."""
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

    # --- sequences that leave ---

    def remove_ended(self) -> list[DecodedSequence]:
        """Remove the sequences that have ended; the last running one moves into a freed slot."""
        ended = [sequence for sequence in self.waiting if sequence.has_ended]
        for sequence in ended:
            self.waiting.remove(sequence)
            self._may_retry = True  # There may be room for a smaller sequence after it.
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
        """Preempt a single sequence that grows past the border of LongRoPE.

        It has to be prefilled again, because the rotary embedding of all its tokens changes.
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
            ran_within_memory(
                model, partial(model.prefixes.keep, model.cache, model.cache.slots[slot])
            )

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
        """Compute how many slots of `entries` KV entries the free memory allows.

        If the free memory is unknown, it allows the maximum batch size.
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
        """Resize the KV cache if needed.

        Args:
            entries: The KV entries that each slot needs.
            more_slots: How many slots are needed in addition to those in use.

        Returns:
            False if memory does not suffice.
        """
        cache = self._model.cache
        slots = len(self.running) + more_slots
        if entries <= cache.slot_capacity and slots <= len(cache.slots):
            return True
        entries = capacity_for(max(entries, self._needed_entries))
        self._steps_to_lookup = 0
        allowed = self._allowed_slots(entries)
        self._steps_to_lookup = 0  # The new buffers will change the free memory.
        if slots > max(1, allowed):
            return False
        # Slots are made in advance if memory allows, because each resize copies the buffers.
        count = max(slots, min(self._max_size, allowed))
        return ran_within_memory(self._model, partial(self._model.resize, count, entries))
