"""From samples to rows by contestant and task.

Times are seconds of wall clock, prefill included, unless a name says otherwise. A prompt's time is
the median of its rounds; a speed-up is formed prompt by prompt and its median is reported.
"""

import statistics
from collections.abc import Callable, Sequence

from ngtcli.decode.steps import PARTS
from ngtcli.measure.contestants import AGAINST, BASELINE
from ngtcli.measure.prompts import Item
from ngtcli.measure.quality import Quality
from ngtcli.measure.race import Race
from ngtcli.measure.records import Contestant, Generation, Sample
from ngtcli.measure.summary import drafting
from ngtcli.prompt.build import Prompt
from ngtcli.render.rows import (
    OVERALL,
    LiveRow,
    PromptRow,
    PromptTimes,
    Scores,
    Speedup,
    SplitRow,
    Times,
)

MIB = 2**20
Rounds = Sequence[Sequence[Sample]]  # of each prompt, its rounds


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; a single value is all three.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    (2.0, 3.0, 4.0)
    """
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def prompt_seconds(rounds: Sequence[Sample]) -> float:
    """The median of one prompt's rounds."""
    return statistics.median(s.seconds for s in rounds)


class RaceRows:
    """Rows of a race over `items`; `decode` turns ids into the text that quality judges."""

    def __init__(
        self,
        race: Race,
        items: Sequence[Item],
        decode: Callable[[Sequence[int]], str],
        quality: Quality | None,
    ) -> None:
        self._race, self._items, self._decode, self._quality = race, items, decode, quality
        self._measured = race.measured()

    def rows(self) -> list[LiveRow]:
        """A row for each contestant over all prompts, then, of several tasks, one for each."""
        tasks = list(dict.fromkeys(self._items[i].task for i in self._measured))
        wanted = [OVERALL, *(tasks if len(tasks) > 1 else [])]
        return [self._row(c, task) for task in wanted for c in self._race.contestants]

    def _row(self, contestant: Contestant[Prompt], task: str) -> LiveRow:
        places = [i for i in self._measured if task in (OVERALL, self._items[i].task)]
        rounds = [self._race.samples[contestant.key][i] for i in places]
        hf = next(iter(AGAINST))
        compared = hf in self._race.samples
        return LiveRow(
            method=contestant.name,
            num_draft=contestant.num_draft,
            task=task,
            questions=len(places),
            drafting=drafting([r[-1].generation for r in rounds]),
            times=timing(rounds),
            speedup=self._speedup(contestant, places, BASELINE),
            speedup_over_hf=self._speedup(contestant, places, hf) if compared else None,
            same_ids=self._same_ids(contestant, places),
            peak_memory_mib=round(max(s.memory for r in rounds for s in r) / MIB, 1),
            scores=self._scores(contestant, places),
        )

    def _speedup(
        self, contestant: Contestant[Prompt], places: Sequence[int], other: str
    ) -> Speedup:
        own, theirs = self._race.samples[contestant.key], self._race.samples[other]
        ratios = [prompt_seconds(theirs[i]) / prompt_seconds(own[i]) for i in places]
        low, middle, high = quartiles(ratios)
        return Speedup(
            median=round(middle, 3),
            quartiles=(round(low, 3), round(high, 3)),
            least_and_most=(round(min(ratios), 3), round(max(ratios), 3)),
        )

    def _same_ids(self, contestant: Contestant[Prompt], places: Sequence[int]) -> int:
        """Prompts with the ids of plain decoding, in every round."""
        own, plain = self._race.samples[contestant.key], self._race.samples[BASELINE]
        return sum(
            all(s.generation.ids == plain[i][0].generation.ids for s in own[i]) for i in places
        )

    def _scores(self, contestant: Contestant[Prompt], places: Sequence[int]) -> Scores | None:
        if self._quality is None:
            return None
        samples = self._race.samples[contestant.key]
        answers = [
            (
                self._decode(samples[i][-1].generation.ids).strip(),
                self._items[i].answers,
                bool(self._items[i].question),
            )
            for i in places
            if self._items[i].answers
        ]
        return self._quality.scores(answers) if answers else None

    def prompts(self, lengths: Sequence[int]) -> list[PromptRow]:
        """For each prompt, of `lengths` tokens, what each contestant took."""
        return [
            PromptRow(
                id=self._items[i].id,
                task=self._items[i].task,
                prompt_tokens=lengths[i],
                results={k: _prompt_times(s[i]) for k, s in self._race.samples.items()},
            )
            for i in self._measured
        ]

    def split(self) -> list[SplitRow]:
        """Where the time goes (paper, Figure 5): a row for each contestant that could tell."""
        return [
            split_row(c.name, c.num_draft, generations)
            for c in self._race.contestants
            if (generations := self._race.splits.get(c.key))
        ]


def timing(rounds: Rounds) -> Times:
    """The times of several prompts, each with its rounds."""
    medians = [prompt_seconds(r) for r in rounds]
    low, middle, high = quartiles(medians)
    spreads = [_relative(r) for r in rounds if len(r) > 1]
    generations = [r[-1].generation for r in rounds]
    tokens = sum(len(g.ids) for g in generations)
    decoding = [statistics.median(s.generation.decode_s or 0.0 for s in r) for r in rounds]
    prefill = [g.prefill_s for g in generations if g.prefill_s is not None]
    setup = [
        s.seconds - s.generation.prefill_s - (s.generation.decode_s or 0.0)
        for r in rounds
        for s in r
        if s.generation.prefill_s is not None
    ]
    return Times(
        seconds_median=round(middle, 5),
        seconds_quartiles=(round(low, 5), round(high, 5)),
        spread=round(statistics.median(spreads), 4) if spreads else None,
        tokens_per_s=round(tokens / sum(decoding), 2) if sum(decoding) else None,
        tokens_per_s_with_prefill=round(tokens / sum(medians), 2),
        prefill_s_median=round(statistics.median(prefill), 5) if prefill else None,
        setup_s_median=round(statistics.median(setup), 5) if setup else None,
    )


def _relative(rounds: Sequence[Sample]) -> float:
    low, middle, high = quartiles([s.seconds for s in rounds])
    return (high - low) / middle


def _prompt_times(rounds: Sequence[Sample]) -> PromptTimes:
    low, middle, high = quartiles([s.seconds for s in rounds])
    return PromptTimes(
        rounds=len(rounds),
        seconds_median=round(middle, 5),
        seconds_quartiles=(round(low, 5), round(high, 5)),
        new_tokens=len(rounds[-1].generation.ids),
    )


def split_row(method: str, num_draft: int | None, generations: Sequence[Generation]) -> SplitRow:
    """Mean times over answers whose parts were timed apart."""
    steps = sum(g.steps for g in generations)
    prefill = sum(g.prefill_s or 0.0 for g in generations)
    seconds = {p: sum((g.split_s or {}).get(p, 0.0) for g in generations) for p in PARTS}
    whole = prefill + sum(seconds.values()) or 1.0
    return SplitRow(
        method=method,
        num_draft=num_draft,
        steps=steps,
        prefill_ms=round(prefill / len(generations) * 1e3, 3),
        step_us={p: round(s / max(steps, 1) * 1e6, 1) for p, s in seconds.items()},
        share={p: round(s / whole, 4) for p, s in {"prefill": prefill, **seconds}.items()},
    )
