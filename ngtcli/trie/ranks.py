"""Which tokens a model ranked high after a token, whatever stood before it, in flat arrays.

As Token Recycling's matrix of candidates (Luo et al. 2024), but with weights, so that what was
ranked high often stays: each time, what was there is halved, and the best ids gain 1, 1/2, 1/3, …
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.compiled import njit

WIDTH = 8  # successors kept of a token
_NONE_YET = 1e-3  # a weight below this is none


@njit()
def learn_ranks(tokens: Any, tops: Any, successors: Any, weights: Any, sums: Any) -> None:
    """Take in, after each of `tokens`, its row of `tops`, best first."""
    for i in range(len(tokens)):
        token = tokens[i]
        for j in range(weights.shape[1]):
            weights[token, j] *= 0.5
        for rank in range(tops.shape[1]):
            least, at = 0, -1
            for j in range(weights.shape[1]):
                if weights[token, j] > 0.0 and successors[token, j] == tops[i, rank]:
                    at = j
                if weights[token, j] < weights[token, least]:
                    least = j
            if at < 0:
                at = least
                successors[token, at], weights[token, at] = tops[i, rank], 0.0
            weights[token, at] += 1.0 / (rank + 1)
        sums[token] = 0.0
        for j in range(weights.shape[1]):
            if weights[token, j] < _NONE_YET:
                weights[token, j] = 0.0
            sums[token, 0] += weights[token, j]
            sums[token, 1] += weights[token, j] > 0.0


class Ranks:
    """The table: `successors` int32 and `weights` float32, (vocabulary, WIDTH).

    `sums`, float32 (vocabulary, 2), has the sum of each token's weights and their number.

    >>> ranks = Ranks(9)
    >>> ranks.learn([3], np.array([[7, 5]]))
    >>> ranks.of(3)
    {7: 1.0, 5: 0.5}
    """

    def __init__(self, vocabulary: int) -> None:
        self.successors = np.zeros((vocabulary, WIDTH), np.int32)
        self.weights = np.zeros((vocabulary, WIDTH), np.float32)
        self.sums = np.zeros((vocabulary, 2), np.float32)

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        """Successors, weights and sums."""
        return self.successors, self.weights, self.sums

    def learn(self, tokens: Any, tops: npt.NDArray[np.int64]) -> None:
        """Learn a row of ids, best first, for each of `tokens`."""
        learn_ranks(np.asarray(tokens, np.int32), tops, *self.arrays)

    def of(self, token: int) -> dict[int, float]:
        """What may follow `token`, with weights."""
        row = zip(self.successors[token].tolist(), self.weights[token].tolist(), strict=True)
        return {successor: weight for successor, weight in row if weight > 0}
