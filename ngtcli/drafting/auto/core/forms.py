"""The three forms that the table of a source may have. Compiled; no other file tells them apart.

| form | table | a match is | what follows it |
|---|---|---|---|
| TRIE | counts of a text that grows (CountArrays) | a node | its children, the latest first |
| SORTED | counts of a general text (BackgroundArrays) | a row | its children, by falling count |
| ROW | lists of candidates with weights (RowArrays) | a row | the candidates of the row |

A source of the form ROW may have no table: then its match is a token id, and this token is its only
candidate.

The matches of a source, int32 (orders,), are those of the last k tokens for each order k, NONE
where these tokens do not occur. A row of a table needs only one token: its order is 1.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.candidates import add
from ngtcli.drafting.auto.core.cells import GENERAL, NO_EVIDENCE
from ngtcli.drafting.auto.core.copies import WAYS, CopyArrays
from ngtcli.drafting.auto.core.loglinear import evidence_of
from ngtcli.drafting.tries.background import FOLLOWED as ALL_FOLLOWED
from ngtcli.drafting.tries.background import TOKEN as ROW_TOKEN
from ngtcli.drafting.tries.background import UNIT
from ngtcli.drafting.tries.background_search import (
    BackgroundArrays,
    child_rows,
    count_in,
    find_row,
    in_vocabulary,
)
from ngtcli.drafting.tries.counts import (
    CHILDREN,
    COUNT,
    FIRST_CHILD,
    FOLLOWED,
    NEXT_SIBLING,
    NONE,
    TOKEN,
    CountArrays,
    find,
)
from ngtcli.system.compiled import njit, unowned

TRIE, SORTED, ROW = range(3)
# Columns of a spec, which has a row for each source.
# FORM: the form of its table.
# TABLE: the index of its table among those of the form; NONE if it has none.
# MIN_ORDER, MAX_ORDER: the orders at which it is asked.
# SEGMENT: which segment of the copied text (copies.py) it counts; NONE if none.
# ORIGIN: the displayed origin of its tokens, as an index into ORIGINS.
# DOCUMENT: the same for tokens that are in a document.
# EVIDENCE: the kind of evidence that a match is (cells.py).
FORM, TABLE, MIN_ORDER, MAX_ORDER, SEGMENT, ORIGIN, DOCUMENT, EVIDENCE = range(8)
ROW_TOTAL, ROW_BUCKET = range(2)  # columns of `facts`
LED_BY, FIRST_BELOW, NEXT_BESIDE, ANY_BELOW = range(4)  # columns of `links`
COPY_ROWS = 2  # Rows of a spec for a copy: while it continues, and after a departure.
_SEEN = tuple(UNIT * count for count in CONFIG.background_seen)
_AGREE = CONFIG.background_agrees
_SCANNED = CONFIG.scanned
_SCANNED_SORTED = CONFIG.scanned_background


class RowArrays(NamedTuple):
    """Lists of candidates, one per row.

    Attributes:
        tokens: int32 (rows, width).
        weights: float32 (rows, width), 0.0 for no candidate.
        facts: float32 (rows, 2): the total of which a weight is a share, 0.0 where a row predicts
            nothing; and the bucket of the row's escape probability.
        links: int32 (rows, 4), how tokens lead from row to row: the token that leads to a row, its
            first child row, its next sibling row, and the row that any token leads to; NONE where
            there is none. Without links the row after a token is the row of its id.
    """

    tokens: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    facts: npt.NDArray[np.float32]
    links: npt.NDArray[np.int32]


class Tables(NamedTuple):
    """The tables of all sources, from which predictions are made.

    Attributes:
        spec: int32 (sources, 8): first the sources that are queried order by order, then the two
            rows of copies, then the learned heads.
        counted: How many sources are queried order by order.
        tries, sorted, rows: The tables of each form, as plain tuples of their arrays.
        copies: The text that may be copied.
    """

    spec: npt.NDArray[np.int32]
    counted: int
    tries: tuple[tuple[Any, ...], ...]
    sorted: tuple[tuple[Any, ...], ...]
    rows: tuple[tuple[Any, ...], ...]
    copies: CopyArrays


# The same as plain tuples, as Python passes them to compiled code: numba takes 5 us to unpack named
# tuples at each call, and nothing to name them inside (measured).
PlainTables = tuple[
    npt.NDArray[np.int32],
    int,
    tuple[tuple[Any, ...], ...],
    tuple[tuple[Any, ...], ...],
    tuple[tuple[Any, ...], ...],
    tuple[Any, ...],
]


@njit(inline="always")
def named(plain: Any) -> Any:
    """Return Tables from plain tuples."""
    spec, counted, tries, in_order, rows, copies = plain
    named_copies = CopyArrays(copies[0], copies[1], copies[2])
    return Tables(spec, counted, tries, in_order, rows, named_copies)


@njit(inline="always")
def trie_of(tables: Any, table: int) -> Any:
    """Return the arrays of a trie, CountArrays."""
    plain = tables.tries[table]
    return CountArrays(plain[0], plain[1], plain[2], plain[3])


@njit(inline="always")
def _sorted_of(tables: Any, table: int) -> Any:
    plain = tables.sorted[table]
    return BackgroundArrays(plain[0], plain[1])


@njit(inline="always")
def _rows_of(tables: Any, table: int) -> Any:
    plain = tables.rows[table]
    return RowArrays(plain[0], plain[1], plain[2], plain[3])


@njit(inline="always")
def bucket_of(total: float, distinct: int) -> int:
    """Return the bucket, 0 to 11, of a match seen `total` times with `distinct` continuations."""
    seen = 0 if total < 1.5 else 1 if total < 2.5 else 2 if total < 5.5 else 3
    varied = 0 if distinct == 1 else 1 if distinct == 2 else 2
    return seen * 3 + varied


@njit(inline="always")
def _sorted_bucket(nodes: Any, node: int) -> int:
    """Return the bucket, 0 to 11, of a match's count and of its likeliest token's share."""
    total = nodes[node, ALL_FOLLOWED]
    if total < _SEEN[0]:  # seen once: there is one continuation
        return 0
    first, end = child_rows(nodes, node)
    top = count_in(nodes, first, total) if first < end and in_vocabulary(nodes, first) else 0
    seen = 1 if total < _SEEN[1] else 2 if total < _SEEN[2] else 3
    varied = 0 if top >= _AGREE[0] * total else 1 if top >= _AGREE[1] * total else 2
    return seen * 3 + varied


@njit(inline="always")
def match(tables: Any, source: int, node: int, order: int) -> Any:
    """Return the total count of tokens that followed a match, and the bucket of its escape.

    The total is 0.0 if nothing followed, and at orders at which the source is not queried.
    """
    spec = tables.spec
    if node == NONE or order < spec[source, MIN_ORDER] or order > spec[source, MAX_ORDER]:
        return 0.0, 0
    form = spec[source, FORM]
    table = spec[source, TABLE]
    if form == TRIE:
        trie = trie_of(tables, table)
        total = float(trie.counts[node, FOLLOWED])
        return total, bucket_of(total, trie.nodes[node, CHILDREN])
    if form == SORTED:
        nodes = _sorted_of(tables, table).nodes
        return float(nodes[node, ALL_FOLLOWED]), _sorted_bucket(nodes, node)
    rows = _rows_of(tables, table)
    return float(rows.facts[node, ROW_TOTAL]), int(rows.facts[node, ROW_BUCKET])


@njit(inline="always")
def walk(tables: Any, source: int, matches: Any, token: int) -> None:
    """Extend the `matches` of a source by a token in place: matches of k tokens to k + 1."""
    spec = tables.spec
    form = spec[source, FORM]
    table = spec[source, TABLE]
    if form == TRIE:
        slots = trie_of(tables, table).slots
        for order in range(len(matches) - 2, -1, -1):
            node = matches[order]
            matches[order + 1] = find(slots, node, token) if node != NONE else NONE
    elif form == SORTED:
        arrays = _sorted_of(tables, table)
        for order in range(spec[source, MAX_ORDER] - 1, -1, -1):
            node = matches[order]
            matches[order + 1] = find_row(arrays, node, token) if node != NONE else NONE
    else:
        matches[1] = _row_after(_rows_of(tables, table), matches[1], token)


@njit(inline="always")
def _row_after(rows: Any, row: int, token: int) -> Any:
    """Return the row that `token` leads to, or NONE."""
    if len(rows.links) == 0:
        return token if token < len(rows.tokens) else NONE
    if row == NONE or rows.links[row, ANY_BELOW] != NONE:
        return NONE if row == NONE else rows.links[row, ANY_BELOW]
    below = rows.links[row, FIRST_BELOW]
    while below != NONE and rows.links[below, LED_BY] != token:
        below = rows.links[below, NEXT_BESIDE]
    return below


@unowned
def continue_with(
    tables: Any,
    source: int,
    node: int,
    order: int,
    share: float,
    total: float,
    least: float,
    credited: int,
    candidates: Any,
    size: int,
    blend: int,
) -> int:
    """Divide `share` among the tokens that followed a match; return the number of candidates.

    Args:
        order: The order of the match. At order 0 the most frequent tokens are read.
        share: The probability that the match gives away.
        total: The total that `match` returned.
        least: Smaller probabilities are left out.
        credited: The source that new candidates are credited to.
        candidates, size, blend: As for `candidates.add`.
    """
    form = tables.spec[source, FORM]
    table = tables.spec[source, TABLE]
    kind = tables.spec[source, EVIDENCE]
    if form == TRIE:
        trie = trie_of(tables, table)
        scale = share / total
        child = trie.frequent[0] if order == 0 else trie.nodes[node, FIRST_CHILD]
        scanned = 0
        while child != NONE and scanned < _SCANNED and size < len(candidates.tokens):
            count = float(trie.counts[child, COUNT])
            probability = scale * count
            if probability >= least:
                token = trie.nodes[child, TOKEN]
                evidence = evidence_of(kind, order, count, total)
                size = add(candidates, size, blend, token, probability, credited, evidence)
            scanned += 1
            child = trie.frequent[scanned] if order == 0 else trie.nodes[child, NEXT_SIBLING]
        return size
    if form == SORTED:
        nodes = _sorted_of(tables, table).nodes
        scale = share / total
        first, end = child_rows(nodes, node)
        for row in range(first, min(end, first + _SCANNED_SORTED)):
            count = float(count_in(nodes, row, total))
            probability = scale * count
            is_enough = probability >= least and probability > 0.0
            if not (is_enough and in_vocabulary(nodes, row)) or size >= len(candidates.tokens):
                break
            token = nodes[row, ROW_TOKEN]
            evidence = evidence_of(kind, order, count / UNIT, total / UNIT)
            size = add(candidates, size, blend, token, probability, credited, evidence)
        return size
    if table == NONE:
        return add(candidates, size, blend, node, share, credited, 0)
    rows = _rows_of(tables, table)
    scale = share / total
    for i in range(rows.tokens.shape[1]):
        probability = scale * rows.weights[node, i]
        is_enough = probability >= least and probability > 0.0
        if is_enough and size < len(candidates.tokens):
            size = add(candidates, size, blend, rows.tokens[node, i], probability, credited, 0)
    return size


@unowned
def share_of(tables: Any, source: int, node: int, share: float, total: float, token: int) -> float:
    """Return how much of `share`, the probability that a match gives away, `token` gets."""
    form = tables.spec[source, FORM]
    table = tables.spec[source, TABLE]
    if form == TRIE:
        trie = trie_of(tables, table)
        child = find(trie.slots, node, token)
        return share * float(trie.counts[child, COUNT]) / total if child != NONE else 0.0
    if form == SORTED:
        arrays = _sorted_of(tables, table)
        row = find_row(arrays, node, token)
        count = float(count_in(arrays.nodes, row, total)) if row != NONE else 0.0
        return share * count / total
    if table == NONE:
        return share if node == token else 0.0
    rows = _rows_of(tables, table)
    for i in range(rows.tokens.shape[1]):
        if rows.tokens[node, i] == token and rows.weights[node, i] > 0.0:
            return share * float(rows.weights[node, i]) / total
    return 0.0


@njit(inline="always")
def max_candidates(tables: Any) -> int:
    """Return the maximum number of tokens that one blend can find."""
    count = WAYS
    for source in range(len(tables.spec)):
        spec = tables.spec[source]
        orders = spec[MAX_ORDER] - spec[MIN_ORDER] + 1
        if spec[FORM] == TRIE:
            count += orders * _SCANNED
        elif spec[FORM] == SORTED:
            count += orders * _SCANNED_SORTED
        elif spec[TABLE] != NONE:
            count += _rows_of(tables, spec[TABLE]).tokens.shape[1]
    return count


@unowned
def longest_match(tables: Any, matches: Any) -> int:
    """Return the order of the longest match in a trie, 0 if there is none."""
    for order in range(matches.shape[1] - 1, 0, -1):
        for source in range(tables.counted):
            node = matches[source, order]
            if node != NONE and tables.spec[source, FORM] == TRIE:
                if trie_of(tables, tables.spec[source, TABLE]).counts[node, FOLLOWED] > 0:
                    return order
    return 0


@unowned
def longest_matches(tables: Any, matches: Any) -> Any:
    """Return the orders of the longest matches that something followed, 0 for none.

    The first is that in texts of the user and the model, the second that in general texts. Texts
    that are no evidence to the log-linear stage do not count.
    """
    in_texts = 0
    in_general = 0
    for source in range(tables.counted):
        kind = tables.spec[source, EVIDENCE]
        if kind == NO_EVIDENCE:
            continue
        reached = in_general if kind == GENERAL else in_texts
        for order in range(matches.shape[1] - 1, reached, -1):
            total, _ = match(tables, source, matches[source, order], order)
            if total > 0.0:
                reached = order
                break
        if kind == GENERAL:
            in_general = reached
        else:
            in_texts = reached
    return in_texts, in_general


@unowned
def continuations_of_longest(tables: Any, matches: Any) -> int:
    """Return how many tokens have followed the longest match in the text that may be copied."""
    for order in range(matches.shape[1] - 1, 0, -1):
        distinct = 0
        for source in range(tables.counted):
            node = matches[source, order]
            if node != NONE and tables.spec[source, SEGMENT] != NONE:
                trie = trie_of(tables, tables.spec[source, TABLE])
                distinct = max(distinct, trie.nodes[node, CHILDREN])
        if distinct:
            return distinct
    return 0
