"""Decides which sequences share forward passes, and says why the others do not.

Pure functions of what is known of the sequences and of the model: they hold no state.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ngtcli.decoding.support import UNTRIED, Support


@dataclass(frozen=True, slots=True)
class Candidate:
    """The properties of a sequence that decide whether it can join a batch.

    Attributes:
        shared: The values of the settings that all sequences of a batch have in common.
        is_exact: Whether exact decoding is asked for.
        may_differ: Whether near ties may turn out otherwise than if it were decoded by itself.
        follows: What its drafts come from that follows one sequence at a time; "" for nothing.
        has_failed: Whether a batched forward pass failed with it.
    """

    shared: Hashable
    is_exact: bool = False
    may_differ: bool = True
    follows: str = ""
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class Batching:
    """The batching that a model and its engine allow.

    Attributes:
        max_size: How many sequences are wanted in a batch at most; 0 for as many as fit.
        support: Whether the model takes batches, which is tried before the first.
        rounds: Whether logits are rounded, so that near ties depend on the other sequences.
    """

    max_size: int = 0
    support: Support = UNTRIED
    rounds: bool = False


def why_single(sequence: Candidate, batching: Batching) -> str:
    """Return why a sequence is decoded by itself; "" where it may be batched."""
    if batching.max_size == 1:
        return "only one answer at a time is wanted"
    if not batching.support.is_supported:
        return batching.support.why or "batches of this model have not been tried"
    if sequence.is_exact:
        return "exact decoding takes one answer at a time"
    if sequence.follows:
        return f"{sequence.follows} follows one text at a time"
    if batching.rounds and not sequence.may_differ:
        return "beside others it might differ where logits nearly tie"
    if sequence.has_failed:
        return "a batched forward pass failed"
    return ""


def why_apart(sequence: Candidate, running: Sequence[Candidate], batching: Batching) -> str:
    """Return why a sequence does not join those that are running; "" where it does."""
    for candidate in (*running, sequence):
        reason = why_single(candidate, batching)
        if reason:
            return reason
    if any(candidate.shared != sequence.shared for candidate in running):
        return "its settings are those of another batch"
    return ""
