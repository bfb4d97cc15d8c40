"""The number of nodes that gives the most tokens per second (policy.py). Compiled."""

from typing import Any

import numpy as np

from ngtcli.system.compiled import njit

ACCEPTED, EXPECTED = range(2)  # rows of a tally, float64 (2, bins)


@njit()
def bin_of(probability: float, bins: int) -> int:
    """Return the bin of a probability: 0 above 1/2, 1 above 1/4, …, the last for the rest."""
    at = 0
    edge = 0.5
    while probability <= edge and at < bins - 1:
        at = at + 1
        edge = edge / 2
    return at


@njit()
def count_accepted(tokens: Any, parents: Any, probabilities: Any, emitted: Any, tally: Any) -> None:
    """Add to `tally` how many nodes of a search were right, and how many were expected to be.

    All nodes count, drafted or not, except those below the last emitted token.

    Args:
        tokens: The tokens of the search's Growth.
        parents: Its parents.
        probabilities: Its probabilities.
        emitted: int32, the tokens that the step emitted.
        tally: float64 (2, bins), changed in place.
    """
    node = -1
    depth = 0
    # Whether nobody knows if a node is right; the first entry is that of the root.
    unknown = np.zeros(len(tokens) + 1, np.bool_)
    for i in range(len(tokens)):
        if unknown[parents[i] + 1] or (parents[i] == node and depth == len(emitted)):
            unknown[i + 1] = True
            continue
        at = bin_of(probabilities[i], tally.shape[1])
        tally[EXPECTED, at] += probabilities[i]
        if parents[i] == node and tokens[i] == emitted[depth]:
            tally[ACCEPTED, at] += 1.0
            node = i
            depth = depth + 1


@njit()
def trust_of(tally: Any) -> Any:
    """Return factors, float64 (bins,), that correct probabilities per bin: accepted / expected.

    A bin with few observations takes the ratio of all bins together. Before there are any, that
    ratio is about 1.

    >>> trust_of(np.array([[0.0, 0.0], [0.0, 3.0]])).tolist()  # three expected, none accepted
    [0.25, 0.0625]
    """
    accepted = 1.0
    expected = 1.0
    trust = np.empty(tally.shape[1])
    for i in range(len(trust)):
        accepted = accepted + tally[ACCEPTED, i]
        expected = expected + tally[EXPECTED, i]
    for i in range(len(trust)):
        trust[i] = (tally[ACCEPTED, i] + accepted / expected) / (tally[EXPECTED, i] + 1.0)
    return trust


@njit()
def best_size(probabilities: Any, costs: Any, drafting_s: float, tally: Any, sequences: int) -> Any:
    """Return the number of nodes with the most tokens per second.

    Args:
        probabilities: float64, the probabilities of the nodes, in descending order.
        costs: float64; `costs[r - 1]` are the seconds of a forward pass over r rows, one of which
            is the root of each sequence.
        drafting_s: The seconds that drafting takes.
        tally: Accepted and expected nodes of each bin.
        sequences: The number of sequences.

    Returns:
        That number, the expected tokens of a step with so many nodes, and how many times as fast
        as plain decoding the step is.
    """
    plain = costs[sequences - 1]
    best = 0
    expected = float(sequences)
    tokens = float(sequences)
    highest = tokens / (plain + drafting_s)
    trust = trust_of(tally)
    for i in range(len(probabilities)):
        tokens += min(1.0, probabilities[i] * trust[bin_of(probabilities[i], len(trust))])
        rate = tokens / (costs[sequences + i] + drafting_s)
        if rate > highest:
            best = i + 1
            expected = tokens
            highest = rate
    return best, expected, highest * plain / sequences
