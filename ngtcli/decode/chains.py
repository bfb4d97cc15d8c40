"""Chains of drafts, for a model whose own cache follows no draft tree.

A pass reads the last token and a chain below it. What is not accepted is taken back: the cache
crops it (keys and values, sliding windows, the inputs of convolutions), or else, as the states of
recurrent layers cannot be cropped, the state from before the pass is restored. The accepted tokens
are then read again, at the beginning of the next pass: that takes rows, and seldom a pass.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from ngtcli.decode.plain import CROPS, PlainRows, Way

# Tokens read again at the beginning of a pass, at most; more get a pass of their own. Each costs a
# row in every pass until then. With a pass of a + b r seconds over r rows and s tokens accepted a
# step, sqrt(2 a s / b) is best: 8 for s = 3 and b = a / 10. Guess.
_MOST_UNREAD = 8
_GROWN = {"keys", "values"}  # tensors of a cache's layer that a pass replaces and does not change


class ChainRows(PlainRows):
    """As PlainRows, but `score` takes a chain too, of which `keep` keeps the beginning.

    `length` leaves out the tokens that are to be read again. A pass that raised left no trace.
    Raises NotImplementedError, or another error, at a chain that the cache cannot take back.
    """

    def __init__(self, hf: Any, way: Way) -> None:
        super().__init__(hf, way)
        self._crops = way.kind == CROPS
        self._records = False  # whether the cache keeps what it needs for a crop
        self._unread: list[int] = []  # accepted tokens that the state has not seen
        self._rows = 0  # of the last pass, those read again left out
        self._chain: list[int] = []  # the ids of the last pass that can be taken back
        self._before: list[tuple[Any, dict[str, Any]]] = []  # the state before that pass

    def score(self, ids: Sequence[int]) -> Tensor:
        """One pass over the last token and the k of a chain: scores (k + 1, vocabulary).

        A chain before it of which nothing was kept is taken back.
        """
        if self._chain:
            self.keep(self._rows - len(self._chain))
        self._rows, self.read_again = len(ids), len(ids) == 1 and bool(self._unread)
        if len(ids) == 1:
            return self._read_last(ids)
        if self._state:
            return self._read_chain(ids)
        return torch.cat([self._read_last(ids[:1]), self._read_chain(ids[1:])])  # makes the cache

    def _read_last(self, ids: Sequence[int]) -> Tensor:
        scores = self.read([*self._unread, *ids], 1)
        self._unread = []
        if self._records:
            self._cache.crop(0)
        return scores

    def _read_chain(self, ids: Sequence[int]) -> Tensor:
        if len(self._unread) > _MOST_UNREAD:
            self.read(self._unread)
            self._unread = []
        if self._crops:
            if not self._cache.is_croppable:
                raise NotImplementedError("a cache that cannot be cropped")
            self._cache.activate_past_recording()
            self._records = True
        self._before = _saved(self._cache)
        try:
            scores = self.read([*self._unread, *ids], len(ids))
        except BaseException:
            self._restore()
            raise
        self._chain = [*ids]
        return scores

    def keep(self, count: int) -> None:
        """Keep the first `count` tokens of the last pass, take back the others."""
        if not self._chain:
            return
        rejected = self._rows - count
        if self._crops:
            self._cache.crop(-rejected)
            self.length -= rejected
        elif rejected:
            self._restore()
            self.length -= len(self._unread) + len(self._chain)
            self._unread += self._chain[: len(self._chain) - rejected]
        else:
            self._unread = []
        self._chain, self._before = [], []

    @property
    def _cache(self) -> Any:
        return next(state for state in self._state.values() if isinstance(state, Cache))

    def _restore(self) -> None:
        for part, values in self._before:
            vars(part).update(values)
        self._before = []


def _saved(cache: Any) -> list[tuple[Any, dict[str, Any]]]:
    """The values of a cache and of its layers; those that passes change are copied."""
    return [
        (part, {name: v if name in _GROWN else _copied(v) for name, v in vars(part).items()})
        for part in (cache, *cache.layers)
    ]


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if type(value) is list else value
