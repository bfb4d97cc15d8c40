"""How a model is run, and plain decoding for one that cannot verify drafts."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

STATES = ("past_key_values", "cache_params", "state")  # names of a model's state from pass to pass
TREES = "trees"  # drafts are verified, in a cache that can be rolled back
CROPS = "crop"  # drafts are chains; the model's own cache crops what was not accepted
RESTORES = "restore"  # the same; its state from before is restored, accepted tokens are read again
STEPS = "steps"  # one token a pass; the model has a state of its own
REREAD = "reread"  # one token a pass; the model has no state and reads everything again


@dataclass(frozen=True, slots=True)
class Way:
    """How a model is run. `reason`: why it verifies no draft trees, "" if it does.

    `window`: the tree mask applies the configuration's window (kind TREES). `chunks`: the model may
    read a prompt in several passes (other kinds). Raises ValueError for another kind or reason.
    """

    kind: str = TREES
    reason: str = ""
    window: bool = True
    chunks: bool = True

    def __post_init__(self) -> None:
        other = self.kind in (CROPS, RESTORES, STEPS, REREAD) and 0 < len(self.reason) < 200
        if not (other and self.reason.isprintable()) and (self.kind, self.reason) != (TREES, ""):
            raise ValueError("no way to run a model")

    @property
    def takes_chains(self) -> bool:
        """Whether drafts are verified that have no branches, and no others."""
        return self.kind in (CROPS, RESTORES)


class PlainRows:
    """Reads one sequence from its beginning to its end; `length` tokens of it are read.

    `read_again`: whether the last pass, over one row, also read tokens that a pass had read before.
    """

    read_again = False

    def __init__(self, hf: Any, way: Way) -> None:
        self._hf, self._way = hf, way
        self._accepts = accepted(hf)
        self._state: dict[str, Any] = {}
        # As generate does: some models fill the cache that they are given, and return none.
        takes = way.kind not in (TREES, REREAD) and "past_key_values" in self._accepts
        if takes and hf._supports_default_dynamic_cache():
            config = hf.config.get_text_config()
            self._state["past_key_values"] = DynamicCache(config=config)
        self._ids: list[int] = []  # all ids so far, for a model that reads them again at each pass
        self.length = 0

    def prefill(self, ids: Sequence[int], chunk: int, progress: Callable[[int], object]) -> None:
        """Read `ids`, in one pass where the model does not carry its state across chunks.

        `progress` is called before each chunk with the number of ids read.
        """
        chunk = chunk if self._way.chunks else max(1, len(ids))
        for at in range(0, len(ids), chunk):
            progress(at)
            self.read(ids[at : at + chunk])

    def score(self, ids: Sequence[int]) -> Tensor:
        """One pass over the last token: scores (1, vocabulary)."""
        return self.read(ids, 1)

    def keep(self, count: int) -> None:
        """Keep the first `count` tokens of the last pass; the only one is kept already."""

    def read(self, ids: Sequence[int], scored: int = 0) -> Tensor:
        """One pass over `ids`; scores (scored, vocabulary) after the last `scored` of them.

        The sequence grows by `ids`. Where none are `scored`, a model that reads everything again at
        each pass stores the ids unread.
        """
        self._ids += ids
        reread = self._way.kind == REREAD
        if reread and not scored:
            self.length += len(ids)
            return torch.empty(0)
        start, read = (0, self._ids) if reread else (self.length, ids)
        inputs: dict[str, Any] = {"input_ids": torch.tensor([list(read)], device=self._hf.device)}
        if "logits_to_keep" in self._accepts:
            inputs["logits_to_keep"] = max(1, scored)
        if not self._accepts.isdisjoint(("position_ids", "kwargs")):
            places = torch.arange(start, start + len(read), device=self._hf.device)
            inputs["position_ids"] = places[None]
        output = self._hf(**inputs, use_cache=not reread, **self._state)
        if not reread:
            self._ids.clear()
            self._state |= {n: s for n in STATES if (s := getattr(output, n, None)) is not None}
            if not self._state:
                raise NotImplementedError("a state of an unknown name")
        self.length += len(ids)
        scores: Tensor = output.logits[0, -max(1, scored) :]
        return scores


def accepted(hf: Any) -> frozenset[str]:
    """The names of the parameters that a model's forward pass takes."""
    return frozenset(inspect.signature(hf.forward).parameters)
