"""Which cell to take, and whether the measurements can tell. Plain numbers in, a verdict out.

The best cell has the highest median of tokens/s over rounds. Another is tied with it where their
rounds overlap, or where a sign test over the prompts (two-sided, 5%) does not find the best one
ahead. Of the tied cells that are nearly as fast as the best the one with the smallest trie is
chosen: it costs least to build and to keep.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import comb
from statistics import median
from typing import Any

LEVEL = 0.05
NEAR = 0.02  # a tied cell slower by more than this share is not taken for its smaller trie


@dataclass(frozen=True, slots=True)
class Measurement:
    """One pass over all prompts with the settings of one cell.

    `seconds` is decoding alone; `per_token` the same by prompt, in seconds a new token. The trie's
    build time in seconds and its bytes are medians over prompts, None for methods without one.
    """

    new_tokens: int
    steps: int
    seconds: float
    per_token: tuple[float, ...]
    trie_build_s: float | None = None
    trie_bytes: int | None = None

    @property
    def tokens_per_s(self) -> float:
        return self.new_tokens / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Figures:
    """All rounds of one cell. `least` and `most` are those of tokens/s over rounds."""

    label: str
    values: Mapping[str, Any]
    rounds: int
    tokens_per_s: float
    least: float
    most: float
    mean_acceptance_length: float
    per_token: tuple[float, ...]
    trie_build_s: float | None
    trie_bytes: int | None

    def as_json(self) -> dict[str, Any]:
        """Under JSON names; tokens/s, seconds and bytes."""
        build = self.trie_build_s
        return {
            "cell": self.label,
            "values": dict(self.values),
            "rounds": self.rounds,
            "tokens_per_s": round(self.tokens_per_s, 3),
            "tokens_per_s_least_and_most": [round(self.least, 3), round(self.most, 3)],
            "mean_acceptance_length": round(self.mean_acceptance_length, 4),
            "trie_build_s": None if build is None else round(build, 6),
            "trie_bytes": self.trie_bytes,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """`tied` are the cells that cannot be told from `best`, itself included; the fastest first."""

    best: Figures
    tied: tuple[Figures, ...]
    chosen: Figures
    reason: str


def summarize(label: str, values: Mapping[str, Any], rounds: Sequence[Measurement]) -> Figures:
    """The figures of a cell: medians over its rounds, of which there is at least one."""
    speeds = [m.tokens_per_s for m in rounds]
    builds = [m.trie_build_s for m in rounds if m.trie_build_s is not None]
    sizes = [m.trie_bytes for m in rounds if m.trie_bytes is not None]
    return Figures(
        label, values, len(rounds), median(speeds), min(speeds), max(speeds),
        sum(m.new_tokens for m in rounds) / max(1, sum(m.steps for m in rounds)),
        tuple(median(times) for times in zip(*(m.per_token for m in rounds), strict=True)),
        median(builds) if builds else None,
        int(median(sizes)) if sizes else None,
    )  # fmt: skip


def sign_test(wins: int, losses: int) -> float:
    """Two-sided probability of so uneven a count if either were as likely.

    >>> sign_test(5, 0), sign_test(3, 3)
    (0.0625, 1.0)
    """
    n, few = wins + losses, min(wins, losses)
    uneven: int = sum(comb(n, k) for k in range(few + 1))
    return min(1.0, 2 * uneven / (1 << n))


def tied(best: Figures, other: Figures) -> bool:
    """Whether the measurements cannot tell that `best` is faster than `other`."""
    if max(best.rounds, other.rounds) > 1 and other.most >= best.least:
        return True
    pairs = list(zip(best.per_token, other.per_token, strict=True))
    wins, losses = sum(b < o for b, o in pairs), sum(b > o for b, o in pairs)
    return wins <= losses or sign_test(wins, losses) >= LEVEL


def judge(cells: Sequence[Figures]) -> Verdict:
    """The verdict over at least one cell."""
    order = sorted(cells, key=lambda c: -c.tokens_per_s)
    best = order[0]
    level = (best, *(c for c in order[1:] if tied(best, c)))
    near = [c for c in level if c.tokens_per_s >= (1 - NEAR) * best.tokens_per_s]
    chosen = min(near, key=_weight)
    if len(order) == 1:
        reason = "it is the only cell"
    elif len(level) == 1:
        reason = "faster than every other cell beyond the noise of rounds and prompts"
    else:
        reason = f"{len(level)} cells are within the noise of the best; {_why(chosen, near)}"
    return Verdict(best, level, chosen, reason)


def _weight(cell: Figures) -> tuple[Any, ...]:
    """What a cell costs where speed cannot decide: trie, then nodes to check, then lengths."""
    names = ("num_draft", "n", "lp")
    return (cell.trie_bytes or 0, *(cell.values.get(name, 0) for name in names), -cell.tokens_per_s)


def _why(chosen: Figures, near: Sequence[Figures]) -> str:
    sizes = [c.trie_bytes or 0 for c in near]
    if len(near) == 1:
        return f"{chosen.label} is the best, no other within {NEAR:.0%} of its speed"
    virtues = "the fewest drafts and shortest lengths"
    if len(set(sizes)) > 1:
        also = f" and {virtues}" if sizes.count(min(sizes)) > 1 else ""
        virtues = f"the smallest trie{also}"
    return f"of the {len(near)} within {NEAR:.0%} of its speed {chosen.label} has {virtues}"
