"""One sequence in a cache of the model's own, which follows no draft tree.

Some models decode so a token a forward pass. For others a forward pass reads the last token and a
chain below it. What is rejected is taken back: the cache crops it (keys and values, sliding
windows, the inputs of convolutions), or else, as the states of recurrent layers cannot be cropped,
the state from before the forward pass is restored. The accepted tokens are then read again, at the
beginning of the next forward pass: that takes query tokens, and seldom a forward pass.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache

from ngtcli.decoding.kv_cache import CHUNK
from ngtcli.decoding.support import DraftSupport, ExecutionMode
from ngtcli.models.hf import forward_parameters

# Names of a model's state from one forward pass to the next.
STATES = ("past_key_values", "cache_params", "state")
# Tokens read again at the beginning of a forward pass, at most; more get one of their own. Each
# costs a query token in every forward pass until then. With a forward pass of a + b r seconds over
# r query tokens and s tokens accepted a step, sqrt(2 a s / b) is best: 8 for s = 3 and b = a / 10.
# Guess.
_MAX_UNREAD = 8
_GROWN = ("keys", "values")  # tensors of a cache's layer that a forward pass makes longer


class StateSlot:
    """Reads one sequence from its beginning to its end, in the model's own cache.

    Attributes:
        length: The tokens that were read, without those that are to be read again.
        read_again: Whether the last forward pass, over one token, also read tokens that an earlier
            one had read.
    """

    def __init__(self, hf: Any, mode: ExecutionMode) -> None:
        self._hf = hf
        self._mode = mode
        self._accepts = forward_parameters(hf)
        self._state: dict[str, Any] = {}
        # As generate does: some models fill the cache that they are given, and return none.
        has_own_cache = mode.support is not DraftSupport.TREES
        if has_own_cache and "past_key_values" in self._accepts:
            if hf._supports_default_dynamic_cache():
                config = hf.config.get_text_config()
                self._state["past_key_values"] = DynamicCache(config=config)
        self.length = 0
        self.read_again = False
        self._unread: list[int] = []  # accepted tokens that the state before the last pass lacks
        self._chain: list[int] = []  # what the last forward pass read besides
        self._crops = False  # whether the cache takes back what is rejected of it
        self._before: dict[str, Any] | None = None  # the state before a forward pass over a chain

    def prefill(
        self,
        ids: Sequence[int],
        chunk: int = CHUNK,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Read `ids`, in one forward pass where the model carries no state across chunks.

        `progress` is called before each chunk with the number of tokens read.
        """
        if not self._mode.chunks:
            chunk = max(1, len(ids))
        for first in range(0, len(ids), chunk):
            progress(first)
            self.read(ids[first : first + chunk])

    @torch.inference_mode()
    def read(self, ids: Sequence[int], last_logits: int = 1) -> Tensor:
        """One forward pass over `ids`, by which the sequence grows.

        Returns:
            The logits (last_logits, vocab_size) after the last of them.
        """
        end = self.length + len(ids)
        device = self._hf.device
        inputs: dict[str, Any] = {"input_ids": torch.tensor([list(ids)], device=device)}
        if "logits_to_keep" in self._accepts:
            inputs["logits_to_keep"] = last_logits
        if not self._accepts.isdisjoint(("position_ids", "kwargs")):
            inputs["position_ids"] = torch.arange(self.length, end, device=device)[None]
        output = self._hf(**inputs, use_cache=True, **self._state)
        for name in STATES:
            state = getattr(output, name, None)
            if state is not None:
                self._state[name] = state
        if not self._state:
            raise NotImplementedError("a state of an unknown name")
        self.length = end
        logits: Tensor = output.logits[0, -last_logits:]
        return logits

    def score(self, ids: Sequence[int]) -> Tensor:
        """One forward pass over the last token and the k of a chain.

        A chain before it of which nothing was kept, not even its root, is taken back. One whose
        forward pass raised left no trace.

        Returns:
            The logits (k + 1, vocab_size).

        Raises:
            NotImplementedError: Or another error, at a chain that the cache cannot take back.
        """
        self._keep(0)
        is_single = len(ids) == 1
        if not is_single and len(self._unread) > _MAX_UNREAD:
            self.read(self._unread)
            self._unread = []
        self.read_again = is_single and bool(self._unread)
        self._crops = self._mode.crops and self.length > 0
        for cache in _caches(self._state) if self._crops else ():
            if not cache.is_croppable:
                raise NotImplementedError("a cache that cannot be cropped")
            cache.activate_past_recording()  # what a crop after the forward pass needs
        self._before = None if is_single else _copied(self._state)
        try:
            logits = self.read([*self._unread, *ids], len(ids))
        except BaseException:
            if self._before is not None:
                self._state = _restored(self._before, self._state)
                self._before = None
            raise
        self._chain = [*ids]
        return logits

    def keep(self, nodes: Sequence[int]) -> None:
        """Keep the root and so many nodes of the last chain, take back the others."""
        self._keep(len(nodes) + 1)

    def cut(self, length: int) -> None:
        """Nothing: what was read stays."""

    def _keep(self, count: int) -> None:
        """Keep the first `count` tokens of the last forward pass, take back the others."""
        if not self._chain:
            return
        chain = self._chain
        accepted = chain[:count]
        rejected = len(chain) - count
        self._chain = []
        if self._crops:
            for cache in _caches(self._state):
                cache.crop(-rejected)
            self.length -= rejected
        elif rejected and self._before is not None:
            self._state = _restored(self._before, self._state)
            self.length -= len(self._unread) + len(chain)
            self._unread += accepted
        else:  # a single token stays: it is read without a copy of the state
            self._unread = []
        self._before = None


def _caches(state: dict[str, Any]) -> list[Any]:
    return [value for value in state.values() if isinstance(value, Cache)]


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """Copy a state; of keys and values that only grow, the copy has the number of positions.

    Keys and values of a sliding window, which drops its first positions, are not copied: a forward
    pass makes new tensors.
    """
    copies: dict[int, Any] = {}  # as `deepcopy` takes what is copied already, by id
    for cache in _caches(state):
        for layer in cache.layers:
            for name in _GROWN:
                states = getattr(layer, name, None)
                if isinstance(states, Tensor) and states.ndim > 1:
                    copies[id(states)] = states if layer.is_sliding else states.shape[-2]
    return deepcopy(state, copies)


def _restored(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `_copied` with the keys and values that the present state still has."""
    for copied, cache in zip(_caches(before), _caches(now), strict=False):
        for old, layer in zip(copied.layers, cache.layers, strict=False):
            for name in _GROWN:
                length = getattr(old, name, None)
                if isinstance(length, int):
                    setattr(old, name, getattr(layer, name)[..., :length, :])
    return before
