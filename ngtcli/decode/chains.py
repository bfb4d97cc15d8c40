"""Chains of drafts, for a model whose own cache follows no draft tree.

A pass reads the last token and a chain below it. What is not accepted is taken back: the cache
crops it (keys and values, sliding windows, the inputs of convolutions), or else, as the states of
recurrent layers cannot be cropped, the state from before the pass is restored. The accepted tokens
are then read again, at the beginning of the next pass: that takes rows, and seldom a pass.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from ngtcli.decode.plain import CROPS, PlainRows

# Tokens read again at the beginning of a pass, at most; more get a pass of their own. Each costs a
# row in every pass until then. With a pass of a + b r seconds over r rows and s tokens accepted a
# step, sqrt(2 a s / b) is best: 8 for s = 3 and b = a / 10. Guess.
_MOST_UNREAD = 8
_GROWN = ("keys", "values")  # tensors of a cache's layer to which a pass appends rows

# A model's state, by its parameters' names, and the values of its caches and of their layers.
_Saved = tuple[dict[str, Any], list[tuple[Any, dict[str, Any]]]]


class ChainRows(PlainRows):
    """As PlainRows, but `score` takes a chain too, of which `keep` keeps the beginning.

    `length` leaves out the tokens that are to be read again. A chain whose pass raised left no
    trace. Raises NotImplementedError, or another error, at one that the cache cannot take back.
    """

    _crops = False  # whether the cache takes back what is rejected of the last pass
    _before: _Saved | None = None  # the state before the last pass, if that was over a chain

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._unread: list[int] = []  # accepted tokens that the state before the last pass lacks
        self._chain: list[int] = []  # what the last pass read besides

    def score(self, ids: Sequence[int]) -> Tensor:
        """One pass over the last token and the k of a chain: scores (k + 1, vocabulary).

        A chain before it of which nothing was kept, not even its root, is taken back.
        """
        self.keep(0)
        is_single = len(ids) == 1
        if not is_single and len(self._unread) > _MOST_UNREAD:
            self.read(self._unread)
            self._unread = []
        self.read_again = is_single and bool(self._unread)
        self._crops = self._way.kind == CROPS and self.length > 0
        for cache in _caches(self._state) if self._crops else ():
            if not cache.is_croppable:
                raise NotImplementedError("a cache that cannot be cropped")
            cache.activate_past_recording()  # what a crop after the pass needs
        self._before = None if is_single else _saved(self._state)
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
        read, kept, rejected = self._chain, self._chain[:count], len(self._chain) - count
        self._chain = []
        if self._crops:
            for cache in _caches(self._state):
                cache.crop(-rejected)
            self.length -= rejected
        elif rejected and self._before:
            self._restore()
            self.length -= len(self._unread) + len(read)
            self._unread += kept
        else:  # a single token stays: it is read without a copy of the state
            self._unread = []
        self._before = None

    def _restore(self) -> None:
        if self._before:
            self._state, parts = self._before
            for part, values in parts:
                for name, value in values.items():
                    is_rows = name in _GROWN and isinstance(value, int)
                    setattr(part, name, getattr(part, name)[..., :value, :] if is_rows else value)
        self._before = None


def _caches(state: dict[str, Any]) -> list[Any]:
    return [one for one in state.values() if isinstance(one, Cache)]


def _saved(state: dict[str, Any]) -> _Saved:
    """What `state` is restored from; of keys and values that only grow, the number of rows."""
    own = {name: one if isinstance(one, Cache) else _copied(one) for name, one in state.items()}
    parts = [part for cache in _caches(state) for part in (cache, *cache.layers)]
    return own, [(part, _values(part)) for part in parts]


def _values(part: Any) -> dict[str, Any]:
    found = {}
    for name, value in vars(part).items():
        if name not in _GROWN or value is None:
            found[name] = _copied(value)
        else:  # a sliding window drops its first rows: the old tensors stay
            found[name] = value if part.is_sliding else value.shape[-2]
    return found


def _copied(value: Any) -> Any:
    """A copy with copies of all tensors in lists and dictionaries."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if type(value) is list else value
