"""Tables of what may follow: what the model ranked high after a token, what heads guess. Compiled.

What was ranked high is as Token Recycling's matrix of candidates (Luo et al. 2024), but with
weights, so that what was ranked high often is kept: each time, the weights are halved, and the best
ids gain 1, 1/2, 1/3, … The guesses of a head stand in a table with a row for each state
(draft/guesses.py). A head's match is the state of the node, kept in its row of the matches at order
1: a copied token leads to a state as a guessed one does, if the head was asked there.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.tries.counts import NONE
from ngtcli.system.compiled import njit, unowned

SUM, DISTINCT = range(2)  # columns of `sums`
LED_BY, FIRST_BELOW, NEXT_BESIDE, ANY_BELOW, DEPTH = range(5)  # of `links`
_DECAY, _MIN_WEIGHT = CONFIG.rank_decay, CONFIG.min_rank_weight
_SURE = CONFIG.guess_sure


class RankArrays(NamedTuple):
    """`tokens` int32 and `weights` float32, (vocabulary, kept), 0.0 for none.

    `sums`, float32 (vocabulary, 2), has the sum of each token's weights and how many there are.
    """

    tokens: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    sums: npt.NDArray[np.float32]


class GuessArrays(NamedTuple):
    """By head and state: `tokens` int32 and `weights` float64 (heads, states, WIDTH), 0.0 for none.

    Weights are probabilities, falling. `links`, int32 (heads, states, 5): the token that leads
    there, the first state below, the next one with the same parent, the state below by any token,
    NONE where there is none, and the depth.
    """

    tokens: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float64]
    links: npt.NDArray[np.int32]


@unowned
def weight_of(tokens: Any, weights: Any, token: int) -> float:
    """The weight of `token` in the row of a table."""
    for i in range(len(tokens)):
        if tokens[i] == token and weights[i] > 0.0:
            return float(weights[i])
    return 0.0


@njit()
def learn_ranks(tokens: Any, tops: Any, ranks: Any) -> None:
    """Learn, after each of `tokens` int32 (n,), its row of `tops` int64 (n, ranks), best first.

    Nothing is learned after a token beyond the vocabulary, for which `ranks` has no row.
    """
    for i in range(len(tokens)):
        if tokens[i] < 0 or tokens[i] >= len(ranks.tokens):
            continue
        successors, weights = ranks.tokens[tokens[i]], ranks.weights[tokens[i]]
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


@njit(inline="always")
def state_below(guesses: Any, head: int, state: int, token: int) -> Any:
    """The state that `token` leads to, NONE if no guess was made there."""
    if state == NONE or guesses.links[head, state, ANY_BELOW] != NONE:
        return NONE if state == NONE else guesses.links[head, state, ANY_BELOW]
    below = guesses.links[head, state, FIRST_BELOW]
    while below != NONE and guesses.links[head, below, LED_BY] != token:
        below = guesses.links[head, below, NEXT_BESIDE]
    return below


@njit(inline="always")
def guess_bucket(guesses: Any, head: int, state: int) -> int:
    """The bucket of a guess: how sure it is, and whether its head has read the last token."""
    top, level = guesses.weights[head, state, 0], 0
    while level < len(_SURE) and top < _SURE[level]:
        level += 1
    deeper = guesses.links[head, state, DEPTH] > 0
    return level + (len(_SURE) + 1 if deeper else 0)
