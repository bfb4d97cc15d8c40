"""Exact decoding: the tokens of plain decoding in any dtype, whatever is drafted.

In half precision the scores after a token depend on the shape of the pass and on where in the cache
its ancestors stand. So here all passes attend to as many places as the first row's position wants.
They have as many rows as their drafts need, if a row has the same bits whatever stands beside it,
else all have one number of rows, those of plain decoding too. A row counts only if it is as plain
decoding would have it: at the place that is its position, behind rows that stand so as well, in a
pass with the capacity of its own. The first chain of a tree is laid out so, its other branches are
not. That the bits depend on nothing else is tried on each machine before it is relied on
(exactness/).

Where the choice at the last row that counts leaves that chain, the token chosen is emitted. The
walk goes on through the branch that holds it, but what it finds there is tentative: it is put at
the head of the next tree, where its rows count. A branch thus costs rows, and no pass.
"""

from collections.abc import Sequence
from dataclasses import replace

from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.drafting.ahead import Behind
from ngtcli.drafting.drafter import Drafter, Drafters, Outcome, Text
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.origins import GRAMMAR
from ngtcli.drafting.steps import OWN
from ngtcli.drafting.tree import ROOT, DraftTree, Path


class ExactDrafters(Drafters[Drafter]):
    """For one sequence, in passes of such `rows`, over up to `most` nodes.

    The log expects the tentative tokens, so that the drafter takes them for emitted.
    """

    def __init__(self, drafter: Drafter, rows: PassRows, most: int) -> None:
        super().__init__(lambda: drafter, min(most, rows.max - 1))
        self._rows = rows
        self._tentative: Sequence[int] = ()  # found in the last pass
        self._origins: Sequence[str] = ()  # of the tentative tokens
        self._stop = ROOT  # the node where verification stopped

    def propose(self, drafters: Sequence[Drafter], texts: Sequence[Text]) -> list[DraftTree]:
        """The tentative tokens, and below them a draft; the budget and depth hold for both."""
        (drafter,), (text,) = drafters, texts
        self.proposed = False
        place = self._behind(drafter, text, min(self.most, text.left))
        below = self._ask(drafter, place, place.left)
        # Probes take places of the budget, too.
        below = below.cut(place.depth, place.room, place.left, place.room)
        return [place.whole(below)]

    def _forced(self, place: Behind) -> int:
        return list(place.origins).count(GRAMMAR)

    def accept(self, tree: DraftTree, path: Path) -> Path:
        """The path as far as its rows count: nodes 0, 1, 2, … below each other.

        The last token, which these rows have chosen, may be that of one more node.
        """
        self._stop = path.nodes[-1] if path.nodes else ROOT
        (log,) = self._logs.values()
        alike = self._rows.rows_in_place(log.settled - 1)
        kept = sum(place == node < alike - 1 for place, node in enumerate(path.nodes))
        self._tentative = path.tokens[kept + 1 :]
        self._origins = [*(tree.origin(node) for node in path.nodes[kept + 1 :]), OWN]
        return Path(path.nodes[: kept + 1], path.tokens[: kept + 1], kept)

    def learn(self, drafter: Drafter, outcome: Outcome) -> None:
        """As for the drafter's own proposal: its root is the last tentative token."""
        if self.proposed:
            super().learn(drafter, replace(outcome, stop=self._stop))

    def _emit(self, log: TokenLog, tokens: Sequence[int]) -> None:
        """Emit tokens, and expect the tentative ones behind them."""
        log.emit(tokens)
        log.take_back()
        log.expect(self._tentative, self._origins[: len(self._tentative)])

    def end(self) -> None:
        """Take the tentative tokens back: they are not part of the answer."""
        for log in self._logs.values():
            log.take_back()
