"""Counts of earlier answers, which the sequences of a process may share."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.tries.counts import CountTrie

Ints = npt.NDArray[np.int32]


class PoolCounts:
    """Counts of earlier answers and of `texts` that stay; several sequences may share them.

    After a full recount the trie is a new one; a sequence that has the old one continues with it.
    """

    def __init__(self, texts: Sequence[Ints] = (), answers: Sequence[Ints] = ()) -> None:
        self._texts = texts
        self._count_again(answers)

    def add(self, pieces: Sequence[Ints], pool: Pool) -> None:
        """Count the pieces of an answer that the pool has just learned."""
        new_tokens = sum(map(len, pieces))
        if self.trie.tokens - self._text_tokens + new_tokens > 2 * pool.limit:
            self._count_again(pool.answers)  # the oldest answers cannot be taken out of counts
        else:
            self._count(pieces)

    def _count_again(self, answers: Sequence[Ints]) -> None:
        self.trie = CountTrie(CONFIG.orders)
        self._count(self._texts)
        self._text_tokens = self.trie.tokens
        self._count(answers)

    def _count(self, texts: Iterable[Ints]) -> None:
        for text in texts:
            self.trie.end()
            self.trie.extend(text)
