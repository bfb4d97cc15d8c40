"""Prompt lookup decoding (Saxena 2023), as `transformers` has it in PromptLookupCandidateGenerator.

The last tokens of the text so far, prompt and output alike, are looked for further up: first the
last `max_matching_ngram_size` of them, then one fewer, down to one. The tokens that follow the
first place found are the draft, at most `num_output_tokens` of them, in one chain.

What decides drafts:
- The first place in the text wins, not the latest and not the one that matches further back.
- A place counts only if a token follows it. It may overlap the tail it matches, and the draft ends
  where the text ends, so it can be a single token.
- The n-gram is shorter than the text: a text of three tokens is searched for two at most.
- Defaults are Saxena's 3 and 10. `transformers` has 10 as well, but n-grams of 2 tokens.
- `transformers` cuts its draft before an end token. A drafter here does not know end tokens; the
  decoding loop cuts at them, so that an end token can also be accepted as a draft.

An index of the first place of every n-gram grows with the text; nothing is ever scanned again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ngtcli.draft.drafter import Context, Drafter, DraftSettings
from ngtcli.draft.options import check_range
from ngtcli.draft.tree import DraftTree, chain


@dataclass(frozen=True, slots=True)
class Options:
    """Longest n-gram that is looked for, and most tokens of a draft."""

    max_matching_ngram_size: int = 3
    num_output_tokens: int = 10

    def __post_init__(self) -> None:
        check_range("max_matching_ngram_size", self.max_matching_ngram_size, 1, 64)
        check_range("num_output_tokens", self.num_output_tokens, 1, 1024)


class PromptLookup(Drafter):
    """Forgets all at `reset`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._follows: dict[tuple[int, ...], int] = {}  # n-gram -> where its first follower stands
        self._indexed = 0  # places below this one are in the index, as followers

    def reset(self, context: Context) -> None:
        self._follows, self._indexed = {}, 0
        self._index(context.ids)

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        self._index(ids)
        longest = min(self._options.max_matching_ngram_size, len(ids) - 1)
        for size in range(longest, 0, -1):
            start = self._follows.get(tuple(ids[-size:]))
            if start is not None:
                return chain(ids[start : start + min(self._options.num_output_tokens, budget)])
        return DraftTree()

    def observe(self, tokens: Sequence[int]) -> None:
        pass  # the next `propose` sees them in its ids

    def _index(self, ids: Sequence[int]) -> None:
        for place in range(self._indexed, len(ids)):
            longest = min(self._options.max_matching_ngram_size, place)
            for size in range(1, longest + 1):
                self._follows.setdefault(tuple(ids[place - size : place]), place)
        self._indexed = len(ids)


def make(settings: DraftSettings, options: Options) -> Drafter:
    return PromptLookup(options)
