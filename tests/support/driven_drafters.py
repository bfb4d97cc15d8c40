"""Drafters driven as the decoding loop drives them, without a model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import Options
from ngtcli.drafting.auto.drafter import Auto, propose_together
from ngtcli.drafting.auto.shared import Shared
from ngtcli.drafting.drafter import Context, Drafter, DraftSettings, Outcome, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.origins import PolicyReport
from ngtcli.drafting.tree import DraftTree


class DrafterRun:
    """A drafter that has begun a sequence, and the log of it. `top_k` is that of the last draft."""

    def __init__(self, drafter: Drafter, context: Context) -> None:
        self.drafter = drafter
        self.log = TokenLog(context.ids)
        self.top_k = 0
        drafter.begin(context)

    @property
    def token_ids(self) -> list[int]:
        return self.log.token_ids

    def propose(self, nodes: int) -> DraftTree:
        draft = self.drafter.propose(self.log, Room(nodes))
        self.top_k = draft.top_k
        return draft.tree

    def emit(self, tokens: Sequence[int], outcome: Outcome | None = None) -> None:
        """End a forward pass, which emitted these tokens."""
        self.log.emit(tokens)
        self.drafter.learn(self.log, outcome or Outcome())

    def close(self, keep: bool = True) -> PolicyReport | None:
        return self.drafter.close(keep)


class DrafterBatch:
    """Sequences that one forward pass serves, for which `auto` drafts."""

    def __init__(
        self,
        settings: DraftSettings | None = None,
        texts: Sequence[npt.NDArray[np.int32]] = (),
    ) -> None:
        self.settings = settings or DraftSettings()
        self.shared = Shared(self.settings, Options(), texts)

    def begin(self, prompt: Sequence[int], said: Sequence[int] = (), **context: Any) -> DrafterRun:
        """A sequence that begins, or continues after what it has said."""
        known = Context(prompt, **{"vocabulary": 5000, **context})
        own = self.shared.settings_for(self.settings, known.private)
        followed = DrafterRun(Auto(own, shared=self.shared), known)
        if said:
            followed.emit(said)
        return followed

    def propose(self, sequences: Sequence[DrafterRun], nodes: Sequence[int]) -> list[DraftTree]:
        """A draft for each, of at most so many nodes."""
        drafters = [one.drafter for one in sequences]
        logs = [one.log for one in sequences]
        drafts = propose_together(drafters, logs, [Room(each) for each in nodes])
        return [draft.tree for draft in drafts]
