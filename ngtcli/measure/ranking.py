"""Which cell to take, and whether the measurements can tell. Plain numbers in, a verdict out.

The best cell has the highest median of tokens/s over rounds. Another is tied with it where their
rounds overlap, or where the best one may owe its lead to the prompts that happened to be there:
prompts are drawn anew, with replacement and for both cells alike, a thousand times, and in over
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
class CellSummary:
    """All rounds of one cell. `least` and `most` are those of tokens/s over rounds.

    Seconds are of decoding alone; `prompts` holds new tokens and median seconds of each prompt. The
    trie's build time in seconds and its bytes are medians, None for methods without one.
    """

    label: str
    values: Mapping[str, Any]
    rounds: int
    tokens_per_s: float
    least: float
    most: float
    mean_acceptance_length: float
    prompts: tuple[tuple[int, float], ...]
    trie_build_s: float | None
    trie_bytes: int | None

    def row(self, standing: str) -> CellRow:
        """The row of the cell, rounded; `standing` as CellRow has it."""
        build = self.trie_build_s
        return CellRow(
            cell=self.label,
            values=self.values,
            rounds=self.rounds,
            tokens_per_s=round(self.tokens_per_s, 3),
            tokens_per_s_least_and_most=(round(self.least, 3), round(self.most, 3)),
            mean_acceptance_length=round(self.mean_acceptance_length, 4),
            trie_build_s=None if build is None else round(build, 6),
            trie_bytes=self.trie_bytes,
            standing=standing,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """`tied` are the cells that cannot be told from `best`, itself included; the fastest first."""

    best: CellSummary
    tied: tuple[CellSummary, ...]
    chosen: CellSummary
    reason: str


def summarize(
    label: str, values: Mapping[str, Any], rounds: Sequence[Sequence[Figures]]
) -> CellSummary:
    """A cell in short, from at least one round over all prompts."""
    speeds = [_tokens_per_s(records) for records in rounds]
    every = [r for records in rounds for r in records]
    builds = [r.trie_build_s for r in every if r.trie_build_s is not None]
    sizes = [r.trie_bytes for r in every if r.trie_bytes is not None]
    return CellSummary(
        label,
        values,
        len(rounds),
        tokens_per_s=median(speeds),
        least=min(speeds),
        most=max(speeds),
        mean_acceptance_length=sum(r.new_tokens for r in every)
        / max(1, sum(r.steps for r in every)),
        prompts=tuple(
            (records[0].new_tokens, median(r.decode_s for r in records))
            for records in zip(*rounds, strict=True)
        ),
        trie_build_s=median(builds) if builds else None,
        trie_bytes=int(median(sizes)) if sizes else None,
    )


def _tokens_per_s(records: Sequence[Figures]) -> float:
    seconds = sum(r.decode_s for r in records)
    return sum(r.new_tokens for r in records) / seconds if seconds > 0 else 0.0


def behind(best: CellSummary, other: CellSummary) -> float:
    """The share of draws of prompts in which `best` is not ahead of `other`."""
    a, b = (np.array(cell.prompts, np.float64) for cell in (best, other))
    draws = np.random.default_rng(0).multinomial(len(a), [1 / len(a)] * len(a), DRAWS)
    (tokens, seconds), (their_tokens, their_seconds) = (draws @ a).T, (draws @ b).T
    return float(np.mean(tokens * their_seconds <= their_tokens * seconds))


def tied(best: CellSummary, other: CellSummary) -> bool:
    """Whether the measurements cannot tell that `best` is faster than `other`."""
    if max(best.rounds, other.rounds) > 1 and other.most >= best.least:
        return True
    return len(best.prompts) < FEWEST or behind(best, other) > LEVEL


def judge(cells: Sequence[CellSummary], complete: bool = True) -> Verdict:
    """The verdict over at least one cell; `complete` says whether all rounds of all are there."""
    order = sorted(cells, key=lambda c: -c.tokens_per_s)
    best = order[0]
    level = (best, *(c for c in order[1:] if tied(best, c)))
    near = [c for c in level if c.tokens_per_s >= (1 - NEAR) * best.tokens_per_s]
    chosen = min(near, key=_weight)
    reason = _reason(order, level, near, chosen)
    return Verdict(best, level, chosen, reason if complete else f"so far: {reason}")


def _reason(
    cells: Sequence[CellSummary],
    level: Sequence[CellSummary],
    near: Sequence[CellSummary],
    chosen: CellSummary,
) -> str:
    """Why `chosen`; of noise only where every cell was measured more than once."""
    known = min(cell.rounds for cell in cells) > 1
    once = "1 round" if all(cell.rounds == 1 for cell in cells) else "1 round of some cells"
    unknown = f"{once}, no noise estimate"
    if len(cells) == 1:
        return "it is the only cell" if known else f"it is the only cell; {unknown}"
    if len(level) == 1 and known:
        return "faster than every other cell beyond the noise of rounds and prompts"
    if len(level) == 1:
        return f"the fastest of {counted(len(cells), 'cell')}; {unknown}"
    if known:
        return f"{len(level)} cells are within the noise of the best; {_why(chosen, near)}"
    return f"{len(level)} cells cannot be told apart; {_why(chosen, near)}; {unknown}"


def _weight(cell: CellSummary) -> tuple[Any, ...]:
    """What a cell costs where speed cannot decide: trie, then nodes to check, then lengths."""
    names = ("num_draft", "n", "lp")
    return (cell.trie_bytes or 0, *(cell.values.get(name, 0) for name in names), -cell.tokens_per_s)


def _why(chosen: CellSummary, near: Sequence[CellSummary]) -> str:
    sizes = [c.trie_bytes or 0 for c in near]
    if len(near) == 1:
        return f"{chosen.label} is the best, no other within {NEAR:.0%} of its speed"
    least = "the fewest drafts and shortest lengths"
    if len(set(sizes)) > 1:
        also = f" and {least}" if sizes.count(min(sizes)) > 1 else ""
        least = f"the smallest trie{also}"
    return f"of the {len(near)} within {NEAR:.0%} of its speed {chosen.label} has {least}"
