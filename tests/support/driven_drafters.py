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

    def begin(
        self, prompt: Sequence[int], emitted: Sequence[int] = (), **context: Any
    ) -> DrafterRun:
        """Begin a sequence, which may already have emitted some tokens."""
        full_context = Context(prompt, **{"vocabulary": 5000, **context})
        settings = self.shared.settings_for(self.settings, full_context.private)
        run = DrafterRun(Auto(settings, shared=self.shared), full_context)
        if emitted:
            run.emit(emitted)
        return run

    def propose(self, sequences: Sequence[DrafterRun], nodes: Sequence[int]) -> list[DraftTree]:
        """Return a draft for each sequence, of at most its number of nodes."""
        drafters = [run.drafter for run in sequences]
        logs = [run.log for run in sequences]
        rooms = [Room(limit) for limit in nodes]
        drafts = propose_together(drafters, logs, rooms)
        return [draft.tree for draft in drafts]
