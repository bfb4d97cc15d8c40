"""TensorRT-LLM's NGram drafter (NGramPoolManager in tensorrt_llm/_torch/speculative/ngram.py).

A pool maps keys, all n-grams of 1 to `max_matching_ngram_size` tokens, to values: the up to
`max_draft_len` tokens that followed a key somewhere. Before each draft the pool learns what is new;
the draft is a value of the longest key that ends the text, in one chain.

What decides drafts, all as in the source:
- Each update reads the end of the text again, from `max_draft_len` + `max_matching_ngram_size` - 1
  tokens before the last update's end, so that values cut short by the end of the text come back
  longer. The shorter ones are dropped then, whatever text they came from.
- That drop removes entries of a list while it walks along the list, so that it steps over the entry
  behind each one it removes: a short value can survive and be drafted.
- `is_use_oldest` takes a key's oldest value, otherwise its newest. Dropping a short value makes its
  longer form the newest.
- With `is_keep_all` off, a value longer than the oldest replaces all values of its key. One that is
  not longer is still added, so a key can have several.
- A key of one token less than the whole text is the longest; a text of one token has no draft.
- `is_public_pool` shares one pool among all prompts: it lives across `reset`, a private one does
  not. The public pool is never pruned.

`max_matching_ngram_size` = 2 is the default of NGramDecodingConfig, which has none for
`max_draft_len`; 5 is what the project sets itself for small batches (then with n-grams of 3).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ngtcli.draft.drafter import Context, Drafter, DraftSettings
from ngtcli.draft.options import check_range
from ngtcli.draft.tree import DraftTree, chain

Ngram = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """Longest value and key of the pool, and how it is kept."""

    max_draft_len: int = 5
    max_matching_ngram_size: int = 2
    is_keep_all: bool = True
    is_use_oldest: bool = True
    is_public_pool: bool = True

    def __post_init__(self) -> None:
        check_range("max_draft_len", self.max_draft_len, 1, 1024)
        check_range("max_matching_ngram_size", self.max_matching_ngram_size, 1, 64)


class NGramPool:
    """Keys and their values, the oldest first.

    A value cut short by the end of a text is also kept by itself, with the number of full ones
    before it in the order of the key's values. Full ones are never dropped, so two short values
    stand side by side where these numbers are equal and no short one is between them.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._values: dict[Ngram, dict[Ngram, None]] = {}
        self._short: dict[Ngram, dict[Ngram, int]] = {}

    def learn(self, ids: Sequence[int], longest: int) -> None:
        """Add the pairs of `ids` with keys of up to `longest` tokens."""
        for size in range(longest, 0, -1):
            for start in range(len(ids) - size):
                end = start + size
                value = tuple(ids[end : end + self._options.max_draft_len])
                self._add(tuple(ids[start:end]), value)

    def find(self, key: Ngram) -> Ngram | None:
        """The value that is drafted after `key`."""
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
        """Remove values shorter than `length`, but not one right behind a removed one."""
        behind = -1  # the number of full values before the one just removed
        for value, full in list(short.items()):
            if len(value) < length and full != behind:
                del values[value], short[value]
                behind = full
            else:
                behind = -1


class Trtllm(Drafter):
    """A public pool lives across `reset`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pool = NGramPool(options)
        self._start = 0  # what stands before this place needs no more learning

    def reset(self, context: Context) -> None:
        if not self._options.is_public_pool:
            self._pool = NGramPool(self._options)
        self._start = 0
        self._learn(context.ids)

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        longest = self._learn(ids)
        for size in range(longest, 0, -1):
            value = self._pool.find(tuple(ids[-size:]))
            if value is not None:
                return chain(value[:budget])
        return DraftTree()

    def observe(self, tokens: Sequence[int]) -> None:
        pass  # the next `propose` sees them in its ids

    def _learn(self, ids: Sequence[int]) -> int:
        longest = min(self._options.max_matching_ngram_size, len(ids) - 1)
        self._pool.learn(ids[self._start :], longest)
        reach = self._options.max_draft_len + self._options.max_matching_ngram_size - 1
        self._start = max(0, len(ids) - reach)
        return longest


def make(settings: DraftSettings, options: Options) -> Drafter:
    return Trtllm(options)
