"""The source of the prompt, with its documents."""

import numpy as np

from ngtcli.drafting.auto.core.cells import PROMPT as PROMPT_EVIDENCE
from ngtcli.drafting.auto.core.copies import PROMPT_SEGMENT
from ngtcli.drafting.auto.core.forms import TRIE
from ngtcli.drafting.auto.prompts import PromptCounts, PromptMemory
from ngtcli.drafting.auto.sources.source import ORDERS, Floats, Resources, Source, fitted
from ngtcli.drafting.drafter import Context
from ngtcli.drafting.origins import DOCUMENT, PROMPT
from ngtcli.drafting.tries.counts import CountTrie, spans_of


class PromptSource(Source):
    """The counts of the prompt. They are kept for the next answer, unless the text is private.

    `borders` tells the prompt's nodes in documents from others (`learn_prompt`).
    """

    origin = PROMPT
    origin_in_document = DOCUMENT
    form = TRIE
    evidence = PROMPT_EVIDENCE
    segment = PROMPT_SEGMENT

    def __init__(self, resources: Resources) -> None:
        self._memory = resources.prompts
        self._is_private = False
        self._counts: PromptCounts | None = None  # until the answer has ended
        self.trie = CountTrie(ORDERS)
        self.table = tuple(self.trie.arrays)
        self.borders = np.zeros(0, np.int64)

    @classmethod
    def first_escapes(cls) -> Floats:
        """Return the fitted escapes."""
        return fitted(cls.origin)

    def begin(self, context: Context) -> None:
        """Count the prompt, or continue from the counts of a similar one."""
        self._is_private = context.private
        token_ids = np.asarray(context.ids, dtype=np.int32)
        memory = PromptMemory() if context.private else self._memory
        self._counts = memory.counts_of(token_ids, spans_of(token_ids, context.references))
        self.trie = self._counts.trie
        self.table = tuple(self.trie.arrays)
        self.borders = self._counts.borders

    def prefer_first(self) -> None:
        """Prefer, among equally frequent continuations, the one that is first in the prompt."""
        if self._counts is not None:
            self._counts.put_first_met_first()

    def end(self) -> None:
        """Keep the counts for the next answer."""
        if self._counts is not None and not self._is_private:
            self._memory.keep(self._counts)
        self._counts = None
