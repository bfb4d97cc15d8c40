"""The tallies by which escape probabilities are learned online."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.learning import update_escapes

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TallyChanges:
    """The tallies that some tokens changed.

    Attributes:
        cells: int64 (changes,), indices into the flat tallies.
        before: float64 (changes,), the tallies before the tokens.
        after: The same after them.
    """

    cells: npt.NDArray[np.int64]
    before: Floats
    after: Floats


class EscapeTallies:
    """Tallies that begin as `trust` observations of initial escape probabilities, fewer for heads.

    Attributes:
        heads: The row of the first learned head; without heads, the number of rows.
        predicted: float64 (sources, orders, buckets), the expected number of tokens that a match
            predicted.
        reached: The same for the number of tokens that were left for the match.
        escape: 1 - predicted / reached.
        recent: float64 (sources, 2), for the tokens learned last only, over all orders and buckets:
            how many were left for a source, and by how much a head raised their probabilities
            above those of the other sources.
        arrays: escape, predicted, reached, recent.
    """

    def __init__(self, escapes: Floats, trust: float, heads: int = 0) -> None:
        """Begin with `escapes`, float64 (sources, orders, buckets), the last `heads` of heads."""
        self._trust = trust
        self.heads = len(escapes) - heads
        self.escape = np.empty(escapes.shape)
        self._tallies = np.stack([(1.0 - escapes) * trust, np.full(escapes.shape, float(trust))])
        self.predicted, self.reached = self._tallies
        of_heads = CONFIG.guess_trust / trust
        self.predicted[self.heads :] *= of_heads
        self.reached[self.heads :] *= of_heads
        self.recent = np.zeros((len(escapes), 2))
        self.arrays = self.escape, self.predicted, self.reached, self.recent
        update_escapes(self.arrays)

    def restore(self, predicted: Floats | None, reached: Floats | None) -> None:
        """Restore stored tallies, scaled down to `trust` observations at most.

        Nothing changes if there are none, or if they have another shape.
        """
        if predicted is None or reached is None:
            return
        predicted_of_sources = self.predicted[: self.heads]
        reached_of_sources = self.reached[: self.heads]
        shape = reached_of_sources.shape
        if not predicted.size == reached.size == reached_of_sources.size:
            return
        predicted = predicted.reshape(shape)
        reached = reached.reshape(shape)
        weight = np.minimum(1.0, self._trust / np.maximum(reached, 1e-9))
        predicted_of_sources[:] = predicted * weight
        reached_of_sources[:] = np.maximum(reached * weight, 1e-3)
        update_escapes(self.arrays)

    def bound(self) -> None:
        """Limit the weight of observations, so that a long-running process still learns."""
        max_reached = max(CONFIG.most_observed, self._trust)
        weight = np.minimum(1.0, max_reached / np.maximum(self.reached, 1e-9))
        self.predicted *= weight
        self.reached *= weight

    def copied(self) -> Floats:
        """Copy the tallies, for `changes_since`."""
        return self._tallies.copy()

    def changes_since(self, before: Floats) -> TallyChanges:
        """Return the changes of the tallies since `before`."""
        now = self._tallies.reshape(-1)
        earlier = before.reshape(-1)
        changed = np.flatnonzero(now != earlier)
        return TallyChanges(changed, earlier[changed], now[changed])

    def undo(self, changes: TallyChanges) -> None:
        """Undo changes; later changes by other sequences with the same tallies stay."""
        tallies = self._tallies.reshape(-1)
        changed = changes.cells
        learned = changes.after - changes.before
        # If nothing was learned since, nothing is rounded.
        is_last = tallies[changed] == changes.after
        tallies[changed] = np.where(is_last, changes.before, tallies[changed] - learned)
        predicted, reached = self._tallies.reshape(2, -1)
        cells = np.unique(changed % len(reached))
        reached[cells] = np.maximum(reached[cells], 1e-3)
        predicted[cells] = np.clip(predicted[cells], 0.0, reached[cells])
        update_escapes(self.arrays)

    def trust_heads(self) -> None:
        """Trust all proposals of heads."""
        self.predicted[self.heads :] = self._trust
        self.reached[self.heads :] = self._trust
        update_escapes(self.arrays)

    @property
    def stored(self) -> tuple[Floats, Floats]:
        """Return `predicted` and `reached` to store for other answers, without those of heads."""
        return self.predicted[: self.heads].copy(), self.reached[: self.heads].copy()
