"""One sequence in a cache of the model's own, which follows no draft tree.

Some models decode plainly so, a token a pass. For others a pass reads the last token and a chain
below it. What is not accepted is taken back: the cache crops it (keys and values, sliding windows,
the inputs of convolutions), or else, as the states of recurrent layers cannot be cropped, the state
from before the pass is restored. The accepted tokens are then read again, at the beginning of the
next pass: that takes rows, and seldom a pass.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache

from ngtcli.decoding.support import DraftSupport, ExecutionMode
from ngtcli.models.hf import accepted

STATES = ("past_key_values", "cache_params", "state")  # names of a model's state from pass to pass
# Tokens read again at the beginning of a pass, at most; more get a pass of their own. Each costs a
# row in every pass until then. With a pass of a + b r seconds over r rows and s tokens accepted a
# step, sqrt(2 a s / b) is best: 8 for s = 3 and b = a / 10. Guess.
_MOST_UNREAD = 8
_GROWN = ("keys", "values")  # tensors of a cache's layer to which a pass appends rows


class OwnRows:
    """Reads one sequence from its beginning to its end, in the model's own cache.

    `length` tokens of it are read, without those that are to be read again. `read_again`: whether
    the last pass, over one row, also read tokens that a pass had read before.
    """

    def __init__(self, hf: Any, mode: ExecutionMode) -> None:
        self._hf = hf
        self._mode = mode
        self._accepts = accepted(hf)
        self._state: dict[str, Any] = {}
        # As generate does: some models fill the cache that they are given, and return none.
        has_own_cache = mode.support is not DraftSupport.TREES
        takes = has_own_cache and "past_key_values" in self._accepts
        if takes and hf._supports_default_dynamic_cache():
            config = hf.config.get_text_config()
            self._state["past_key_values"] = DynamicCache(config=config)
        self.length, self.read_again = 0, False
        self._unread: list[int] = []  # accepted tokens that the state before the last pass lacks
        self._chain: list[int] = []  # what the last pass read besides
        self._crops = False  # whether the cache takes back what is rejected of the last pass
        self._before: dict[str, Any] | None = None  # the state before a pass over a chain

    def prefill(self, ids: Sequence[int], chunk: int, progress: Callable[[int], object]) -> None:
        """Read `ids`, in one pass where the model does not carry its state across chunks.

        `progress` is called before each chunk with the number of ids read.
        """
        chunk = chunk if self._mode.chunks else max(1, len(ids))
        for at in range(0, len(ids), chunk):
            progress(at)
            self.read(ids[at : at + chunk])

    def read(self, ids: Sequence[int], scored: int = 1) -> Tensor:
        """One pass over `ids`, by which the sequence grows.

        Scores (scored, vocabulary) after the last `scored` of them.
        """
        end, device = self.length + len(ids), self._hf.device
        inputs: dict[str, Any] = {"input_ids": torch.tensor([list(ids)], device=device)}
        if "logits_to_keep" in self._accepts:
            inputs["logits_to_keep"] = scored
        if not self._accepts.isdisjoint(("position_ids", "kwargs")):
            inputs["position_ids"] = torch.arange(self.length, end, device=device)[None]
        output = self._hf(**inputs, use_cache=True, **self._state)
        self._state |= {n: s for n in STATES if (s := getattr(output, n, None)) is not None}
        if not self._state:
            raise NotImplementedError("a state of an unknown name")
        self.length = end
        scores: Tensor = output.logits[0, -scored:]
        return scores

    def score(self, ids: Sequence[int]) -> Tensor:
        """One pass over the last token and the k of a chain: scores (k + 1, vocabulary).

        A chain before it of which nothing was kept, not even its root, is taken back. One whose
        pass raised left no trace. Raises NotImplementedError, or another error, at one that the
        cache cannot take back.
        """
        self.keep(0)
        is_single = len(ids) == 1
        if not is_single and len(self._unread) > _MOST_UNREAD:
            self.read(self._unread)
            self._unread = []
        self.read_again = is_single and bool(self._unread)
        self._crops = self._mode.crops and self.length > 0
        for cache in _caches(self._state) if self._crops else ():
            if not cache.is_croppable:
                raise NotImplementedError("a cache that cannot be cropped")
            cache.activate_past_recording()  # what a crop after the pass needs
        self._before = None if is_single else _copied(self._state)
        try:
            scores = self.read([*self._unread, *ids], len(ids))
        except BaseException:
            if self._before is not None:
                self._state, self._before = _restored(self._before, self._state), None
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
        elif rejected and self._before is not None:
            self._state = _restored(self._before, self._state)
            self.length -= len(self._unread) + len(read)
            self._unread += kept
        else:  # a single token stays: it is read without a copy of the state
            self._unread = []
        self._before = None


def _caches(state: dict[str, Any]) -> list[Any]:
    return [one for one in state.values() if isinstance(one, Cache)]


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """A copy, which has of keys and values that only grow the number of rows.

    Those of a sliding window, which drops its first rows, stay where they are: a pass makes others.
    """
    known = dict[int, Any]()
    for layer in (layer for cache in _caches(state) for layer in cache.layers):
        for one in (getattr(layer, name, None) for name in _GROWN):
            if isinstance(one, Tensor) and one.ndim > 1:
                known[id(one)] = one if layer.is_sliding else one.shape[-2]
    return deepcopy(state, known)


def _restored(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The state that `_copied` gave, with rows of the one that took its place."""
    for copied, cache in zip(_caches(before), _caches(now), strict=False):
        for one, layer in zip(copied.layers, cache.layers, strict=False):
            for name in _GROWN:
                if isinstance(rows := getattr(one, name, None), int):
                    setattr(one, name, getattr(layer, name)[..., :rows, :])
    return before
