"""Figures of several answers together."""

from collections import Counter
from collections.abc import Iterable, Sequence

from ngtcli.measure.records import Generation
from ngtcli.render.rows import Drafting


def drafting(generations: Sequence[Generation]) -> Drafting:
    """What the drafts of some answers came to; None where a contestant cannot tell."""
    tokens, steps = sum(len(g.ids) for g in generations), sum(g.steps for g in generations)
    drafted, accepted = _sum(g.drafted for g in generations), _sum(g.accepted for g in generations)
    undrafted = _sum(g.undrafted for g in generations)
    histogram: Counter[int] = Counter()
    for generation in generations:
        histogram.update(generation.histogram or {})
    return Drafting(
        new_tokens=tokens,
        steps=steps,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        mean_acceptance_length=_ratio(tokens, steps),
        draft_acceptance_rate=_ratio(accepted, drafted),
        acceptance_histogram=histogram,
        nodes_per_step=_ratio(drafted, steps),
        undrafted_share=_ratio(undrafted, steps),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum; None where one is not known."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None or not b else round(a / b, 4)
