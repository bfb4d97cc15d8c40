"""The n-gram predictor of the akunu engine (its book's chapter on speculative decoding).

For every context of up to `max_order` - 1 tokens, tables count the tokens that followed it in the
prompt and in the output. The draft is a chain of up to `draft_count` tokens. Each is the most
frequent follower of the longest known context at the end of text and chain; without a known context
the chain ends. With an empty chain the step decodes plainly.

What decides drafts:
- A longer context always wins, even if it occurred once and a shorter one a thousand times.
- `max_history` bounds only the tokens of a context. The tables are never pruned, so with the
  defaults it has no effect; below `max_order` - 1 it shortens contexts.
- The chapter leaves ties open (they follow the order of a hash table). Here the follower that was
  first to reach the highest count wins.
- The original hashes contexts to 64 bits and accepts collisions; here contexts are compared in
full.
- A new prompt clears the tables: the chapter's belong to one generation.
"""

from dataclasses import dataclass
from functools import partial

from ngtcli.drafting.drafter import Context
from ngtcli.drafting.indexed import Indexed
from ngtcli.drafting.options import MethodOptions, option
from ngtcli.drafting.tree import DraftTree, chain


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """The options, with the chapter's defaults.

    Attributes:
        max_order: The maximum number of tokens of an n-gram: a context and its follower.
        draft_count: The maximum number of tokens of a draft.
        max_history: The maximum number of tokens of a context.
    """

    max_order: int = option(4, 2, 64)
    draft_count: int = option(4, 1, 1024)
    max_history: int = option(512, 1, 1_000_000)


class Akunu(Indexed):
    """A drafter that counts the followers of contexts in one sequence."""

    def clear(self, context: Context) -> None:
        self._longest = min(self.options.max_order - 1, self.options.max_history)
        # For each context how often each token followed it, and its most frequent follower.
        self._counts: dict[tuple[int, ...], dict[int, int]] = {}
        self._best: dict[tuple[int, ...], int] = {}

    def index(self, start: int) -> None:
        """Count each token after the contexts that end before it."""
        for position in range(start, len(self.token_ids)):
            for size in range(1, min(self._longest, position) + 1):
                context = tuple(self.token_ids[position - size : position])
                self._count(context, position)

    def _count(self, context: tuple[int, ...], position: int) -> None:
        """Count the token at `position` after `context`."""
        token = self.token_ids[position]
        counts = self._counts.setdefault(context, {})
        best = self._best.get(context, -1)
        self.undo_if_shorter_than(position + 1, partial(self._uncount, context, token, best))
        counts[token] = counts.get(token, 0) + 1
        if counts[token] > counts.get(best, 0):
            self._best[context] = token

    def _uncount(self, context: tuple[int, ...], token: int, best: int) -> None:
        """Undo `_count`; `best` was the most frequent follower before, -1 for none."""
        self._counts[context][token] -= 1
        if best < 0:
            del self._best[context]
        else:
            self._best[context] = best

    def draft(self, budget: int) -> DraftTree:
        context = self.token_ids[-self._longest :]
        length = len(context)
        for _ in range(min(self.options.draft_count, budget)):
            sizes = range(min(self._longest, len(context)), 0, -1)
            suffixes = (tuple(context[-size:]) for size in sizes)
            longest = next((s for s in suffixes if s in self._best), None)
            if longest is None:
                break
            context.append(self._best[longest])
        return chain(context[length:])
