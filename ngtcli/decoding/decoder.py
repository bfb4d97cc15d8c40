"""The decoder: sequences are added, decoded step by step, and returned when they end.

step.py has the phases of a step; scheduler.py decides which sequences run and which wait for
memory.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial

from ngtcli.decoding import step
from ngtcli.decoding.memory_limits import ran_within_memory, too_long
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.scheduler import Progress, Scheduler
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.drafting.batch import Drafting
from ngtcli.drafting.drafter import Drafter
from ngtcli.drafting.steps import Step
from ngtcli.errors import NgtError


class Decoder:
    """Decodes a single sequence, or a batch.

    A single sequence has its own drafter and numerics: its forward passes may be captured and
    exact, and heads may read their hidden states. In a batch, `drafting` makes the drafters.
    Sequences join and leave between steps. If there is not enough memory, drafts get smaller at
    first; then fewer sequences run at a time.

    Args:
        model: The target model.
        drafting: The drafting of a batch; None: one sequence at a time.
        size: The maximum number of sequences of a batch; 0: as many as memory allows.
        progress: Called with the number of prefilled tokens of a prompt and its length.
        split_times: Whether to wait for the device after each phase, so that `Statistics.split_s`
            is right on asynchronous devices.
    """

    def __init__(
        self,
        model: TargetModel,
        drafting: Drafting | None = None,
        size: int = 0,
        progress: Progress = lambda prefilled, total: None,
        split_times: bool = False,
    ) -> None:
        self._model = model
        # The drafting of the batch, or of the single sequence that began last.
        self._drafting = drafting
        self._scheduler = Scheduler(model, size if drafting else 1, progress)
        self._ended: list[DecodedSequence] = []
        self._wait = model.finish_device_work if split_times else None

    @property
    def running(self) -> Sequence[DecodedSequence]:
        """The sequences of the next step."""
        return self._scheduler.running

    @property
    def sequences(self) -> list[DecodedSequence]:
        """The sequences that run, followed by those that wait."""
        return self._scheduler.sequences

    @property
    def takes_more(self) -> bool:
        """Whether another sequence may be added now."""
        return not self._scheduler.waiting and self._scheduler.has_room

    @property
    def is_done(self) -> bool:
        """Whether no sequence is left."""
        return not self._scheduler.sequences

    def add(self, sequence: DecodedSequence) -> list[DecodedSequence]:
        """Start or resume a sequence; return the sequences that ended at once."""
        try:
            self._admit(sequence)
        except BaseException:
            self._close_drafter(sequence)
            raise
        return self._take_ended()

    def drop(
        self, sequence: DecodedSequence, error: NgtError | None = None
    ) -> list[DecodedSequence]:
        """End a sequence, as interrupted or with an error; return the sequences that ended."""
        sequence.interrupt()
        sequence.error = sequence.error or error
        self._remove_ended()
        return self._take_ended()

    def regroup(self, drafting: Drafting | None = None, size: int = 0) -> None:
        """Turn a single sequence into a batch, or a batch into single sequences.

        With `drafting`, other sequences may join the single one, which stays in its slot. If
        `drafting.join` raises an error, nothing has changed.

        Without it, the sequences continue one after another. They lose their slots, and their
        tokens are prefilled again. Only the logs are needed for this, so that it works even after a
        forward pass that failed.

        Args:
            drafting: The drafting of the batch; None: no batch.
            size: The maximum number of sequences of the batch; 0: as many as memory allows.
        """
        sequences = self._scheduler.sequences
        drafters: list[Drafter | None] = [None] * len(sequences)
        if drafting is not None:
            drafters = [drafting.join(s.batch_context, s.log) for s in sequences]
        for sequence, drafter in zip(sequences, drafters, strict=True):
            if sequence.drafter is not None:
                sequence.drafter.close(keep=False)
            sequence.drafter = drafter
            sequence.leave_exactness()
        self._drafting = drafting
        self._scheduler.set_size(size if drafting else 1)
        if drafting is None:
            self._scheduler.preempt_all()
        else:
            self._model.use_any_rows()

    def step(self) -> list[DecodedSequence]:
        """Prefill waiting sequences if there is room, and run a step; return those that ended."""
        self._scheduler.preempt_long()
        while (waiting := self._scheduler.next_waiting()) is not None:
            try:
                self._admit(waiting)
            except BaseException:
                self._scheduler.waiting.appendleft(waiting)
                raise
        if self.running:
            assert self._drafting is not None
            self._scheduler.begin_step()
            fits_memory = step.run_step(
                self._model,
                self.running,
                self._drafting,
                self._scheduler.has_entries_for,
                self._wait,
            )
            if not fits_memory:
                self._scheduler.preempt_half()
            self._remove_ended()
        return self._take_ended()

    def close(self) -> None:
        """End all sequences."""
        for sequence in self._scheduler.sequences:
            self._end(sequence)

    def _admit(self, sequence: DecodedSequence) -> None:
        """Create the drafter of a sequence if it has none; let the sequence run, or wait."""
        started = time.perf_counter()
        if sequence.drafter is None and not ran_within_memory(
            self._model, partial(self._begin, sequence)
        ):
            sequence.error = too_long(sequence.log.settled)
            self._ended.append(sequence)
            return
        assert self._drafting is not None
        if not self._scheduler.admit(sequence, self._drafting.max_nodes, started):
            self._end(sequence)

    def _begin(self, sequence: DecodedSequence) -> None:
        """Make the drafter of a sequence, by its own drafting or by that of the batch."""
        if self._scheduler.is_single:
            self._drafting = sequence.single_drafting()
        else:
            sequence.leave_exactness()
        assert self._drafting is not None
        sequence.drafter = self._drafting.join(sequence.context, sequence.log)

    def _remove_ended(self) -> None:
        for sequence in self._scheduler.remove_ended():
            self._end(sequence)

    def _end(self, sequence: DecodedSequence) -> None:
        self._close_drafter(sequence)
        self._ended.append(sequence)

    def _close_drafter(self, sequence: DecodedSequence) -> None:
        sequence.log.take_back()
        if sequence.drafter is not None and self._drafting is not None:
            sequence.policy = sequence.drafter.close()
            self._drafting.release(sequence.drafter, sequence.context)

    def _take_ended(self) -> list[DecodedSequence]:
        ended = self._ended
        self._ended = []
        return ended


def decode(
    model: TargetModel,
    sequence: DecodedSequence,
    progress: Progress = lambda prefilled, total: None,
    split_times: bool = False,
) -> Iterator[Step]:
    """Decode a single sequence step by step.

    Args:
        model: The target model.
        sequence: The sequence.
        progress: See `Decoder`.
        split_times: See `Decoder`.

    Raises:
        NgtError: The sequence ended with this error.
        Exception: A forward pass failed.
    """
    decoder = Decoder(model, progress=progress, split_times=split_times)
    try:
        ended = decoder.add(sequence)
        while not ended:
            ended = decoder.step()
            yield from sequence.take_steps()
        if sequence.error is not None:
            raise sequence.error
    finally:
        decoder.close()
