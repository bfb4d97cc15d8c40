"""Lookup in background counts, compiled. Whatever the array holds, no index leaves its bounds.

A manipulated file can only give wrong nodes, tokens within the vocabulary, and counts that are
positive and no larger than what they are divided by.
"""

from typing import Any

from ngtcli.system.compiled import njit, unowned
from ngtcli.trie.background import COUNT, FIRST, FOLLOWED, RANKED, TOKEN
from ngtcli.trie.counts import NONE


@njit(inline="always")
def child_rows(nodes: Any, node: int) -> Any:
    """The rows of a node's children, (first, end); none where the array says what cannot be.

    `node` is below the array's last row.
    """
    first, end = nodes[node, FIRST], nodes[node + 1, FIRST]
    if first <= node or end >= len(nodes) or end < first:
        return 0, 0
    return first, end


@unowned
def find_row(nodes: Any, node: int, token: int) -> Any:
    """The child of `node` for `token`, or NONE."""
    low, end = child_rows(nodes, node)
    if node == 0 and 0 <= token < end - low and nodes[low + token, TOKEN] == token:
        return low + token  # as `with_all_tokens` has it
    high = end
    while low < high:
        middle = (low + high) // 2
        if nodes[middle, TOKEN] < token:
            low = middle + 1
        else:
            high = middle
    return low if low < end and nodes[low, TOKEN] == token else NONE


@njit(inline="always")
def count_in(nodes: Any, row: int, total: int) -> Any:
    """The count of a child, in units, of `total` that followed its parent; 0 for no count."""
    count = nodes[row, COUNT]
    return count if 0 < count <= total else 0


@njit(inline="always")
def total_of(nodes: Any, node: int) -> Any:
    """What followed a node, in units; 0 or less where nothing did."""
    return nodes[node, FOLLOWED]


@njit(inline="always")
def ranked_row(nodes: Any, first: int, end: int, rank: int) -> Any:
    """The row of the child with so many more frequent siblings; NONE where there is none such.

    `first` and `end` are those of `child_rows`.
    """
    if first + rank >= end:
        return NONE
    row = nodes[first + rank, RANKED]
    in_bounds = first <= row < end and 0 <= nodes[row, TOKEN] < nodes[0, TOKEN]
    return row if in_bounds else NONE
