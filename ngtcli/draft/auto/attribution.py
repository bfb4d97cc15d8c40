"""Which matches predicted an observed token, and how that moves escape probabilities. Compiled.

The expectation step of learning the blend (blend.py): a token's probability is a sum over matches,
and each match is credited with its share of that sum.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.blend import (
    BACKGROUND,
    OWN,
    SCORES,
    UNSEEN,
    advance,
    background_bucket,
    bucket_of,
    named,
)
from ngtcli.draft.auto.config import CONFIG
from ngtcli.draft.auto.ranks import DISTINCT, SUM
from ngtcli.system.compiled import njit, unowned
from ngtcli.trie.background import UNIT
from ngtcli.trie.background_search import count_in, find_row, total_of
from ngtcli.trie.counts import CHILDREN, COUNT, FOLLOWED, NONE, count_ids, find

_MIN_ESCAPE = CONFIG.min_escape


class Tallies(NamedTuple):
    """Of each (source, order, bucket), float64: `escape` is 1 - predicted / reached.

    `reached` is the expected number of tokens that were left when a match was queried, `predicted`
    the expected number of those that it predicted.
    """

    escape: npt.NDArray[np.float64]
    predicted: npt.NDArray[np.float64]
    reached: npt.NDArray[np.float64]


class Queries(NamedTuple):
    """Room for the matches queried for one token: what each gave it (float64), and (q, 3) int32
    with its source, order and bucket."""

    given: npt.NDArray[np.float64]
    keys: npt.NDArray[np.int32]


@njit()
def attribute(arrays: Any, match_nodes: Any, token: int, tallies: Any) -> float:
    """Expectation step: divide one observed token among the matches that predicted it.

    `arrays` are PlainArrays, `tallies` the arrays of Tallies in a plain tuple; adds to `predicted`
    and `reached`. Returns the token's blended probability.
    """
    queries = Queries(np.empty(match_nodes.size), np.empty((match_nodes.size, 3), np.int32))
    escape, predicted, reached = tallies
    return _attribute(
        named(arrays), match_nodes, token, Tallies(escape, predicted, reached), queries
    )


@unowned
def _attribute(sources: Any, match_nodes: Any, token: int, tallies: Any, queries: Any) -> float:
    escape_mass, probability, n = 1.0, 0.0, 0
    for order in range(match_nodes.shape[1] - 1, -1, -1):
        for source in range(match_nodes.shape[0]):
            node = match_nodes[source, order]
            count, total, bucket = _count(sources, node, source, order, token)
            if total <= 0.0:
                continue
            e = tallies.escape[source, order, bucket]
            queries.given[n] = escape_mass * (1.0 - e) * count / total
            queries.keys[n, 0], queries.keys[n, 1], queries.keys[n, 2] = source, order, bucket
            probability += queries.given[n]
            escape_mass *= e
            n += 1
    probability += escape_mass * UNSEEN
    left = 1.0
    for i in range(n):
        source, order, bucket = queries.keys[i, 0], queries.keys[i, 1], queries.keys[i, 2]
        share = queries.given[i] / probability
        tallies.predicted[source, order, bucket] += share
        tallies.reached[source, order, bucket] += left
        left -= share
    return probability


@njit(inline="always")
def _count(sources: Any, node: int, source: int, order: int, token: int) -> Any:
    """(count of `token` after the match, of all its continuations, the match's bucket)."""
    if node == NONE or (source == SCORES and order != 1):
        return 0.0, 0.0, 0
    count = 0.0
    if source == SCORES:
        ranks = sources.ranks
        for i in range(ranks.weights.shape[1]):
            if ranks.weights[node, i] > 0.0 and ranks.successors[node, i] == token:
                count = ranks.weights[node, i]
        total = ranks.sums[node, SUM]
        return count, total, bucket_of(total, int(ranks.sums[node, DISTINCT]))
    if source == BACKGROUND:
        rows = sources.background
        total = total_of(rows, node)
        row = find_row(rows, node, token) if total > 0 else NONE
        count = count_in(rows, row, total) / UNIT if row != NONE else 0.0
        return count, total / UNIT, background_bucket(rows, node)
    trie = sources.tries[source]
    if trie.counts[node, FOLLOWED] > 0.0:
        child = find(trie.slots, node, token)
        count = trie.counts[child, COUNT] if child != NONE else 0.0
    total = trie.counts[node, FOLLOWED]
    return count, total, bucket_of(total, trie.nodes[node, CHILDREN])


@njit()
def learn_output(
    arrays: Any, match_nodes: Any, ids: Any, tallies: Any, open_nodes: Any, used: int
) -> int:
    """Learn emitted `ids`, int32: attribute each, count it in the own text, extend the matches.

    `arrays` and `tallies` are as for `attribute`. `open_nodes` and `used` are of the own text's
    trie, which must have room; returns its nodes used after.
    """
    sources, one = named(arrays), np.empty(1, np.int32)
    own, (escape, predicted, reached) = sources.tries[OWN], tallies
    queries = Queries(np.empty(match_nodes.size), np.empty((match_nodes.size, 3), np.int32))
    for token in ids:
        _attribute(sources, match_nodes, token, Tallies(escape, predicted, reached), queries)
        one[0] = token
        used = count_ids(one, own, open_nodes, used)
        advance(sources, match_nodes, token)
    update_escapes(tallies)
    return used


@njit()
def update_escapes(tallies: Any) -> None:
    """Set every escape probability from its tallies (a plain tuple), in place."""
    escape, predicted, reached = tallies
    for s in range(escape.shape[0]):
        for k in range(escape.shape[1]):
            for b in range(escape.shape[2]):
                e = 1.0 - predicted[s, k, b] / reached[s, k, b]
                escape[s, k, b] = min(1.0 - _MIN_ESCAPE, max(_MIN_ESCAPE, e))
