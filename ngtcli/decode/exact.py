"""Exact decoding: the tokens of plain decoding in any dtype, whatever is drafted.

In half precision the scores after a token depend on the shape of the pass and on where in the cache
its ancestors stand. So here all passes attend to as many places as the first row's position wants.
They have as many rows as their drafts need, if a row has the same bits whatever stands beside it,
else all have one number of rows, those of plain decoding too. A row counts only if it is as plain
decoding would have it: at the place that is its position, behind rows that stand so as well, in a
pass with the capacity of its own. The first chain of a tree is laid out so, its other branches are
not. That the bits depend on nothing else is tried on each machine before it is relied on
(exactness.py).

Where the choice at the last row that counts leaves that chain, the token chosen is emitted. The
walk goes on through the branch that holds it, but what it finds there is tentative: it is put at
the head of the next tree, where its rows count. A branch thus costs rows, and no pass.
"""

from collections.abc import Sequence

from ngtcli.decode.layout import rows_alike
from ngtcli.draft.drafter import Drafter, Drafters, Feedback, PassRows, Text
from ngtcli.draft.guesses import Guessed
from ngtcli.draft.steps import OWN
from ngtcli.draft.tree import ROOT, DraftTree, Path


class ExactDrafters(Drafters[Drafter]):
    """For one text, in passes of such `rows`, over up to `most` nodes.

    The drafter is given tentative tokens as if they were emitted.
    """

    def __init__(self, drafter: Drafter, rows: PassRows, most: int, prompt: Sequence[int]) -> None:
        super().__init__(lambda: drafter, min(most, rows.most - 1))
        self.rows: PassRows = rows
        self._drafter = drafter
        self._known = list(prompt)  # the text as the drafter knows it
        self._emitted = len(prompt)  # so many tokens of it, the others are tentative
        self._tentative: Sequence[int] = ()  # found in the last pass
        self._origins: Sequence[str] = ()  # of the tentative tokens
        self._below = DraftTree()  # what the drafter proposed
        self._stop = ROOT  # the node where verification stopped

    def propose(self, drafters: Sequence[Drafter], texts: Sequence[Text]) -> list[DraftTree]:
        """The tentative tokens, and below them a draft; the budget and depth hold for both."""
        (text,), self.proposed = texts, False
        depth, left, most = text.depth, text.left, min(self.most, text.left)
        head = self._known[len(text.ids) :][: max(0, min(depth, most))]
        used = len(head)
        below = self._ask(self._drafter, self._known, depth - used, most - used, left - used)
        # Probes take places of the budget, too.
        self._below = below.cut(depth - used, most - used, left - used, most - used)
        return [self._below.under(head, self._origins[:used])]

    def accept(self, tree: DraftTree, path: Path) -> Path:
        """The path as far as its rows count: nodes 0, 1, 2, … below each other.

        The last token, which these rows have chosen, may be that of one more node.
        """
        self._stop = path.nodes[-1] if path.nodes else ROOT
        alike = rows_alike(self._emitted - 1, self.rows.most)
        kept = sum(place == node < alike - 1 for place, node in enumerate(path.nodes))
        self._tentative = path.tokens[kept + 1 :]
        self._origins = [*(tree.origin(node) for node in path.nodes[kept + 1 :]), OWN]
        return Path(path.nodes[: kept + 1], path.tokens[: kept + 1], kept)

    def learn(self, drafter: Drafter, feedback: Feedback) -> None:
        """As for the drafter's own proposal: its root is the last tentative token."""
        if self.proposed:
            head = len(feedback.tree) - len(self._below)
            stop = self._stop - head if self._stop >= head - 1 else None

            def after(nodes: Sequence[int]) -> Guessed:
                return feedback.after([node + head for node in nodes])

            drafter.learn(Feedback(self._below, feedback.top[head:], stop, after))

    def observe(self, drafters: Sequence[Drafter], emitted: Sequence[Sequence[int]]) -> None:
        """Give the drafter the emitted tokens that it does not know yet, and the tentative ones."""
        (tokens,), same = emitted, 0
        for known, token in zip(self._known[self._emitted :], tokens, strict=False):
            if known != token:
                break
            same += 1
        self._retract(self._emitted + same)
        self._emitted += len(tokens)
        new = [*tokens[same:], *self._tentative]
        self._known += new
        if new:
            self._drafter.observe(new)

    def end(self) -> None:
        """Take the tentative tokens back: they are not part of the answer."""
        self._retract(self._emitted)

    def _retract(self, length: int) -> None:
        """Take back what the drafter was given beyond `length` tokens."""
        wrong = len(self._known) - length
        if wrong > 0:
            del self._known[length:]
            self._drafter.retract(wrong, self._known)
