"""Rows of a replay with real passes: true acceptance, true times of decoding, prefill apart."""

import statistics
from collections.abc import Mapping, Sequence

from ngtcli.measure.contestants import BASELINE
from ngtcli.measure.live_rows import quartiles
from ngtcli.measure.records import Contestant, Generation
from ngtcli.measure.summary import drafting
from ngtcli.measure.traces import Trace
from ngtcli.render.rows import OVERALL, Speedup
from ngtcli.render.shape_rows import ShapeRow, StepTimes

Rounds = Sequence[Sequence[Generation]]  # of each question, its rounds


def rows(
    contestants: Sequence[Contestant[Trace]], samples: Mapping[str, Rounds], traces: Sequence[Trace]
) -> list[ShapeRow]:
    """A row for each contestant over all questions, then, of several tasks, one for each."""
    tasks = list(dict.fromkeys(t.task for t in traces))
    found = []
    for task in (OVERALL, *(tasks if len(tasks) > 1 else ())):
        places = [i for i, t in enumerate(traces) if task in (OVERALL, t.task)]
        plain = [samples[BASELINE][i] for i in places]
        for contestant in contestants:
            own = [samples[contestant.key][i] for i in places]
            found.append(
                ShapeRow(
                    method=contestant.name,
                    num_draft=contestant.num_draft,
                    task=task,
                    questions=len(places),
                    drafting=drafting([rounds[-1] for rounds in own]),
                    times=_times(own, plain),
                    speedup=_speedup(own, plain),
                )
            )
    return found


def _speedup(own: Rounds, plain: Rounds) -> Speedup:
    ratios = [_seconds(p) / _seconds(o) for o, p in zip(own, plain, strict=True)]
    low, middle, high = quartiles(ratios)
    return Speedup(
        median=round(middle, 3),
        quartiles=(round(low, 3), round(high, 3)),
        least_and_most=(round(min(ratios), 3), round(max(ratios), 3)),
    )


def _times(own: Rounds, plain: Rounds) -> StepTimes:
    whole, steps = sum(map(_seconds, own)), sum(rounds[-1].steps for rounds in own)
    spreads = [_spread(rounds) for rounds in own if len(rounds) > 1]
    drafts = [split["draft"] for rounds in own if (split := rounds[-1].split_s) is not None]
    return StepTimes(
        decode_s=round(whole, 4),
        tokens_per_s=round(sum(len(rounds[-1].ids) for rounds in own) / whole, 3),
        step_ms=round(whole / steps * 1e3, 3),
        draft_ms=round(sum(drafts) / steps * 1e3, 4) if len(drafts) == len(own) else None,
        speedup_overall=round(sum(map(_seconds, plain)) / whole, 3),
        spread=round(statistics.median(spreads), 4) if spreads else None,
    )


def _seconds(rounds: Sequence[Generation]) -> float:
    return statistics.median(g.decode_s or 0.0 for g in rounds)


def _spread(rounds: Sequence[Generation]) -> float:
    low, middle, high = quartiles([g.decode_s or 0.0 for g in rounds])
    return (high - low) / middle
