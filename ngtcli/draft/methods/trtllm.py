"""TensorRT-LLM's NGram drafter (NGramPoolManager in tensorrt_llm/_torch/speculative/ngram.py).

A pool maps keys, all n-grams of 1 to `max_matching_ngram_size` tokens, to values: up to
`max_draft_len` tokens that followed a key. Before each draft the new text is added to the pool. The
draft is a chain: a value of the longest key that is a suffix of the text.

What decides drafts, all as in the source:

- Each update starts `max_draft_len` + `max_matching_ngram_size` - 1 tokens before the end of the
  last one, so that values cut by the end of the text are added again, longer. The shorter values of
  their keys are then dropped, whatever text they came from.
- The drop removes entries of a list while iterating over it and so skips the entry after each one
  removed: a short value can stay and be drafted.
- `is_use_oldest` takes a key's oldest value, otherwise its newest. When a short value is dropped,
  its longer form is the newest.
- With `is_keep_all` off, a value longer than the oldest replaces all values of its key. One that is
  not longer is still added, so a key can have several.
- The longest key has one token less than the text; a text of one token has no draft.
- With `is_public_pool` all prompts share a pool, which `reset` keeps and which is never pruned.

`max_matching_ngram_size` = 2 is the default of NGramDecodingConfig, which has none for
`max_draft_len`; 5 is the project's choice for small batches (there with n-grams of 3).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ngtcli.draft.drafter import Context, Drafter, DraftSettings
from ngtcli.draft.options import MethodOptions, option
from ngtcli.draft.tree import DraftTree, chain

Ngram = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """Tokens of the longest value and of the longest key, and which values are kept and used."""

    max_draft_len: int = option(5, 1, 1024)
    max_matching_ngram_size: int = option(2, 1, 64)
    is_keep_all: bool = True
    is_use_oldest: bool = True
    is_public_pool: bool = True


class NGramPool:
    """Keys and their values, the oldest first.

    A short value, one cut by the end of a text, is also stored separately, with the number of full
    values before it among the key's values. Full values are never dropped, so two short values that
    follow each other in the separate list are adjacent if their numbers are equal.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._values: dict[Ngram, dict[Ngram, None]] = {}
        self._short: dict[Ngram, dict[Ngram, int]] = {}

    def learn(self, ids: Sequence[int], longest: int) -> None:
        """Add the (key, value) pairs of `ids` with keys of 1 to `longest` tokens."""
        for size in range(longest, 0, -1):
            for start in range(len(ids) - size):
                end = start + size
                value = tuple(ids[end : end + self._options.max_draft_len])
                self._add(tuple(ids[start:end]), value)

    def find(self, key: Ngram) -> Ngram | None:
        """The value of `key` to draft, or None."""
        values = self._values.get(key)
        if values is None:
            return None
        return next(iter(values) if self._options.is_use_oldest else reversed(values))

    def _add(self, key: Ngram, value: Ngram) -> None:
        values = self._values.get(key)
        if values is None or (
            not self._options.is_keep_all and len(value) > len(next(iter(values)))
        ):
            self._values[key] = values = {}
            self._short.pop(key, None)
        elif value in values:
            return
        elif key in self._short:
            self._drop(values, self._short[key], len(value))
        if len(value) < self._options.max_draft_len:
            short = self._short.setdefault(key, {})
            short[value] = len(values) - len(short)
        values[value] = None

    def _drop(self, values: dict[Ngram, None], short: dict[Ngram, int], length: int) -> None:
        """Remove values shorter than `length`, except one directly after a removed one."""
        removed_at = -1  # the number of full values before the value just removed
        for value, full in list(short.items()):
            if len(value) < length and full != removed_at:
                del values[value], short[value]
                removed_at = full
            else:
                removed_at = -1


class Trtllm(Drafter):
    """Drafts from an `NGramPool`; `reset` clears it unless it is public."""

    def __init__(self, settings: DraftSettings, options: Options) -> None:
        super().__init__(settings, options)
        self._pool = NGramPool(options)

    def reset(self, context: Context) -> None:
        if not self.options.is_public_pool:
            self._pool = NGramPool(self.options)
        self._start = 0  # the text before this index is in the pool already
        self._learn(context.ids)

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        longest = self._learn(ids)
        for size in range(longest, 0, -1):
            value = self._pool.find(tuple(ids[-size:]))
            if value is not None:
                return chain(value[:budget])
        return DraftTree()

    def _learn(self, ids: Sequence[int]) -> int:
        """Add new text to the pool; the number of tokens of the longest possible key."""
        longest: int = min(self.options.max_matching_ngram_size, len(ids) - 1)
        self._pool.learn(ids[self._start :], longest)
        reach = self.options.max_draft_len + self.options.max_matching_ngram_size - 1
        self._start = max(0, len(ids) - reach)
        return longest
