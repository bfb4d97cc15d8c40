"""Who drafts for several sequences: `auto` for all of them jointly, or a drafter for each."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from ngtcli.decode.continuation import Continuation
from ngtcli.decode.drafting import Drafting
from ngtcli.draft.auto.batch import BatchDrafter
from ngtcli.draft.auto.drafter import Auto
from ngtcli.draft.costs import SHORT, CostCurve, Costs
from ngtcli.draft.drafter import Context, Drafter
from ngtcli.draft.origins import PolicyReport
from ngtcli.draft.pool import Pool
from ngtcli.draft.tree import DraftTree
from ngtcli.trie.background import BackgroundCounts

# Rows at which the cost of a pass over several sequences is learned, beside those that calibration
# measures over one; a guess.
_ROWS = (96, 128, 192, 256, 384, 512, 1024)


class Drafts(Protocol):
    """What a batch asks of those who draft. A handle stands for one sequence's drafter.

    `most` is how many nodes each tree may have.
    """

    most: int

    def start(self, context: Context) -> Any:
        """The handle of a sequence that begins."""

    def propose(self, handles: Sequence[Any], texts: Sequence[Continuation]) -> list[DraftTree]:
        """A tree for each sequence, which fits its context and what it may still emit."""

    def learn(self, handle: Any, tree: DraftTree, scores: Tensor) -> None:
        """The scores (k + 1, vocabulary) of the tree that was proposed last."""

    def observe(self, handles: Sequence[Any], emitted: Sequence[Sequence[int]]) -> None:
        """What each sequence emitted in a step."""

    def spent(self, rows: int, seconds: float) -> None:
        """A step over so many rows took `seconds`, drafting left out."""

    def finish(self, handle: Any) -> None:
        """A sequence has ended."""

    def report(self, handle: Any) -> PolicyReport | None:
        """What was decided."""


class JointDrafts:
    """`auto`: the nodes of all sequences compete for the rows of a pass."""

    def __init__(self, drafter: BatchDrafter, most: int) -> None:
        self._drafter, self.most = drafter, most

    def start(self, context: Context) -> Auto:
        return self._drafter.start(context)

    def propose(self, handles: Sequence[Auto], texts: Sequence[Continuation]) -> list[DraftTree]:
        budgets = [min(self.most, t.left) if t.depth > 0 else 0 for t in texts]
        trees = self._drafter.propose(handles, budgets)
        return [
            tree.cut(max(0, text.depth), budget, text.left)
            for tree, text, budget in zip(trees, texts, budgets, strict=True)
        ]

    def learn(self, handle: Auto, tree: DraftTree, scores: Tensor) -> None:
        """Nothing: drafts from the model's scores are not made for several sequences."""

    def observe(self, handles: Sequence[Auto], emitted: Sequence[Sequence[int]]) -> None:
        self._drafter.observe(handles, emitted)

    def spent(self, rows: int, seconds: float) -> None:
        self._drafter.spent(rows, seconds)

    def finish(self, handle: Auto) -> None:
        self._drafter.finish(handle)

    def report(self, handle: Auto) -> PolicyReport | None:
        """The decisions so far, which are those for all sequences together."""
        policy = self._drafter.policy
        return policy.report() if policy is not None else None


def joint_drafts(
    costs: Costs | None, pool: Pool | None, most: int, background: BackgroundCounts | None = None
) -> JointDrafts:
    """`auto` for several sequences, by what passes over one cost; these costs stay as they are."""
    curve = None
    if costs is not None:
        one = costs.at_length(SHORT)
        curve = CostCurve(one.by_rows() | {rows: one.at(rows) for rows in _ROWS})
    return JointDrafts(BatchDrafter(curve, pool, background=background), most)


class OwnDrafts:
    """Any other method: a drafter for each sequence, the nodes of a pass divided evenly.

    `make` makes a drafter; one whose sequence has ended is used again.
    """

    def __init__(self, make: Callable[[], Drafter], most: int) -> None:
        self._make, self.most = make, most
        self._free: list[Drafter] = []
        self._drafters: dict[Drafting, Drafter] = {}

    def start(self, context: Context) -> Drafting:
        drafter = self._free.pop() if self._free else self._make()
        drafter.reset(context)
        handle = Drafting(drafter, self.most)
        self._drafters[handle] = drafter
        return handle

    def propose(
        self, handles: Sequence[Drafting], texts: Sequence[Continuation]
    ) -> list[DraftTree]:
        share = self.most // max(1, len(handles))
        return [
            handle.propose(text.ids, text.depth, min(share, text.left))
            for handle, text in zip(handles, texts, strict=True)
        ]

    def learn(self, handle: Drafting, tree: DraftTree, scores: Tensor) -> None:
        handle.learn(tree, scores)

    def observe(self, handles: Sequence[Drafting], emitted: Sequence[Sequence[int]]) -> None:
        for handle, tokens in zip(handles, emitted, strict=True):
            handle.observe(tokens)

    def spent(self, rows: int, seconds: float) -> None:
        for drafter in self._drafters.values():
            drafter.spent(rows, seconds)

    def finish(self, handle: Drafting) -> None:
        drafter = self._drafters.pop(handle)
        drafter.finish()
        self._free.append(drafter)

    def report(self, handle: Drafting) -> PolicyReport | None:
        return self._drafters[handle].report()
