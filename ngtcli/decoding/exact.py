"""Exact decoding: the tokens of plain decoding in any dtype, whatever is drafted.

In half precision the logits after a token depend on the shape of the forward pass, and on the KV
entries in which the token's ancestors are. Exact decoding therefore fixes both:

- All forward passes attend to a number of KV entries that follows from the position of their first
  query token alone.
- If the result for a query token does not depend on the other query tokens, a forward pass has as
  many as its draft needs. Otherwise all have the same number, in plain decoding too.
- The logits after a node count only if plain decoding would have computed them in the same way: the
  KV entry of the node is that of its position, and so are those of its ancestors. This holds for
  the first chain of a tree, and not for its other branches.

Before relying on this, ngt tests on each machine that the results depend on nothing else
(exactness/).

If the token chosen at the last node that counts leaves the first chain, that token is emitted. The
walk continues through the branch that has the token, but the tokens there are tentative: the log of
the sequence expects them, so that they are the first chain of the next tree, where they count. So a
branch costs query tokens, but no additional forward pass.
"""

from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.steps import OWN
from ngtcli.drafting.tree import DraftTree, Path


def part_that_counts(path: Path, log: TokenLog, rows: PassRows) -> Path:
    """Return the part of a path whose logits count: the nodes 0, 1, 2, … of the first chain.

    Its last token was chosen by these logits, and may be the token of one more node.

    For example, a tree has the chain of nodes 0 and 1, and the branch 0, 2, 3. The walk accepts
    nodes 0, 2 and 3, and ends with the bonus token x. The logits after the root and after node 0
    count, and node 2 has the token that was chosen after node 0. So the tokens of nodes 0 and 2 are
    emitted, and only the KV entry of node 0 stays. The token of node 3 and x are tentative (see
    `expect_tentative`).

    Args:
        path: The walk.
        log: The log of the sequence.
        rows: The numbers of query tokens of exact forward passes.
    """
    in_place = rows.rows_in_place(log.settled - 1)
    kept = 0
    while kept < len(path.nodes) and path.nodes[kept] == kept < in_place - 1:
        kept += 1
    return Path(path.nodes[: kept + 1], path.tokens[: kept + 1], kept)


def expect_tentative(log: TokenLog, tree: DraftTree, path: Path, emitted: Path) -> None:
    """Let a log expect the rest of a path.

    Args:
        log: The log, to which the tokens of `emitted` were added.
        tree: The tree that was verified.
        path: The walk.
        emitted: The part of the walk that was emitted.
    """
    count = len(emitted.tokens)
    origins = [tree.origin(node) for node in path.nodes[count:]] + [OWN]
    log.take_back()
    tokens = path.tokens[count:]
    log.expect(tokens, origins[: len(tokens)])
