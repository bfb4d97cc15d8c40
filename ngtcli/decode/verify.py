"""Verification: which nodes of a draft tree are accepted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
