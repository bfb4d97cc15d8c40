"""Live measurement: every prompt by every contestant in turn, round after round.

A round that is not timed goes first; it also fills the cache of tries and shows who cannot run.
Contestants take turns at each prompt and the order rotates, so that a noisy machine troubles all
alike. What drafters learn (pools of n-grams, for example) lives across the prompts of one round,
in their order, and is dropped before the next: no contestant drafts from its own earlier answer to
the same prompt. With `fresh` it is dropped at each prompt.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ngtcli.errors import NgtError
from ngtcli.evaluate.bench.contestants import BASELINE, Contestant, Generation
from ngtcli.evaluate.bench.memory import PeakMemory
from ngtcli.evaluate.refusals import refusal
from ngtcli.prompt.build import Prompt
from ngtcli.render.rows import Refusal

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed answer: seconds of wall clock with prefill, and bytes of memory at most."""

    generation: Generation
    seconds: float
    memory: int


@dataclass(slots=True)
class Race:
    """What was measured. `samples[key][i]` are the rounds of prompt i; `splits` those of the run
    whose parts were timed apart, which waits for the device and so is timed for nothing else."""

    contestants: list[Contestant]
    samples: dict[str, list[list[Sample]]] = field(default_factory=dict)
    splits: dict[str, list[Generation]] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)
    interrupted: bool = False

    def measured(self) -> list[int]:
        """The prompts that every contestant has answered at least once."""
        count = len(next(iter(self.samples.values()), []))
        return [i for i in range(count) if all(s[i] for s in self.samples.values())]


class RaceRunner:
    """Runs races over `prompts`; `forget` drops what drafters have learned."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        forget: Callable[[], None],
        memory: PeakMemory,
        fresh: bool = False,
        progress: Notify = lambda _: None,
    ) -> None:
        self.prompts, self.fresh = prompts, fresh
        self._forget, self._memory, self._progress = forget, memory, progress

    def run(self, contestants: Sequence[Contestant], rounds: int) -> Race:
        """Warm up, then `rounds` timed rounds, then one with the parts of a step timed apart.

        An interruption after the first answer keeps what there is; before it, it is raised.
        """
        race = Race(list(contestants))
        self._warm_up(race)
        race.samples = {c.key: [[] for _ in self.prompts] for c in race.contestants}
        try:
            for number in range(rounds):
                self._round(race, number, rounds)
            self._split(race)
        except KeyboardInterrupt:
            if not race.measured():
                raise
            race.interrupted = True
        return race

    def _warm_up(self, race: Race) -> None:
        for contestant in list(race.contestants):
            try:
                self._forget()
                for i, prompt in enumerate(self.prompts):
                    self._progress(
                        f"Warming up: {contestant.key}, {i + 1} of {len(self.prompts)} prompts"
                    )
                    self._ready([contestant], i)
                    contestant.decode(prompt)
            except (NgtError, ImportError, OSError) as error:
                if contestant.name == BASELINE:
                    raise
                race.contestants.remove(contestant)
                race.refused.append(refusal(contestant.name, error))

    def _ready(self, contestants: Sequence[Contestant], prompt: int) -> None:
        """Drafters new where they must be, and made off the clock."""
        if self.fresh or not prompt:
            self._forget()
            for contestant in contestants:
                contestant.ready()

    def _round(self, race: Race, number: int, rounds: int) -> None:
        for i, prompt in enumerate(self.prompts):
            self._ready(race.contestants, i)
            self._progress(
                f"Round {number + 1} of {rounds}: {i + 1} of {len(self.prompts)} prompts"
            )
            for contestant in rotated(race.contestants, number + i):
                race.samples[contestant.key][i].append(self._timed(contestant, prompt))

    def _timed(self, contestant: Contestant, prompt: Prompt) -> Sample:
        self._memory.start()
        clock = time.perf_counter()
        generation = contestant.decode(prompt)
        seconds = time.perf_counter() - clock
        return Sample(generation, seconds, self._memory.peak())

    def _split(self, race: Race) -> None:
        for contestant in race.contestants:
            if contestant.decode_split is None:
                continue
            for i, prompt in enumerate(self.prompts):
                self._progress(f"Splitting the time of {contestant.key}: prompt {i + 1}")
                self._ready([contestant], i)
                race.splits.setdefault(contestant.key, []).append(contestant.decode_split(prompt))


def rotated(contestants: Sequence[Contestant], turn: int) -> list[Contestant]:
    """The same, with another one first each turn."""
    first = turn % len(contestants)
    return [*contestants[first:], *contestants[:first]]
