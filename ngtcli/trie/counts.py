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

from ngtcli.compiled import njit, unowned

NONE = -1
TOP = 32  # most frequent tokens kept for the root
_FIRST = 1 << 12


@njit(inline="always")
def slot_of(slots: Any, node: int, token: int) -> Any:
    """The row of `slots` that holds the child of `node` for `token`, or the free one for it."""
    key = (np.int64(node) << np.int64(32)) | np.int64(token)
    mask = len(slots) - 1
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    slot = np.int64(mixed >> np.uint64(20)) & mask
    while slots[slot, 2] != NONE and (slots[slot, 0] != node or slots[slot, 1] != token):
        slot = (slot + 1) & mask
    return slot


@unowned
def find(slots: Any, node: int, token: int) -> Any:
    """The child of `node` that holds `token`, or -1."""
    return slots[slot_of(slots, node, token), 2]


@unowned
def count_child(node: int, token: int, nodes: Any, counts: Any, slots: Any, used: int) -> Any:
    """Count `token` after `node` and put it in front of its siblings: (the child, nodes used)."""
    slot = slot_of(slots, node, token)
    child = slots[slot, 2]
    if child == NONE:
        child = used
        used += 1
        slots[slot, 0], slots[slot, 1], slots[slot, 2] = node, token, child
        nodes[child, 0], nodes[child, 1], nodes[child, 4] = token, NONE, 0
        nodes[node, 4] += 1
        counts[child, 0], counts[child, 1] = 0.0, 0.0
    else:
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
    counts[child, 0] += 1.0
    counts[node, 1] += 1.0
    return child, used


@unowned
def learn(ids: Any, nodes: Any, counts: Any, slots: Any, top: Any, open_: Any, used: int) -> int:
    """Count all sequences that end at each of `ids`; the number of nodes used after it.

    `open_[k]` is the node of the last k tokens, -1 where there are fewer.
    """
    for token in ids:
        for k in range(len(open_) - 2, -1, -1):
            open_[k + 1] = NONE
            if open_[k] != NONE:
                open_[k + 1], used = count_child(open_[k], token, nodes, counts, slots, used)
        _rank(open_[1], counts, top)
    return used


@unowned
def _rank(child: int, counts: Any, top: Any) -> None:
    """Keep `top`, children of the root, sorted by count."""
    at = 0
    while at < len(top) - 2 and top[at] != child and top[at] != NONE:
        at += 1
    if top[at] != child:
        if top[at] != NONE and counts[top[at], 0] >= counts[child, 0]:
            return
        top[at] = child
    while at > 0 and counts[top[at - 1], 0] < counts[child, 0]:
        top[at], top[at - 1] = top[at - 1], top[at]
        at -= 1


class CountTrie:
    """Counts of all sequences of at most `depth` tokens. Node 0 is the root.

    `nodes` has rows (token, first child, next sibling, previous sibling, children), `counts` rows
    (of the node, of all its continuations), `slots`, the hash table, rows (node, token, child).

    >>> trie = CountTrie(3)
    >>> trie.extend([1, 2, 3, 1, 2])
    >>> trie.count_of([1, 2])
    2
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.used = 1
        self._allocate(_FIRST)
        self.nodes[0] = (NONE, NONE, NONE, NONE, 0)
        self.counts[0] = 0.0
        self.open = np.full(self.depth + 1, NONE, np.int32)
        self.open[0] = 0
        self.top = np.full(TOP + 1, NONE, np.int32)  # the last stays empty
        self.tokens = 0

    def _allocate(self, nodes: int) -> None:
        self.nodes = np.empty((nodes, 5), np.int32)
        self.counts = np.empty((nodes, 2), np.float32)
        self.slots = np.full((nodes * 2, 3), NONE, np.int32)

    def extend(self, ids: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Learn tokens that follow those learned before."""
        new = np.asarray(ids, dtype=np.int32)
        if not len(new):
            return
        self.reserve(len(new))
        self.used = learn(new, *self.arrays, self.open, self.used)
        self.tokens += len(new)

    @property
    def arrays(self) -> tuple[Any, Any, Any, Any]:
        """Nodes, counts, hash slots and the root's most frequent children."""
        return self.nodes, self.counts, self.slots, self.top

    def reserve(self, tokens: int) -> None:
        """Make room to learn `tokens` more."""
        nodes = self.used + tokens * self.depth
        room = len(self.nodes)
        if nodes <= room:
            return
        while room < nodes:
            room *= 2
        old, used = (self.nodes, self.counts, self.slots), self.used
        self._allocate(room)
        self.nodes[:used], self.counts[:used] = old[0][:used], old[1][:used]
        _rehash(old[2], self.slots)

    def end(self) -> None:
        """End a text: no sequence crosses from here to what is learned next."""
        self.open[1:] = NONE

    def count_of(self, sequence: Sequence[int]) -> int:
        """How often `sequence` was learned."""
        node = 0
        for token in sequence:
            node = find(self.slots, node, token)
            if node == NONE:
                return 0
        return int(self.counts[node, 0])


@njit()
def _rehash(old: Any, slots: Any) -> None:
    for i in range(len(old)):
        if old[i, 2] != NONE:
            slots[slot_of(slots, old[i, 0], old[i, 1])] = old[i]


def learn_prompt(
    trie: CountTrie, ids: npt.NDArray[Any], references: Sequence[Sequence[int]]
) -> npt.NDArray[Any]:
    """Learn a prompt; borders, in turn, of the nodes first met in a document and of others."""
    borders, at = [], 0
    for reference in references:
        run = np.asarray(reference, dtype=np.int32)
        start = _place_of(run, ids, at)
        if start < 0:
            continue
        trie.extend(ids[at:start])
        borders.append(trie.used)
        at = start + len(run)
        trie.extend(run)
        borders.append(trie.used)
    trie.extend(ids[at:])
    return np.array(borders, np.int64)


def _place_of(run: npt.NDArray[Any], ids: npt.NDArray[Any], at: int) -> int:
    """Where `run` stands in `ids` from `at` on; -1 if it does not, or is empty."""
    if not len(run):
        return -1
    for start in (np.flatnonzero(ids[at : len(ids) - len(run) + 1] == run[0]) + at).tolist():
        if np.array_equal(ids[start : start + len(run)], run):
            return start
    return -1
