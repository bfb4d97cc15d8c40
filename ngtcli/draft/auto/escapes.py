"""Escape probabilities: those fitted on recorded runs, and the tallies that move them on. Compiled.

A token's probability is a sum over matches (blend.py). In the expectation step of learning the
blend each match that predicted an observed token is credited with its share of that sum.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.blend import (
    BACKGROUND,
    BUCKETS,
    COPIED,
    HEADS,
    ORDERS,
    OWN,
    PREDICTED,
    PROMPT,
    SCORES,
    UNSEEN,
    advance,
    copied,
    longest_match,
    match_of,
    named,
)
from ngtcli.draft.auto.config import CONFIG
from ngtcli.draft.auto.copies import WAYS, extend_text
from ngtcli.draft.auto.guesses import guess_bucket, guess_of, guesses_here
from ngtcli.system.compiled import njit, unowned
from ngtcli.trie.background_search import count_in, find_row
from ngtcli.trie.counts import COUNT, NONE, count_ids, find

_MIN_ESCAPE = CONFIG.min_escape
PREDICTS, REACHES, GAINS = range(3)  # columns of `recent`


@unowned
def attribute(
    sources: Any, match_nodes: Any, token: int, tallies: Any, given: Any, keys: Any
) -> Any:
    """Expectation step: divide one observed token among the matches that predicted it.

    Adds to the `predicted`, `reached` and `recent` of `tallies`, arrays as EscapeTallies has them.
    For the queried matches there must be room: for what each gave the token in `given`, float64,
    for its source, order and bucket in `keys`, int32 (matches, 3). Returns the blended probability.
    """
    escape, predicted, reached, recent = tallies
    escape_mass, probability, n = 1.0, 0.0, 0
    for way in range(WAYS):
        guess, _, row, order, bucket = copied(sources, match_nodes, way)
        if guess == NONE:
            continue
        e = escape[row, order, bucket]
        given[n] = escape_mass * (1.0 - e) * (guess == token)
        keys[n, 0], keys[n, 1], keys[n, 2] = row, order, bucket
        probability += given[n]
        escape_mass *= e
        n += 1
    beside = longest_match(sources, match_nodes) if match_nodes.shape[0] > HEADS else 0
    for source in range(HEADS, match_nodes.shape[0]):
        state = match_nodes[source, 1]
        if not guesses_here(sources.guesses, state):
            continue
        bucket = guess_bucket(sources.guesses, state)
        e = escape[source, beside, bucket]
        given[n] = escape_mass * (1.0 - e) * guess_of(sources.guesses, state, token)
        keys[n, 0], keys[n, 1], keys[n, 2] = source, beside, bucket
        probability += given[n]
        escape_mass *= e
        n += 1
    for order in range(match_nodes.shape[1] - 1, -1, -1):
        for source in range(COPIED):
            node = match_nodes[source, order]
            total, bucket = match_of(sources, node, source, order)
            if total <= 0.0:
                continue
            count = _count(sources, node, source, token, total)
            e = escape[source, order, bucket]
            given[n] = escape_mass * (1.0 - e) * count / total
            keys[n, 0], keys[n, 1], keys[n, 2] = source, order, bucket
            probability += given[n]
            escape_mass *= e
            n += 1
    probability += escape_mass * UNSEEN
    _add_gains(given, keys, n, probability, escape, recent)
    left = 1.0
    for i in range(n):
        source, order, bucket = keys[i, 0], keys[i, 1], keys[i, 2]
        share = given[i] / probability
        predicted[source, order, bucket] += share
        reached[source, order, bucket] += left
        recent[source, PREDICTS] += share
        recent[source, REACHES] += left
        left -= share
    return probability


@njit(inline="always")
def _add_gains(given: Any, keys: Any, n: int, probability: float, escape: Any, recent: Any) -> None:
    """Add to `recent` what each head that guessed has made of a token's probability.

    A head of escape probability e that is left the mass m gives the token m (1 - e) g; those behind
    it give m e r together. Without it they would have given m r.
    """
    rest = probability
    for i in range(n):
        source = keys[i, 0]
        rest -= given[i]
        if source >= HEADS:
            e = escape[source, keys[i, 1], keys[i, 2]]
            recent[source, GAINS] += given[i] - (1.0 - e) * rest / e


@njit(inline="always")
def _count(sources: Any, node: int, source: int, token: int, total: float) -> Any:
    """The count of `token` after a match, of `total` that followed it."""
    count = 0.0
    if source == SCORES:
        ranks = sources.ranks
        for i in range(ranks.weights.shape[1]):
            if ranks.weights[node, i] > 0.0 and ranks.successors[node, i] == token:
                count = ranks.weights[node, i]
    elif source == BACKGROUND:
        row = find_row(sources.background, node, token)
        if row != NONE:
            count = float(count_in(sources.background.nodes, row, total))
    else:
        trie = sources.tries[source]
        child = find(trie.slots, node, token)
        if child != NONE:
            count = float(trie.counts[child, COUNT])
    return count


@njit()
def learn_output(
    arrays: Any, match_nodes: Any, ids: Any, tallies: Any, open_nodes: Any, used: int
) -> Any:  # fmt: skip
    """Learn emitted `ids`, int32: attribute each, count it in the own text, extend the matches.

    `arrays` are PlainArrays, `tallies` as for `attribute`. `open_nodes` and `used` are of the own
    text's trie, which must have room. Returns the nodes used after.
    """
    sources, one = named(arrays), np.empty(1, np.int32)
    given, keys = np.empty(match_nodes.size), np.empty((match_nodes.size, 3), np.int32)
    for token in ids:
        attribute(sources, match_nodes, token, tallies, given, keys)
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


Floats = npt.NDArray[np.float64]
ESCAPES = Path(__file__).parent / "escapes.json"
SHAPE = (HEADS, ORDERS, BUCKETS)


@lru_cache(maxsize=CONFIG.heads + 1)
def fitted_escapes(heads: int = 0) -> Floats:
    """The shipped escape probabilities, float64 (row, order, bucket), and those of `heads`.

    Fitted by `python -m tests.tools.fit_escapes`. No recording holds scores, so theirs are
    a guess that the first steps correct. A predicted text begins with the prompt's. A
    head's order is that of the longest match beside it.
    """
    escapes = np.full(SHAPE, CONFIG.scores_escape)
    stored = json.loads(ESCAPES.read_text(encoding="utf-8"))
    escapes[OWN : OWN + len(stored["escapes"])] = stored["escapes"]
    # Swept before copies were followed, on answers of the built-in model with 6% of the tokens
    # edited, 30 questions at 32 nodes: 17.05; the prompt's squared 14.77, to the third power 14.26;
    # exact copies 24.0, 24.7, 25.1.
    escapes[PREDICTED] = escapes[PROMPT]
    escapes[COPIED:] = stored["copies"]
    escapes[BACKGROUND:COPIED, 0] = CONFIG.unused_escape
    beside = np.asarray(CONFIG.guess_escapes)[:, None]
    of_heads = np.broadcast_to(beside, (heads, *SHAPE[1:]))
    escapes = np.concatenate([escapes, of_heads])
    escapes.setflags(write=False)
    return escapes


class EscapeTallies:
    """Tallies that start as `trust` observations of given escape probabilities, few of heads.

    Of each (source, order, bucket), float64: `reached` is the expected number of tokens that were
    left when a match was queried, `predicted` the expected number of those that it predicted,
    `escape` is 1 - predicted / reached. `recent`, float64 (sources, 3), is of the last tokens
    learned alone, over all orders and buckets: how many each source predicted, how many were left
    for its matches, and by how much a head has raised their probabilities over what the others gave
    them. `arrays` are (escape, predicted, reached, recent).
    """

    def __init__(self, escapes: Floats, trust: float) -> None:
        self._trust = trust
        self.escape, self.predicted = np.empty(escapes.shape), (1.0 - escapes) * trust
        self.reached = np.full(escapes.shape, float(trust))
        of_heads = CONFIG.guess_trust / trust
        self.predicted[HEADS:] *= of_heads
        self.reached[HEADS:] *= of_heads
        self.recent = np.zeros((len(escapes), 3))
        self.arrays = self.escape, self.predicted, self.reached, self.recent
        update_escapes(self.arrays)

    def restore(self, predicted: Floats | None, reached: Floats | None) -> None:
        """Take over stored tallies, scaled down to `trust` observations at most.

        Nothing changes where there are none, or where they are of another shape; where there were
        as many heads they count as the same ones, else heads keep their own.
        """
        if predicted is None or reached is None or predicted.size != reached.size:
            return
        stored, rest = divmod(reached.size, ORDERS * BUCKETS)
        if rest or stored < HEADS:
            return
        rows = stored if stored == len(self.reached) else HEADS
        predicted, reached = (
            one.reshape(stored, ORDERS, BUCKETS)[:rows] for one in (predicted, reached)
        )
        weight = np.minimum(1.0, self._trust / np.maximum(reached, 1e-9))
        self.predicted[:rows] = predicted * weight
        self.reached[:rows] = np.maximum(reached * weight, 1e-3)
        update_escapes(self.arrays)

    def trust_heads(self) -> None:
        """Believe all that heads guess."""
        self.predicted[HEADS:] = self.reached[HEADS:] = self._trust
        update_escapes(self.arrays)

    @property
    def stored(self) -> tuple[Floats, Floats]:
        """`predicted` and `reached` to keep for other texts, as `restore` takes them."""
        return self.predicted.copy(), self.reached.copy()
