"""Learns from emitted tokens how well matches predict, and adds the tokens to the texts. Compiled.

A token's probability is a sum over matches (blend.py). In the expectation step of learning, each
match that predicted an observed token is credited with its share of that sum.
"""

from typing import Any

import numpy as np

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.blend import (
    BUCKET,
    ORDER,
    SOURCE,
    advance,
    ask,
    blend,
    given_to,
    heads_from,
    new_query,
)
from ngtcli.drafting.auto.core.candidates import new_candidates
from ngtcli.drafting.auto.core.copies import USED, extend_text
from ngtcli.drafting.auto.core.forms import (
    longest_matches,
    max_candidates,
    named,
    trie_of,
)
from ngtcli.drafting.auto.core.loglinear import (
    FEATURE_COUNT,
    follow_text,
    learn,
    named_stage,
    score,
)
from ngtcli.drafting.tries.counts import count_ids
from ngtcli.system.compiled import njit, unowned

_MIN_ESCAPE = CONFIG.min_escape
_UNSEEN = CONFIG.unseen_probability
REACHES, GAINS = range(2)  # columns of EscapeTallies.recent


@unowned
def attribute(
    tables: Any, matches: Any, token: int, tallies: Any, query: Any, contributions: Any
) -> Any:
    """Divide one observed token among the matches that predicted it (expectation step).

    Args:
        tallies: The arrays of EscapeTallies; `predicted`, `reached` and `recent` are updated.
        query: A buffer for all predictions.
        contributions: float64, a buffer for the probability that each prediction gave the token.

    Returns:
        The blended probability, and how many predictions the query lists.
    """
    escape, predicted, reached, recent = tallies
    n, mass = ask(tables, matches, escape, 0.0, query)
    probability = 0.0
    for i in range(n):
        contributions[i] = given_to(tables, query, i, token)
        probability += contributions[i]
    probability += mass * _UNSEEN
    left = 1.0
    rest = probability
    for i in range(n):
        source = query.keys[i, SOURCE]
        order = query.keys[i, ORDER]
        bucket = query.keys[i, BUCKET]
        share = contributions[i] / probability
        predicted[source, order, bucket] += share
        reached[source, order, bucket] += left
        recent[source, REACHES] += left
        left -= share
        rest -= contributions[i]
        if source >= heads_from(tables):
            # A head with the escape probability e gets the mass m and gives the token m (1 - e) g.
            # The predictions after it give the token m e r together; without the head they would
            # have given it m r.
            e = escape[source, order, bucket]
            recent[source, GAINS] += contributions[i] - (1.0 - e) * rest / e
    return probability, n


@njit()
def learn_output(
    plain: Any,
    plain_stage: Any,
    least: float,
    matches: Any,
    token_ids: Any,
    tallies: Any,
    answer_trie: int,
    open_nodes: Any,
    used: int,
) -> Any:
    """Learn emitted tokens one by one: attribute each, then extend matches and texts.

    Args:
        plain: PlainTables.
        plain_stage: A Stage as a plain tuple; it learns, too.
        least: The stage ignores smaller contributions to a candidate.
        matches: int32 (sources, orders), the matches before the tokens; extended in place.
        token_ids: int32; the answer's trie and the text that may be copied have room for them.
        tallies: As for `attribute`.
        answer_trie: The index of the answer's trie among the tries, to which `open_nodes` and
            `used` belong.

    Returns:
        The new number of nodes in use in that trie.
    """
    tables = named(plain)
    new_token = np.empty(1, np.int32)
    query = new_query(matches)
    contributions = np.empty(len(query.keys))
    stage = named_stage(plain_stage)
    has_stage = len(stage.factors) > 0
    candidates = new_candidates(max_candidates(tables) if has_stage else 0, 0)
    cells = np.empty((len(candidates.tokens), FEATURE_COUNT), np.int32)
    gradient = np.zeros(len(stage.factors))
    blends = 0
    for token in token_ids:
        _, n = attribute(tables, matches, token, tallies, query, contributions)
        used_before = tables.copies.sizes[USED]
        if has_stage and used_before:
            blends += 1
            size = blend(tables, query, n, least, candidates, blends)
            before = tables.copies.text[used_before - 1]
            longest = longest_matches(tables, matches)
            score(stage, tables.copies, candidates, size, before, 0, longest, 0.0, cells)
            learn(stage, candidates, size, cells, gradient, token)
        new_token[0] = token
        used = count_ids(new_token, trie_of(tables, answer_trie), open_nodes, used)
        advance(tables, matches, token)
        extend_text(tables.copies, matches[tables.counted], token)
        if has_stage:
            follow_text(stage, tables.copies)
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
