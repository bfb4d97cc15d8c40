"""TensorRT-LLM's NGram drafter (NGramPoolManager in tensorrt_llm/_torch/speculative/ngram.py).

A pool maps keys, all n-grams of 1 to `max_matching_ngram_size` tokens, to values: up to
`max_draft_len` tokens that followed a key. Before each draft the new text is added to the pool. The
draft is a chain: a value of the longest key that is a suffix of the text.

What decides drafts, all as in the source:

- Each update starts `max_draft_len` + `max_matching_ngram_size` - 1 tokens before the end of the
  last one, so that values that the end of the text cut short are added again, longer. The shorter
  values of their keys are then dropped, whatever text they came from.
- The drop removes entries of a list while iterating over it and so skips the entry after each one
  removed: a short value can stay and be drafted.
- `is_use_oldest` takes a key's oldest value, otherwise its newest. When a short value is dropped,
  its longer form is the newest.
- With `is_keep_all` off, a value longer than the oldest replaces all values of its key. One that is
  not longer is still added, so a key can have several.
- The longest key has one token less than the text; a text of one token has no draft.
- With `is_public_pool` all prompts share a pool. The source never prunes it;
  here the keys that were added first go when it holds more than a million values.

`max_matching_ngram_size` = 2 is the default of NGramDecodingConfig. It has no default for
`max_draft_len`: 5 is what TensorRT-LLM's AUTO takes for small batches, with a
`max_matching_ngram_size` of 3. AUTO is no method of its own: it chooses these two values by the
batch size (auto_heuristic.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ngtcli.drafting.batch import Drafting
from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.drafting.indexed import Indexed
from ngtcli.drafting.options import MethodOptions, option
from ngtcli.drafting.tree import DraftTree, chain

Ngram = tuple[int, ...]
# Values that the pool may hold when a prompt begins; measured: about 210 MB with random texts.
_MAX_VALUES = 1_000_000


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """The options, by the names of the source.

    Attributes:
        max_draft_len: The maximum number of tokens of a value.
        max_matching_ngram_size: The maximum number of tokens of a key.
        is_keep_all: Whether a longer value leaves the other values of its key.
        is_use_oldest: Whether to draft the oldest value of a key, not the newest.
        is_public_pool: Whether all prompts share a pool.
    """

    max_draft_len: int = option(5, 1, 1024)
    max_matching_ngram_size: int = option(2, 1, 64)
    is_keep_all: bool = True
    is_use_oldest: bool = True
    is_public_pool: bool = True


@dataclass(slots=True)  # not frozen: that would take three times as long to make
class Change:
    """One change of a key's values: all were replaced, a value was added, or one was dropped.

    Attributes:
        key: The key.
        replaced: The values and the short values before all were replaced.
        added: The value that was added.
        dropped: The value that was dropped.
        full_before: How many full values were before the dropped value.
        values_behind: How many values were after it.
        short_behind: How many short values were after it.
    """

    key: Ngram
    replaced: tuple[dict[Ngram, None], dict[Ngram, int]] | None = None
    added: Ngram | None = None
    dropped: Ngram = ()
    full_before: int = 0
    values_behind: int = 0
    short_behind: int = 0


class NGramPool:
    """Keys and their values, the oldest first.

    A short value, one cut by the end of a text, is also stored separately, with the number of full
    values before it among the key's values. A full value is never dropped without its key, so two
    short values that follow each other in the separate list are adjacent if the numbers are equal.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._values: dict[Ngram, dict[Ngram, None]] = {}
        self._short: dict[Ngram, dict[Ngram, int]] = {}
        self._size = 0  # values of all keys

    def learn(self, ids: Sequence[int], longest: int, changes: list[Change] | None = None) -> None:
        """Add the (key, value) pairs of `ids` with keys of 1 to `longest` tokens.

        The changes of the pool are added to `changes`, for `undo`.
        """
        for size in range(longest, 0, -1):
            for start in range(len(ids) - size):
                end = start + size
                value = tuple(ids[end : end + self._options.max_draft_len])
                self._add(tuple(ids[start:end]), value, changes)

    def undo(self, changes: Sequence[Change]) -> None:
        """Undo changes; other texts may have changed the pool since."""
        for change in reversed(changes):
            values = self._values.setdefault(change.key, {})
            short = self._short.setdefault(change.key, {})
            self._size -= len(values)
            if change.replaced is not None:
                values, short = change.replaced
                self._values[change.key] = values
                self._short[change.key] = short
            elif change.added is not None:
                values.pop(change.added, None)
                short.pop(change.added, None)
            else:
                _insert(values, change.dropped, None, change.values_behind)
                _insert(short, change.dropped, change.full_before, change.short_behind)
            self._size += len(values)
            if not values:
                del self._values[change.key]
            if not short:
                del self._short[change.key]

    def forget_oldest(self, limit: int) -> None:
        """Drop the keys that were added first until there are at most `limit` values."""
        for key in list(self._values):
            if self._size <= limit:
                return
            self._size -= len(self._values.pop(key))
            self._short.pop(key, None)

    def find(self, key: Ngram) -> Ngram | None:
        """Return the value of a key to draft; None if it has none."""
        values = self._values.get(key)
        if values is None:
            return None
        return next(iter(values) if self._options.is_use_oldest else reversed(values))

    def _add(self, key: Ngram, value: Ngram, changes: list[Change] | None) -> None:
        values = self._values.get(key)
        if values is None:
            self._values[key] = values = {}
        elif not self._options.is_keep_all and len(value) > len(next(iter(values))):
            short = self._short.pop(key, {})
            if changes is not None:
                changes.append(Change(key, replaced=(values, short)))
            self._size -= len(values)
            self._values[key] = values = {}
        elif value in values:
            return
        elif key in self._short:
            self._drop(key, len(value), changes)
        if len(value) < self._options.max_draft_len:
            short = self._short.setdefault(key, {})
            short[value] = len(values) - len(short)
        values[value] = None
        self._size += 1
        if changes is not None:
            changes.append(Change(key, added=value))

    def _drop(self, key: Ngram, length: int, changes: list[Change] | None) -> None:
        """Remove values shorter than `length`, except one directly after a removed one."""
        values = self._values[key]
        short = self._short[key]
        removed_at = -1  # the number of full values before the value just removed
        for value, full in list(short.items()):
            if len(value) < length and full != removed_at:
                if changes is not None:
                    change = Change(
                        key,
                        dropped=value,
                        full_before=full,
                        values_behind=_count_behind(values, value),
                        short_behind=_count_behind(short, value),
                    )
                    changes.append(change)
                del values[value], short[value]
                self._size -= 1
                removed_at = full
            else:
                removed_at = -1


def _count_behind(table: dict[Ngram, Any], key: Ngram) -> int:
    """Return how many keys of a table were added after `key`."""
    return next(i for i, later_key in enumerate(reversed(table)) if later_key == key)


def _insert(table: dict[Ngram, Any], key: Ngram, value: Any, count_behind: int) -> None:
    """Insert a key into a table, before the last `count_behind` keys."""
    later = [table.popitem() for _ in range(min(count_behind, len(table)))]
    table[key] = value
    table.update(reversed(later))


class Trtllm(Indexed):
    """A drafter with an `NGramPool`, which is its own unless `public` is given.

    `public` is the pool of all sequences, including those decoded at the same time. Private
    sequences have separate pools.
    """

    def __init__(
        self, settings: DraftSettings, options: Options, public: NGramPool | None = None
    ) -> None:
        super().__init__(settings, options)
        self._public = public or NGramPool(options)

    def clear(self, context: Context) -> None:
        is_public = self.options.is_public_pool and not context.private
        self._pool = self._public if is_public else NGramPool(self.options)
        self._pool.forget_oldest(_MAX_VALUES)
        self._start = 0  # the text before this index is in the pool already

    def index(self, start: int) -> None:
        """Add a prompt to the pool; the tokens after it are added before each draft."""
        if not start:
            self._learn()

    def draft(self, budget: int) -> DraftTree:
        longest = self._learn()
        for size in range(longest, 0, -1):
            value = self._pool.find(tuple(self.token_ids[-size:]))
            if value is not None:
                return chain(value[:budget])
        return DraftTree()

    def _learn(self) -> int:
        """Add new text to the pool; return the number of tokens of the longest possible key."""
        token_ids = self.token_ids
        start = self._start
        longest: int = min(self.options.max_matching_ngram_size, len(token_ids) - 1)
        if len(token_ids) == self.prompt_length:
            self._pool.learn(token_ids[start:], longest)
        else:
            changes: list[Change] = []
            self._pool.learn(token_ids[start:], longest, changes)
            self.undo_if_shorter_than(len(token_ids), partial(self._go_back, start, changes))
        reach = self.options.max_draft_len + self.options.max_matching_ngram_size - 1
        self._start = max(0, len(token_ids) - reach)
        return longest

    def _go_back(self, start: int, changes: Sequence[Change]) -> None:
        self._pool.undo(changes)
        self._start = start


def batch_drafting(settings: DraftSettings, options: Options) -> Drafting:
    """Return the drafters of a batch, which share one pool if it is public."""
    public = NGramPool(options)
    return Drafting(lambda context: Trtllm(settings, options, public), settings.num_draft)
