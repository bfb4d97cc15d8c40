"""Live measurement: every prompt by every contestant in turn, round after round.

A round that is not timed goes first; it also fills the cache of tries and shows who cannot run.
After the timed rounds the parts of a step are timed, in a round of their own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ngtcli.errors import NgtError, counted
from ngtcli.measure.contestants import BASELINE
from ngtcli.measure.memory import PeakMemory
from ngtcli.measure.records import (
    Contestant,
    Generation,
    Notify,
    Sample,
    Turn,
    by_prompt,
    run,
)
from ngtcli.measure.refusals import refusal
from ngtcli.prompt.build import Prompt
from ngtcli.render.rows import Refusal

Take = Callable[..., Iterator[tuple[Turn[Prompt], Sample]]]  # `run` over the prompts


@dataclass(slots=True)
class Race:
    """What was measured. `samples[key][i]` are the rounds of prompt i; `splits` the answers with
    the parts of a step."""

    contestants: list[Contestant[Prompt]]
    samples: dict[str, list[list[Sample]]] = field(default_factory=dict)
    splits: dict[str, list[Generation]] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)
    interrupted: bool = False

    def measured(self) -> list[int]:
        """The prompts that every contestant has answered at least once."""
        count = len(next(iter(self.samples.values()), []))
        return [i for i in range(count) if all(s[i] for s in self.samples.values())]


def race(
    contestants: Sequence[Contestant[Prompt]],
    prompts: Sequence[Prompt],
    rounds: int,
    *,
    memory: PeakMemory,
    fresh: bool = False,
    progress: Notify = lambda _: None,
) -> Race:
    """Warm up, then `rounds` timed rounds, then one with the parts of a step timed apart.

    An interruption after the first answers keeps what there is; before, it is raised.
    """
    made, count = Race(list(contestants)), len(prompts)
    take = partial(run, prompts=prompts, fresh=fresh, memory=memory, progress=progress)
    _warm_up(made, take, count)
    made.samples = {c.key: [[] for _ in prompts] for c in made.contestants}
    try:
        timed = by_prompt(made.contestants, count, rounds)
        all_prompts = counted(count, "prompt")
        words = "Round {} of {}: {} of {}"
        for turn, sample in take(
            timed, describe=lambda t: words.format(t.round + 1, rounds, t.prompt + 1, all_prompts)
        ):
            made.samples[turn.contestant.key][turn.prompt].append(sample)
        _split(made, take, count)
    except KeyboardInterrupt:
        if not made.measured():
            raise
        made.interrupted = True
    return made


def _warm_up(made: Race, take: Take, prompts: int) -> None:
    def words(turn: Turn[Prompt]) -> str:
        return (
            f"Warming up: {turn.contestant.key}, {turn.prompt + 1} of {counted(prompts, 'prompt')}"
        )

    for contestant in list(made.contestants):
        try:
            for _ in take(by_prompt([contestant], prompts, 1), describe=words):
                pass
        except (NgtError, ImportError, OSError) as error:
            if contestant.name == BASELINE:
                raise
            made.contestants.remove(contestant)
            made.refused.append(refusal(contestant.name, error))


def _split(made: Race, take: Take, prompts: int) -> None:
    def words(turn: Turn[Prompt]) -> str:
        return f"Splitting the time of {turn.contestant.key}: prompt {turn.prompt + 1}"

    for contestant in made.contestants:
        if contestant.begin_split is not None:
            split = replace(contestant, begin=contestant.begin_split)
            for _, sample in take(by_prompt([split], prompts, 1), describe=words):
                made.splits.setdefault(contestant.key, []).append(sample.generation)
