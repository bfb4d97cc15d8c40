"""SuffixDecoding (Oliaro et al. 2024) by its authors' library, arctic-inference.

This is not a re-implementation: it calls `SuffixDecodingCache` as vLLM's suffix proposer does. One
suffix tree contains the prompt and its output, a global one the outputs of earlier prompts. Both
count the continuations of the text's last tokens; the longer the match, the longer the draft (at
most `max_spec_factor` times it). The draft with the larger expected number of accepted tokens wins.

- Options have vLLM's names and defaults; `tree` is the library's `use_tree_spec`, which vLLM leaves
  off. `max_spec_tokens` bounds a draft below the budget; with 0 only the budget does.
- The pattern has `max_tree_depth` tokens, and the library matches one token less.
- The global tree outlives a prompt; it contains outputs, never prompts. `max_cached_requests` is
  the number of outputs in it, beyond which the oldest are dropped; 0 turns the tree off, -1 sets no
  limit. A private text has a global tree of its own.
- If tokens are taken back, the request is started again with the rest of its output.
"""

from dataclasses import dataclass
from typing import Any

from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.drafting.indexed import Indexed
from ngtcli.drafting.options import MethodOptions, option
from ngtcli.drafting.tree import DraftTree, in_depth_first_order
from ngtcli.errors import MissingDependencyError


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """The settings of the library."""

    max_tree_depth: int = option(24, 2, 1024)
    max_spec_factor: float = option(1.0, 0, 1024)
    min_token_prob: float = option(0.1, 0, 1)
    max_cached_requests: int = option(10_000, -1, 2**31 - 1)
    max_spec_tokens: int = option(0, 0, 1024)
    tree: bool = False


class Suffix(Indexed):
    """A drafter that starts a request of the library for each prompt."""

    def __init__(self, settings: DraftSettings, options: Options) -> None:
        super().__init__(settings, options)
        try:
            from arctic_inference.suffix_decoding import SuffixDecodingCache
        except ImportError as error:
            raise MissingDependencyError(
                f"arctic-inference cannot be imported ({error})",
                hint="Install the extra in your clone: pip install -e '.[peers]' (it needs a C++"
                " compiler).",
            ) from None

        def new_cache() -> Any:
            return SuffixDecodingCache(options.max_tree_depth, options.max_cached_requests)

        self._new_cache = new_cache
        self._shared = self._cache = new_cache()
        self._request = 0

    def clear(self, context: Context) -> None:
        if self._request in self._cache.active_requests:
            self._cache.stop_request(self._request)
        self._cache = self._new_cache() if context.private else self._shared
        self._request += 1
        self._cache.start_request(self._request, self.token_ids)

    def draft(self, budget: int) -> DraftTree:
        options = self.options
        draft = self._cache.speculate(
            self._request,
            self.token_ids[-options.max_tree_depth :],
            max_spec_tokens=min(options.max_spec_tokens or budget, budget),
            max_spec_factor=options.max_spec_factor,
            min_token_prob=options.min_token_prob,
            use_tree_spec=options.tree,
        )
        return in_depth_first_order(draft.token_ids, draft.parents, draft.probs)

    def index(self, start: int) -> None:
        """Add the tokens of the output."""
        output = self.token_ids[max(start, self.prompt_length) :]
        if output:
            self._cache.add_active_response(self._request, output)

    def shorten(self, length: int) -> None:
        """Start the request again: the library cannot forget a part of an output."""
        del self.token_ids[length:]
        self._cache.stop_request(self._request)
        self._cache.start_request(self._request, self.token_ids[: self.prompt_length])
        self.index(self.prompt_length)
