"""Plain decoding: every draft is empty, so every step yields one token."""

from collections.abc import Sequence
from dataclasses import dataclass

from ngtcli.draft.drafter import Context, Drafter, DraftSettings
from ngtcli.draft.tree import DraftTree

_EMPTY = DraftTree()


@dataclass(frozen=True, slots=True)
class Options:
    """There are none."""


class NoDrafts(Drafter):
    """Proposes empty trees."""

    def reset(self, context: Context) -> None:
        pass

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        return _EMPTY

    def observe(self, tokens: Sequence[int]) -> None:
        pass


def make(settings: DraftSettings, options: Options) -> Drafter:
    return NoDrafts()
