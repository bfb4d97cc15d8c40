"""A trie of counts that grows token by token, in flat arrays that compiled code walks.

It holds every sequence of at most `depth` tokens of the texts it learned, as `GrowingTrie` does,
but without an object per node: nodes are indices, a child is found through one hash table for all
nodes, and each node's children form a list with the one seen last in front. Learning a token costs
`depth` steps of a fraction of a microsecond; a root keeps its most frequent tokens at hand.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

NONE = -1
TOP = 32  # most frequent tokens kept for the root
_FIRST = 1 << 12


@njit(cache=True, inline="always")
def slot_of(keys: Any, node: int, token: int) -> Any:
    """The hash slot that holds the child of `node` for `token`, or the free one for it."""
    key = (np.int64(node) << np.int64(32)) | np.int64(token)
    mask = len(keys) - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    slot = np.int64(mixed >> np.uint64(20)) & mask
    while keys[slot] != NONE and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@njit(cache=True)
def find(keys: Any, values: Any, node: int, token: int) -> int:
    """The child of `node` that holds `token`, or -1."""
    slot = slot_of(keys, node, token)
    return values[slot] if keys[slot] != NONE else NONE


@njit(cache=True)
def count_child(
    node: int, token: int, weight: float, nodes: Any, count: Any, total: Any, keys: Any,
    values: Any, used: int,
) -> Any:  # fmt: skip
    """Count `token` after `node` and put it in front of its siblings: (the child, nodes used).

    `nodes` has rows (token, first child, next sibling, previous sibling, children).
    """
    slot = slot_of(keys, node, token)
    if keys[slot] == NONE:
        child = used
        used += 1
        keys[slot] = (np.int64(node) << np.int64(32)) | np.int64(token)
        values[slot] = child
        nodes[child, 0], nodes[child, 1], nodes[child, 4] = token, NONE, 0
        nodes[node, 4] += 1
        count[child], total[child] = 0.0, 0.0
    else:
        child = values[slot]
        before, after = nodes[child, 3], nodes[child, 2]
        if before == NONE:
            nodes[node, 1] = after
        else:
            nodes[before, 2] = after
        if after != NONE:
            nodes[after, 3] = before
    front = nodes[node, 1]
    nodes[child, 2], nodes[child, 3] = front, NONE
    if front != NONE:
        nodes[front, 3] = child
    nodes[node, 1] = child
    count[child] += weight
    total[node] += weight
    return child, used


@njit(cache=True)
def learn(
    ids: Any, weight: float, depth: int, nodes: Any, count: Any, total: Any, keys: Any, values: Any,
    open_: Any, top: Any, used: int,
) -> int:  # fmt: skip
    """Count all sequences that end at each of `ids`; the number of nodes used after it.

    `open_[k]` is the node of the last k tokens, -1 where there are fewer.
    """
    for token in ids:
        for k in range(depth - 1, -1, -1):
            open_[k + 1] = NONE
            if open_[k] != NONE:
                open_[k + 1], used = count_child(
                    open_[k], token, weight, nodes, count, total, keys, values, used
                )
        _rank(open_[1], count, top)
    return used


@njit(cache=True)
def learn_ranks(
    tokens: Any, tops: Any, nodes: Any, count: Any, total: Any, keys: Any, values: Any, used: int
) -> int:
    """Count, after each of `tokens`, its row of `tops`, best first: 1, 1/2, 1/3, …

    What was counted after a token before is halved. The number of nodes used after it.
    """
    for i in range(len(tokens)):
        first, used = count_child(0, tokens[i], 1.0, nodes, count, total, keys, values, used)
        child = nodes[first, 1]
        while child != NONE:
            count[child] *= 0.5
            child = nodes[child, 2]
        total[first] *= 0.5
        for j in range(tops.shape[1] - 1, -1, -1):
            _, used = count_child(
                first, tops[i, j], 1.0 / (j + 1), nodes, count, total, keys, values, used
            )
    return used


@njit(cache=True)
def _rank(child: int, count: Any, top: Any) -> None:
    """Keep `top`, children of the root, sorted by count."""
    at = 0
    while at < len(top) - 2 and top[at] != child and top[at] != NONE:
        at += 1
    if top[at] != child:
        if top[at] != NONE and count[top[at]] >= count[child]:
            return
        top[at] = child
    while at > 0 and count[top[at - 1]] < count[child]:
        top[at], top[at - 1] = top[at - 1], top[at]
        at -= 1


class CountTrie:
    """Counts of all sequences of at most `depth` tokens. Node 0 is the root.

    >>> trie = CountTrie(3)
    >>> trie.extend([1, 2, 3, 1, 2])
    >>> trie.count_of([1, 2])
    2.0
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.used = 1
        self._allocate(_FIRST)
        self.nodes[0] = (NONE, NONE, NONE, NONE, 0)
        self.count[0] = self.total[0] = 0.0
        self.open = np.full(self.depth + 1, NONE, np.int32)
        self.open[0] = 0
        self.top = np.full(TOP + 1, NONE, np.int32)  # the last stays empty
        self.tokens = 0

    def _allocate(self, nodes: int) -> None:
        self.nodes = np.empty((nodes, 5), np.int32)
        self.count = np.empty(nodes, np.float32)
        self.total = np.empty(nodes, np.float32)
        self.keys = np.full(nodes * 2, NONE, np.int64)
        self.values = np.empty(nodes * 2, np.int32)

    def extend(self, ids: Sequence[int] | npt.NDArray[np.int32], weight: float = 1.0) -> None:
        """Learn tokens that follow those learned before, each counted as `weight`."""
        new = np.asarray(ids, dtype=np.int32)
        if not len(new):
            return
        self.reserve(len(new))
        self.used = learn(
            new, weight, self.depth, self.nodes, self.count, self.total, self.keys, self.values,
            self.open, self.top, self.used,
        )  # fmt: skip
        self.tokens += len(new)

    @property
    def arrays(self) -> tuple[Any, Any, Any, Any, Any, Any]:
        """Nodes, counts, counts of all continuations, hash keys and values, the root's top."""
        return self.nodes, self.count, self.total, self.keys, self.values, self.top

    def reserve(self, tokens: int) -> None:
        """Make room to learn `tokens` more."""
        nodes = self.used + tokens * self.depth
        room = len(self.nodes)
        if nodes <= room:
            return
        while room < nodes:
            room *= 2
        old, used = (self.nodes, self.count, self.total, self.keys, self.values), self.used
        self._allocate(room)
        self.nodes[:used], self.count[:used] = old[0][:used], old[1][:used]
        self.total[:used] = old[2][:used]
        held = old[3] != NONE
        _rehash(old[3][held], old[4][held], self.keys, self.values)

    def extend_ranks(self, tokens: Sequence[int], tops: npt.NDArray[np.int64]) -> None:
        """Learn what a model ranked highest after each of `tokens`: a row of ids, best first."""
        self.reserve((1 + tops.shape[1]) * len(tokens) // self.depth + 1)
        ids = np.asarray(tokens, np.int32)
        self.used = learn_ranks(
            ids, tops.astype(np.int32), self.nodes, self.count, self.total, self.keys, self.values,
            self.used,
        )  # fmt: skip

    def end(self) -> None:
        """End a text: no sequence crosses from here to what is learned next."""
        self.open[1:] = NONE

    def count_of(self, sequence: Sequence[int]) -> float:
        """How often `sequence` was learned."""
        node = 0
        for token in sequence:
            node = find(self.keys, self.values, node, token)
            if node == NONE:
                return 0.0
        return float(self.count[node])


@njit(cache=True)
def _rehash(old_keys: Any, old_values: Any, keys: Any, values: Any) -> None:
    for i in range(len(old_keys)):
        node, token = old_keys[i] >> 32, old_keys[i] & 0xFFFFFFFF
        slot = slot_of(keys, node, token)
        keys[slot] = old_keys[i]
        values[slot] = old_values[i]
