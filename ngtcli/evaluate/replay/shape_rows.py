"""Rows of a replay with real passes: true acceptance, true times of decoding, prefill apart."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ngtcli.evaluate.bench.rows import drafting, quartiles
from ngtcli.evaluate.replay.traces import Trace
from ngtcli.evaluate.runner.contestants import BASELINE
from ngtcli.evaluate.runner.run import Contestant, Generation
from ngtcli.render.results import OVERALL

Samples = Mapping[str, Sequence[Sequence[Generation]]]  # of each contestant, by question, by round


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of decoding, prefill left out; of a question the median of its rounds counts.

    `decode_s` is a sum over questions, `step_ms` a mean over passes, `draft_ms` what of it is spent
    drafting (None where that cannot be told). `speedup` is plain decoding's time by own time: the
    median over questions, with quartiles, and `speedup_overall` the ratio of the sums. `spread` is
    a question's interquartile range over its median, typically; None with one round.
    """

    decode_s: float
    tokens_per_s: float
    step_ms: float
    draft_ms: float | None
    speedup: float
    speedup_quartiles: tuple[float, float]
    speedup_least_and_most: tuple[float, float]
    speedup_overall: float
    spread: float | None


def rows(
    contestants: Sequence[Contestant[Trace]], samples: Samples, traces: Sequence[Trace]
) -> list[dict[str, Any]]:
    """A row for each contestant over all questions, then, of several tasks, one for each."""
    tasks = list(dict.fromkeys(t.task for t in traces))
    found = []
    for task in (OVERALL, *(tasks if len(tasks) > 1 else ())):
        places = [i for i, t in enumerate(traces) if task in (OVERALL, t.task)]
        plain = [samples[BASELINE][i] for i in places]
        for contestant in contestants:
            own = [samples[contestant.key][i] for i in places]
            found.append(
                {
                    "method": contestant.name,
                    "num_draft": contestant.num_draft,
                    "task": task,
                    "questions": len(places),
                    **drafting([rounds[-1] for rounds in own]),
                    **asdict(timing(own, plain)),
                }
            )
    return found


def timing(own: Sequence[Sequence[Generation]], plain: Sequence[Sequence[Generation]]) -> Timing:
    """The times of one contestant, question by question beside plain decoding's."""
    ours, theirs = ([_seconds(rounds) for rounds in of] for of in (own, plain))
    ratios = [t / o for t, o in zip(theirs, ours, strict=True)]
    low, middle, high = quartiles(ratios)
    steps = sum(rounds[-1].steps for rounds in own)
    spreads = [_spread(rounds) for rounds in own if len(rounds) > 1]
    drafts = [s["draft"] for rounds in own if (s := rounds[-1].split_s) is not None]
    return Timing(
        decode_s=round(sum(ours), 4),
        tokens_per_s=round(sum(len(rounds[-1].ids) for rounds in own) / sum(ours), 3),
        step_ms=round(sum(ours) / steps * 1e3, 3),
        draft_ms=round(sum(drafts) / steps * 1e3, 4) if len(drafts) == len(own) else None,
        speedup=round(middle, 3),
        speedup_quartiles=(round(low, 3), round(high, 3)),
        speedup_least_and_most=(round(min(ratios), 3), round(max(ratios), 3)),
        speedup_overall=round(sum(theirs) / sum(ours), 3),
        spread=round(statistics.median(spreads), 4) if spreads else None,
    )


def _seconds(rounds: Sequence[Generation]) -> float:
    return statistics.median(g.decode_s or 0.0 for g in rounds)


def _spread(rounds: Sequence[Generation]) -> float:
    low, middle, high = quartiles([g.decode_s or 0.0 for g in rounds])
    return (high - low) / middle
