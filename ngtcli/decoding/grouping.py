"""Decide which sequences share a batch, and why others do not.

These are pure functions of the properties of the sequences and of the model.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ngtcli.decoding.support import UNTRIED, Support


@dataclass(frozen=True, slots=True)
class Candidate:
    """The properties of a sequence that decide whether it can join a batch.

    Attributes:
        shared: The values of the settings that all sequences of a batch have in common.
        is_exact: It is decoded with --exact.
        may_differ: Near ties may be decided differently than in a single run.
        single_drafter: The name of a model that drafts for it and supports one sequence at a time,
            such as "a head"; "" without one.
        has_failed: A batched forward pass failed with it.
    """

    shared: Hashable
    is_exact: bool = False
    may_differ: bool = True
    single_drafter: str = ""
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class Batching:
    """The batching that a model and its engine allow.

    Attributes:
        max_size: The maximum number of sequences in a batch; 0: as many as fit in memory.
        support: Whether the model supports batches; this is tried before the first batch.
        rounds: Logits are rounded, so that near ties depend on the other sequences.
    """

    max_size: int = 0
    support: Support = UNTRIED
    rounds: bool = False


def why_single(sequence: Candidate, batching: Batching) -> str:
    """Return the reason to decode a sequence alone, "" if it may be batched."""
    if batching.max_size == 1:
        return "the batch size is 1"
    if not batching.support.is_supported:
        return batching.support.why or "batches of this model have not been tried"
    if sequence.is_exact:
        return "exact decoding does not support batches"
    if sequence.single_drafter:
        return f"{sequence.single_drafter} drafts for one sequence at a time"
    if batching.rounds and not sequence.may_differ:
        return "a batch might decide near ties differently"
    if sequence.has_failed:
        return "a batched forward pass failed"
    return ""


def why_apart(sequence: Candidate, running: Sequence[Candidate], batching: Batching) -> str:
    """Return the reason that a sequence cannot join the running ones, "" if it can."""
    for candidate in (*running, sequence):
        reason = why_single(candidate, batching)
        if reason:
            return reason
    if any(candidate.shared != sequence.shared for candidate in running):
        return "its settings differ from those of the batch"
    return ""
