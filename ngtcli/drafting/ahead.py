"""Tokens that the grammar forces in front of a draft, and the pruning of drafts by the grammar.

What must follow by a grammar, and what an exact pass has found but not counted, is expected by the
log of a sequence. It stands in front of the next draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ngtcli.decoding.grammar.matcher import Matcher
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.origins import GRAMMAR
from ngtcli.drafting.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class Behind:
    """Where a draft goes on: behind `head`, expected tokens that come from `origins`.

    `depth`, `left` and `room` (in nodes) are what `head` leaves of the sequence's. `matcher` is the
    state of its grammar there, None where none decides.
    """

    depth: int
    left: int
    room: int
    head: Sequence[int] = ()
    origins: Sequence[str] = ()
    matcher: Matcher | None = None

    def whole(self, tree: DraftTree) -> DraftTree:
        """The draft for the sequence, of one for what follows `head`."""
        if self.matcher is not None:
            tree = allowed(tree, self.matcher, self.depth, min(self.room, self.left))
        return tree.under(self.head, self.origins)


def behind(text: Any, room: int, log: TokenLog | None) -> Behind:
    """Let `log` expect what the grammar of `text` forces; where a draft of `room` nodes goes on.

    Without a log nothing is put in front of drafts.
    """
    if log is None:
        return Behind(text.depth, text.left, room)
    limit = max(0, min(text.depth, room))
    matcher = text.matcher and text.matcher.copy()
    expected = log.expected
    if matcher and all(map(matcher.follow, expected)):
        forced = matcher.force(limit - len(expected))
        log.expect(forced, [GRAMMAR] * len(forced))
        expected += forced
    head = expected[:limit]
    used = len(head)
    return Behind(
        text.depth - used, text.left - used, room - used, head, log.origins[:used], matcher
    )


def allowed(tree: DraftTree, matcher: Matcher, depth: int, room: int) -> DraftTree:
    """What a grammar leaves of a draft: each branch up to the first token that it refuses.

    Behind the leaf of the first chain comes what must follow it, no deeper than `depth`, and as far
    as there is `room` for so many nodes. `matcher` is used up.
    """
    states, parents = {ROOT: matcher}, tree.parents[: tree.drafts]
    last = {parent: node for node, parent in enumerate(parents)}
    for node, parent in enumerate(parents):
        if above := states.get(parent):
            # The last child takes the state itself: beside long quotations a copy is 0.4 ms.
            own = above if node == last[parent] else above.copy()
            if own.follow(tree.tokens[node]):
                states[node] = own
    kept = set(states)
    for probe in range(tree.drafts, len(tree)):
        kept |= {probe} if tree.parents[probe] in kept else set()
    nodes, leaf = sorted(kept)[1:], ROOT
    tree = tree.take(nodes)
    for node in range(tree.drafts):
        leaf = node if tree.parents[node] == leaf else leaf
    if leaf == ROOT:
        return tree
    most = min(depth - tree.depths()[leaf], room - len(tree))
    return tree.extended(leaf, states[nodes[leaf]].force(most), GRAMMAR)
