"""Applies the grammar of an answer: to the next token, and to drafts."""

from ngtcli.decoding.grammar.matcher import Matcher
from ngtcli.decoding.reasoning import TextStream
from ngtcli.decoding.sampling import Mask
from ngtcli.drafting.origins import GRAMMAR
from ngtcli.drafting.tree import ROOT, DraftTree
from ngtcli.errors import ModelError


class Guide:
    """The state of a grammar, beside the stream that tells reasoning from the answer."""

    def __init__(self, matcher: Matcher, stream: TextStream) -> None:
        self.matcher = matcher
        self.stream = stream

    @property
    def openings(self) -> tuple[int, ...] | None:
        """Tokens that may open reasoning where the answer may begin.

        None if the grammar does not count: in reasoning, and after the end of the grammar's text.
        """
        if self.matcher.over:
            return None
        return () if self.matcher.taken else self.stream.openings

    @property
    def grammar_decides(self) -> bool:
        """Return whether the grammar decides the next token: no reasoning can begin or go on."""
        return self.openings == ()

    def copy_for(self, stream: TextStream) -> "Guide":
        """Return a guide in the same state, to look ahead with a copy of the stream."""
        return Guide(self.matcher.copy(), stream)

    def push(self, token: int) -> None:
        """Advance the grammar by a token. Raises ModelError.

        The stream must get the token after this call, not before.
        """
        openings = self.openings
        if openings is not None and token not in openings and not self.matcher.follow(token):
            raise ModelError("llguidance gave up", hint="Make the schema simpler.")

    def allows(self, token: int) -> bool:
        """Return whether a token may come next. Raises ModelError as `Matcher.allows`."""
        openings = self.openings
        return openings is None or token in openings or self.matcher.allows(token)

    def mask(self) -> Mask | None:
        """Return which tokens may come next, bool (vocab_size,); None for all.

        Raises ModelError as `Matcher.allows`.
        """
        openings = self.openings
        if openings is None:
            return None
        mask = self.matcher.mask()
        mask[list(openings)] = True
        return mask


def prune(tree: DraftTree, matcher: Matcher, max_depth: int, max_nodes: int) -> DraftTree:
    """Return what a grammar leaves of a draft: each branch up to the first token that it refuses.

    The tokens that the grammar forces after the leaf of the first chain are added.

    Args:
        tree: The draft.
        matcher: The state of the grammar at the root; it is changed.
        max_depth: The maximum depth of an added token.
        max_nodes: The maximum number of nodes of a tree to which tokens are added.
    """
    states = {ROOT: matcher}
    parents = tree.parents[: tree.drafts]
    last_child = {parent: node for node, parent in enumerate(parents)}
    for node, parent in enumerate(parents):
        state = states.get(parent)
        if state is None:
            continue
        # The last child takes the state itself: a copy takes 0.4 ms if quotations are long.
        if node != last_child[parent]:
            state = state.copy()
        if state.follow(tree.tokens[node]):
            states[node] = state

    allowed = set(states)
    for probe in range(tree.drafts, len(tree)):
        if tree.parents[probe] in allowed:
            allowed.add(probe)
    nodes = sorted(allowed)[1:]  # without the root
    tree = tree.take(nodes)

    leaf = ROOT
    for node in range(tree.drafts):
        if tree.parents[node] == leaf:
            leaf = node
    if leaf == ROOT:
        return tree
    limit = min(max_depth - tree.depths()[leaf], max_nodes - len(tree))
    return tree.with_chain(leaf, states[nodes[leaf]].force(limit), GRAMMAR)
