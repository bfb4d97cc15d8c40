"""What emitted tokens teach: which matches predicted them, and all texts grow by them. Compiled.

A token's probability is a sum over matches (blend.py). In the expectation step of learning the
blend each match that predicted an observed token is credited with its share of that sum.
"""

from typing import Any

import numpy as np

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.blend import (
    BUCKET,
    COPIED,
    HEADS,
    ORDER,
    OWN,
    ROW,
    UNSEEN,
    advance,
    ask,
    named,
    query_for,
    share_of,
)
from ngtcli.drafting.auto.core.copies import extend_text
from ngtcli.drafting.tries.counts import count_ids
from ngtcli.system.compiled import njit, unowned

_MIN_ESCAPE = CONFIG.min_escape
REACHES, GAINS = range(2)  # columns of `recent`


@unowned
def attribute(
    sources: Any, match_nodes: Any, token: int, tallies: Any, query: Any, given: Any
) -> Any:
    """Expectation step: divide one observed token among the matches that predicted it.

    Adds to the `predicted`, `reached` and `recent` of `tallies`, arrays as EscapeTallies has them.
    `query`, and `given`, float64, for what each match gave the token, have room for all that may be
    asked. Returns the blended probability.
    """
    escape, predicted, reached, recent = tallies
    n, mass = ask(sources, match_nodes, escape, 0.0, query)
    probability = 0.0
    for i in range(n):
        given[i] = share_of(sources, query, i, token)
        probability += given[i]
    probability += mass * UNSEEN
    left, rest = 1.0, probability
    for i in range(n):
        row, order, bucket = query.keys[i, ROW], query.keys[i, ORDER], query.keys[i, BUCKET]
        share = given[i] / probability
        predicted[row, order, bucket] += share
        reached[row, order, bucket] += left
        recent[row, REACHES] += left
        left -= share
        rest -= given[i]
        if row >= HEADS:
            # A head of escape probability e that is left the mass m gives the token m (1 - e) g;
            # those behind it give m e r together. Without it they would have given m r.
            e = escape[row, order, bucket]
            recent[row, GAINS] += given[i] - (1.0 - e) * rest / e
    return probability


@njit()
def learn_output(
    arrays: Any, match_nodes: Any, ids: Any, tallies: Any, open_nodes: Any, used: int
) -> Any:  # fmt: skip
    """Learn emitted `ids`, int32: attribute each, count it in the own text, extend the matches.

    `arrays` are PlainArrays, `tallies` as for `attribute`. `open_nodes` and `used` are of the own
    text's trie, which must have room. Returns the nodes used after.
    """
    sources, one, query = named(arrays), np.empty(1, np.int32), query_for(match_nodes)
    given = np.empty(len(query.keys))
    for token in ids:
        attribute(sources, match_nodes, token, tallies, query, given)
        one[0] = token
        used = count_ids(one, sources.tries[OWN], open_nodes, used)
        advance(sources, match_nodes, token)
        extend_text(sources.copies, match_nodes[COPIED], token)
    update_escapes(tallies)
    return used


@njit()
def update_escapes(tallies: Any) -> None:
    """Set every escape probability from its tallies, in place."""
    escape, predicted, reached, _ = tallies
    for s in range(escape.shape[0]):
        for k in range(escape.shape[1]):
            for b in range(escape.shape[2]):
                e = 1.0 - predicted[s, k, b] / reached[s, k, b]
                escape[s, k, b] = min(1.0 - _MIN_ESCAPE, max(_MIN_ESCAPE, e))
