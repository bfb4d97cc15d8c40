"""Plain decoding: every draft is empty, so every step yields one token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ngtcli.draft.drafter import Context, Drafter, DraftSettings, read_options
from ngtcli.draft.tree import DraftTree

_EMPTY = DraftTree()


@dataclass(frozen=True, slots=True)
class NoOptions:
    """For methods whose only options are the shared settings."""


class NoDrafts(Drafter):
    """Proposes empty trees."""

    def reset(self, context: Context) -> None:
        pass

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        return _EMPTY

    def observe(self, tokens: Sequence[int]) -> None:
        pass


def make(settings: DraftSettings, options: Mapping[str, str]) -> Drafter:
    read_options(NoOptions(), options)
    return NoDrafts()
