"""The source of earlier answers of the model: the pool, and texts that are counted with it."""

from ngtcli.drafting.auto.core.cells import POOL as POOL_EVIDENCE
from ngtcli.drafting.auto.core.forms import TRIE
from ngtcli.drafting.auto.sources.source import Floats, Resources, Source, fitted
from ngtcli.drafting.drafter import Context
from ngtcli.drafting.origins import POOL


class PoolSource(Source):
    """The earlier answers that were counted when the answer began, and those added since."""

    origin = POOL
    form = TRIE
    evidence = POOL_EVIDENCE

    def __init__(self, resources: Resources) -> None:
        self._answers = resources.answers
        self.trie = self._answers.trie
        self.table = tuple(self.trie.arrays)

    @classmethod
    def first_escapes(cls) -> Floats:
        """Return the fitted escapes."""
        return fitted(cls.origin)

    def begin(self, context: Context) -> None:
        """Switch to the newest counts."""
        self.trie = self._answers.trie
        self.table = tuple(self.trie.arrays)

    def refresh(self, tokens: int) -> bool:
        """Return whether another sequence's answer has replaced the arrays."""
        if self.trie.arrays.nodes is self.table[0]:
            return False
        self.table = tuple(self.trie.arrays)
        return True
