"""From samples to rows by contestant and task, under the JSON names used everywhere.

Times are seconds of wall clock, prefill included, unless a name says otherwise. A prompt's time is
the median of its rounds; a speed-up is formed prompt by prompt and its median is reported.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ngtcli.decode.stats import PARTS
from ngtcli.evaluate.bench.quality import Quality
from ngtcli.evaluate.bench.race import Race
from ngtcli.evaluate.prompts import Item
from ngtcli.evaluate.runner.contestants import AGAINST, BASELINE
from ngtcli.evaluate.runner.run import Contestant, Generation, Sample
from ngtcli.render.results import OVERALL

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

    def rows(self) -> list[dict[str, Any]]:
        """A row for each contestant over all prompts, then, of several tasks, one for each."""
        tasks = list(dict.fromkeys(self._items[i].task for i in self._measured))
        wanted = [OVERALL, *(tasks if len(tasks) > 1 else [])]
        return [self._row(c, task) for task in wanted for c in self._race.contestants]

    def _row(self, contestant: Contestant[Any], task: str) -> dict[str, Any]:
        places = [i for i in self._measured if task in (OVERALL, self._items[i].task)]
        rounds = [self._race.samples[contestant.key][i] for i in places]
        return {
            "method": contestant.name,
            "num_draft": contestant.num_draft,
            "task": task,
            "questions": len(places),
            **drafting([r[-1].generation for r in rounds]),
            **timing(rounds),
            **self._speedup("speedup", contestant, places, BASELINE),
            **self._speedup("speedup_over_hf", contestant, places, next(iter(AGAINST))),
            "same_ids": self._same_ids(contestant, places),
            "peak_memory_mib": round(max(s.memory for r in rounds for s in r) / MIB, 1),
            **self._scores(contestant, places),
        }

    def _speedup(
        self, name: str, contestant: Contestant[Any], places: Sequence[int], other: str
    ) -> dict[str, Any]:
        """Other's time by own time, prompt by prompt; nothing where the other takes no part."""
        if other not in self._race.samples:
            return {}
        own, theirs = self._race.samples[contestant.key], self._race.samples[other]
        ratios = [prompt_seconds(theirs[i]) / prompt_seconds(own[i]) for i in places]
        low, middle, high = quartiles(ratios)
        return {
            name: round(middle, 3),
            f"{name}_quartiles": [round(low, 3), round(high, 3)],
            f"{name}_least_and_most": [round(min(ratios), 3), round(max(ratios), 3)],
        }

    def _same_ids(self, contestant: Contestant[Any], places: Sequence[int]) -> int:
        """Prompts with the ids of plain decoding, in every round."""
        own, plain = self._race.samples[contestant.key], self._race.samples[BASELINE]
        return sum(
            all(s.generation.ids == plain[i][0].generation.ids for s in own[i]) for i in places
        )

    def _scores(self, contestant: Contestant[Any], places: Sequence[int]) -> dict[str, Any]:
        if self._quality is None:
            return {}
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
        return dict(self._quality.scores(answers)) if answers else {}

    def prompts(self, lengths: Sequence[int]) -> list[dict[str, Any]]:
        """For each prompt, of `lengths` tokens, what each contestant took."""
        return [
            {
                "id": self._items[i].id,
                "task": self._items[i].task,
                "prompt_tokens": lengths[i],
                "results": {k: _spread(s[i]) for k, s in self._race.samples.items()},
            }
            for i in self._measured
        ]

    def split(self) -> list[dict[str, Any]]:
        """Where the time goes (paper, Figure 5): a row for each contestant that could tell."""
        return [
            {"method": c.name, "num_draft": c.num_draft, **parts(generations)}
            for c in self._race.contestants
            if (generations := self._race.splits.get(c.key))
        ]


def drafting(generations: Sequence[Generation]) -> dict[str, Any]:
    """What the drafts of some answers came to; None where a contestant cannot tell."""
    tokens, steps = sum(len(g.ids) for g in generations), sum(g.steps for g in generations)
    drafted, accepted = _sum(g.drafted for g in generations), _sum(g.accepted for g in generations)
    undrafted = _sum(g.undrafted for g in generations)
    histogram: Counter[int] = Counter()
    for generation in generations:
        histogram.update(generation.histogram or {})
    return {
        "new_tokens": tokens,
        "steps": steps,
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "mean_acceptance_length": _ratio(tokens, steps),
        "draft_acceptance_rate": _ratio(accepted, drafted),
        "acceptance_histogram": {str(k): histogram[k] for k in sorted(histogram)},
        "nodes_per_step": _ratio(drafted, steps),
        "undrafted_share": _ratio(undrafted, steps),
    }


def timing(rounds: Rounds) -> dict[str, Any]:
    """Times over prompts; `spread` is a prompt's interquartile range over its median, typically.

    `setup_s_median` is what comes before prefill: the trie from the cache, the drafter.
    """
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
    return {
        "seconds_median": round(middle, 5),
        "seconds_quartiles": [round(low, 5), round(high, 5)],
        "spread": round(statistics.median(spreads), 4) if spreads else None,
        "tokens_per_s": round(tokens / sum(decoding), 2) if sum(decoding) else None,
        "tokens_per_s_with_prefill": round(tokens / sum(medians), 2),
        "prefill_s_median": round(statistics.median(prefill), 5) if prefill else None,
        "setup_s_median": round(statistics.median(setup), 5) if setup else None,
    }


def _relative(rounds: Sequence[Sample]) -> float:
    low, middle, high = quartiles([s.seconds for s in rounds])
    return (high - low) / middle


def _spread(rounds: Sequence[Sample]) -> dict[str, Any]:
    low, middle, high = quartiles([s.seconds for s in rounds])
    return {
        "rounds": len(rounds),
        "seconds_median": round(middle, 5),
        "seconds_quartiles": [round(low, 5), round(high, 5)],
        "new_tokens": len(rounds[-1].generation.ids),
    }


def parts(generations: Sequence[Generation]) -> dict[str, Any]:
    """Mean time of each part of a step in µs, prefill in ms a prompt, and shares of the whole."""
    steps = sum(g.steps for g in generations)
    prefill = sum(g.prefill_s or 0.0 for g in generations)
    seconds = {p: sum((g.split_s or {}).get(p, 0.0) for g in generations) for p in PARTS}
    whole = prefill + sum(seconds.values()) or 1.0
    return {
        "steps": steps,
        "prefill_ms": round(prefill / len(generations) * 1e3, 3),
        "step_us": {p: round(s / max(steps, 1) * 1e6, 1) for p, s in seconds.items()},
        "share": {p: round(s / whole, 4) for p, s in {"prefill": prefill, **seconds}.items()},
    }


def _sum(values: Any) -> int | None:
    """The sum; None where one is not known."""
    known = list(values)
    return None if None in known else sum(known)


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None or not b else round(a / b, 4)
