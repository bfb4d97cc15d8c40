"""The race of a replay with real passes: contestants take turns at every question.

A prompt is read once and its keys and values serve all contestants, whose order rotates. Of several
rounds each has its own drafters, so that none drafts from its own earlier answer to a question.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ngtcli.decode.model import TargetModel
from ngtcli.errors import NgtError
from ngtcli.evaluate.bench.contestants import BASELINE, Generation
from ngtcli.evaluate.bench.race import rotated
from ngtcli.evaluate.refusals import refusal
from ngtcli.evaluate.replay.shape_contestants import Contestant, Decode
from ngtcli.evaluate.replay.traces import Trace

Notify = Callable[[str], None]
SPARE = 256  # places of the cache for draft nodes and padding, behind the longest answer; guess
_WARM = 12  # tokens of the first question that every contestant decodes untimed; guess


class ShapeRace:
    """Runs the contestants; `samples[key][i]` are the rounds of question i."""

    def __init__(
        self,
        model: TargetModel,
        traces: Sequence[Trace],
        rounds: int,
        fresh: bool,
        progress: Notify,
    ) -> None:
        self._model, self._traces, self._rounds, self._fresh = model, traces, rounds, fresh
        self._progress = progress
        self.contestants: list[Contestant] = []
        self.samples: dict[str, list[list[Generation]]] = {}
        self.prefill_s: list[float] = []
        self.interrupted = False

    @property
    def measured(self) -> Sequence[Trace]:
        """The questions that every contestant has answered in every round."""
        return self._traces[: len(self.prefill_s)]

    def run(self, contestants: Sequence[Contestant], refused: list[dict[str, str]]) -> None:
        """Warm up, then measure. An interruption keeps the questions that are done, if any."""
        self.contestants = self._able(contestants, refused)
        self.samples = {c.key: [] for c in self.contestants}
        lanes: list[dict[str, Decode]] = []
        try:
            for i, trace in enumerate(self._traces):
                if not i or self._fresh:
                    lanes = [self._begun() for _ in range(self._rounds)]
                self._question(i, trace, lanes)
        except KeyboardInterrupt:
            if not self.prefill_s:
                raise
            self.interrupted = True

    def _begun(self) -> dict[str, Decode]:
        return {c.key: c.begin() for c in self.contestants}

    def _able(
        self, contestants: Sequence[Contestant], refused: list[dict[str, str]]
    ) -> list[Contestant]:
        """Those that decode the beginning of the first answer, which is not timed."""
        first = self._traces[0]
        short = replace(first, output_ids=first.output_ids[:_WARM])
        self._prefill(short)
        able = []
        for contestant in contestants:
            self._progress(f"Warming up: {contestant.key}")
            try:
                contestant.begin()(short)
                able.append(contestant)
            except NgtError as error:
                if contestant.name == BASELINE:
                    raise
                refused.append(refusal(contestant.name, error))
        return able

    def _prefill(self, trace: Trace) -> float:
        """Seconds to read a prompt, of which all but the last id goes into the cache."""
        self._model.start(len(trace.prompt_ids) + trace.room + SPARE)
        self._model.finish_device_work()
        clock = time.perf_counter()
        self._model.prefill(trace.prompt_ids[:-1])
        self._model.finish_device_work()
        return time.perf_counter() - clock

    def _question(self, number: int, trace: Trace, lanes: Sequence[dict[str, Decode]]) -> None:
        of = f"{number + 1} of {len(self._traces)} questions"
        self._progress(f"Reading the prompt: {of}")
        prefill_s = self._prefill(trace)
        taken: dict[str, list[Generation]] = {c.key: [] for c in self.contestants}
        for turn, lane in enumerate(lanes):
            for contestant in rotated(self.contestants, number + turn):
                self._progress(f"{of}, round {turn + 1} of {len(lanes)}: {contestant.key}")
                taken[contestant.key].append(lane[contestant.key](trace))
        for key, generations in taken.items():
            self.samples[key].append(generations)
        self.prefill_s.append(prefill_s)
