"""Tokens that are drafted for sure, and what a grammar leaves of a draft. Knows no torch.

What must follow by a grammar, and what an exact pass has found but not counted, is put in front of
the next draft. The drafter is given it at once, so that its own draft follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import and_, eq
from typing import Any

from ngtcli.decoding.grammar.matcher import Matcher
from ngtcli.drafting.origins import GRAMMAR
from ngtcli.drafting.tree import ROOT, DraftTree


class Ahead:
    """A text as its drafter knows it: `ids`, the first `emitted` of which were emitted.

    Those behind are expected; `origins` are theirs.
    """

    def __init__(self, drafter: Any, ids: Sequence[int]) -> None:
        self.ids, self.emitted, self.origins = list(ids), len(ids), list[str]()
        self.drafter = drafter

    @property
    def tokens(self) -> list[int]:
        """Those that are expected."""
        return self.ids[self.emitted :]

    def expect(self, tokens: Sequence[int], origins: Sequence[str]) -> None:
        """Expect tokens with these origins, too; the drafter is still to be given them."""
        self.ids += tokens
        self.origins += origins

    def emit(self, tokens: Sequence[int]) -> list[int]:
        """Tokens are emitted; those of them that the drafter is still to be given.

        Where others were expected, these are taken back.
        """
        same = sum(accumulate(map(eq, self.tokens, tokens), and_))
        if same < len(tokens):
            self.take_back(same)
        self.ids += (new := list(tokens[same:]))
        self.emitted += len(tokens)
        del self.origins[: len(tokens)]
        return new

    def take_back(self, kept: int = 0) -> None:
        """Expect no more than the first `kept`."""
        wrong = len(self.ids) - self.emitted - kept
        if wrong > 0:
            del self.ids[len(self.ids) - wrong :], self.origins[kept:]
            self.drafter.retract(wrong, self.ids)


@dataclass(frozen=True, slots=True)
class Behind:
    """A text behind `head`, tokens that are expected: what a drafter is asked to go on with.

    `depth`, `left` and `room` (in nodes) are what `head` leaves of the text's. `matcher` is the
    state of its grammar there, None where none decides.
    """

    ids: Sequence[int]
    depth: int
    left: int
    room: int
    head: Sequence[int] = ()
    origins: Sequence[str] = ()
    matcher: Matcher | None = None

    def whole(self, tree: DraftTree) -> DraftTree:
        """The draft for the text, of one for what follows `head`."""
        if self.matcher is not None:
            tree = allowed(tree, self.matcher, self.depth, min(self.room, self.left))
        return tree.under(self.head, self.origins)


def behind(text: Any, room: int, ahead: Ahead | None) -> Behind:
    """`text` behind what is expected of it and what must follow that, `room` tokens at most.

    The drafter of `ahead` is told; with None there are none.
    """
    if ahead is None:
        return Behind(text.ids, text.depth, text.left, room)
    most, matcher = max(0, min(text.depth, room)), text.matcher and text.matcher.copy()
    if matcher and all(map(matcher.follow, ahead.tokens)):
        if forced := matcher.force(most - len(ahead.tokens)):
            ahead.expect(forced, [GRAMMAR] * len(forced))
            ahead.drafter.observe(forced)
    head = ahead.tokens[:most]
    used, origins = len(head), ahead.origins[: len(head)]
    depth, left = text.depth - used, text.left - used
    return Behind(ahead.ids, depth, left, room - used, head, origins, matcher)


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
