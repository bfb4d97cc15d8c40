"""Exact decoding: the tokens of plain decoding in any dtype, whatever is drafted.

In half precision the scores after a token depend on the shape of the pass and on where in the cache
its ancestors stand. So here all passes have as many rows, those of plain decoding too; the places
that a pass attends to are as many as its first row's position wants. A row counts only if it is as
plain decoding would have it: at the place that is its position, behind rows that stand so as well,
in a pass with the capacity of its own. The first chain of a tree is laid out so, its other branches
are not.

That the bits depend on nothing else is a premise, which is tried on each machine before it is
relied on (exact_check.py). It fails by the kernel where the other rows of a pass matter; in a model
with experts they decide how many rows each expert multiplies, so there it holds only if its kernel
gives a row the same bits among any number of rows.

Where the choice at the last row that counts leaves that chain, the token chosen is emitted. The
walk goes on through the branch that holds it, but what it finds there is tentative: it is put at
the head of the next tree, where its rows count. A branch thus costs rows, and no pass.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ngtcli.decode.drafting import Drafting, Path
from ngtcli.decode.layout import rows_alike
from ngtcli.decode.steps import OWN
from ngtcli.draft.drafter import Drafter
from ngtcli.draft.tree import DraftTree


class ExactDrafting(Drafting):
    """Every pass has `rows` rows. The drafter is told tentative tokens as if they were emitted."""

    def __init__(self, drafter: Drafter, rows: int, prompt: Sequence[int]) -> None:
        super().__init__(drafter, rows - 1)
        self.rows = rows
        self._told = list(prompt)  # the text that the drafter knows
        self._sure = len(prompt)  # so many tokens of it are emitted, the others tentative
        self._tentative: Sequence[int] = ()  # found in the last pass
        self._origins: Sequence[str] = ()  # of the tentative tokens
        self._below = DraftTree()  # what the drafter proposed

    def propose(self, ids: Sequence[int], depth: int, left: int) -> DraftTree:
        """The tentative tokens, and below them a draft; the budget and depth hold for both."""
        most = min(self._most, left)
        head = self._told[len(ids) :][: max(0, min(depth, most))]
        used = len(head)
        below = self._ask(self._told, depth - used, most - used, left - used)
        self._below = _fitted(below, depth - used, most - used, left - used)
        return self._below.under(head, self._origins[:used])

    def halve(self, tree: DraftTree) -> None:
        """None: a smaller draft would leave the pass as large as it is."""

    def padded(self, scores: Tensor, depths: list[int]) -> tuple[Tensor, list[int]]:
        """As many rows for any draft: a GPU may add up one row in another order than several."""
        missing = self._most + 1 - len(scores)
        if scores.device.type == "cpu" or not missing:
            return scores, depths
        return torch.cat([scores, scores[:1].expand(missing, -1)]), depths + [0] * missing

    def verify(self, tree: DraftTree, choose: Callable[[int, Sequence[int]], int]) -> Path:
        """The path as far as its rows count: nodes 0, 1, 2, … below each other.

        The last token, which these rows have chosen, may be that of one more node.
        """
        walked = super().verify(tree, choose)
        alike = rows_alike(self._sure - 1, self._most + 1)
        kept = sum(place == node < alike - 1 for place, node in enumerate(walked.nodes))
        self._tentative = walked.tokens[kept + 1 :]
        self._origins = [*(tree.origin(node) for node in walked.nodes[kept + 1 :]), OWN]
        return Path(walked.nodes[: kept + 1], walked.tokens[: kept + 1], kept)

    def learn(self, tree: DraftTree, scores: Tensor) -> None:
        """As for the drafter's own proposal: its root is the last tentative token."""
        if self.proposed:
            super().learn(self._below, scores[len(tree) - len(self._below) :])

    def observe(self, emitted: Sequence[int]) -> None:
        """Give the drafter the emitted tokens that it does not know yet, and the tentative ones."""
        same = 0
        for known, token in zip(self._told[self._sure :], emitted, strict=False):
            if known != token:
                break
            same += 1
        self._retract(self._sure + same)
        self._sure += len(emitted)
        new = [*emitted[same:], *self._tentative]
        self._told += new
        if new:
            super().observe(new)

    def end(self) -> None:
        """Take the tentative tokens back: they are no part of the answer."""
        self._retract(self._sure)

    def _retract(self, length: int) -> None:
        """Take back what the drafter was told beyond `length` tokens."""
        wrong = len(self._told) - length
        if wrong > 0:
            del self._told[length:]
            self._drafter.retract(wrong, self._told)


def _fitted(tree: DraftTree, depth: int, most: int, probe_depth: int) -> DraftTree:
    """The tree with `most` nodes, probes included; these have the first claim, if all fit."""
    if len(tree) <= most:
        return tree
    if tree.probes <= most:
        return tree.cut(depth, most - tree.probes, probe_depth)
    return tree.cut(depth, most, 0)
