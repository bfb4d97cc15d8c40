"""The next tokens that a blend finds, with their probabilities. Compiled."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.core.loglinear import joined_evidence
from ngtcli.system.compiled import njit


class Candidates(NamedTuple):
    """Buffers for the blends of a tree, one after another; all arrays but `slots` have one size.

    Attributes:
        tokens: int32, each token once.
        probabilities: float64, summed over all that predict the token.
        credited: int8, the first source that predicted the token. Sources predict in the order of
            their matches, the longest first.
        evidence: int32, the evidence of the matches for the token (loglinear.py).
        slots: int32 (power of two, 2), a hash table: the number of a blend, and the index of a
            token in it. An entry with the number of another blend counts as free, so that the
            table is never cleared.
        best: int32, a buffer for the indices of the likeliest tokens.
    """

    tokens: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float64]
    credited: npt.NDArray[np.int8]
    evidence: npt.NDArray[np.int32]
    slots: npt.NDArray[np.int32]
    best: npt.NDArray[np.int32]


@njit(inline="always")
def new_candidates(capacity: int, children: int) -> Any:
    """Return buffers for `capacity` tokens, of which the `children` likeliest are needed."""
    slots = 1
    while slots <= capacity:
        slots *= 2
    return Candidates(
        np.empty(capacity, np.int32),
        np.empty(capacity),
        np.empty(capacity, np.int8),
        np.empty(capacity, np.int32),
        np.zeros((slots, 2), np.int32),
        np.empty(children, np.int32),
    )


@njit(inline="always")
def add(
    candidates: Any,
    size: int,
    blend: int,
    token: int,
    probability: float,
    source: int,
    evidence: int,
) -> int:
    """Add to the probability of `token`; return the new number of candidates.

    Args:
        candidates: The buffers, with room for another token.
        size: How many tokens they have.
        blend: The number of this blend, which is not 0.
        token: The token.
        probability: The probability to add.
        source: The source that is credited with the token if the token is new.
        evidence: The evidence of the match for the token.
    """
    slots = candidates.slots
    slot = token & (len(slots) - 1)
    while slots[slot, 0] == blend:
        index = slots[slot, 1]
        if candidates.tokens[index] == token:
            candidates.probabilities[index] += probability
            candidates.evidence[index] = joined_evidence(candidates.evidence[index], evidence)
            return size
        slot = (slot + 1) & (len(slots) - 1)
    slots[slot, 0] = blend
    slots[slot, 1] = size
    candidates.tokens[size] = token
    candidates.probabilities[size] = probability
    candidates.credited[size] = source
    candidates.evidence[size] = evidence
    return size + 1
