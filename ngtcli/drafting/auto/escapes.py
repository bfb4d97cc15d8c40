"""Escape probabilities: those fitted on recorded runs, and the tallies that move them on."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.blend import (
    BACKGROUND,
    BUCKETS,
    COPIED,
    HEADS,
    ORDERS,
    OWN,
    PREDICTED,
    PROMPT,
)
from ngtcli.drafting.auto.core.learning import update_escapes

Floats = npt.NDArray[np.float64]
ESCAPES = Path(__file__).parent / "escapes.json"
SHAPE = (HEADS, ORDERS, BUCKETS)
_STORED = HEADS * ORDERS * BUCKETS


@lru_cache(maxsize=CONFIG.heads + 1)
def fitted_escapes(heads: int = 0) -> Floats:
    """The shipped escape probabilities, float64 (row, order, bucket), and those of `heads`.

    Fitted to recordings (by `tests/tools/fit_escapes.py`, in the history up to d643cb9d), which
    hold no scores: theirs are a guess that the first steps correct. A predicted text begins with
    the prompt's. A head's order is that of the longest match beside it.
    """
    escapes = np.full(SHAPE, CONFIG.scores_escape)
    stored = json.loads(ESCAPES.read_text(encoding="utf-8"))
    escapes[OWN : OWN + len(stored["escapes"])] = stored["escapes"]
    # Swept before copies were followed, on answers of the built-in model with 6% of the tokens
    # edited, 30 questions at 32 nodes: 17.05; the prompt's squared 14.77, to the third power 14.26;
    # exact copies 24.0, 24.7, 25.1.
    escapes[PREDICTED] = escapes[PROMPT]
    escapes[COPIED:] = stored["copies"]
    escapes[BACKGROUND:COPIED, 0] = CONFIG.unused_escape
    beside = np.asarray(CONFIG.guess_escapes)[:, None]
    of_heads = np.broadcast_to(beside, (heads, *SHAPE[1:]))
    escapes = np.concatenate([escapes, of_heads])
    escapes.setflags(write=False)
    return escapes


@dataclass(frozen=True, slots=True)
class TallyChanges:
    """Changes of `predicted` and `reached`, rows 0 and 1 of `before` and `after`.

    `at`, int64 (changes,), are the places in the flat tallies.
    """

    at: npt.NDArray[np.int64]
    before: Floats
    after: Floats


class EscapeTallies:
    """Tallies that start as `trust` observations of given escape probabilities, few of heads.

    Of each (source, order, bucket), float64: `reached` is the expected number of tokens that were
    left when a match was queried, `predicted` the expected number of those that it predicted,
    `escape` is 1 - predicted / reached. `recent`, float64 (sources, 2), is of the last tokens
    learned alone, over all orders and buckets: how many were left for a source's matches, and by
    how much a head has raised their probabilities over what the others gave them. `arrays` are
    (escape, predicted, reached, recent).
    """

    def __init__(self, escapes: Floats, trust: float) -> None:
        self._trust = trust
        self.escape, self.predicted = np.empty(escapes.shape), (1.0 - escapes) * trust
        self.reached = np.full(escapes.shape, float(trust))
        of_heads = CONFIG.guess_trust / trust
        self.predicted[HEADS:] *= of_heads
        self.reached[HEADS:] *= of_heads
        self.recent = np.zeros((len(escapes), 2))
        self.arrays = self.escape, self.predicted, self.reached, self.recent
        update_escapes(self.arrays)

    def restore(self, predicted: Floats | None, reached: Floats | None) -> None:
        """Take over stored tallies, scaled down to `trust` observations at most.

        Nothing changes where there are none, or where they are of another shape.
        """
        if predicted is None or reached is None or not predicted.size == reached.size == _STORED:
            return
        predicted, reached = predicted.reshape(SHAPE), reached.reshape(SHAPE)
        weight = np.minimum(1.0, self._trust / np.maximum(reached, 1e-9))
        self.predicted[:HEADS] = predicted * weight
        self.reached[:HEADS] = np.maximum(reached * weight, 1e-3)
        update_escapes(self.arrays)

    def bound(self) -> None:
        """Let what was observed weigh so much at most that a process which runs on still learns."""
        most = max(CONFIG.most_observed, self._trust)
        weight = np.minimum(1.0, most / np.maximum(self.reached, 1e-9))
        self.predicted *= weight
        self.reached *= weight

    def copied(self) -> tuple[Floats, Floats]:
        """`predicted` and `reached` as they now are, for `changes_since`."""
        return self.predicted.copy(), self.reached.copy()

    def changes_since(self, before: tuple[Floats, Floats]) -> TallyChanges:
        """What was learned since they were as `before`."""
        (predicted, reached), now = before, (self.predicted, self.reached)
        # A little mass may change the one and be lost in the other's rounding.
        at = np.flatnonzero((self.reached != reached) | (self.predicted != predicted))
        return TallyChanges(
            at,
            np.stack([predicted.ravel()[at], reached.ravel()[at]]),
            np.stack([tally.ravel()[at] for tally in now]),
        )

    def undo(self, changes: TallyChanges) -> None:
        """Forget what was learned; what other texts have taught the same tallies since stays."""
        at = changes.at
        tallies = self.predicted.reshape(-1), self.reached.reshape(-1)
        for tally, before, after in zip(tallies, changes.before, changes.after, strict=True):
            tally[at] = np.where(tally[at] == after, before, tally[at] - (after - before))
        predicted, reached = tallies
        reached[at] = np.maximum(reached[at], 1e-3)
        predicted[at] = np.clip(predicted[at], 0.0, reached[at])
        update_escapes(self.arrays)

    def trust_heads(self) -> None:
        """Believe all that heads guess."""
        self.predicted[HEADS:] = self.reached[HEADS:] = self._trust
        update_escapes(self.arrays)

    @property
    def stored(self) -> tuple[Floats, Floats]:
        """`predicted` and `reached` to keep for other texts, without those of heads."""
        return self.predicted[:HEADS].copy(), self.reached[:HEADS].copy()
