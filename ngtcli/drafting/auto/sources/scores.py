"""The source of tokens that the model itself ranked high after a token in earlier forward passes.

This is the candidate matrix of Token Recycling (Luo et al. 2024), but with weights, so that tokens
which were often ranked high are kept: each time a token's logits are seen, the weights of its
successors are halved, and the best gain 1, 1/2, 1/3, …
"""

from typing import Any

import numpy as np

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.forms import ROW, ROW_BUCKET, ROW_TOTAL, RowArrays, bucket_of
from ngtcli.drafting.auto.sources.source import Floats, Ints, Resources, Source, same_everywhere
from ngtcli.drafting.drafter import Context
from ngtcli.drafting.origins import SCORES
from ngtcli.system.compiled import njit

_DECAY = CONFIG.rank_decay
_MIN_WEIGHT = CONFIG.min_rank_weight


def no_ranks(vocab_size: int) -> RowArrays:
    """Make a row for each token, with nothing learned."""
    width = CONFIG.ranks_kept
    return RowArrays(
        np.zeros((vocab_size, width), np.int32),
        np.zeros((vocab_size, width), np.float32),
        np.zeros((vocab_size, 2), np.float32),
        np.zeros((0, 4), np.int32),
    )


@njit()
def learn_ranks(tokens: Any, top_ids: Any, plain: Any) -> None:
    """Learn the best token ids after each of some tokens.

    Nothing is learned after a token beyond the vocabulary, which has no row.

    Args:
        tokens: int32 (n,).
        top_ids: int64 (n, ranks), the best first.
        plain: RowArrays as a plain tuple.
    """
    rows = RowArrays(plain[0], plain[1], plain[2], plain[3])
    for i in range(len(tokens)):
        token = tokens[i]
        if token < 0 or token >= len(rows.tokens):
            continue
        successors = rows.tokens[token]
        weights = rows.weights[token]
        for j in range(len(weights)):
            weights[j] *= _DECAY
        for rank in range(top_ids.shape[1]):
            _gain(successors, weights, top_ids[i, rank], 1.0 / (rank + 1))
        total = np.float32(0.0)
        distinct = 0
        for j in range(len(weights)):
            if weights[j] < _MIN_WEIGHT:
                weights[j] = 0.0
            total += weights[j]
            distinct += weights[j] > 0.0
        rows.facts[token, ROW_TOTAL] = total
        rows.facts[token, ROW_BUCKET] = bucket_of(float(total), distinct)


@njit(inline="always")
def _gain(successors: Any, weights: Any, successor: int, gain: float) -> None:
    """Add to the weight of a successor; a new one replaces the weakest."""
    weakest = 0
    place = -1
    for j in range(len(weights)):
        if weights[j] > 0.0 and successors[j] == successor:
            place = j
        if weights[j] < weights[weakest]:
            weakest = j
    if place < 0:
        place = weakest
        successors[place] = successor
        weights[place] = 0.0
    weights[place] += gain


class ScoreSource(Source):
    """The model's own runners-up after each token.

    They are kept from answer to answer, except for private sequences, which begin without any.
    """

    origin = SCORES
    form = ROW
    orders = 1, 1

    def __init__(self, resources: Resources) -> None:
        self._is_private = False
        self._start(0)

    def _start(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.ranks = no_ranks(vocab_size)
        self.table = tuple(self.ranks)

    @classmethod
    def first_escapes(cls) -> Floats:
        """Return guessed escapes, which the first steps correct; no recording has logits."""
        escapes = same_everywhere(CONFIG.scores_escape)
        escapes[:, 0] = CONFIG.unused_escape
        return escapes

    def begin(self, context: Context) -> None:
        """Remove ranks that are private, or of another vocabulary."""
        if context.vocabulary != self.vocab_size or context.private or self._is_private:
            self._start(context.vocabulary)
        self._is_private = context.private

    def learn(self, tokens: Ints, top_ids: Any) -> None:
        """Learn the best token ids, int64 (n, ranks), after each of `tokens`, int32 (n,)."""
        learn_ranks(tokens, top_ids, self.table)
