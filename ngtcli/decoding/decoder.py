"""The decoder: sequences come, go on step by step, and go.

What a step does is in step.py; who runs, and who waits for memory, in scheduler.py.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial

from ngtcli.decoding import step
from ngtcli.decoding.memory_limits import fits, too_long
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.scheduler import Progress, Scheduler
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.drafting.batch import Drafting
from ngtcli.drafting.steps import Step
from ngtcli.errors import NgtError


class Decoder:
    """Decodes sequences, one by itself or a batch.

    A sequence by itself has the drafter and the numerics of its own; forward passes are captured,
    may be exact, and heads read them. In a batch `drafting` has the drafters. Sequences come and go
    between steps. Where memory ends, drafts become smaller, then fewer sequences run.

    Args:
        model: The target model.
        drafting: Of a batch; None for one sequence at a time.
        size: Sequences of a batch at most; 0: as many as memory allows.
        progress: Called with how many tokens of a prompt, of how many, are prefilled.
        split_times: Wait for the device between the phases, so that `Statistics.split_s` is right
            on an asynchronous one, too.
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
        self._drafting = drafting  # of a batch, or of the single sequence that began last
        self._scheduler = Scheduler(model, size if drafting else 1, progress)
        self._ended: list[DecodedSequence] = []
        self._wait = model.finish_device_work if split_times else None

    @property
    def running(self) -> Sequence[DecodedSequence]:
        """The sequences of the next step."""
        return self._scheduler.running

    @property
    def sequences(self) -> list[DecodedSequence]:
        """The sequences that run, and behind them those that wait."""
        return self._scheduler.sequences

    @property
    def takes_more(self) -> bool:
        """Return whether another sequence may be added now."""
        return not self._scheduler.waiting and self._scheduler.has_room

    @property
    def is_done(self) -> bool:
        """Return whether no sequence is left."""
        return not self._scheduler.sequences

    def add(self, sequence: DecodedSequence) -> list[DecodedSequence]:
        """Begin a sequence, or go on with it; return it if it has ended at once."""
        try:
            self._admit(sequence)
        except BaseException:
            self._close_drafter(sequence)
            raise
        return self._take_ended()

    def drop(
        self, sequence: DecodedSequence, error: NgtError | None = None
    ) -> list[DecodedSequence]:
        """End a sequence, as interrupted or with an error; return those that ended."""
        sequence.interrupt()
        sequence.error = sequence.error or error
        self._remove_ended()
        return self._take_ended()

    def regroup(self, drafting: Drafting | None = None, size: int = 0) -> None:
        """Go on with other sequences beside those that are here, or each by itself.

        With `drafting` others may join the sequence that has run by itself, which keeps its slot.
        Where its new drafter raises, all is as it was. Without it every sequence goes on by itself,
        one after another: its slot goes, and its tokens are read again. A forward pass that failed
        may be followed by that, as nothing but the logs is relied on.
        """
        sequences = self._scheduler.sequences
        drafters = [drafting.join(s.batch_context, s.log) if drafting else None for s in sequences]
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
        """Prefill sequences that wait, if there is room, and do a step; return those that ended."""
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
        """End all sequences; no more steps come."""
        for sequence in self._scheduler.sequences:
            self._end(sequence)

    def _admit(self, sequence: DecodedSequence) -> None:
        """Give a sequence its drafter, if it has none, and let it run, or wait for memory."""
        started = time.perf_counter()
        if sequence.drafter is None and not fits(self._model, partial(self._begin, sequence)):
            sequence.error = too_long(sequence.log.settled)
            self._ended.append(sequence)
            return
        assert self._drafting is not None
        if not self._scheduler.admit(sequence, self._drafting.max_nodes, started):
            self._end(sequence)

    def _begin(self, sequence: DecodedSequence) -> None:
        """Begin the drafter of a sequence: its own, or one of the batch."""
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
    """Decode one sequence by itself, step by step. Raises NgtError, and what a step raises."""
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
