"""Lookup in background counts. Compiled. With any content of the arrays, indices stay in bounds.

A manipulated file can only give wrong nodes, tokens within the vocabulary, and counts that are
positive and no larger than what they are divided by.
"""

from typing import Any, NamedTuple

from ngtcli.drafting.tries.background import COUNT, FIRST, ROW, TOKEN
from ngtcli.drafting.tries.corpus import Ints
from ngtcli.drafting.tries.counts import NONE
from ngtcli.system.compiled import njit


class BackgroundArrays(NamedTuple):
    """The arrays of BackgroundCounts, with the same number of rows."""

    nodes: Ints
    by_token: Ints


@njit(inline="always")
def child_rows(nodes: Any, node: int) -> Any:
    """Return first and end of the rows of a node's children; 0, 0 if the array is damaged.

    The node is below the array's last row.
    """
    first = nodes[node, FIRST]
    end = nodes[node + 1, FIRST]
    if first <= node or end >= len(nodes) or end < first:
        return 0, 0
    return first, end


@njit(inline="always")
def find_row(background: Any, node: int, token: int) -> Any:
    """Return the child of `node` for `token`, or NONE."""
    nodes = background.nodes
    by_token = background.by_token
    first, end = child_rows(nodes, node)
    if node == 0:  # a child for every token
        return first + token if 0 <= token < end - first else NONE
    low = first
    high = end
    while low < high:
        middle = (low + high) // 2
        if by_token[middle, TOKEN] < token:
            low = middle + 1
        else:
            high = middle
    if low == end or by_token[low, TOKEN] != token:
        return NONE
    row = by_token[low, ROW]
    return row if first <= row < end else NONE


@njit(inline="always")
def count_in(nodes: Any, row: int, total: float) -> Any:
    """Return the count of a child, in units, out of the `total` of its parent; 0 for none."""
    count = nodes[row, COUNT]
    return count if 0 < count <= total else 0


@njit(inline="always")
def in_vocabulary(nodes: Any, row: int) -> Any:
    """Return whether a row's token may be drafted."""
    return 0 <= nodes[row, TOKEN] < nodes[0, TOKEN]
