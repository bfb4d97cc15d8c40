"""The race of a replay with real passes: contestants take turns at every question."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ngtcli.errors import NgtError, counted
from ngtcli.measure.contestants import BASELINE
from ngtcli.measure.records import Contestant, Generation, Notify, Turn, by_prompt, run
from ngtcli.measure.refusals import refusal
from ngtcli.measure.traces import Trace
from ngtcli.render.rows import Refusal

_WARM = 4  # tokens of the first answer that every contestant decodes untimed; guess


@dataclass(slots=True)
class ShapeRace:
    """What was measured: `samples[key][i]` are the rounds of question i."""

    contestants: list[Contestant[Trace]]
    samples: dict[str, list[list[Generation]]] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)
    interrupted: bool = False

    def measured(self) -> int:
        """How many questions, the first ones, every contestant has answered at least once."""
        return min(sum(1 for rounds in s if rounds) for s in self.samples.values())


def race(
    contestants: Sequence[Contestant[Trace]],
    traces: Sequence[Trace],
    rounds: int,
    *,
    fresh: bool = False,
    progress: Notify = lambda _: None,
) -> ShapeRace:
    """Warm up, then measure. After an interruption the questions that are done count, if any."""
    made = ShapeRace(list(contestants))
    short = replace(traces[0], id="", output_ids=traces[0].output_ids[:_WARM])
    for contestant in contestants:
        progress(f"Warming up: {contestant.key}")
        try:
            contestant.begin()(short)
        except NgtError as error:
            if contestant.name == BASELINE:
                raise
            made.contestants.remove(contestant)
            made.refused.append(refusal(contestant.name, error))
    made.samples = {c.key: [[] for _ in traces] for c in made.contestants}

    def describe(turn: Turn[Trace]) -> str:
        of = f"{turn.prompt + 1} of {counted(len(traces), 'question')}: {turn.contestant.key}"
        return f"Round {turn.round + 1} of {rounds}, {of}" if rounds > 1 else of

    turns = by_prompt(made.contestants, len(traces), rounds)
    try:
        for turn, sample in run(turns, traces, fresh=fresh, describe=describe, progress=progress):
            made.samples[turn.contestant.key][turn.prompt].append(sample.generation)
    except KeyboardInterrupt:
        if not made.measured():
            raise
        made.interrupted = True
    return made
