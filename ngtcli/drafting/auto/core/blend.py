"""One probability distribution over the next token, blended from all that predicts it. Compiled.

A source is something in which the last tokens may occur: a text whose continuations are counted, a
table of what the model ranked high after a token, a learned head (`sources/`, a file each). For
each source s and order k, the match is where the last k tokens are in the source. A match
predicts by its counts, and passes the rest of the probability on: its escape probability. This is
prediction by partial matching (PPM; Cleary & Witten 1984, section II), with several texts in place
of one. Escape probabilities come from counts of the events themselves, as in methods C and D
(Moffat 1990; Howard 1993), but are learned online, for each source, order and bucket of a
match (a class of matches with similar counts, `bucket_of` in forms.py):

    escape_mass = 1
    for each prediction:
        e = escape probability of (source, order, bucket)
        P(token) += escape_mass * (1 - e) * count(token after the match) / count(the match)
        escape_mass *= e

Predictions come in this order: what is copied (copies.py); what each learned head proposes; then,
from the longest order k to the shortest, the match of the last k tokens in each source, in the
order of the sources' table.

There is no exclusion: a token that a longer match predicted gets more from the shorter ones.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.core.copies import (
    DEPARTED,
    WAYS,
    copied_token,
    copy_bucket,
    copy_order,
    follow,
    segment_of,
)
from ngtcli.drafting.auto.core.forms import (
    COPY_ROWS,
    SEGMENT,
    continuations_of_longest,
    continue_with,
    longest_match,
    match,
    named,
    share_of,
    walk,
)
from ngtcli.drafting.tries.counts import NONE
from ngtcli.system.compiled import njit, unowned

# Columns of `keys`: which escape probability, the match, and the source that tokens are credited to
SOURCE, ORDER, BUCKET, NODE, CREDITED = range(5)
SHARE, TOTAL = range(2)  # columns of `masses`


class Query(NamedTuple):
    """Buffers for all predictions of the next token, in the order in which they pass mass on.

    Attributes:
        keys: int32 (predictions, 5).
        masses: float64 (predictions, 2): the probability that a prediction gives to tokens, and
            how often anything followed its match.
    """

    keys: npt.NDArray[np.int32]
    masses: npt.NDArray[np.float64]


@njit(inline="always")
def new_query(matches: Any) -> Any:
    """Return a Query with room for all possible predictions."""
    size = matches.size + WAYS
    return Query(np.empty((size, 5), np.int32), np.empty((size, 2)))


@njit(inline="always")
def heads_from(tables: Any) -> int:
    """Return the row of the first learned head; without heads, the number of rows."""
    return int(tables.counted + COPY_ROWS)


@unowned
def advance(tables: Any, matches: Any, token: int) -> None:
    """Extend `matches`, int32 (sources, orders), by a token in place, except those of copies."""
    for source in range(tables.counted):
        walk(tables, source, matches[source], token)
    for head in range(heads_from(tables), len(matches)):
        walk(tables, head, matches[head], token)


@unowned
def advance_path(tables: Any, matches: Any, token: int) -> None:
    """Extend all matches along a path of the tree, including those of copies."""
    advance(tables, matches, token)
    follow(tables.copies, matches[tables.counted], token)


@njit()
def advance_all(plain: Any, matches: Any, token_ids: Any) -> None:
    """Extend matches by all of `token_ids`, int32; `plain` are PlainTables."""
    for token in token_ids:
        advance(named(plain), matches, token)


@unowned
def ask(tables: Any, matches: Any, escape: Any, least: float, query: Any) -> Any:
    """List the predictions of the next token in `query`; return their number and the mass left.

    The mass is the probability that no listed prediction gives to a token. A prediction that gives
    tokens less than `least` is left out. The list ends when less than `least` is left.
    """
    n = 0
    mass = 1.0
    # After a departure a copy may continue in two ways (copies.py).
    for way in range(WAYS):
        token = copied_token(tables.copies, matches[tables.counted], way)
        if token != NONE:
            source, order, bucket, credited = _copy_keys(tables, matches, way)
            n, mass = _list(
                query, n, escape, mass, least, source, order, bucket, token, 1.0, credited
            )
    head = heads_from(tables)
    # The escape of a head depends on how long a match the tries have.
    longest = longest_match(tables, matches) if len(matches) > head else 0
    for source in range(head, len(matches)):
        total, bucket = match(tables, source, matches[source, 1], 1)
        if total > 0.0:
            row = matches[source, 1]
            n, mass = _list(
                query, n, escape, mass, least, source, longest, bucket, row, total, source
            )
    for order in range(matches.shape[1] - 1, -1, -1):
        if mass < least:
            break
        for source in range(tables.counted):
            node = matches[source, order]
            total, bucket = match(tables, source, node, order)
            if total > 0.0:
                n, mass = _list(
                    query, n, escape, mass, least, source, order, bucket, node, total, source
                )
    return n, mass


@njit(inline="always")
def _list(
    query: Any,
    n: int,
    escape: Any,
    mass: float,
    least: float,
    source: int,
    order: int,
    bucket: int,
    node: int,
    total: float,
    credited: int,
) -> Any:
    """List a prediction if it gives away at least `least`.

    Returns:
        The number of predictions that are listed now, and the mass that this one passes on.
    """
    keys = query.keys
    e = escape[source, order, bucket]
    share = mass * (1.0 - e)
    if share >= least:
        keys[n, SOURCE] = source
        keys[n, ORDER] = order
        keys[n, BUCKET] = bucket
        keys[n, NODE] = node
        keys[n, CREDITED] = credited
        query.masses[n, SHARE] = share
        query.masses[n, TOTAL] = total
        n += 1
    return n, mass * e


@njit(inline="always")
def _copy_keys(tables: Any, matches: Any, way: int) -> Any:
    """Return the source, order and bucket of a copy's escape, and its credited source."""
    state = matches[tables.counted]
    segment = segment_of(tables.copies, state)
    credited = 0
    for source in range(tables.counted):
        if tables.spec[source, SEGMENT] == segment:
            credited = source
    if state[DEPARTED] > 0:
        return tables.counted + 1, copy_order(state), copy_bucket(state, 0, way), credited
    distinct = continuations_of_longest(tables, matches)
    return tables.counted, copy_order(state), copy_bucket(state, distinct, way), credited


@unowned
def blend(tables: Any, query: Any, n: int, least: float, candidates: Any, number: int) -> int:
    """Fill `candidates` from the first `n` predictions of a query; return how many there are.

    Proposals of heads come last: a token that a match predicts as well is credited to the match.

    Args:
        least: Smaller contributions are left out.
        number: An id of this blend, not 0, that no earlier blend with these candidates had.
    """
    keys = query.keys
    masses = query.masses
    head = heads_from(tables)
    size = 0
    for is_late in range(2 if len(tables.spec) > head else 1):
        for i in range(n):
            if (keys[i, SOURCE] >= head) == (is_late == 1):
                size = continue_with(
                    tables,
                    keys[i, SOURCE],
                    keys[i, NODE],
                    keys[i, ORDER],
                    masses[i, SHARE],
                    masses[i, TOTAL],
                    least,
                    keys[i, CREDITED],
                    candidates,
                    size,
                    number,
                )
    return size


@njit(inline="always")
def given_to(tables: Any, query: Any, i: int, token: int) -> float:
    """Return the probability that prediction `i` of a query gives to `token`."""
    source = query.keys[i, SOURCE]
    node = query.keys[i, NODE]
    return share_of(tables, source, node, query.masses[i, SHARE], query.masses[i, TOTAL], token)
