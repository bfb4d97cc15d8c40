"""The model's scores as a source: which tokens it ranked high after a token, in flat arrays.

As Token Recycling's matrix of candidates (Luo et al. 2024), but with weights, so that what was
ranked high often is kept: each time, the weights are halved, and the best ids gain 1, 1/2, 1/3, …
How much the scores predict decides how often they are read.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.config import CONFIG
from ngtcli.system.compiled import njit

WIDTH = CONFIG.ranks_kept
SUM, DISTINCT = range(2)  # columns of `sums`
_DECAY, _MIN_WEIGHT = CONFIG.rank_decay, CONFIG.min_rank_weight


class RankArrays(NamedTuple):
    """`successors` int32 and `weights` float32, (vocabulary, WIDTH).

    `sums`, float32 (vocabulary, 2), has the sum of each token's weights and how many there are.
    """

    successors: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    sums: npt.NDArray[np.float32]


@njit()
def learn_ranks(tokens: Any, tops: Any, ranks: Any) -> None:
    """Learn, after each of `tokens` int32 (n,), its row of `tops` int64 (n, ranks), best first."""
    for i in range(len(tokens)):
        successors, weights = ranks.successors[tokens[i]], ranks.weights[tokens[i]]
        for j in range(len(weights)):
            weights[j] *= _DECAY
        for rank in range(tops.shape[1]):
            _gain(successors, weights, tops[i, rank], 1.0 / (rank + 1))
        total, distinct = np.float32(0.0), np.float32(0.0)
        for j in range(len(weights)):
            if weights[j] < _MIN_WEIGHT:
                weights[j] = 0.0
            total += weights[j]
            distinct += weights[j] > 0.0
        ranks.sums[tokens[i], SUM], ranks.sums[tokens[i], DISTINCT] = total, distinct


@njit(inline="always")
def _gain(successors: Any, weights: Any, successor: int, gain: float) -> None:
    """Add to the weight of a successor; a new one takes the place of the weakest."""
    weakest, place = 0, -1
    for j in range(len(weights)):
        if weights[j] > 0.0 and successors[j] == successor:
            place = j
        if weights[j] < weights[weakest]:
            weakest = j
    if place < 0:
        place = weakest
        successors[place], weights[place] = successor, 0.0
    weights[place] += gain


class Ranks:
    """The table for a vocabulary of so many tokens.

    >>> ranks = Ranks(9)
    >>> ranks.learn([3], np.array([[7, 5]]))
    >>> ranks.of(3)
    {7: 1.0, 5: 0.5}
    """

    def __init__(self, vocabulary: int) -> None:
        self.arrays = RankArrays(
            np.zeros((vocabulary, WIDTH), np.int32),
            np.zeros((vocabulary, WIDTH), np.float32),
            np.zeros((vocabulary, 2), np.float32),
        )

    @property
    def vocabulary(self) -> int:
        """How many tokens it has rows for."""
        return len(self.arrays.weights)

    def learn(self, tokens: Any, tops: npt.NDArray[np.int64]) -> None:
        """Learn a row of ids, best first, for each of `tokens`."""
        learn_ranks(np.asarray(tokens, np.int32), tops, self.arrays)

    def of(self, token: int) -> dict[int, float]:
        """What may follow `token`, with weights."""
        row = zip(
            self.arrays.successors[token].tolist(), self.arrays.weights[token].tolist(), strict=True
        )
        return {successor: weight for successor, weight in row if weight > 0}
