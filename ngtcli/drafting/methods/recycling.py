"""Token Recycling (Luo et al. 2024, "Turning Trash into Treasure").

An adjacency matrix has, for every token, the k most likely next tokens of the last pass that
contained the token, accepted or not. A static tree of 80 nodes is filled from it: the child of rank
r of a node is the r-th successor of the node's token. After each pass the rows of all its tokens
are replaced. The matrix is kept across prompts; a private text has one of its own.

As in the source, rows start as zeros, so the successor of a new token is token 0, and a token that
occurs twice in a pass gets its last row. Siblings with the same token are merged. The source
verifies all 80 nodes (`--num-draft 80`); with a smaller budget the nodes with the smallest sum of
(rank + 1) along their path are used.
"""

from dataclasses import dataclass

from ngtcli.drafting.drafter import Context, Draft, Drafter, DraftSettings, Outcome, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.options import MethodOptions, option
from ngtcli.drafting.tree import ROOT, in_depth_first_order

# The paper's tree (its appendix; version 2.2.2 of the authors' code): path of ranks -> children.
_CHILDREN = {
    "": 8,
    "0": 8,
    "1": 4,
    "2": 3,
    "3": 2,
    "4": 1,
    "5": 1,
    "6": 1,
    "7": 1,
    "00": 8,
    "01": 3,
    "02": 2,
    "03": 1,
    "04": 1,
    "05": 1,
    "06": 1,
    "07": 1,
    "10": 2,
    "11": 1,
    "20": 1,
    "30": 1,
    "40": 1,
    "50": 1,
    "000": 5,
    "001": 2,
    "002": 1,
    "003": 1,
    "004": 1,
    "010": 1,
    "020": 1,
    "100": 1,
    "200": 1,
    "300": 1,
    "0000": 3,
    "0001": 1,
    "0002": 1,
    "0010": 1,
    "0100": 1,
    "1000": 1,
    "00000": 2,
    "00010": 1,
}
_PATHS = [path + str(rank) for path, count in _CHILDREN.items() for rank in range(count)]
# (cost, path) of the nodes, sorted, which puts parents before children.
STATIC_TREE = sorted((sum(int(rank) + 1 for rank in path), path) for path in _PATHS)


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """The number k, under its name in the source; the tree has ranks 0 to 7."""

    output_id_topk: int = option(8, 1, 8)


class Recycling(Drafter):
    """The matrix, with a row for each token that has occurred."""

    def __init__(self, settings: DraftSettings, options: Options) -> None:
        super().__init__(settings, options)
        self._top_k: int = options.output_id_topk
        self._unseen = (0,) * self._top_k
        self._shared: dict[int, tuple[int, ...]] = {}
        self._successors = self._shared
        self._root = 0  # the token that the last draft followed

    def begin(self, context: Context) -> None:
        self._successors = {} if context.private else self._shared

    def propose(self, log: TokenLog, room: Room) -> Draft:
        """Fill the static tree from the matrix, below the last token."""
        self._root = log.token_ids[-1]
        tokens: list[int] = []
        parents: list[int] = []
        priority: list[float] = []
        node_of: dict[str, int] = {"": ROOT}
        edges: set[tuple[int, int]] = set()
        for cost, path in STATIC_TREE:
            rank = int(path[-1])
            above = path[:-1]
            if len(tokens) == room.nodes or rank >= self._top_k or above not in node_of:
                continue
            parent = node_of[above]
            before = self._root if parent == ROOT else tokens[parent]
            ranked = self._successors.get(before, self._unseen)
            if rank >= len(ranked) or (parent, ranked[rank]) in edges:
                continue
            token = ranked[rank]
            edges.add((parent, token))
            node_of[path] = len(tokens)
            tokens.append(token)
            parents.append(parent)
            priority.append(-float(cost))
        return Draft(in_depth_first_order(tokens, parents, priority), self._top_k)

    def learn(self, log: TokenLog, outcome: Outcome) -> None:
        """Set the successors of every token of the pass."""
        if outcome.top is None:
            return
        tokens = self._root, *outcome.tree.tokens
        for token, row in zip(tokens, outcome.top.tolist(), strict=True):
            self._successors[token] = tuple(row)
