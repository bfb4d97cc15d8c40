"""Whether the background knows a text's language, told by how well it predicts the text."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ngtcli.draft.auto.config import CONFIG
from ngtcli.system.compiled import njit
from ngtcli.trie.background import COLUMNS, BackgroundCounts
from ngtcli.trie.background_search import count_in, find_row, total_of
from ngtcli.trie.counts import NONE

_ORDERS = CONFIG.orders


@njit()
def follow(rows: Any, matches: Any, ids: Any, mean: float, weight: float, rate: float) -> float:
    """The mean probability of `ids`, int32, each as its longest match predicts it.

    `matches`, int32 (orders,), are the nodes of the last k tokens; they are extended in place.
    `mean` counts as `weight` tokens; each token's share of the new mean is at least `rate`.
    """
    for token in ids:
        probability, longest = 0.0, True
        for order in range(len(matches) - 1, -1, -1):
            node, child = matches[order], NONE
            if node != NONE:
                child, total = find_row(rows, node, token), total_of(rows, node)
                if longest and total > 0:
                    longest = False
                    if child != NONE:
                        probability = count_in(rows, child, total) / total
            if order + 1 < len(matches):
                matches[order + 1] = child
        weight = min(weight + 1.0, 1.0 / rate)
        mean += (probability - mean) / weight
    return mean


class Familiarity:
    """Follows a prompt and its answer. Without a background every text is familiar."""

    def __init__(self) -> None:
        self._rows = np.zeros((2, COLUMNS), np.int32)
        self._matches = np.full(_ORDERS, NONE, np.int32)
        self._mean, self._least = 1.0, 0.0

    @property
    def familiar(self) -> bool:
        """Whether the background predicts the text as it does one of its language."""
        return self._mean >= self._least

    def start(self, background: BackgroundCounts, ids: Sequence[int], vocabulary: int) -> None:
        """Begin with the end of a prompt; `vocabulary` is 0 where it is not known."""
        self._rows, self._mean, self._least = background.nodes, 1.0, 0.0
        if not len(background):
            return
        known = vocabulary or CONFIG.word_vocabulary
        a_word = max(1.0, (CONFIG.word_vocabulary / known) ** CONFIG.word_power)
        self._least = CONFIG.least_familiar * a_word
        self._matches[:], self._matches[0] = NONE, 0
        read = np.asarray(ids[-CONFIG.familiar_prompt :], np.int32)
        self._mean = follow(
            self._rows, self._matches, read, 2 * self._least, CONFIG.familiar_start, 1e-9
        )

    def learn(self, tokens: Any) -> None:
        """Go on with emitted tokens, int32."""
        if self._least:
            rate = CONFIG.familiar_rate
            self._mean = follow(self._rows, self._matches, tokens, self._mean, 1.0 / rate, rate)
