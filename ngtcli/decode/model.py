"""The target model: any decoder-only `transformers` model, with passes over draft trees.

`start`, `prefill`, then again and again `forward` (one pass over the last token and a tree below
it) and `keep` (which rows of that pass stay). A model that cannot be rolled back, or that does not
honour a tree mask, still decodes, one token a pass; `plain_reason` then says why.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngtcli.decode.kv_cache import RollbackCache
from ngtcli.draft.tree import DraftTree, chain
from ngtcli.errors import ModelError
from ngtcli.pretrained import context_length
from ngtcli.tokens import Tokenizer

PREFILL_CHUNK = 1024
_EMPTY = DraftTree()
_STATES = ("past_key_values", "cache_params", "state")
_ROLLS_BACK = {"full_attention", "sliding_attention"}
# Families that the tests prove; any other is probed once, when it is loaded.
_PROVEN = {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"}


@dataclass(frozen=True, slots=True)
class Layout:
    """One pass: k + 1 ids with their positions, and an additive tree mask or None for a row."""

    ids: list[int]
    positions: list[int]
    mask: Any


class TargetModel:
    """A loaded model, its tokenizer and the cache of one sequence."""

    def __init__(self, hf: Any, tokenizer: Tokenizer, name: str) -> None:
        self.hf, self.tokenizer, self.name = hf, tokenizer, name
        self.config = hf.config.get_text_config()
        self.device: torch.device = hf.device
        self.dtype: torch.dtype = hf.dtype
        self.vocabulary = int(self.config.vocab_size)
        self.context = context_length(self.config, tokenizer)
        self.end_ids = _end_ids(hf, tokenizer)
        self._window = _sliding_window(self.config)
        self._cache: RollbackCache | None = None
        self._state: dict[str, Any] = {}  # of a model that keeps its own, plain only
        self.plain_reason = self._why_plain()

    @property
    def length(self) -> int:
        """Rows kept in the cache."""
        return self._cache.length if self._cache else int(self._state.get("length", 0))

    def start(self, capacity: int) -> None:
        """Forget everything; make room for `capacity` rows, drafts included."""
        self._state = {}
        layers = int(self.config.num_hidden_layers)
        self._cache = None if self.plain_reason else RollbackCache(layers, capacity)

    @torch.inference_mode()
    def prefill(
        self,
        ids: Sequence[int],
        chunk: int = PREFILL_CHUNK,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Read `ids` in chunks; only one row of scores is ever made.

        `progress` is told before each chunk how many of them are read.
        """
        for at in range(0, len(ids), chunk):
            progress(at)
            part = ids[at : at + chunk]
            self._pass(part, list(range(self.length, self.length + len(part))), None, 1)
            self._commit(list(range(len(part))))

    def lay_out(self, token: int, tree: DraftTree) -> "Layout":
        """What one pass over `token`, the tree's root, and the tree reads."""
        start = self.length
        positions = [start, *(start + depth for depth in tree.depths())]
        mask = self._tree_mask(tree, positions) if len(tree) else None
        return Layout([token, *tree.tokens], positions, mask)

    @torch.inference_mode()
    def score(self, layout: "Layout") -> Tensor:
        """Scores (k + 1, vocabulary) after the root and after each of the tree's k nodes."""
        return self._pass(layout.ids, layout.positions, layout.mask, 0)

    def forward(self, token: int, tree: DraftTree) -> Tensor:
        """`lay_out` and `score` in one: (k + 1, vocabulary)."""
        return self.score(self.lay_out(token, tree))

    def finish_device_work(self) -> None:
        """Wait for the device, so that a clock read next tells the truth."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def truncate(self, length: int) -> None:
        """Forget all rows from `length` on. Only for a model that can roll back."""
        if self._cache is not None:
            self._cache.truncate(length)

    @torch.inference_mode()
    def keep(self, nodes: Sequence[int]) -> None:
        """Keep the root's row of the last pass and those of `nodes`, ascending."""
        self._commit([0, *(node + 1 for node in nodes)])

    def _commit(self, rows: list[int]) -> None:
        if self._cache is not None:
            self._cache.keep(rows)
        else:
            self._state["length"] = self.length + len(rows)

    def _pass(self, ids: Sequence[int], positions: list[int], mask: Any, keep: int) -> Tensor:
        inputs: dict[str, Any] = {
            "input_ids": torch.tensor([list(ids)], device=self.device),
            "use_cache": True,
        }
        if self._cache is None:
            return self._plain_pass(inputs)
        if mask is None and self._window is not None and len(ids) > 1:
            mask = self._tree_mask(chain(ids[1:]), positions)
        output = self.hf(
            **inputs,
            position_ids=torch.tensor([positions], device=self.device),
            attention_mask=mask,
            past_key_values=self._cache,
            logits_to_keep=keep,
        )
        scores: Tensor = output.logits[0]
        return scores

    def _plain_pass(self, inputs: dict[str, Any]) -> Tensor:
        state = {k: v for k, v in self._state.items() if k != "length"}
        output = self.hf(**inputs, **state)
        found = {n: s for n in _STATES if (s := getattr(output, n, None)) is not None}
        if not found:
            raise ModelError(f"{self.name}: keeps its state in a way unknown here", "Use another.")
        self._state |= found
        scores: Tensor = output.logits[0]
        return scores

    def _tree_mask(self, tree: DraftTree, positions: list[int]) -> Any:
        """Additive mask (1, 1, k + 1, length + k + 1), 0 where a row may look (paper, eq. 6).

        A dict of one for each kind of layer where a model mixes full and sliding attention.
        """
        rows, length = len(tree) + 1, self.length
        lowest = torch.finfo(self.dtype).min
        full = torch.zeros((1, 1, rows, length + rows), dtype=self.dtype)
        full[..., length:] = torch.from_numpy(np.where(tree.ancestors(), 0.0, lowest))
        if self._window is None:
            return full.to(self.device)
        at = torch.tensor(positions)
        every = torch.cat([torch.arange(length), at])
        far = at[:, None] - every[None, :] >= self._window
        near = full.masked_fill(far, lowest).to(self.device)
        kinds = set(getattr(self.config, "layer_types", None) or ())
        if len(kinds) > 1:
            return {"full_attention": full.to(self.device), "sliding_attention": near}
        return near

    def _why_plain(self) -> str:
        """Why this model cannot check drafts; "" if it can."""
        kinds = set(getattr(self.config, "layer_types", None) or ())
        if kinds - _ROLLS_BACK or getattr(self.hf, "_is_stateful", False):
            return "its layers keep a running state that cannot be rolled back"
        if self.config.model_type in _PROVEN or self._honours_trees():
            return ""
        return "it does not honour a tree attention mask"

    @torch.inference_mode()
    def _honours_trees(self) -> bool:
        """Whether a forked tree scores as its branches do one by one, on four arbitrary tokens."""
        first, *_, a, b, c = (i % self.vocabulary for i in (11, 3, 5, 7))
        self.plain_reason = ""
        try:
            self.start(8)
            self.prefill([first])
            forked = self.forward(a, DraftTree((b, c, c), (-1, -1, 0)))
            for path, row in (((b, c), 3), ((c,), 2)):
                self.start(8)
                self.prefill([first, a, *path[:-1]])
                if not torch.allclose(forked[row], self.forward(path[-1], _EMPTY)[0], atol=0.05):
                    return False
            return True
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError):
            return False
        finally:
            self._cache, self._state = None, {}


def _end_ids(hf: Any, tokenizer: Tokenizer) -> frozenset[int]:
    """All end ids of the generation config, and the tokenizer's own."""
    ends: set[int] = set()
    tokenizer_end = getattr(tokenizer.backend, "eos_token_id", None)
    for found in (getattr(hf.generation_config, "eos_token_id", None), tokenizer_end):
        ends |= set(found if isinstance(found, list) else [] if found is None else [found])
    return frozenset(ends)


def _sliding_window(config: Any) -> int | None:
    """The window where some layer slides, else None."""
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if kinds is not None:
        return window if "sliding_attention" in kinds else None
    return window if getattr(config, "use_sliding_window", True) else None
