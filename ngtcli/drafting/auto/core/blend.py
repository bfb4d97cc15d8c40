"""One probability distribution over the next token, blended from all matches. Compiled.

A source is a text whose continuations are counted: one that the user says the answer is like
(predicted), the generated text, the prompt with its documents, earlier answers (the pool), a
general text (background), and the model's own runners-up (scores). For each source s and each order
k, the match node is the place of the last k tokens in the source's trie. Matches are queried from
the longest order to 0, at each order in the sequence of SOURCES. A match predicts by its counts and
passes the rest of the probability on, its escape probability (prediction by partial matching;
Cleary & Witten 1984, section II; escapes are estimated from counts of the events themselves, as in
methods C and D of Moffat 1990 and Howard 1993, but learned online):

    escape_mass = 1
    the place that is copied (copies.py) predicts a token, and passes its escape_mass on
    for k in orders, longest first:
        for s in sources that have a match of k tokens:
            e = escape probability of (s, k, bucket of the match)
            P(token) += escape_mass * (1 - e) * count(token after the match) / count(the match)
            escape_mass *= e

Of the background order 0 is left out, and scores have order 1 alone.
There is no exclusion: a token that a longer match predicted gets more from the shorter ones.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.copies import (
    ANSWER,
    DEPARTED,
    PLACE,
    PROMPTED,
    WAYS,
    CopyArrays,
    copied_token,
    copy_bucket,
    copy_order,
    follow,
)
from ngtcli.drafting.auto.core.tables import (
    DISTINCT,
    SUM,
    GuessArrays,
    RankArrays,
    guess_bucket,
    state_below,
    weight_of,
)
from ngtcli.drafting.origins import SOURCES
from ngtcli.drafting.tries.background import DEPTH, UNIT
from ngtcli.drafting.tries.background import FOLLOWED as ALL_FOLLOWED
from ngtcli.drafting.tries.background import TOKEN as ROW_TOKEN
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

# Those before the background have a trie that grows; scores have none.
PREDICTED, OWN, PROMPT, POOL, BACKGROUND, SCORES = range(len(SOURCES))
# Behind them the place that is copied, while that comes true and after it departed from it. Of the
# matches, the row of the first holds its state (copies.py).
COPIED, EDITED = len(SOURCES), len(SOURCES) + 1
HEADS = len(SOURCES) + 2  # the first row of those of learned heads, of which there may be none
_SEEN = tuple(UNIT * seen for seen in CONFIG.background_seen)
_AGREE = CONFIG.background_agrees
ORDERS, BUCKETS = CONFIG.orders, CONFIG.buckets
UNSEEN = CONFIG.unseen_probability
_SCANNED, _SCANNED_BACKGROUND = CONFIG.scanned, CONFIG.scanned_background


class SourceArrays(NamedTuple):
    """What is queried: the tries of predicted and own text, prompt and pool, the background's
    counts, the table of scores, the text that may be copied, and what heads guess."""

    tries: tuple[CountArrays, CountArrays, CountArrays, CountArrays]
    background: BackgroundArrays
    ranks: RankArrays
    copies: CopyArrays
    guesses: GuessArrays


# The same as plain tuples, as Python hands them to compiled code: numba takes 5 us to unpack named
# ones at each call, and none to name them inside (measured).
PlainArrays = tuple[
    tuple[tuple[Any, ...], ...],
    tuple[Any, ...],
    tuple[Any, ...],
    tuple[Any, ...],
    tuple[Any, ...],
]


@njit(inline="always")
def named(arrays: Any) -> Any:
    """SourceArrays from plain tuples."""
    (predicted, own, prompt, pool), background, ranks, copies, guesses = arrays
    return SourceArrays(
        (
            CountArrays(predicted[0], predicted[1], predicted[2], predicted[3]),
            CountArrays(own[0], own[1], own[2], own[3]),
            CountArrays(prompt[0], prompt[1], prompt[2], prompt[3]),
            CountArrays(pool[0], pool[1], pool[2], pool[3]),
        ),
        BackgroundArrays(background[0], background[1]),
        RankArrays(ranks[0], ranks[1], ranks[2]),
        CopyArrays(copies[0], copies[1], copies[2]),
        GuessArrays(guesses[0], guesses[1], guesses[2]),
    )


ROW, ORDER, BUCKET, NODE, SOURCE = range(5)  # columns of `keys`
SHARE, TOTAL = range(2)  # columns of `masses`


class Query(NamedTuple):
    """Room for what predicts the next token, in the order in which it passes probability on.

    `keys`, int32 (matches, 5): the row, order and bucket of its escape probability, its node (a
    token that is copied, the state of a head), and where a token is copied its source. `masses`,
    float64 (matches, 2): the probability that it gives away, and what followed its match in all.
    """

    keys: npt.NDArray[np.int32]
    masses: npt.NDArray[np.float64]


class Candidates(NamedTuple):
    """Room for blends: token ids (int32), probabilities (float64), sources (int8).

    The source of a token is the one that predicted it first, from the longest match. `slots`, int32
    (2^n, 2), is a hash table from tokens to their indices, each with the number of the blend that
    it is of. `best`, int32, has room for the indices of the likeliest.
    """

    tokens: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float64]
    origins: npt.NDArray[np.int8]
    slots: npt.NDArray[np.int32]
    best: npt.NDArray[np.int32]


@njit(inline="always")
def bucket_of(total: float, distinct: int) -> int:
    """The bucket of a match seen `total` times with `distinct` continuations, 0 to 11."""
    seen = 0 if total < 1.5 else 1 if total < 2.5 else 2 if total < 5.5 else 3
    varied = 0 if distinct == 1 else 1 if distinct == 2 else 2
    return seen * 3 + varied


@njit(inline="always")
def background_bucket(nodes: Any, node: int) -> int:
    """The bucket of a match in the background: how often it was seen, how far its texts agree.

    What agrees is the share of the most frequent continuation.
    """
    total = nodes[node, ALL_FOLLOWED]
    if total < _SEEN[0]:  # of one continuation
        return 0
    first, end = child_rows(nodes, node)
    top = count_in(nodes, first, total) if first < end and in_vocabulary(nodes, first) else 0
    seen = 1 if total < _SEEN[1] else 2 if total < _SEEN[2] else 3
    varied = 0 if top >= _AGREE[0] * total else 1 if top >= _AGREE[1] * total else 2
    return seen * 3 + varied


@njit(inline="always")
def match_of(sources: Any, node: int, source: int, order: int) -> Any:
    """(What followed a match in its source, as often as it counts; its bucket).

    0.0 where nothing did, where `node` is NONE, of the background at order 0 (with it the mean
    acceptance length is 2.800 in place of 2.801, and a drafting step takes 2 us more), and of
    scores at other orders than 1.
    """
    if node == NONE or (source >= BACKGROUND and order == 0):
        return 0.0, 0
    if source < BACKGROUND:
        trie = sources.tries[source]
        total = float(trie.counts[node, FOLLOWED])
        return total, bucket_of(total, trie.nodes[node, CHILDREN])
    if source == BACKGROUND:
        nodes = sources.background.nodes
        total = float(nodes[node, ALL_FOLLOWED])
        return total, background_bucket(nodes, node)
    if order > 1 or source > SCORES:
        return 0.0, 0
    total = sources.ranks.sums[node, SUM]
    return total, bucket_of(total, int(sources.ranks.sums[node, DISTINCT]))


@unowned
def advance(sources: Any, match_nodes: Any, token: int) -> None:
    """Extend all matches by one token, in place.

    `match_nodes`, int32 (sources, orders): the node of the last k tokens in each trie, NONE where
    they do not occur there; of scores, at order 1, the last token; of a head, at order 1, its
    state there. The place that is copied stays.
    """
    for source in range(BACKGROUND):
        slots = sources.tries[source].slots
        for order in range(match_nodes.shape[1] - 2, -1, -1):
            node = match_nodes[source, order]
            match_nodes[source, order + 1] = find(slots, node, token) if node != NONE else NONE
    background = sources.background
    for order in range(DEPTH - 2, -1, -1):
        node = match_nodes[BACKGROUND, order]
        child = find_row(background, node, token) if node != NONE else NONE
        match_nodes[BACKGROUND, order + 1] = child
    known = token < len(sources.ranks.tokens)
    match_nodes[SCORES, 1] = token if known else NONE
    for head in range(HEADS, match_nodes.shape[0]):
        state = match_nodes[head, 1]
        match_nodes[head, 1] = state_below(sources.guesses, head - HEADS, state, token)


@unowned
def advance_path(sources: Any, match_nodes: Any, token: int) -> None:
    """The same along a path of the tree, with the place that is copied."""
    advance(sources, match_nodes, token)
    follow(sources.copies, match_nodes[COPIED], token)


@njit()
def match_end(arrays: Any, match_nodes: Any, ids: Any) -> None:
    """Match the end of a text, `ids` int32, from nothing: `match_nodes` as `advance` has them.

    The place that is copied stays.
    """
    match_nodes[:COPIED], match_nodes[HEADS:] = NONE, NONE
    match_nodes[:COPIED, 0] = 0
    if len(arrays[1][0]) <= 2:  # it counted nothing
        match_nodes[BACKGROUND, 0] = NONE
    if arrays[0][PREDICTED][1][0, FOLLOWED] == 0.0:
        match_nodes[PREDICTED, 0] = NONE
    for token in ids[-match_nodes.shape[1] :]:
        advance(named(arrays), match_nodes, token)


@njit(inline="always")
def query_for(match_nodes: Any) -> Any:
    """Room for all that may be asked of matches."""
    room = match_nodes.size + WAYS
    return Query(np.empty((room, 5), np.int32), np.empty((room, 2)))


@unowned
def ask(sources: Any, match_nodes: Any, escape: Any, least: float, query: Any) -> Any:
    """List in `query` all that predicts the next token: (how many, the mass that is left).

    First what is copied, then heads, then matches from the longest on. What gives away less than
    `least` is left out; once less is left at an order, the rest is not asked.
    """
    n, mass = 0, 1.0
    for way in range(WAYS):
        token, source, row, order, bucket = copied(sources, match_nodes, way)
        if token != NONE:
            query.keys[n, SOURCE] = source
            n, mass = _put(query, n, escape, mass, least, row, order, bucket, token, 1.0)
    beside = longest_match(sources, match_nodes) if match_nodes.shape[0] > HEADS else 0
    for row in range(HEADS, match_nodes.shape[0]):
        state, head = match_nodes[row, 1], row - HEADS
        if state != NONE and sources.guesses.weights[head, state, 0] > 0.0:
            bucket = guess_bucket(sources.guesses, head, state)
            n, mass = _put(query, n, escape, mass, least, row, beside, bucket, state, 1.0)
    for order in range(match_nodes.shape[1] - 1, -1, -1):
        if mass < least:
            break
        for source in range(COPIED):
            node = match_nodes[source, order]
            total, bucket = match_of(sources, node, source, order)
            if total > 0.0:
                n, mass = _put(query, n, escape, mass, least, source, order, bucket, node, total)
    return n, mass


@njit(inline="always")
def _put(
    query: Any, n: int, escape: Any, mass: float, least: float, row: int, order: int, bucket: int,
    node: int, total: float,
) -> Any:  # fmt: skip
    """List what gives away enough of a mass: (how many are listed, what it passes on)."""
    keys, e = query.keys, escape[row, order, bucket]
    share = mass * (1.0 - e)
    if share >= least:
        keys[n, ROW], keys[n, ORDER], keys[n, BUCKET], keys[n, NODE] = row, order, bucket, node
        query.masses[n, SHARE], query.masses[n, TOTAL] = share, total
        n += 1
    return n, mass * e


@unowned
def blend(sources: Any, query: Any, n: int, least: float, candidates: Any, number: int) -> int:
    """Fill `candidates` with the distribution of the first `n` of a query; the number of tokens.

    Contributions below `least` are left out. `number` of this blend: no earlier one with the same
    candidates had it, and none has 0. What heads guess comes last, so that a token that a match
    predicts as well counts as the match's.
    """
    found, guessing = 0, False
    for i in range(n):
        share, total = query.masses[i, SHARE], query.masses[i, TOTAL]
        row, node = query.keys[i, ROW], query.keys[i, NODE]
        if row >= HEADS:
            guessing = True
        elif row >= COPIED:
            found = _add(node, share, query.keys[i, SOURCE], candidates, found, number)
        elif row < BACKGROUND:
            found = _add_counts(sources.tries[row], node, query.keys[i, ORDER], share / total,
                                least, row, candidates, found, number)  # fmt: skip
        elif row == BACKGROUND:
            found = _add_background(sources.background.nodes, node, total, share / total, least,
                                    candidates, found, number)  # fmt: skip
        else:
            ranks = sources.ranks
            found = _add_row(ranks.tokens[node], ranks.weights[node], share / total, least, row,
                             candidates, found, number)  # fmt: skip
    for i in range(n if guessing else 0):
        row, state, share = query.keys[i, ROW], query.keys[i, NODE], query.masses[i, SHARE]
        if row >= HEADS:
            guesses, head = sources.guesses, row - HEADS
            found = _add_row(guesses.tokens[head, state], guesses.weights[head, state], share,
                             least, row, candidates, found, number)  # fmt: skip
    return found


@unowned
def share_of(sources: Any, query: Any, i: int, token: int) -> Any:
    """The probability that entry `i` of a query gives `token`."""
    row, node, share = query.keys[i, ROW], query.keys[i, NODE], query.masses[i, SHARE]
    total = query.masses[i, TOTAL]
    if row >= HEADS:
        tokens, weights = sources.guesses.tokens, sources.guesses.weights
        return share * weight_of(tokens[row - HEADS, node], weights[row - HEADS, node], token)
    if row >= COPIED:
        return share if node == token else 0.0
    if row == SCORES:
        ranks = sources.ranks
        return share * weight_of(ranks.tokens[node], ranks.weights[node], token) / total
    if row == BACKGROUND:
        at = find_row(sources.background, node, token)
        count = float(count_in(sources.background.nodes, at, total)) if at != NONE else 0.0
        return share * count / total
    trie = sources.tries[row]
    child = find(trie.slots, node, token)
    return share * float(trie.counts[child, COUNT]) / total if child != NONE else 0.0


@unowned
def copied(sources: Any, match_nodes: Any, way: int) -> Any:
    """What is copied next, (token, source, and its row, order and bucket of escapes), or NONE."""
    copies, state = sources.copies, match_nodes[COPIED]
    token = copied_token(copies, state, way)
    if token == NONE:
        return NONE, 0, 0, 0, 0
    source = PREDICTED if state[PLACE] < copies.sizes[PROMPTED] else PROMPT
    if state[PLACE] >= copies.sizes[ANSWER]:
        source = OWN
    if state[DEPARTED] > 0:
        return token, source, EDITED, copy_order(state), copy_bucket(state, 0, way)
    distinct = 0
    for order in range(match_nodes.shape[1] - 1, 0, -1):
        for one in (PREDICTED, OWN, PROMPT):
            node = match_nodes[one, order]
            if node != NONE:
                distinct = max(distinct, sources.tries[one].nodes[node, CHILDREN])
        if distinct:
            break
    return token, source, COPIED, copy_order(state), copy_bucket(state, distinct, way)


@unowned
def longest_match(sources: Any, match_nodes: Any) -> int:
    """The order of the longest match in the tries, 0 if there is none."""
    for order in range(match_nodes.shape[1] - 1, 0, -1):
        for source in range(BACKGROUND):
            node = match_nodes[source, order]
            if node != NONE and sources.tries[source].counts[node, FOLLOWED] > 0:
                return order
    return 0


@njit(inline="always")
def _add_counts(
    trie: Any, node: int, order: int, scale: float, min_probability: float, source: int,
    candidates: Any, found: int, number: int,
) -> int:  # fmt: skip
    """Add the continuations of a match, most recent first; of the root, most frequent first."""
    child = trie.frequent[0] if order == 0 else trie.nodes[node, FIRST_CHILD]
    scanned = 0
    while child != NONE and scanned < _SCANNED and found < len(candidates.tokens):
        probability = scale * trie.counts[child, COUNT]
        if probability >= min_probability:
            found = _add(trie.nodes[child, TOKEN], probability, source, candidates, found, number)
        scanned += 1
        child = trie.frequent[scanned] if order == 0 else trie.nodes[child, NEXT_SIBLING]
    return found


@njit(inline="always")
def _add_background(
    nodes: Any, node: int, total: float, scale: float, min_probability: float, candidates: Any,
    found: int, number: int,
) -> int:  # fmt: skip
    """Add the continuations of a match, the most frequent first; `scale` is of a stored count."""
    first, end = child_rows(nodes, node)
    for row in range(first, min(end, first + _SCANNED_BACKGROUND)):
        probability = scale * count_in(nodes, row, total)
        enough = probability >= min_probability and probability > 0.0
        if not (enough and in_vocabulary(nodes, row)) or found >= len(candidates.tokens):
            break
        token = nodes[row, ROW_TOKEN]
        found = _add(token, probability, BACKGROUND, candidates, found, number)
    return found


@unowned
def _add_row(
    tokens: Any, weights: Any, scale: float, min_probability: float, source: int, candidates: Any,
    found: int, number: int,
) -> int:  # fmt: skip
    """Add the row of a table."""
    for i in range(len(tokens)):
        probability = scale * weights[i]
        wanted = probability > 0.0 and probability >= min_probability
        if wanted and found < len(candidates.tokens):
            found = _add(tokens[i], probability, source, candidates, found, number)
    return found


@njit(inline="always")
def _add(
    token: int, probability: float, source: int, candidates: Any, found: int, number: int
) -> int:
    slots = candidates.slots
    at = token & (len(slots) - 1)
    while slots[at, 0] == number:
        index = slots[at, 1]
        if candidates.tokens[index] == token:
            candidates.probabilities[index] += probability
            return found
        at = (at + 1) & (len(slots) - 1)
    slots[at, 0], slots[at, 1] = number, found
    candidates.tokens[found], candidates.probabilities[found] = token, probability
    candidates.origins[found] = source
    return found + 1
