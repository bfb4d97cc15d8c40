"""Escape probabilities: those fitted on recorded runs, and the tallies that move them on."""

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.attribution import Tallies, update_escapes
from ngtcli.draft.auto.blend import BACKGROUND, BUCKETS, ORDERS, SCORES
from ngtcli.draft.auto.config import CONFIG
from ngtcli.draft.origins import SOURCES

Floats = npt.NDArray[np.float64]
ESCAPES = Path(__file__).parent / "escapes.json"
SHAPE = (len(SOURCES), ORDERS, BUCKETS)


def fitted_escapes() -> Floats:
    """The shipped escape probabilities, float64 (source, order, bucket).

    Fitted by `python -m tests.tools.fit_escapes`. No recording holds scores, so theirs are
    a guess that the first steps correct.
    """
    escapes = np.full(SHAPE, CONFIG.scores_escape)
    table = _read_table()
    escapes[: len(table)] = table
    escapes[BACKGROUND:, 0] = CONFIG.unused_escape
    return escapes


@lru_cache(maxsize=1)
def _read_table() -> Floats:
    return np.array(json.loads(ESCAPES.read_text(encoding="utf-8"))["escapes"])


class EscapeTallies:
    """Tallies that start as `trust` observations of given escape probabilities."""

    def __init__(self, escapes: Floats, trust: float) -> None:
        self._trust = trust
        predicted = (1.0 - escapes) * trust
        self.arrays = Tallies(np.empty(SHAPE), predicted, np.full(SHAPE, trust))
        update_escapes(tuple(self.arrays))

    def restore(self, predicted: Floats | None, reached: Floats | None) -> None:
        """Take over stored tallies, scaled down to `trust` observations at most.

        Nothing changes where there are none, or where they are of another shape.
        """
        if predicted is None or reached is None or predicted.size != self.arrays.predicted.size:
            return
        reached = reached.reshape(SHAPE)
        weight = np.minimum(1.0, self._trust / np.maximum(reached, 1e-9))
        self.arrays.predicted[:] = predicted.reshape(SHAPE) * weight
        self.arrays.reached[:] = np.maximum(reached * weight, 1e-3)
        update_escapes(tuple(self.arrays))

    def without(self, source: int) -> Floats:
        """The escape probabilities with those of one source so high that it hardly predicts."""
        escapes: Floats = self.arrays.escape.copy()
        escapes[source] = 1.0 - CONFIG.min_escape
        return escapes

    def predicted_by_scores(self) -> float:
        """The expected number of tokens that scores have predicted so far."""
        return float(self.arrays.predicted[SCORES].sum())
