"""Draft trees: token ids that may follow the last accepted token, and their verification."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import le

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.origins import DRAFT

ROOT = -1


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A tree of draft tokens, in an order in which parents come before their children.

    The root is the last accepted token; it is not a node. Siblings have different tokens.

    Attributes:
        tokens: The token id of each node.
        parents: The index of each node's parent, ROOT (-1) for a child of the root.
        probes: How many nodes at the end are probes. The model computes logits after them, which
            drafters learn from, but they are never accepted. They may repeat a sibling's token, and
            their parents may be drafts or probes.
        origins: The origin of each node, as an index into `names`. If it is empty, all nodes have
            the first of `names` as their origin.
        names: The names of the origins.
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
        """Return the number of nodes that can be accepted; they come before the probes."""
        return len(self.tokens) - self.probes

    def origin(self, node: int) -> str:
        """Return the name of a node's origin."""
        return self.names[self.origins[node]] if self.origins else self.names[0]

    def drafts_of(self, origin: str) -> int:
        """Count the drafts that have this origin.

        >>> DraftTree((7, 8), (-1, -1), origins=[0, 1], names=("a", "b")).drafts_of("b")
        1
        """
        return sum(self.origin(node) == origin for node in range(self.drafts))

    def depths(self) -> list[int]:
        """Return the depth of each node, 1 for a child of the root."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    def ancestors(self) -> npt.NDArray[np.bool_]:
        """Return the mask of tree attention ("N-Gram Trie Speculative Decoding", section 3.2).

        Returns:
            bool (k + 1, k + 1) for k nodes; index 0 is the root, index i + 1 is node i. Each row is
            true at the ancestors of its node and at the node itself.
        """
        rows = [bytearray(len(self) + 1)]  # This is faster than rows of a numpy array.
        rows[0][0] = 1
        for i, parent in enumerate(self.parents, 1):
            row = rows[parent + 1][:]
            row[i] = 1
            rows.append(row)
        seen = np.frombuffer(bytearray().join(rows), np.bool_)
        return seen.reshape(len(rows), len(rows))

    def below_chain(self, front: Sequence[int], origins: Sequence[str]) -> "DraftTree":
        """Return a chain of tokens with this tree below its end.

        Args:
            front: The tokens of the chain.
            origins: The name of the origin of each token of the chain.

        >>> chain([7]).below_chain([5, 6], ["a", "b"]).parents
        (-1, 0, 1)
        """
        if not front:
            return self
        names = tuple(dict.fromkeys((*self.names, *origins)))
        tree_origins = self.origins if self.origins else [0] * len(self)
        return DraftTree(
            (*front, *self.tokens),
            (*range(ROOT, len(front) - 1), *(parent + len(front) for parent in self.parents)),
            self.probes,
            [*map(names.index, origins), *tree_origins],
            names,
        )

    def with_chain(self, node: int, tokens: Sequence[int], origin: str) -> "DraftTree":
        """Return the tree with a chain of tokens below a node, directly after it in the node order.

        Args:
            node: The index of the node, which is not a probe.
            tokens: The tokens of the chain.
            origin: The name of their origin.

        >>> DraftTree((1, 2), (-1, -1)).with_chain(0, [3, 4], "a").parents
        (-1, 0, 1, -1)
        """
        if not tokens:
            return self
        names = tuple(dict.fromkeys((*self.names, origin)))
        origins = list(self.origins) if self.origins else [0] * len(self)
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
        """Return the tree of only these nodes, given with parents before children, probes last."""
        new_index = {node: i for i, node in enumerate([ROOT, *nodes], ROOT)}
        return DraftTree(
            tuple([self.tokens[node] for node in nodes]),
            tuple([new_index[self.parents[node]] for node in nodes]),
            len([node for node in nodes if node >= self.drafts]),
            [self.origins[node] for node in nodes] if self.origins else (),
            self.names,
        )

    def first_chain(self) -> "DraftTree":
        """Return the chain of the first child, its first child, and so on, without probes.

        It is the likeliest chain, because methods put the likelier sibling first.

        >>> DraftTree((1, 2, 3, 4), (-1, -1, 0, 1)).first_chain().tokens
        (1, 3)
        """
        nodes = [ROOT]
        for node in range(self.drafts):
            if self.parents[node] == nodes[-1]:
                nodes.append(node)
        return self if len(nodes) > len(self) else self.take(nodes[1:])

    def cut(
        self, depth: int, nodes: int, probe_depth: int | None = None, max_size: int | None = None
    ) -> "DraftTree":
        """Return the part of the tree that is within some bounds.

        Args:
            depth: The maximum depth of drafts.
            nodes: The maximum number of drafts; the first ones stay.
            probe_depth: The maximum depth of probes; None: `depth`.
            max_size: The maximum number of drafts and probes together; None: no bound. If all
                probes fit, they take precedence over drafts; otherwise all probes are dropped.
        """
        if max_size is not None and len(self) > max_size:
            has_room = self.probes <= max_size
            nodes = min(nodes, max_size - self.probes if has_room else max_size)
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
    """Make a tree whose nodes are in the order of `depth_first`.

    Args:
        tokens: The token id of each node.
        parents: The index of each node's parent, ROOT for a child of the root.
        priority: A number for each node; among siblings the highest comes first.
    """
    return DraftTree(tuple(tokens), tuple(parents)).take(depth_first(parents, priority))


def depth_first(parents: Sequence[int], priority: Sequence[float]) -> list[int]:
    """Order the nodes of a tree depth first, from the best child to the worst.

    The likeliest chain then comes first, so that its KV entries, if it is accepted, are already in
    the right place in the cache.

    Args:
        parents: The index of each node's parent, ROOT for a child of the root.
        priority: A number for each node; among siblings the highest comes first. Siblings of equal
            priority keep their order.

    >>> depth_first([-1, -1, 0, 1], [0.2, 0.5, 0.1, 0.1])
    [1, 3, 0, 2]
    """
    children: dict[int, list[int]] = {}
    for i, parent in enumerate(parents):
        children.setdefault(parent, []).append(i)
    order: list[int] = []  # the root, then all nodes
    stack = [ROOT]
    while stack:
        node = stack.pop()
        order.append(node)
        below = children.get(node, [])
        if len(below) > 1:
            # Sorted from the best and then reversed, so that siblings of equal priority are popped
            # in their order. An ascending sort would reverse them.
            below = sorted(below, key=priority.__getitem__, reverse=True)[::-1]
        stack += below  # The best child is the last, which is popped first.
    return order[1:]


@dataclass(frozen=True, slots=True)
class Path:
    """The result of verifying a tree: a walk from the root.

    Attributes:
        nodes: The accepted nodes, from parent to child.
        tokens: Their tokens, followed by the bonus token. In exact decoding the walk may end early,
            and the last node's token takes the place of the bonus token.
        kept: How many of the nodes, from the first on, keep their KV entries; None: all.

    For example, nodes 2 and 3 have the tokens 5 and 6, and the model chooses 7 after them. The KV
    entries of both nodes stay. In exact decoding (decoding/exact.py) the logits after node 2 may
    be unusable. Then the token of node 2 is the last that is emitted, and becomes the root of the
    next tree. The next forward pass computes the KV entry of its root, so that none is kept here:

    >>> Path((2, 3), (5, 6, 7)).kept_nodes
    (2, 3)
    >>> Path((2,), (5,), kept=0).kept_nodes
    ()
    """

    nodes: tuple[int, ...]
    tokens: tuple[int, ...]
    kept: int | None = None

    @property
    def kept_nodes(self) -> tuple[int, ...]:
        """The nodes whose KV entries stay in the cache."""
        return self.nodes[: self.kept]


def verify(tree: DraftTree, choose: Callable[[int, Sequence[int]], int]) -> Path:
    """Walk down a tree while the current node has a child with the token that the model chooses.

    Args:
        tree: The tree. Its probes are never accepted.
        choose: Returns the model's token after a node, or after ROOT, given the tokens that this
            walk has accepted. It is called once per node, so that no token is drawn twice.
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
