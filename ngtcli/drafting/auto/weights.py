"""State of the log-linear stage (core/loglinear.py): its weights, and places in the text."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.cells import FEATURES, SIZE, STARTS
from ngtcli.drafting.auto.core.copies import ANSWER, CopyArrays
from ngtcli.drafting.auto.core.loglinear import Stage, changed_cells, follow_again, index_text
from ngtcli.drafting.tries.counts import NONE

Floats = npt.NDArray[np.float64]
FITTED = Path(__file__).parent / "stage_weights.json"  # stage_weights.md says how it was made
_MIN_TABLE = 1 << 10  # slots of a table of pairs of tokens (guess)


def neutral_weights() -> Floats:
    """Return factors and sums, float64 (2, cells), that leave the blend unchanged."""
    return np.stack([np.ones(SIZE), np.zeros(SIZE)])


@cache
def first_weights() -> Floats:
    """Return the fitted factors and sums, float64 (2, cells), which must not be modified.

    A feature whose cells differ from the fitted ones begins with neutral weights.
    """
    weights = neutral_weights()
    stored = json.loads(FITTED.read_text(encoding="utf-8"))
    for feature, start in zip(FEATURES, STARTS, strict=True):
        entry = stored.get(feature.name, {})
        if tuple(entry.get("shape", ())) == feature.shape:
            cells = slice(start, start + feature.cells)
            weights[0, cells] = entry["factors"]
            weights[1, cells] = entry["squares"]
    weights.setflags(write=False)
    return weights


@dataclass(frozen=True, slots=True)
class WeightChanges:
    """The weights that some tokens changed.

    Attributes:
        cells: int64 (changes,).
        before: float64 (2, changes), their factors and sums before the tokens.
        after: The same after them.
    """

    cells: npt.NDArray[np.int64]
    before: Floats
    after: Floats


class StageWeights:
    """Weights that are learned online.

    Attributes:
        factors: float64 (cells,), e to the power of each weight; empty if the stage is off.
        squares: float64 (cells,), Adagrad's sums.
    """

    def __init__(self, first: Floats | None) -> None:
        """Begin with factors and sums, float64 (2, cells); None switches the stage off."""
        self._both = np.zeros((2, 0)) if first is None else first.copy()
        self.factors, self.squares = self._both
        self.bound()

    def restore(self, factors: Floats | None, squares: Floats | None) -> None:
        """Restore stored weights, unless there are none or their cells differ."""
        if factors is None or squares is None:
            return
        if not factors.shape == squares.shape == self.factors.shape:
            return
        max_factor = CONFIG.stage_max_factor
        self.factors[:] = np.clip(factors, 1 / max_factor, max_factor)
        self.squares[:] = np.maximum(squares, 0.0)
        self.bound()

    def bound(self) -> None:
        """Limit the weight of observations, so that a long-running process still learns."""
        np.minimum(self.squares, CONFIG.stage_most_squares, out=self.squares)

    def copied(self) -> Floats:
        """Copy the weights, for `changes_since`."""
        return self._both.copy()

    def changes_since(self, before: Floats) -> WeightChanges:
        """Return the changes of the weights since `before`."""
        return WeightChanges(*changed_cells(before, self._both))

    def undo(self, changes: WeightChanges) -> None:
        """Undo changes; later changes by other sequences with the same weights stay."""
        cells = changes.cells
        factors, squares = changes.before
        factors_after, squares_after = changes.after
        # If nothing was learned since, nothing is rounded.
        is_last = (self.factors[cells] == factors_after) & (self.squares[cells] == squares_after)
        limit = CONFIG.stage_max_factor
        without = np.clip(self.factors[cells] * (factors / factors_after), 1 / limit, limit)
        self.factors[cells] = np.where(is_last, factors, without)
        squares_without = np.maximum(self.squares[cells] - (squares_after - squares), 0.0)
        self.squares[cells] = np.where(is_last, squares, squares_without)

    @property
    def stored(self) -> tuple[Floats, Floats] | None:
        """Return factors and sums to store for other answers; None if the stage is off."""
        if not len(self.factors):
            return None
        return self.factors.copy(), self.squares.copy()


class LogLinear:
    """The stage of one sequence: weights, which others may share, and places in the text.

    Attributes:
        arrays: The Stage, as a plain tuple.
        least_learned: Smaller contributions to a candidate teach it nothing.
    """

    def __init__(self, weights: StageWeights, classes: npt.NDArray[np.int8] | None = None) -> None:
        self.weights = weights
        self.least_learned = CONFIG.stage_least
        self._classes = np.zeros(0, np.int8) if classes is None else classes
        self._place = np.zeros(1, np.int64)
        self._seen = np.full(CONFIG.stage_slots, NONE, np.int32)
        self._index(CopyArrays(np.zeros(0, np.int32), np.zeros(3, np.int64), np.zeros(0, np.int32)))

    def begin(self, copies: CopyArrays) -> None:
        """Begin an answer to the text in `copies`."""
        if len(self.weights.factors):
            self.weights.bound()
            self._index(copies)

    def _index(self, copies: CopyArrays) -> None:
        length = int(copies.sizes[ANSWER])
        newest = np.full(max(_MIN_TABLE, 1 << length.bit_length()), NONE, np.int32)
        earlier = np.full(length + 1, NONE, np.int32)
        index_text(copies.text, length, newest, earlier)
        self._place[:] = 0
        self._seen.fill(NONE)
        self.arrays: tuple[Any, ...] = tuple(
            Stage(
                self.weights.factors,
                self.weights.squares,
                self._classes,
                self._place,
                newest,
                earlier,
                self._seen,
            )
        )

    def retract(self, copies: CopyArrays) -> None:
        """Follow the text again, of which the last tokens were taken back."""
        if len(self.weights.factors):
            self._place[:] = 0
            self._seen.fill(NONE)
            follow_again(self.arrays, tuple(copies))
