"""Prompt lookup decoding (Saxena 2023), as `transformers` has it in PromptLookupCandidateGenerator.

The text (prompt and output) is searched for its own last tokens: first for the last
`max_matching_ngram_size`, then for one fewer, down to one. The draft is a chain of at most
`num_output_tokens` tokens, those after the first place found.

What decides drafts:
- The first place in the text wins, not the last and not the one with the longest common suffix.
- A place counts only if a token follows it. It may overlap the suffix it equals, and the draft ends
  where the text ends, so it can be a single token.
- The n-gram is shorter than the text: in a text of three tokens it has two at most.
- Defaults are Saxena's 3 and 10. `transformers` has 10 as well, but n-grams of 2 tokens.
- `transformers` cuts its draft before an end token. Here the decoding
  loop cuts at end tokens, so that an end token can also be accepted as a draft.

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
    """Tokens of the longest n-gram, and of the longest draft."""

    max_matching_ngram_size: int = option(3, 1, 64)
    num_output_tokens: int = option(10, 1, 1024)


class PromptLookup(Indexed):
    """An index of the n-grams of one sequence."""

    def clear(self, context: Context) -> None:
        # N-gram -> index of its first follower in the text.
        self._follows: dict[tuple[int, ...], int] = {}

    def index(self, start: int) -> None:
        """Index the n-grams before each position."""
        token_ids = self.token_ids
        for position in range(start, len(token_ids)):
            longest = min(self.options.max_matching_ngram_size, position)
            for size in range(1, longest + 1):
                ngram = tuple(token_ids[position - size : position])
                if ngram not in self._follows:
                    self._follows[ngram] = position
                    self.undo_below(position + 1, partial(self._follows.pop, ngram))

    def draft(self, budget: int) -> DraftTree:
        token_ids = self.token_ids
        longest = min(self.options.max_matching_ngram_size, len(token_ids) - 1)
        for size in range(longest, 0, -1):
            start = self._follows.get(tuple(token_ids[-size:]))
            if start is not None:
                end = start + min(self.options.num_output_tokens, budget)
                return chain(token_ids[start:end])
        return DraftTree()
