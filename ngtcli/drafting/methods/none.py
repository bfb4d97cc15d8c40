"""Plain decoding: every draft is empty, so every step yields one token."""

from collections.abc import Sequence

from ngtcli.drafting.drafter import Drafter
from ngtcli.drafting.tree import DraftTree


class NoDrafts(Drafter):
    """Proposes empty trees."""

    drafts = False

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        return DraftTree()
