"""The source of the answer so far."""

from collections.abc import Sequence

from ngtcli.drafting.auto.core.cells import OWN as OWN_EVIDENCE
from ngtcli.drafting.auto.core.copies import ANSWER_SEGMENT
from ngtcli.drafting.auto.core.forms import TRIE
from ngtcli.drafting.auto.sources.source import ORDERS, Floats, Resources, Source, fitted
from ngtcli.drafting.drafter import Context
from ngtcli.drafting.origins import OWN_TEXT
from ngtcli.drafting.tries.counts import CountTrie


class OwnTextSource(Source):
    """The answer so far, whose `trie` compiled code lets grow with each emitted token."""

    origin = OWN_TEXT
    form = TRIE
    evidence = OWN_EVIDENCE
    segment = ANSWER_SEGMENT

    def __init__(self, resources: Resources) -> None:
        self.trie = CountTrie(ORDERS)
        self.table = tuple(self.trie.arrays)

    @classmethod
    def first_escapes(cls) -> Floats:
        """Return the fitted escapes."""
        return fitted(cls.origin)

    def begin(self, context: Context) -> None:
        """Begin with no text."""
        if self.trie.tokens:
            self._count(())

    def refresh(self, tokens: int) -> bool:
        """Make room in the trie."""
        self.trie.reserve(tokens)
        if self.trie.arrays.nodes is self.table[0]:
            return False
        self.table = tuple(self.trie.arrays)
        return True

    def retract(self, count: int, output: Sequence[int]) -> None:
        """Count the remaining tokens again."""
        self._count(output)

    def _count(self, output: Sequence[int]) -> None:
        self.trie = CountTrie(ORDERS)
        self.trie.extend(output)
        self.table = tuple(self.trie.arrays)
