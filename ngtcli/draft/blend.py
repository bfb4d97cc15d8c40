"""Compiled inner loops of `auto`: one distribution from all matches, and the tree grown from it.

Sources are asked from the longest match to none at all (order 0), at each length in the order of
SOURCES. Whoever is asked gives its continuations, in proportion to their counts, what is left of
one token's probability but for a share that it passes on, its escape (PPM: Cleary & Witten 1984).
"""

from typing import Any

import numpy as np
from numba import njit

from ngtcli.trie.counts import NONE, find, learn

SOURCES = ("own text", "prompt", "pool", "scores")
ORDERS = 7  # matches of 6 tokens down to none
BUCKETS = 12  # of contexts: by how often they were seen and with how many continuations
NOWHERE = 1e-4  # of what all sources pass on: the chance of a token that none of them holds
_LISTED = 24  # continuations of a context that are looked at, those seen last
_TRIED = 12  # continuations that may become nodes, the likeliest
_HELD = 160


@njit(cache=True, inline="always")
def bucket_of(total: float, kinds: int) -> int:
    """Which escape applies to a context seen `total` times with `kinds` continuations."""
    seen = 0 if total < 1.5 else 1 if total < 2.5 else 2 if total < 5.5 else 3
    varied = 0 if kinds == 1 else 1 if kinds == 2 else 2
    return seen * 3 + varied


@njit(cache=True)
def advance(tries: Any, at: Any, token: int) -> None:
    """Move `at[s, k]`, the node of the last k tokens in source s, on by one token, in place."""
    for s in range(at.shape[0]):
        keys, values = tries[s][3], tries[s][4]
        for k in range(at.shape[1] - 2, -1, -1):
            node = at[s, k]
            at[s, k + 1] = find(keys, values, node, token) if node != NONE else NONE


@njit(cache=True)
def blend(
    tries: Any, at: Any, escape: Any, least: float, tokens: Any, chances: Any, origins: Any
) -> int:
    """Blend all matches into `tokens` and `chances`, unsorted; how many there are.

    Shares below `least` are passed over. `origins` are the sources that gave a token first.
    """
    found = 0
    mass = 1.0
    for k in range(at.shape[1] - 1, -1, -1):
        for s in range(at.shape[0]):
            node = at[s, k]
            if node == NONE or tries[s][2][node] <= 0.0:
                continue
            nodes, count, total, top = tries[s][0], tries[s][1], tries[s][2], tries[s][5]
            stay = escape[s, k, bucket_of(total[node], nodes[node, 4])]
            part = mass * (1.0 - stay) / total[node]
            mass *= stay
            if part * total[node] < least:
                continue
            child = top[0] if k == 0 else nodes[node, 1]
            listed = 0
            while child != NONE and listed < _LISTED and found < len(tokens):
                share = part * count[child]
                if share >= least:
                    found = _add(nodes[child, 0], share, s, tokens, chances, origins, found)
                listed += 1
                child = top[listed] if k == 0 else nodes[child, 2]
    return found


@njit(cache=True, inline="always")
def _add(
    token: int, share: float, source: int, tokens: Any, chances: Any, origins: Any, found: int
) -> int:
    for i in range(found):
        if tokens[i] == token:
            chances[i] += share
            return found
    tokens[found], chances[found], origins[found] = token, share, source
    return found + 1


@njit(cache=True)
def grow(tries: Any, start: Any, escape: Any, budget: int, floor: float) -> Any:
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
    places[0] = start
    most = _TRIED * (budget + 1)
    heap, waiting = np.empty((most, 2)), np.empty((most, 3), np.int32)  # token, parent, origin
    room = (np.empty(_HELD, np.int32), np.empty(_HELD), np.empty(_HELD, np.int8))
    size, listed, used, chance = 0, 0, 0, 1.0
    while used < budget:
        found = blend(tries, places[used], escape, floor / chance, room[0], room[1], room[2])
        for _ in range(min(_TRIED, found)):
            i = np.argmax(room[1][:found])
            if room[1][i] <= 0.0:
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
        places[used] = places[parent]
        advance(tries, places[used], waiting[one, 0])
        standing[used - 1] = _longest(places[used, origins[used - 1]])
    return tokens[:used], parents[:used], chances[:used], origins[:used], standing[:used]


@njit(cache=True, inline="always")
def _longest(places: Any) -> Any:
    for k in range(len(places) - 1, 0, -1):
        if places[k] != NONE:
            return places[k]
    return NONE


@njit(cache=True, inline="always")
def _push(heap: Any, size: int, value: float, item: int) -> int:
    at = size
    while at > 0 and heap[(at - 1) // 2, 0] < value:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at, 0], heap[at, 1] = value, item
    return size + 1


@njit(cache=True, inline="always")
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
        heap[at] = heap[below]
        at = below
    heap[at, 0], heap[at, 1] = value, item
    return size


@njit(cache=True)
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


@njit(cache=True)
def _depth_first(parents: Any) -> Any:
    n = len(parents)
    first, following = np.full(n + 1, -1, np.int32), np.full(n, -1, np.int32)
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


@njit(cache=True)
def credit(tries: Any, at: Any, token: int, escape: Any, stops: Any, visits: Any) -> float:
    """Expectation step for the escapes: which sources would have given `token`, and how surely.

    Adds to `stops` and `visits`, shaped as `escape` (source, order, bucket); the token's chance.
    """
    orders = at.shape[1]
    given = np.zeros(at.shape[0] * orders)
    asked = np.empty((at.shape[0] * orders, 3), np.int32)
    mass, whole, n = 1.0, 0.0, 0
    for k in range(orders - 1, -1, -1):
        for s in range(at.shape[0]):
            node = at[s, k]
            if node == NONE or tries[s][2][node] <= 0.0:
                continue
            total = tries[s][2][node]
            bucket = bucket_of(total, tries[s][0][node, 4])
            child = find(tries[s][3], tries[s][4], node, token)
            stay = escape[s, k, bucket]
            given[n] = mass * (1.0 - stay) * tries[s][1][child] / total if child != NONE else 0.0
            asked[n, 0], asked[n, 1], asked[n, 2] = s, k, bucket
            whole += given[n]
            mass *= stay
            n += 1
    whole += mass * NOWHERE
    left = 1.0
    for i in range(n):
        s, k, bucket = asked[i]
        stops[s, k, bucket] += given[i] / whole
        visits[s, k, bucket] += left
        left -= given[i] / whole
    return whole


@njit(cache=True)
def follow(
    tries: Any, at: Any, ids: Any, escape: Any, stops: Any, visits: Any, open_: Any, used: int
) -> int:
    """Learn emitted `ids`: credit the sources, count in the own text (source 0), move `at` on.

    The number of nodes of the own text's trie after it; it must have room for them.
    """
    nodes, count, total, keys, values, top = tries[0]
    one = np.empty(1, np.int32)
    for token in ids:
        credit(tries, at, token, escape, stops, visits)
        one[0] = token
        used = learn(one, 1.0, len(open_) - 1, nodes, count, total, keys, values, open_, top, used)
        advance(tries, at, token)
    for s in range(escape.shape[0]):
        for k in range(escape.shape[1]):
            for b in range(escape.shape[2]):
                escape[s, k, b] = min(0.999, max(0.001, 1.0 - stops[s, k, b] / visits[s, k, b]))
    return used
