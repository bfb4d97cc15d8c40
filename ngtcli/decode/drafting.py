"""What a run asks its drafter and tells it, and which nodes of a scored draft are accepted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ngtcli.decode.scores import highest
from ngtcli.draft.drafter import Drafter, Feedback
from ngtcli.draft.tree import ROOT, DraftTree


@dataclass(frozen=True, slots=True)
class Path:
    """`nodes`: the accepted nodes, parent to child. `tokens`: theirs, then the bonus token.

    The rows of the first `kept` nodes stay in the cache; None: those of all nodes. Where they are
    fewer, the bonus token is the last node's.
    """

    nodes: tuple[int, ...]
    tokens: tuple[int, ...]
    kept: int | None = None

    @property
    def rows(self) -> tuple[int, ...]:
        """The nodes whose rows stay in the cache."""
        return self.nodes[: self.kept]


def verify(tree: DraftTree, choose: Callable[[int, Sequence[int]], int]) -> Path:
    """Walk from the root, descending as long as a child holds the token the model chose.

    `choose(node, tokens)` is the model's token after `node` (-1: the root), where `tokens` were
    accepted in this walk. It is called once for each node on the path, so no token is drawn twice.
    Probes are never accepted.
    """
    children = {(tree.parents[node], tree.tokens[node]): node for node in range(tree.drafts)}
    nodes: list[int] = []
    tokens: list[int] = []
    node = ROOT
    while True:
        token = choose(node, tokens)
        tokens.append(token)
        following = children.get((node, token))
        if following is None:
            return Path(tuple(nodes), tuple(tokens))
        nodes.append(following)
        node = following


_EMPTY = DraftTree()


class Drafting:
    """Every row of a pass counts; `exact.py` has the other way.

    `rows` is what every pass has, None where it has as many as its draft needs. `proposed` says
    whether the drafter was queried in the last step.
    """

    rows: int | None = None

    def __init__(self, drafter: Drafter, most: int) -> None:
        self.proposed = False
        self._drafter, self._most = drafter, most  # nodes a step

    def propose(self, ids: Sequence[int], depth: int, left: int) -> DraftTree:
        """A draft to follow `ids`, prompt and output, no deeper than `depth`.

        The tree, with all its rows, must also fit the `left` tokens of the context: some models
        keep tables with a row for each place in the cache. Probes, which are not emitted, may be as
        deep as that allows.
        """
        return self._ask(ids, depth, min(self._most, left), left)

    def _ask(self, ids: Sequence[int], depth: int, most: int, probe_depth: int) -> DraftTree:
        self.proposed = depth >= 1 and most >= 1
        if not self.proposed:
            return _EMPTY
        return self._drafter.propose(ids, most).cut(depth, most, probe_depth)

    def halve(self, tree: DraftTree) -> DraftTree | None:
        """A draft that memory did not suffice for, cut to half its nodes, as are those to come.

        None where nothing can be cut.
        """
        if not len(tree):
            return None
        self._most = tree.drafts // 2
        return tree.cut(len(tree), self._most, 0)

    def padded(self, scores: Tensor, depths: list[int]) -> tuple[Tensor, list[int]]:
        """The rows that tokens are chosen from at once, and their depths."""
        return scores, depths

    def verify(self, tree: DraftTree, choose: Callable[[int, Sequence[int]], int]) -> Path:
        """The accepted path of a tree that was scored; `choose` as in `verify`."""
        return verify(tree, choose)

    def learn(self, tree: DraftTree, scores: Tensor) -> None:
        """Give the drafter the best ids of each row, if it asks for them.

        `scores`, (k + 1, vocabulary), are those of the tree that `propose` returned.
        """
        if self._most and (top_k := self._drafter.top_k):
            self._drafter.learn(Feedback(tree, highest(scores, top_k)[1].cpu().numpy()))

    def observe(self, emitted: Sequence[int]) -> None:
        """Give the drafter the tokens that a step emitted."""
        self._drafter.observe(emitted)

    def end(self) -> None:
        """The run has ended, or was broken off."""
