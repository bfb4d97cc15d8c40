"""A trie of counts that grows token by token, in flat arrays for compiled code.

It contains every sequence of at most `depth` tokens of the texts it learned, as `GrowingTrie` does,
but without an object per node: nodes are indices, one hash table maps (node, token) to a child, and
the children of a node form a linked list, the last one counted first. Learning a token takes
`depth` steps of less than a microsecond. The most frequent children of the root are kept sorted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.system.compiled import njit, unowned

NONE = -1
FREQUENT = 32  # tokens in the root's list of its most frequent children (guess)
TOKEN, FIRST_CHILD, NEXT_SIBLING, PREVIOUS_SIBLING, CHILDREN = range(5)  # columns of `nodes`
COUNT, FOLLOWED = range(2)  # columns of `counts`: of the node, of all its continuations
PARENT, KEY, CHILD = range(3)  # columns of `slots`
_PARENT, _BEFORE, _CHILD = range(3)  # of a step in a `Log`
_NEW = -2  # in place of the sibling before a node that was not there
_CAPACITY = 1 << 12  # nodes that a new trie has room for (guess)
# 2^64 / golden ratio: products with it spread neighboring keys (Knuth, TAOCP vol. 3, 6.4)
_SPREAD = 0x9E3779B97F4A7C15


class CountArrays(NamedTuple):
    """The arrays of a trie, with room for `capacity` nodes.

    `nodes`, int32 (capacity, 5), and `counts`, float32 (capacity, 2), have a row per node. `slots`,
    int32 (2 * capacity, 3), is the hash table of children. `frequent`, int32 (FREQUENT + 1,), is
    the root's most frequent children in descending order, then NONE.
    """

    nodes: npt.NDArray[np.int32]
    counts: npt.NDArray[np.float32]
    slots: npt.NDArray[np.int32]
    frequent: npt.NDArray[np.int32]


@njit(inline="always")
def _first_slot(slots: Any, node: int, token: int) -> Any:
    """Return the row of `slots` where the search for a child begins."""
    key = (np.int64(node) << np.int64(32)) | np.int64(token)
    mixed = np.uint64(key) * np.uint64(_SPREAD)
    return np.int64(mixed >> np.uint64(20)) & (len(slots) - 1)


@njit(inline="always")
def slot_of(slots: Any, node: int, token: int) -> Any:
    """Return the row of `slots` of the child of `node` for `token`, or the free row for it."""
    mask = len(slots) - 1
    slot = _first_slot(slots, node, token)
    while slots[slot, CHILD] != NONE and (slots[slot, PARENT] != node or slots[slot, KEY] != token):
        slot = (slot + 1) & mask
    return slot


@unowned
def find(slots: Any, node: int, token: int) -> Any:
    """Return the child of `node` for `token`, or NONE."""
    return slots[slot_of(slots, node, token), CHILD]


@unowned
def count_child(node: int, token: int, trie: Any, used: int) -> Any:
    """Count `token` after `node`, move it before its siblings; return it and the nodes in use."""
    nodes = trie.nodes
    counts = trie.counts
    slots = trie.slots
    slot = slot_of(slots, node, token)
    child = slots[slot, CHILD]
    if child == NONE:
        child = used
        used += 1
        slots[slot, PARENT] = node
        slots[slot, KEY] = token
        slots[slot, CHILD] = child
        nodes[child, TOKEN] = token
        nodes[child, FIRST_CHILD] = NONE
        nodes[child, CHILDREN] = 0
        nodes[node, CHILDREN] += 1
        counts[child, COUNT] = 0.0
        counts[child, FOLLOWED] = 0.0
    else:
        _unlink(nodes, node, child)
    front = nodes[node, FIRST_CHILD]
    nodes[child, NEXT_SIBLING] = front
    nodes[child, PREVIOUS_SIBLING] = NONE
    if front != NONE:
        nodes[front, PREVIOUS_SIBLING] = child
    nodes[node, FIRST_CHILD] = child
    counts[child, COUNT] += 1.0
    counts[node, FOLLOWED] += 1.0
    return child, used


@njit(inline="always")
def _unlink(nodes: Any, node: int, child: int) -> None:
    """Remove `child` from the list of `node`'s children."""
    before = nodes[child, PREVIOUS_SIBLING]
    after = nodes[child, NEXT_SIBLING]
    if before == NONE:
        nodes[node, FIRST_CHILD] = after
    else:
        nodes[before, NEXT_SIBLING] = after
    if after != NONE:
        nodes[after, PREVIOUS_SIBLING] = before


@unowned
def count_ids(ids: Any, trie: Any, open_nodes: Any, used: int) -> int:
    """Count the sequences that end at each of `ids`, int32; return the number of nodes in use.

    `open_nodes[k]`, int32 (depth + 1,), is the node of the last k tokens, NONE if there are fewer.
    """
    for token in ids:
        for k in range(len(open_nodes) - 2, -1, -1):
            open_nodes[k + 1] = NONE
            if open_nodes[k] != NONE:
                open_nodes[k + 1], used = count_child(open_nodes[k], token, trie, used)
        _rank(open_nodes[1], trie.counts, trie.frequent)
    return used


@unowned
def _rank(child: int, counts: Any, frequent: Any) -> None:
    """Restore the order of `frequent` by count after `child` was counted."""
    rank = 0
    while rank < len(frequent) - 2 and frequent[rank] != child and frequent[rank] != NONE:
        rank += 1
    if frequent[rank] != child:
        if frequent[rank] != NONE and counts[frequent[rank], COUNT] >= counts[child, COUNT]:
            return
        frequent[rank] = child
    while rank > 0 and counts[frequent[rank - 1], COUNT] < counts[child, COUNT]:
        frequent[rank], frequent[rank - 1] = frequent[rank - 1], frequent[rank]
        rank -= 1


@njit()
def _count_logged(
    ids: Any, arrays: Any, open_nodes: Any, used: int, steps: Any, frequent: Any
) -> int:
    """Count as `count_ids` does, and record for `_take_back` in `steps` and `frequent`."""
    trie = CountArrays(arrays[0], arrays[1], arrays[2], arrays[3])
    for i in range(len(ids)):
        token = ids[i]
        frequent[i] = trie.frequent
        for k in range(len(open_nodes) - 2, -1, -1):
            open_nodes[k + 1] = NONE
            steps[i, k, _CHILD] = NONE
            if open_nodes[k] != NONE:
                child = find(trie.slots, open_nodes[k], token)
                before = trie.nodes[child, PREVIOUS_SIBLING] if child != NONE else _NEW
                steps[i, k, _PARENT] = open_nodes[k]
                steps[i, k, _BEFORE] = before
                open_nodes[k + 1], used = count_child(open_nodes[k], token, trie, used)
                steps[i, k, _CHILD] = open_nodes[k + 1]
        _rank(open_nodes[1], trie.counts, trie.frequent)
    return used


@njit()
def _take_back(arrays: Any, used: int, steps: Any, frequent: Any, remaining: int) -> int:
    """Undo all steps but the first `remaining`, the last first; return the nodes in use."""
    nodes, counts, slots, of_root = arrays
    for i in range(len(steps) - 1, remaining - 1, -1):
        for k in range(steps.shape[1]):
            child = steps[i, k, _CHILD]
            parent = steps[i, k, _PARENT]
            before = steps[i, k, _BEFORE]
            if child == NONE:
                continue
            counts[child, COUNT] -= 1.0
            counts[parent, FOLLOWED] -= 1.0
            if before == NONE:  # it was the first before, too
                continue
            _unlink(nodes, parent, child)
            if before == _NEW:
                nodes[parent, CHILDREN] -= 1
                _free(slots, slot_of(slots, parent, nodes[child, TOKEN]))
                used -= 1
                continue
            after = nodes[before, NEXT_SIBLING]
            nodes[child, PREVIOUS_SIBLING] = before
            nodes[child, NEXT_SIBLING] = after
            nodes[before, NEXT_SIBLING] = child
            if after != NONE:
                nodes[after, PREVIOUS_SIBLING] = child
        of_root[:] = frequent[i]
    return used


@njit(inline="always")
def _free(slots: Any, slot: int) -> None:
    """Free a row. Those after it move up, so that they are found (Knuth, 6.4, algorithm R)."""
    mask = len(slots) - 1
    candidate = slot
    slots[slot, CHILD] = NONE
    while True:
        candidate = (candidate + 1) & mask
        if slots[candidate, CHILD] == NONE:
            return
        first = _first_slot(slots, slots[candidate, PARENT], slots[candidate, KEY])
        if (candidate - first) & mask >= (candidate - slot) & mask:
            slots[slot] = slots[candidate]
            slots[candidate, CHILD] = NONE
            slot = candidate


@dataclass(frozen=True, slots=True)
class Log:
    """A record of counted tokens, with which a trie takes them back.

    Attributes:
        steps: int32 (tokens, depth, 3): of each token and each depth the parent of the node that
            was counted, the sibling before it then (_NEW if there was no such node), and the node.
        frequent: int32 (tokens, FREQUENT + 1): the root's list before each token.
    """

    steps: npt.NDArray[np.int32]
    frequent: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.steps)

    def first(self, tokens: int) -> "Log":
        """Return the log of the first tokens."""
        return Log(self.steps[:tokens], self.frequent[:tokens])

    def last(self, tokens: int) -> "Log":
        """Return the log of the last tokens, or of all if there are fewer."""
        start = max(0, len(self) - tokens)
        return Log(self.steps[start:].copy(), self.frequent[start:].copy())

    @staticmethod
    def joined(logs: "Sequence[Log]") -> "Log":
        """Join the logs of tokens that follow each other."""
        steps = np.concatenate([log.steps for log in logs])
        return Log(steps, np.concatenate([log.frequent for log in logs]))


class CountTrie:
    """Counts of all sequences of at most `depth` tokens. Node 0 is the root.

    >>> trie = CountTrie(3)
    >>> trie.extend([1, 2, 3, 1, 2])
    >>> node = find(trie.arrays.slots, find(trie.arrays.slots, 0, 1), 2)
    >>> int(trie.arrays.counts[node, COUNT])
    2
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.used = 1
        self.tokens = 0
        self.open_nodes = np.full(self.depth + 1, NONE, np.int32)
        self.open_nodes[0] = 0
        frequent = np.full(FREQUENT + 1, NONE, np.int32)  # the last stays NONE
        self.arrays = _allocate(_CAPACITY, frequent)
        self.arrays.nodes[0] = (NONE, NONE, NONE, NONE, 0)
        self.arrays.counts[0] = 0.0

    def extend(self, ids: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Count the sequences that end at each of `ids`, which continue the current text."""
        new = np.asarray(ids, dtype=np.int32)
        if not len(new):
            return
        self.reserve(len(new))
        self.used = count_ids(new, self.arrays, self.open_nodes, self.used)
        self.tokens += len(new)

    def extend_logged(self, ids: npt.NDArray[np.int32]) -> Log:
        """Count as `extend` does, so that it can be taken back."""
        steps = np.empty((len(ids), self.depth, 3), np.int32)
        log = Log(steps, np.empty((len(ids), FREQUENT + 1), np.int32))
        self.reserve(len(ids))
        self.used = _count_logged(
            ids, tuple(self.arrays), self.open_nodes, self.used, log.steps, log.frequent
        )
        self.tokens += len(ids)
        return log

    def take_back(self, log: Log, remaining: int, text: npt.NDArray[np.int32]) -> None:
        """Take back the last tokens.

        Args:
            log: The log of the last tokens.
            remaining: The number of its first tokens that are not taken back.
            text: All tokens that were counted before those that are taken back, int32 (tokens,).
        """
        self.used = _take_back(tuple(self.arrays), self.used, log.steps, log.frequent, remaining)
        self.tokens -= len(log) - remaining
        self.open_nodes[1:] = NONE
        for k in range(1, min(self.depth, len(text)) + 1):
            node = 0
            for token in text[len(text) - k :]:
                node = find(self.arrays.slots, node, token)
            self.open_nodes[k] = node

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` more; this may replace `arrays` by larger ones."""
        needed = self.used + tokens * self.depth
        capacity = len(self.arrays.nodes)
        if needed <= capacity:
            return
        while capacity < needed:
            capacity *= 2
        old = self.arrays
        self.arrays = _allocate(capacity, old.frequent)
        self.arrays.nodes[: self.used] = old.nodes[: self.used]
        self.arrays.counts[: self.used] = old.counts[: self.used]
        _rehash(old.slots, self.arrays.slots)

    def end(self) -> None:
        """End the current text: the next token starts another."""
        self.open_nodes[1:] = NONE

    def put_first_met_first(self) -> None:
        """Reverse the lists of children, for a text that is counted in full."""
        _turn_round(self.arrays.nodes, self.used)


@njit()
def _turn_round(nodes: Any, used: int) -> None:
    for node in range(used):
        child = nodes[node, FIRST_CHILD]
        before = NONE
        while child != NONE:
            following = nodes[child, NEXT_SIBLING]
            nodes[child, NEXT_SIBLING] = before
            nodes[child, PREVIOUS_SIBLING] = following
            before = child
            child = following
        nodes[node, FIRST_CHILD] = before


def _allocate(capacity: int, frequent: npt.NDArray[np.int32]) -> CountArrays:
    return CountArrays(
        np.empty((capacity, 5), np.int32),
        np.empty((capacity, 2), np.float32),
        np.full((2 * capacity, 3), NONE, np.int32),
        frequent,
    )


@njit()
def _rehash(old: Any, slots: Any) -> None:
    for i in range(len(old)):
        if old[i, CHILD] != NONE:
            slots[slot_of(slots, old[i, PARENT], old[i, KEY])] = old[i]


def learn_prompt(
    trie: CountTrie, ids: npt.NDArray[Any], spans: Sequence[tuple[int, int]]
) -> npt.NDArray[np.int64]:
    """Count the sequences of a prompt.

    Args:
        trie: The counts.
        ids: The prompt, int32 (tokens,).
        spans: Start and end of each document in it, ascending.

    Returns:
        int64 (2 * documents,): the number of nodes in use at each document's start and end,
        alternating. Nodes between an even and the next odd entry were first counted in a document.
    """
    borders: list[int] = []
    counted = 0
    for start, end in spans:
        trie.extend(ids[counted:start])
        borders.append(trie.used)
        trie.extend(ids[start:end])
        borders.append(trie.used)
        counted = end
    trie.extend(ids[counted:])
    return np.array(borders, np.int64)


def spans_of(ids: npt.NDArray[Any], references: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Find documents in a prompt, in their order; return start and end of each.

    Args:
        ids: The prompt, int32 (tokens,).
        references: The token ids of the documents.
    """
    spans: list[tuple[int, int]] = []
    end = 0
    for reference in references:
        run = np.asarray(reference, dtype=np.int32)
        start = _find_run(run, ids, end)
        if start >= 0:
            end = start + len(run)
            spans.append((start, end))
    return spans


def _find_run(run: npt.NDArray[Any], ids: npt.NDArray[Any], start: int) -> int:
    """Return the first index of a run in `ids` from `start` on, int32 both; -1 for none.

    An empty run has none.
    """
    if not len(run):
        return -1
    text = ids.tobytes()  # bytes are found in linear time
    sought = run.tobytes()
    byte = 4 * start
    while (byte := text.find(sought, byte)) % 4 and byte >= 0:
        byte += 1
    return byte // 4 if byte >= 0 else -1
