"""A draft: a tree of token ids below the last accepted token, and which nodes are accepted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import le

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.origins import DRAFT

ROOT = -1


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Nodes in an order where parents come before children.

    `tokens[i]` is a token id, `parents[i]` the index of its parent or -1 for a child of the root,
    which is the last accepted token and no node. Siblings hold different tokens. The last `probes`
    nodes are there only to be scored: they are never accepted, may repeat a sibling's token, and
    have parents of either kind. `origins` says where each node comes from, as an index into
    `names`; it may be empty, which says "draft" of all.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    probes: int = 0
    origins: Sequence[int] = ()
    names: tuple[str, ...] = (DRAFT,)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def drafts(self) -> int:
        """Return how many nodes can be accepted; they come before the probes."""
        return len(self.tokens) - self.probes

    def origin(self, node: int) -> str:
        """Return the origin of a node."""
        return self.names[self.origins[node]] if self.origins else self.names[0]

    def drafts_of(self, origin: str) -> int:
        """Return how many drafts come from there.

        >>> DraftTree((7, 8), (-1, -1), origins=[0, 1], names=("a", "b")).drafts_of("b")
        1
        """
        return sum(self.origin(node) == origin for node in range(self.drafts))

    def depths(self) -> list[int]:
        """Depth of each node, 1 for a child of the root."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    def ancestors(self) -> npt.NDArray[np.bool_]:
        """Return the mask of tree attention (paper, section 3.2).

        Returns:
            bool (k + 1, k + 1), the root in row and column 0. Row i is true at the ancestors of i
            and at i itself.
        """
        rows = [bytearray(len(self) + 1)]  # quicker than rows of an array
        rows[0][0] = 1
        for i, parent in enumerate(self.parents, 1):
            row = rows[parent + 1][:]
            row[i] = 1
            rows.append(row)
        seen = np.frombuffer(bytearray().join(rows), np.bool_)
        return seen.reshape(len(rows), len(rows))

    def under(self, front: Sequence[int], origins: Sequence[str]) -> "DraftTree":
        """Return the chain of `front`, tokens with `origins`, and this tree below its last token.

        >>> chain([7]).under([5, 6], ["a", "b"]).parents
        (-1, 0, 1)
        """
        if not front:
            return self
        names = tuple(dict.fromkeys((*self.names, *origins)))
        tree_origins = self.origins if len(self.origins) else [0] * len(self)
        return DraftTree(
            (*front, *self.tokens),
            (*range(ROOT, len(front) - 1), *(parent + len(front) for parent in self.parents)),
            self.probes,
            [*map(names.index, origins), *tree_origins],
            names,
        )

    def extended(self, node: int, tokens: Sequence[int], origin: str) -> "DraftTree":
        """Return the tree with a chain of tokens below a draft, next to it in order.

        >>> DraftTree((1, 2), (-1, -1)).extended(0, [3, 4], "a").parents
        (-1, 0, 1, -1)
        """
        if not tokens:
            return self
        names = tuple(dict.fromkeys((*self.names, origin)))
        origins = list(self.origins) if len(self.origins) else [0] * len(self)
        start = node + 1
        count = len(tokens)
        later = [parent + count if parent >= start else parent for parent in self.parents[start:]]
        return DraftTree(
            (*self.tokens[:start], *tokens, *self.tokens[start:]),
            (*self.parents[:start], *range(node, node + count), *later),
            self.probes,
            [*origins[:start], *[names.index(origin)] * count, *origins[start:]],
            names,
        )

    def take(self, nodes: Sequence[int]) -> "DraftTree":
        """Return the tree of some nodes, in this order: each behind its parent, probes last."""
        number_of = {node: i for i, node in enumerate([ROOT, *nodes], ROOT)}
        return DraftTree(
            tuple([self.tokens[i] for i in nodes]),
            tuple([number_of[self.parents[i]] for i in nodes]),
            sum([i >= self.drafts for i in nodes]),
            [self.origins[i] for i in nodes] if len(self.origins) else (),
            self.names,
        )

    def first_chain(self) -> "DraftTree":
        """Return the chain of the first child, its first child, and so on.

        A tree without branches is returned as it is. Methods put the likelier sibling first. Probes
        are left out.

        >>> DraftTree((1, 2, 3, 4), (-1, -1, 0, 1)).first_chain().tokens
        (1, 3)
        """
        nodes = [ROOT]
        for node in range(self.drafts):
            if self.parents[node] == nodes[-1]:
                nodes.append(node)
        return self if len(nodes) > len(self) else self.take(nodes[1:])

    def cut(
        self, depth: int, nodes: int, probe_depth: int | None = None, rows: int | None = None
    ) -> "DraftTree":
        """Return the tree cut to some bounds.

        Args:
            depth: Nodes that are deeper are left out.
            nodes: The number of drafts; the first ones stay.
            probe_depth: The depth of probes; None: `depth`.
            rows: The number of drafts and probes together; None: any. All probes stay if there is
                room for them, at the expense of drafts; else none stays.
        """
        if rows is not None and len(self) > rows:
            has_room = self.probes <= rows
            nodes = min(nodes, rows - self.probes if has_room else rows)
            probe_depth = probe_depth if has_room else 0
        depths = self.depths()
        deepest = depth if probe_depth is None else probe_depth
        limits = [depth] * self.drafts + [deepest] * self.probes
        if self.drafts <= nodes and all(map(le, depths, limits)):
            return self
        remaining = {ROOT}
        drafts = 0
        for i, (level, limit) in enumerate(zip(depths, limits, strict=True)):
            if level > limit or self.parents[i] not in remaining:
                continue
            if i < self.drafts:
                if drafts == nodes:
                    continue
                drafts += 1
            remaining.add(i)
        return self.take(sorted(remaining)[1:])


def chain(tokens: Sequence[int]) -> DraftTree:
    """Make a tree without branches."""
    return DraftTree(tuple(tokens), tuple(range(-1, len(tokens) - 1)))


def in_depth_first_order(
    tokens: Sequence[int], parents: Sequence[int], priority: Sequence[float]
) -> DraftTree:
    """Make a tree with its nodes in the order of `depth_first`."""
    return DraftTree(tuple(tokens), tuple(parents)).take(depth_first(parents, priority))


def depth_first(parents: Sequence[int], priority: Sequence[float]) -> list[int]:
    """Order the nodes of a tree, each followed by its best child's subtree first.

    The likeliest chain thus comes first, so that its accepted rows already lie where they belong
    in the KV cache.

    Args:
        parents: Of each node, -1 for the root.
        priority: Of each node; the higher is the better. Equal ones keep their order.

    >>> depth_first([-1, -1, 0, 1], [0.2, 0.5, 0.1, 0.1])
    [1, 3, 0, 2]
    """
    children: dict[int, list[int]] = {}
    for i, parent in enumerate(parents):
        children.setdefault(parent, []).append(i)
    order: list[int] = []  # of the root and all nodes
    stack = [ROOT]
    while stack:
        node = stack.pop()
        order.append(node)
        below = children.get(node, [])
        if len(below) > 1:
            below = sorted(below, key=priority.__getitem__, reverse=True)[::-1]
        stack += below  # the worst first
    return order[1:]


@dataclass(frozen=True, slots=True)
class Path:
    """`nodes`: the accepted nodes, parent to child. `tokens`: theirs, then the bonus token.

    The rows of the first `kept` nodes stay in the cache; None: those of all nodes. Where they are
    fewer, the bonus token is the last node's.

    For example, nodes 2 and 3 hold the tokens 5 and 6, and the model chooses 7 behind them. All
    rows stay. In an exact run (decoding/exact.py) the row of node 2 may not count. Then its token
    is the last one that is emitted, and becomes the root of the next tree:

    >>> Path((2, 3), (5, 6, 7)).rows
    (2, 3)
    >>> Path((2,), (5,), kept=0).rows
    ()
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
