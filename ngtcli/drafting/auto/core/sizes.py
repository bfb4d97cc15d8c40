"""The number of nodes with the most tokens per second, by nodes' outcomes (policy.py). Compiled."""

from typing import Any

import numpy as np

from ngtcli.system.compiled import njit

ACCEPTED, EXPECTED = range(2)  # rows of a tally, float64 (2, bins)


@njit()
def bin_of(probability: float, bins: int) -> int:
    """Return the bin of a probability: 0 above 1/2, 1 above 1/4, …, the last for the rest."""
    at, edge = 0, 0.5
    while probability <= edge and at < bins - 1:
        at, edge = at + 1, edge / 2
    return at


@njit()
def count_accepted(tokens: Any, parents: Any, probabilities: Any, emitted: Any, tally: Any) -> None:
    """Add to `tally` how many nodes of a search were right, and how many were expected to be.

    The first three arguments belong to its Growth; `emitted`, int32, has the tokens of the step.
    All nodes count, drafted or not, except those below the last emitted token.
    """
    node, depth = -1, 0
    unknown = np.zeros(len(tokens) + 1, np.bool_)  # of the node before; the root's is first
    for i in range(len(tokens)):
        if unknown[parents[i] + 1] or (parents[i] == node and depth == len(emitted)):
            unknown[i + 1] = True
            continue
        at = bin_of(probabilities[i], tally.shape[1])
        tally[EXPECTED, at] += probabilities[i]
        if parents[i] == node and tokens[i] == emitted[depth]:
            tally[ACCEPTED, at] += 1.0
            node, depth = i, depth + 1


@njit()
def trust_of(tally: Any) -> Any:
    """Return factors, float64 (bins,), that correct probabilities per bin: accepted / expected.

    A bin with few observations relies on all bins together, and these, at first, on the drafter.

    >>> trust_of(np.array([[0.0, 0.0], [0.0, 3.0]])).tolist()  # three expected, none accepted
    [0.25, 0.0625]
    """
    accepted, expected, trust = 1.0, 1.0, np.empty(tally.shape[1])
    for i in range(len(trust)):
        accepted, expected = accepted + tally[ACCEPTED, i], expected + tally[EXPECTED, i]
    for i in range(len(trust)):
        trust[i] = (tally[ACCEPTED, i] + accepted / expected) / (tally[EXPECTED, i] + 1.0)
    return trust


@njit()
def best_size(probabilities: Any, costs: Any, drafting_s: float, tally: Any, sequences: int) -> Any:
    """Return the nodes with the most tokens per second, their expected tokens and the speed-up.

    Args:
        probabilities: float64, of the nodes, in descending order.
        costs: float64; `costs[r - 1]` are the seconds of a forward pass over r rows, one of them
            for each of the `sequences`.
        drafting_s: The seconds that drafting takes.
        tally: Accepted and expected nodes of each bin.
        sequences: The number of sequences.
    """
    plain = costs[sequences - 1]
    best, expected, tokens = 0, float(sequences), float(sequences)
    highest = tokens / (plain + drafting_s)
    trust = trust_of(tally)
    for i in range(len(probabilities)):
        tokens += min(1.0, probabilities[i] * trust[bin_of(probabilities[i], len(trust))])
        rate = tokens / (costs[sequences + i] + drafting_s)
        if rate > highest:
            best, expected, highest = i + 1, tokens, rate
    return best, expected, highest * plain / sequences
