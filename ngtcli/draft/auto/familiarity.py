"""Whether the background knows a text's language, told by how well it predicts the text."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ngtcli.draft.auto.config import CONFIG
from ngtcli.system.compiled import njit
from ngtcli.trie.background import BackgroundCounts
from ngtcli.trie.background_search import BackgroundArrays, count_in, find_row, total_of
from ngtcli.trie.counts import NONE

_ORDERS = CONFIG.orders


@njit()
def mean_of(arrays: Any, ids: Any, mean: float, weight: float) -> float:
    """The mean probability of `ids`, int32, each as its longest match predicts it.

    `arrays` are those of BackgroundArrays in a plain tuple; `mean` counts as `weight` tokens.
    """
    background = BackgroundArrays(arrays[0], arrays[1])
    matches = np.full(_ORDERS, NONE, np.int32)  # the nodes of the last k tokens
    matches[0] = 0
    for token in ids:
        probability, longest = 0.0, True
        for order in range(len(matches) - 1, -1, -1):
            node, child = matches[order], NONE
            if node != NONE:
                child, total = find_row(background, node, token), total_of(background.nodes, node)
                if longest and total > 0 and order > 0:
                    longest = False
                    if child != NONE:
                        probability = count_in(background.nodes, child, total) / total
            if order + 1 < len(matches):
                matches[order + 1] = child
        weight += 1.0
        mean += (probability - mean) / weight
    return mean


class Familiarity:
    """Of a prompt and its answer. Without a background every text is familiar.

    `mean` is the mean probability that the background gives a token; emitted tokens move it on
    where they are learned (`learn_output`), each with a share of CONFIG.familiar_rate.
    """

    def __init__(self) -> None:
        self.mean, self._least = 1.0, 0.0

    @property
    def familiar(self) -> bool:
        """Whether the background predicts the text as it does one of its language."""
        return self.mean >= self._least

    def start(self, background: BackgroundCounts, ids: Sequence[int], vocabulary: int) -> None:
        """Begin with the end of a prompt; `vocabulary` is 0 where it is not known."""
        self.mean, self._least = 1.0, 0.0
        if not len(background):
            return
        known = vocabulary or CONFIG.word_vocabulary
        a_word = max(1.0, (CONFIG.word_vocabulary / known) ** CONFIG.word_power)
        self._least = CONFIG.least_familiar * a_word
        read = np.asarray(ids[-CONFIG.familiar_prompt :], np.int32)
        arrays = background.nodes, background.by_token
        self.mean = mean_of(arrays, read, 2 * self._least, CONFIG.familiar_start)
