"""Compiled inner loops of `auto`: the tree grown from the blend, best first, and its order."""

from typing import Any

import numpy as np

from ngtcli.compiled import njit, unowned
from ngtcli.draft.blend import advance, blend
from ngtcli.trie.counts import NONE

_TRIED = 12  # continuations that may become nodes, the likeliest
_HELD = 160
_NOTHING = 1e-200  # a chance that is none: dividing by it must be possible


@njit()
def grow(held: Any, start: Any, escape: Any, budget: int, floor: float) -> Any:
    """The `budget` likeliest nodes below `start`: (tokens, parents, chances, origins, standing).

    `start` has the shape of `at` in `advance`. Nodes come in order of falling `chances`, which
    are of whole paths; parents are indices, -1 for the root. `origins` are the sources with the
    longest match; `standing` is each node's place in its source's trie, for the longest path that
    leads there. Nodes less likely than about `floor` are not looked for.
    """
    tokens, parents = np.empty(budget, np.int32), np.empty(budget, np.int32)
    chances, origins = np.empty(budget, np.float64), np.empty(budget, np.int8)
    standing = np.empty(budget, np.int32)
    places = np.empty((budget + 1, start.shape[0], start.shape[1]), np.int32)
    for s in range(start.shape[0]):  # an assignment of slices takes seconds to compile
        for k in range(start.shape[1]):
            places[0, s, k] = start[s, k]
    most = _TRIED * (budget + 1)
    heap, waiting = np.empty((most, 2)), np.empty((most, 3), np.int32)  # token, parent, origin
    room = (np.empty(_HELD, np.int32), np.empty(_HELD), np.empty(_HELD, np.int8))
    out = (tokens, parents, chances, origins, standing)
    used = _fill(held, places, escape, budget, floor, heap, waiting, room, out)
    return tokens[:used], parents[:used], chances[:used], origins[:used], standing[:used]


@unowned
def _fill(
    held: Any, places: Any, escape: Any, budget: int, floor: float, heap: Any, waiting: Any,
    room: Any, out: Any,
) -> int:  # fmt: skip
    """The loop of `grow`; the number of nodes."""
    tokens, parents, chances, origins, standing = out
    size, listed, used, chance = 0, 0, 0, 1.0
    while used < budget:
        found = blend(held, places[used], escape, floor / chance, room[0], room[1], room[2])
        for _ in range(min(_TRIED, found)):
            i = 0
            for other in range(1, found):
                if room[1][other] > room[1][i]:
                    i = other
            if chance * room[1][i] < _NOTHING:
                break
            waiting[listed, 0], waiting[listed, 1], waiting[listed, 2] = (
                room[0][i],
                used,
                room[2][i],
            )
            size = _push(heap, size, chance * room[1][i], listed)
            room[1][i] = 0.0
            listed += 1
        if size == 0:
            break
        chance, one = heap[0, 0], int(heap[0, 1])
        size = _pop(heap, size)
        parent = waiting[one, 1]
        tokens[used], parents[used], origins[used] = waiting[one, 0], parent - 1, waiting[one, 2]
        chances[used] = chance
        used += 1
        for s in range(places.shape[1]):
            for k in range(places.shape[2]):
                places[used, s, k] = places[parent, s, k]
        advance(held, places[used], waiting[one, 0])
        standing[used - 1] = _longest(places[used, origins[used - 1]])
    return used


@njit(inline="always")
def _longest(places: Any) -> Any:
    for k in range(len(places) - 1, 0, -1):
        if places[k] != NONE:
            return places[k]
    return NONE


@njit(inline="always")
def _push(heap: Any, size: int, value: float, item: int) -> int:
    at = size
    while at > 0 and heap[(at - 1) // 2, 0] < value:
        above = (at - 1) // 2
        heap[at, 0], heap[at, 1] = heap[above, 0], heap[above, 1]
        at = above
    heap[at, 0], heap[at, 1] = value, item
    return size + 1


@njit(inline="always")
def _pop(heap: Any, size: int) -> int:
    size -= 1
    value, item = heap[size, 0], heap[size, 1]
    at = 0
    while 2 * at + 1 < size:
        below = 2 * at + 1
        if below + 1 < size and heap[below + 1, 0] > heap[below, 0]:
            below += 1
        if heap[below, 0] <= value:
            break
        heap[at, 0], heap[at, 1] = heap[below, 0], heap[below, 1]
        at = below
    heap[at, 0], heap[at, 1] = value, item
    return size


@njit()
def arrange(
    tokens: Any, parents: Any, origins: Any, standing: Any, borders: Any, prompt: int, document: int
) -> Any:
    """(tokens, parents, origins) with each node followed by its likeliest child's subtree.

    Among siblings the one that stands first is the likeliest. Nodes of the origin `prompt` whose
    place in its trie lies between an even and the next odd one of `borders` become `document`.
    """
    n = len(parents)
    order = _depth_first(parents)
    place, out = np.empty(n, np.int32), np.empty((3, n), np.int32)
    for new in range(n):
        place[order[new]] = new
    for new in range(n):
        old = order[new]
        out[0, new] = tokens[old]
        out[1, new] = place[parents[old]] if parents[old] >= 0 else -1
        out[2, new] = origins[old]
        if origins[old] == prompt:
            inside = False
            for border in borders:
                if border > standing[old]:
                    break
                inside = not inside
            if inside:
                out[2, new] = document
    return out


@njit()
def _depth_first(parents: Any) -> Any:
    n = len(parents)
    first, following = np.empty(n + 1, np.int32), np.empty(n, np.int32)
    for i in range(n + 1):
        first[i] = -1
    for i in range(n - 1, -1, -1):  # lists of children, built from behind
        following[i] = first[parents[i] + 1]
        first[parents[i] + 1] = i
    order, stack = np.empty(n, np.int32), np.empty(n + 2, np.int32)
    stack[0], high, used = first[0], 1, 0
    while high:
        high -= 1
        node = stack[high]
        if node == -1:
            continue
        order[used] = node
        used += 1
        stack[high], stack[high + 1] = following[node], first[node + 1]
        high += 2
    return order
