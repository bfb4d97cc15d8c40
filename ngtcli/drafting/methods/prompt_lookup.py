"""Prompt lookup decoding (Saxena 2023), as in PromptLookupCandidateGenerator of `transformers`.

The text (prompt and output) is searched for its own last tokens: first for the last
`max_matching_ngram_size` tokens, then for one fewer, down to one. The draft is a chain of the
tokens after the first match, at most `num_output_tokens` of them.

Details:
- Of several matches of one length, the first in the text wins.
- A match counts only if a token follows it. It may overlap the last tokens. The draft ends where
the
  text ends, so a draft may be a single token.
- The n-gram is shorter than the text: in a text of three tokens it has at most two.
- The defaults are Saxena's 3 and 10. `transformers` also drafts 10 tokens, but matches 2.

Deviation: `transformers` cuts its draft before an end token. Here the decoding loop ends at end
tokens, so that an end token can be accepted as a draft.

An index of the first place of every n-gram grows with the text, so no text is scanned twice.
"""

from dataclasses import dataclass
from functools import partial

from ngtcli.drafting.drafter import Context
from ngtcli.drafting.indexed import Indexed
from ngtcli.drafting.options import MethodOptions, option
from ngtcli.drafting.tree import DraftTree, chain


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """The maximum lengths of an n-gram and of a draft, in tokens."""

    max_matching_ngram_size: int = option(3, 1, 64)
    num_output_tokens: int = option(10, 1, 1024)


class PromptLookup(Indexed):
    """Drafts from an index of the n-grams of the sequence."""

    def clear(self, context: Context) -> None:
        # The position after the first occurrence of each n-gram.
        self._follows: dict[tuple[int, ...], int] = {}

    def index(self, start: int) -> None:
        """Index the n-grams that end before each position from `start` on."""
        token_ids = self.token_ids
        for position in range(start, len(token_ids)):
            longest = min(self.options.max_matching_ngram_size, position)
            for size in range(1, longest + 1):
                ngram = tuple(token_ids[position - size : position])
                if ngram not in self._follows:
                    self._follows[ngram] = position
                    self.undo_if_shorter_than(position + 1, partial(self._follows.pop, ngram))

    def draft(self, budget: int) -> DraftTree:
        token_ids = self.token_ids
        longest = min(self.options.max_matching_ngram_size, len(token_ids) - 1)
        for size in range(longest, 0, -1):
            start = self._follows.get(tuple(token_ids[-size:]))
            if start is not None:
                end = start + min(self.options.num_output_tokens, budget)
                return chain(token_ids[start:end])
        return DraftTree()
