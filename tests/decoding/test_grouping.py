"""Which sequences share a batch: a table of cases, and properties of the pure functions."""

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
        (ANY, replace(BATCHES, max_size=1), "the batch size is 1"),
        (ANY, replace(BATCHES, max_size=2), ""),
        (ANY, STATEFUL, "running state"),
        (ANY, replace(BATCHES, support=UNTRIED), "not been tried"),
        (replace(ANY, is_exact=True), BATCHES, "exact decoding"),
        (replace(ANY, single_drafter="a head"), BATCHES, "a head drafts for one sequence"),
        (replace(ANY, may_differ=False), BATCHES, ""),
        (replace(ANY, may_differ=False), ROUNDS, "near ties"),
        (ANY, ROUNDS, ""),
        (replace(ANY, has_failed=True), BATCHES, "failed"),
    ],
)
def test_why_single(candidate: Candidate, batching: Batching, reason: str) -> None:
    answer = why_single(candidate, batching)
    assert bool(answer) == bool(reason)
    assert reason in answer


@pytest.mark.parametrize(
    ("newcomer", "running", "reason"),
    [
        (ANY, [], ""),
        (ANY, [ANY], ""),
        (ANY, [ANY, ANY], ""),
        (ANY, [replace(ANY, shared="another method")], "settings differ"),
        (ANY, [replace(ANY, is_exact=True)], "exact decoding"),
        (replace(ANY, is_exact=True), [ANY], "exact decoding"),
        (ANY, [replace(ANY, has_failed=True)], "failed"),
    ],
)
def test_why_apart(newcomer: Candidate, running: list[Candidate], reason: str) -> None:
    answer = why_apart(newcomer, running, BATCHES)
    assert bool(answer) == bool(reason)
    assert reason in answer


CANDIDATES = st.builds(
    Candidate,
    shared=st.sampled_from(["a", "b"]),
    is_exact=st.booleans(),
    may_differ=st.booleans(),
    single_drafter=st.sampled_from(["", "a draft model"]),
    has_failed=st.booleans(),
)
BATCHINGS = st.builds(
    Batching,
    max_size=st.sampled_from([0, 1, 4]),
    support=st.sampled_from([SUPPORTED, UNTRIED, Support.no("no")]),
    rounds=st.booleans(),
)


@given(CANDIDATES, st.lists(CANDIDATES, max_size=4), BATCHINGS)
def test_a_batch_is_shared_if_each_pair_shares_one(
    newcomer: Candidate, running: list[Candidate], batching: Batching
) -> None:
    joins = why_apart(newcomer, running, batching) == ""
    pairs = [why_apart(newcomer, [other], batching) == "" for other in running]
    assert joins == (all(pairs) and why_single(newcomer, batching) == "")


@given(CANDIDATES, CANDIDATES, BATCHINGS)
def test_sharing_a_batch_is_symmetric(
    first: Candidate, second: Candidate, batching: Batching
) -> None:
    shares = why_apart(first, [second], batching) == ""
    assert shares == (why_apart(second, [first], batching) == "")
