"""Compiled inner loops of `auto`: one distribution from all matches.

Sources are asked from the longest match to none at all (order 0), at each length in the order of
SOURCES. Whoever is asked gives its continuations, in proportion to their counts, what is left of
one token's probability but for a share that it passes on, its escape (PPM: Cleary & Witten 1984).

`held` is what they are asked of: (the arrays of a CountTrie for each source but the last, those
of Ranks for the last, SCORES, which knows one token before and nothing else). `at[s, k]` is the
node of the last k tokens in source s, or NONE; for SCORES `at[s, 1]` is the last token itself.
"""

from typing import Any

import numpy as np

from ngtcli.compiled import njit, unowned
from ngtcli.trie.counts import NONE, find, learn

SOURCES = ("own text", "prompt", "pool", "scores")
SCORES = SOURCES.index("scores")  # the last
ORDERS = 7  # matches of 6 tokens down to none
BUCKETS = 12  # of contexts: by how often they were seen and with how many continuations
NOWHERE = 1e-4  # of what all sources pass on: the chance of a token that none of them holds
_LISTED = 24  # continuations of a context that are looked at, those seen last


@njit(inline="always")
def bucket_of(total: float, kinds: int) -> int:
    """Which escape applies to a context seen `total` times with `kinds` continuations."""
    seen = 0 if total < 1.5 else 1 if total < 2.5 else 2 if total < 5.5 else 3
    varied = 0 if kinds == 1 else 1 if kinds == 2 else 2
    return seen * 3 + varied


@unowned
def advance(held: Any, at: Any, token: int) -> None:
    """Move `at` on by one token, in place."""
    for s in range(SCORES):
        slots = held[0][s][2]
        for k in range(at.shape[1] - 2, -1, -1):
            node = at[s, k]
            at[s, k + 1] = find(slots, node, token) if node != NONE else NONE
    at[SCORES, 1] = token if token < len(held[1][0]) else NONE


@unowned
def blend(
    held: Any, at: Any, escape: Any, least: float, tokens: Any, chances: Any, origins: Any
) -> int:
    """Blend all matches into `tokens` and `chances`, unsorted; how many there are.

    Shares below `least` are passed over. `origins` are the sources that gave a token first.
    """
    found = 0
    mass = 1.0
    for k in range(at.shape[1] - 1, -1, -1):
        if mass < least:
            break
        for s in range(SCORES):
            node = at[s, k]
            if node == NONE:
                continue
            nodes, counts, _, top = held[0][s]
            total = counts[node, 1]
            if total <= 0.0:
                continue
            stay = escape[s, k, bucket_of(total, nodes[node, 4])]
            part = mass * (1.0 - stay) / total
            mass *= stay
            if part * total < least:
                continue
            child = top[0] if k == 0 else nodes[node, 1]
            listed = 0
            while child != NONE and listed < _LISTED and found < len(tokens):
                share = part * counts[child, 0]
                if share >= least:
                    found = _add(nodes[child, 0], share, s, tokens, chances, origins, found)
                listed += 1
                child = top[listed] if k == 0 else nodes[child, 2]
        if k != 1:
            continue
        last = at[SCORES, 1]
        successors, weights, sums = held[1]
        if last == NONE or sums[last, 0] <= 0.0:
            continue
        stay = escape[SCORES, 1, bucket_of(sums[last, 0], int(sums[last, 1]))]
        part = mass * (1.0 - stay) / sums[last, 0]
        mass *= stay
        if part * sums[last, 0] < least:
            continue
        for i in range(weights.shape[1]):
            share = part * weights[last, i]
            if share > 0.0 and share >= least and found < len(tokens):
                found = _add(successors[last, i], share, SCORES, tokens, chances, origins, found)
    return found


@njit(inline="always")
def _add(
    token: int, share: float, source: int, tokens: Any, chances: Any, origins: Any, found: int
) -> int:
    for i in range(found):
        if tokens[i] == token:
            chances[i] += share
            return found
    tokens[found], chances[found], origins[found] = token, share, source
    return found + 1


@njit()
def credit(held: Any, at: Any, token: int, escape: Any, stops: Any, visits: Any) -> float:
    """Expectation step for the escapes: which sources would have given `token`, and how surely.

    Adds to `stops` and `visits`, shaped as `escape` (source, order, bucket); the token's chance.
    """
    given, asked = np.empty(at.size), np.empty((at.size, 3), np.int32)
    return _credit(held, at, token, escape, stops, visits, given, asked)


@unowned
def _credit(
    held: Any, at: Any, token: int, escape: Any, stops: Any, visits: Any, given: Any, asked: Any
) -> float:
    mass, whole, n = 1.0, 0.0, 0
    for k in range(at.shape[1] - 1, -1, -1):
        for s in range(at.shape[0]):
            share, total, kinds = _share(held, at[s, k], s, k, token)
            if total <= 0.0:
                continue
            bucket = bucket_of(total, kinds)
            stay = escape[s, k, bucket]
            given[n] = mass * (1.0 - stay) * share / total
            asked[n, 0], asked[n, 1], asked[n, 2] = s, k, bucket
            whole += given[n]
            mass *= stay
            n += 1
    whole += mass * NOWHERE
    left = 1.0
    for i in range(n):
        s, k, bucket = asked[i, 0], asked[i, 1], asked[i, 2]
        stops[s, k, bucket] += given[i] / whole
        visits[s, k, bucket] += left
        left -= given[i] / whole
    return whole


@njit(inline="always")
def _share(held: Any, node: int, s: int, k: int, token: int) -> Any:
    """(count of `token` after the match at `node`, of all continuations, how many there are)."""
    if node == NONE or (s == SCORES and k != 1):
        return 0.0, 0.0, 0
    share = 0.0
    if s == SCORES:
        successors, weights, sums = held[1]
        for i in range(weights.shape[1]):
            if weights[node, i] > 0.0 and successors[node, i] == token:
                share = weights[node, i]
        return share, sums[node, 0], int(sums[node, 1])
    nodes, counts, slots, _ = held[0][s]
    if counts[node, 1] > 0.0:
        child = find(slots, node, token)
        share = counts[child, 0] if child != NONE else 0.0
    return share, counts[node, 1], nodes[node, 4]


@njit()
def follow(
    held: Any, at: Any, ids: Any, escape: Any, stops: Any, visits: Any, open_: Any, used: int
) -> int:
    """Learn emitted `ids`: credit the sources, count in the own text (source 0), move `at` on.

    The number of nodes of the own text's trie after it; it must have room for them.
    """
    nodes, counts, slots, top = held[0][0]
    one, given, asked = np.empty(1, np.int32), np.empty(at.size), np.empty((at.size, 3), np.int32)
    for token in ids:
        _credit(held, at, token, escape, stops, visits, given, asked)
        one[0] = token
        used = learn(one, nodes, counts, slots, top, open_, used)
        advance(held, at, token)
    for s in range(escape.shape[0]):
        for k in range(escape.shape[1]):
            for b in range(escape.shape[2]):
                escape[s, k, b] = min(0.999, max(0.001, 1.0 - stops[s, k, b] / visits[s, k, b]))
    return used
