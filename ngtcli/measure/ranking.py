"""Which cell to take, and whether the measurements can tell. Plain numbers in, a verdict out.

The best cell has the highest median of tokens/s over rounds. Another is tied with it where their
rounds overlap, or where the best one may owe its lead to the prompts that happened to be there:
prompts are drawn again, with replacement and for both cells alike, a thousand times, and in over
2.5% of the draws it is not ahead. Under six prompts nothing can be said. Of the tied cells that are
nearly as fast as the best the one with the smallest trie is chosen: it costs least to build and to
keep. Where some cell was measured once there is no estimate of the noise of rounds, and none is
claimed; what is said of a sweep that was interrupted is said of the cells measured so far.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from ngtcli.errors import counted
from ngtcli.measure.results import CellRow
from ngtcli.measure.state import Figures

LEVEL = 0.025
DRAWS = 1000
FEWEST = 6  # prompts: of fewer, all may well favour one cell by chance
NEAR = 0.02  # a tied cell slower by more than this share is not taken for its smaller trie


@dataclass(frozen=True, slots=True)
class Verdict:
    """`tied` are the cells that cannot be told from `best`, itself included; the fastest first."""

    best: CellRow
    tied: tuple[CellRow, ...]
    chosen: CellRow
    reason: str


def summarize(
    label: str, values: Mapping[str, Any], rounds: Sequence[Sequence[Figures]]
) -> CellRow:
    """A cell in short, from at least one round over all prompts."""
    speeds = [_tokens_per_s(records) for records in rounds]
    every = [r for records in rounds for r in records]
    builds = [r.trie_build_s for r in every if r.trie_build_s is not None]
    sizes = [r.trie_bytes for r in every if r.trie_bytes is not None]
    tokens, steps = sum(r.new_tokens for r in every), sum(r.steps for r in every)
    return CellRow(
        cell=label,
        values=values,
        rounds=len(rounds),
        tokens_per_s=median(speeds),
        tokens_per_s_least_and_most=(min(speeds), max(speeds)),
        mean_acceptance_length=tokens / max(1, steps),
        trie_build_s=median(builds) if builds else None,
        trie_bytes=int(median(sizes)) if sizes else None,
        prompts=[
            (records[0].new_tokens, median(r.decode_s for r in records))
            for records in zip(*rounds, strict=True)
        ],
    )


def _tokens_per_s(records: Sequence[Figures]) -> float:
    seconds = sum(r.decode_s for r in records)
    return sum(r.new_tokens for r in records) / seconds if seconds > 0 else 0.0


def behind(best: CellRow, other: CellRow) -> float:
    """The share of draws of prompts in which `best` is not ahead of `other`."""
    a, b = (np.array(cell.prompts, np.float64) for cell in (best, other))
    draws = np.random.default_rng(0).multinomial(len(a), [1 / len(a)] * len(a), DRAWS)
    (tokens, seconds), (their_tokens, their_seconds) = (draws @ a).T, (draws @ b).T
    return float(np.mean(tokens * their_seconds <= their_tokens * seconds))


def tied(best: CellRow, other: CellRow) -> bool:
    """Whether the measurements cannot tell that `best` is faster than `other`."""
    least, most = best.tokens_per_s_least_and_most[0], other.tokens_per_s_least_and_most[1]
    if max(best.rounds, other.rounds) > 1 and most >= least:
        return True
    return len(best.prompts) < FEWEST or behind(best, other) > LEVEL


def judge(cells: Sequence[CellRow], complete: bool = True) -> Verdict:
    """The verdict over at least one cell; `complete` says whether all rounds of all are there.

    Of noise something is said only where every cell was measured more than once.
    """
    best, *others = sorted(cells, key=lambda c: -c.tokens_per_s)
    level = (best, *(c for c in others if tied(best, c)))
    near = [c for c in level if c.tokens_per_s >= (1 - NEAR) * best.tokens_per_s]
    chosen = min(near, key=_weight)
    known = min(cell.rounds for cell in cells) > 1
    if not others:
        reason = "it is the only cell"
    elif len(level) > 1:
        told = "are within the noise of the best" if known else "cannot be told apart"
        reason = f"{len(level)} cells {told}; {_why(chosen, near)}"
    elif known:
        reason = "faster than every other cell beyond the noise of rounds and prompts"
    else:
        reason = f"the fastest of {counted(len(cells), 'cell')}"
    if not known:
        some = "" if all(cell.rounds == 1 for cell in cells) else " of some cells"
        reason += f"; 1 round{some}, no noise estimate"
    return Verdict(best, level, chosen, reason if complete else f"so far: {reason}")


def _weight(cell: CellRow) -> tuple[Any, ...]:
    """What a cell costs where speed cannot decide: trie, then nodes to check, then lengths."""
    names = ("num_draft", "n", "lp")
    return (cell.trie_bytes or 0, *(cell.values.get(name, 0) for name in names), -cell.tokens_per_s)


def _why(chosen: CellRow, near: Sequence[CellRow]) -> str:
    if len(near) == 1:
        return f"{chosen.cell} is the best, no other within {NEAR:.0%} of its speed"
    sizes = [c.trie_bytes or 0 for c in near]
    least = "the fewest drafts and shortest lengths"
    if len(set(sizes)) > 1:
        also = f" and {least}" if sizes.count(min(sizes)) > 1 else ""
        least = f"the smallest trie{also}"
    return f"of the {len(near)} within {NEAR:.0%} of its speed {chosen.cell} has {least}"
