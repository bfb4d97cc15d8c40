"""Exact decoding: the tokens of plain decoding in any dtype, whatever is drafted.

In half precision the logits after a token depend on the shape of the forward pass and on where in
the cache its ancestors stand. So all exact forward passes attend to as many cache entries as the
position of their first row wants. They have as many rows as their drafts need, if a row has the
same bits whatever stands beside it; else all have one number of rows, those of plain decoding too.
A row counts only if it is as plain decoding would have it: at the entry that is its position,
behind rows that stand so as well, in a forward pass with the capacity of its own. The first chain
of a tree is laid out so, its other branches are not. That the bits depend on nothing else is tried
on each machine before it is relied on (exactness/).

Where the choice at the last row that counts leaves that chain, the token chosen is emitted. The
walk goes on through the branch that holds it, but what it finds there is tentative: the log of the
sequence expects it, so that it stands at the head of the next tree, where its rows count. A branch
thus costs rows, and no forward pass.
"""

from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.steps import OWN
from ngtcli.drafting.tree import DraftTree, Path


def countable(path: Path, log: TokenLog, rows: PassRows) -> Path:
    """Return the path as far as its rows count: nodes 0, 1, 2, … below each other.

    Its last token, which these rows have chosen, may be that of one more node.

    For example, a tree has the chain of nodes 0 and 1, and the branch 0, 2, 3. The walk accepts
    nodes 0, 2 and 3, and ends with the bonus token x. The rows of the root and of node 0 count;
    that of node 0 has chosen the token of node 2. So the tokens of nodes 0 and 2 are emitted, and
    the row of node 0 alone is kept. The token of node 3 and x are tentative (`expect_tentative`).
    """
    in_place = rows.rows_in_place(log.settled - 1)
    kept = 0
    while kept < len(path.nodes) and path.nodes[kept] == kept < in_place - 1:
        kept += 1
    return Path(path.nodes[: kept + 1], path.tokens[: kept + 1], kept)


def expect_tentative(log: TokenLog, tree: DraftTree, path: Path, emitted: Path) -> None:
    """Let `log`, which has emitted the tokens of `emitted`, expect the rest of `path`."""
    count = len(emitted.tokens)
    origins = [tree.origin(node) for node in path.nodes[count:]] + [OWN]
    log.take_back()
    tokens = path.tokens[count:]
    log.expect(tokens, origins[: len(tokens)])
