"""Counted prompts, kept for the next question, which is often about the same document."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.tries.counts import CountTrie, Log, learn_prompt

Ints = npt.NDArray[np.int32]
Spans = Sequence[tuple[int, int]]

# Last tokens of a prompt that can be taken back; 216 bytes each. Guess: a question is shorter, and
# a conversation only grows.
_TAIL = 4096
_SHORT = 1024  # tokens of a prompt that is not kept: it is counted in a few milliseconds (guess)
_KEPT = 2  # prompts (guess: two documents that are asked about in turns)


class PromptCounts:
    """The counts of a prompt.

    The tokens after the last document can be taken back, so that those of another question take
    their place.

    Attributes:
        ids: The prompt, int32 (tokens,).
        spans: Start and end of each document in it.
        trie: The counts.
        borders: The numbers of nodes in use at each document's start and end, alternating: nodes
            between were first counted in a document.
    """

    def __init__(self, ids: Ints, spans: Spans) -> None:
        self.ids = ids
        self.spans = list(spans)
        self.trie = CountTrie(CONFIG.orders)
        last = self.spans[-1][1] if self.spans else 0
        self._first = max(last, len(ids) - _TAIL)  # tokens from here on can be taken back
        self.borders = learn_prompt(self.trie, ids[: self._first], spans)
        self._log = self.trie.extend_logged(ids[self._first :])
        self._is_turned = False

    def put_first_met_first(self) -> None:
        """Reverse the lists of children, as `CountTrie.put_first_met_first` does."""
        self.trie.put_first_met_first()
        self._is_turned = not self._is_turned

    def shared(self, ids: Ints, spans: Spans) -> int:
        """Return how many tokens another prompt shares, which need not be counted again."""
        counted_spans = len(self.spans)
        if list(spans[:counted_spans]) != self.spans:
            return 0
        length = min(len(ids), len(self.ids))
        different = np.flatnonzero(ids[:length] != self.ids[:length])
        length = int(different[0]) if len(different) else length
        if len(spans) > counted_spans:  # the border of another document has to be met
            length = min(length, spans[counted_spans][0])
        return length if length >= self._first else 0

    def change_to(self, ids: Ints, spans: Spans) -> None:
        """Change these to the counts of another prompt, which shares more than 0 tokens."""
        length = self.shared(ids, spans)
        new_spans = spans[len(self.spans) :]
        if self._is_turned:
            self.put_first_met_first()
        self.trie.take_back(self._log, length - self._first, self.ids[:length])
        logs = [self._log.first(length - self._first)]
        borders = list(self.borders)
        counted = length
        for start, end in new_spans:
            logs.append(self.trie.extend_logged(ids[counted:start]))
            borders.append(self.trie.used)
            logs.append(self.trie.extend_logged(ids[start:end]))
            borders.append(self.trie.used)
            counted = end
        logs.append(self.trie.extend_logged(ids[counted:]))
        self.ids = ids
        self.spans = list(spans)
        self.borders = np.array(borders, np.int64)
        self._log = Log.joined(logs).last(_TAIL)
        self._first = len(ids) - len(self._log)
        if self.spans and self.spans[-1][1] > self._first:  # a document is never taken back
            self._log = self._log.last(len(ids) - self.spans[-1][1])
            self._first = self.spans[-1][1]


class PromptMemory:
    """The most recently counted prompts, for reuse by the next ones."""

    def __init__(self) -> None:
        self._kept: list[PromptCounts] = []

    def keep(self, counts: PromptCounts) -> None:
        """Keep unused counts, unless they are short, and drop the oldest ones."""
        if len(counts.ids) < _SHORT:
            return
        self._kept = [*self._kept, counts][-_KEPT:]

    def counts_of(self, ids: Ints, spans: Spans) -> PromptCounts:
        """Return the counts of a prompt: those of the most similar one, changed, or new ones."""
        best = max(self._kept, key=lambda counts: counts.shared(ids, spans), default=None)
        if best is None or not best.shared(ids, spans):
            return PromptCounts(ids, spans)
        self._kept.remove(best)
        best.change_to(ids, spans)
        return best
