"""Who shares forward passes with whom: a table of cases, and properties of the pure functions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngtcli.decoding.grouping import Batching, Candidate, why_apart, why_single
from ngtcli.decoding.support import SUPPORTED, UNTRIED, Support

ANY = Candidate(shared="greedy")
BATCHES = Batching(support=SUPPORTED)
ROUNDS = replace(BATCHES, rounds=True)
STATEFUL = replace(BATCHES, support=Support.no("its layers keep a running state"))


@pytest.mark.parametrize(
    ("candidate", "batching", "reason"),
    [
        (ANY, BATCHES, ""),
        (ANY, replace(BATCHES, max_size=1), "only one answer"),
        (ANY, replace(BATCHES, max_size=2), ""),
        (ANY, STATEFUL, "running state"),
        (ANY, replace(BATCHES, support=UNTRIED), "not been tried"),
        (replace(ANY, is_exact=True), BATCHES, "exact decoding"),
        (replace(ANY, follows="a head"), BATCHES, "a head follows one text"),
        (replace(ANY, may_differ=False), BATCHES, ""),
        (replace(ANY, may_differ=False), ROUNDS, "nearly tie"),
        (ANY, ROUNDS, ""),
        (replace(ANY, has_failed=True), BATCHES, "failed"),
    ],
)
def test_a_sequence_is_single_for_a_reason(
    candidate: Candidate, batching: Batching, reason: str
) -> None:
    found = why_single(candidate, batching)
    assert (reason in found) if reason else not found


@pytest.mark.parametrize(
    ("newcomer", "running", "reason"),
    [
        (ANY, [], ""),
        (ANY, [ANY], ""),
        (ANY, [ANY, ANY], ""),
        (ANY, [replace(ANY, shared="another method")], "another batch"),
        (ANY, [replace(ANY, is_exact=True)], "exact decoding"),
        (replace(ANY, is_exact=True), [ANY], "exact decoding"),
        (ANY, [replace(ANY, has_failed=True)], "failed"),
    ],
)
def test_a_sequence_stays_apart_for_a_reason(
    newcomer: Candidate, running: list[Candidate], reason: str
) -> None:
    found = why_apart(newcomer, running, BATCHES)
    assert (reason in found) if reason else not found


CANDIDATES = st.builds(
    Candidate,
    shared=st.sampled_from(["a", "b"]),
    is_exact=st.booleans(),
    may_differ=st.booleans(),
    follows=st.sampled_from(["", "a draft model"]),
    has_failed=st.booleans(),
)
BATCHINGS = st.builds(
    Batching,
    max_size=st.sampled_from([0, 1, 4]),
    support=st.sampled_from([SUPPORTED, UNTRIED, Support.no("no")]),
    rounds=st.booleans(),
)


@given(CANDIDATES, st.lists(CANDIDATES, max_size=4), BATCHINGS)
def test_sequences_share_a_batch_only_if_each_pair_of_them_does(
    newcomer: Candidate, running: list[Candidate], batching: Batching
) -> None:
    together = why_apart(newcomer, running, batching) == ""
    pairs = [why_apart(newcomer, [other], batching) == "" for other in running]
    assert together == (all(pairs) and why_single(newcomer, batching) == "")


@given(CANDIDATES, CANDIDATES, BATCHINGS)
def test_who_comes_first_does_not_matter(
    one: Candidate, other: Candidate, batching: Batching
) -> None:
    assert (why_apart(one, [other], batching) == "") == (why_apart(other, [one], batching) == "")
