"""`auto` for several sequences of one pass."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.draft.auto.batch import AutoDrafters
from ngtcli.draft.auto.drafter import Auto
from ngtcli.draft.auto.policy import best_size
from ngtcli.draft.costs import CostCurve
from ngtcli.draft.drafter import Context, DraftSettings
from ngtcli.draft.pool import Pool
from ngtcli.draft.registry import parse_method
from ngtcli.draft.tree import DraftTree

texts = st.lists(st.integers(0, 5), min_size=2, max_size=30)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=3))
def test_without_costs_and_pool_each_sequence_drafts_as_it_does_alone(
    runs: list[tuple[list[int], list[int]]],
) -> None:
    batch = AutoDrafters()
    together = [batch.start(Context(prompt, vocabulary=6)) for prompt, _ in runs]
    alone = [parse_method("auto", DraftSettings()).build() for _ in runs]
    for (prompt, output), drafter in zip(runs, alone, strict=True):
        drafter.reset(Context(prompt, vocabulary=6))
        drafter.observe(output)
    batch.observe(together, [output for _, output in runs])
    trees = batch.propose_within(together, [8] * len(runs))
    for tree, drafter in zip(trees, alone, strict=True):
        own = drafter.propose((), 8)
        assert (tree.tokens, tree.parents) == (own.tokens, own.parents)


def test_with_one_child_drafts_are_chains() -> None:
    batch = AutoDrafters(children=1)
    drafter = batch.start(Context([1, 2, 3, 4, 5, 9, 1, 2], vocabulary=10))
    (tree,) = batch.propose_within([drafter], [4])
    assert tree.tokens[:3] == (3, 4, 5)
    assert tree.parents == tuple(range(-1, len(tree) - 1))


def test_a_chain_goes_on_as_the_first_place_of_the_prompt_does() -> None:
    prompt = [7, 1, 2, 3, 4, 8, 1, 2, 5, 6, 9, 1, 2]
    chain = AutoDrafters(children=1)
    (tree,) = chain.propose_within([chain.start(Context(prompt, vocabulary=10))], [2])
    assert tree.tokens == (3, 4)


def test_a_chain_is_searched_to_its_end_though_none_of_it_paid_before() -> None:
    batch = AutoDrafters(CostCurve({1: 1.0, 2: 9.0, 64: 99.0}), children=1)
    assert batch.policy is not None
    drafter = batch.start(Context([*range(40), 0, 1], vocabulary=50))
    assert len(batch.propose_within([drafter], [16])[0]) == 0
    batch.observe([drafter], [[2]])
    batch.policy.curve = CostCurve({1: 1.0, 64: 1.0})
    (tree,) = batch.propose_within([drafter], [16])
    assert tree.tokens == tuple(range(3, 19))


def test_the_likelier_sequence_gets_the_rows_where_rows_are_dear() -> None:
    # Two rows more cost little, further ones as much as a pass each.
    curve = CostCurve({1: 1.0, 2: 1.0, 4: 1.01, 5: 3.0, 64: 100.0})
    batch = AutoDrafters(curve)
    sure = batch.start(Context([1, 2, 3, 4] * 8 + [1, 2], vocabulary=50))
    unsure = batch.start(Context([*range(10, 40), 5, 7, 5, 8, 5, 9, 5], vocabulary=50))
    sizes = [len(tree) for tree in batch.propose_within([sure, unsure], [8, 8])]
    assert sizes == [2, 0]


def searched_steps(curve: CostCurve, drafting_s: float) -> list[int]:
    """Searches of a text that repeats itself and of one without repetition, in 40 joint steps."""
    batch = AutoDrafters(curve)
    assert batch.policy is not None
    drafters = [
        batch.start(Context([1, 2, 3, 4] * 8, vocabulary=5000)),
        batch.start(Context(list(range(100, 140)), vocabulary=5000)),
    ]
    counts, search = [0, 0], Auto.search
    with pytest.MonkeyPatch.context() as patch:

        def counted(drafter: Auto, *given: Any) -> Any:
            counts[drafters.index(drafter)] += 1
            return search(drafter, *given)

        patch.setattr(Auto, "search", counted)
        for step in range(40):
            batch.policy.drafting_s = drafting_s
            batch.propose_within(drafters, [8, 8])
            batch.observe(drafters, [[1 + step % 4], [200 + step]])
    return counts


def test_a_sequence_that_gets_no_rows_is_not_searched_while_another_drafts() -> None:
    curve = CostCurve({1: 1.0, 2: 1.0, 64: 32.0})
    repeating, other = searched_steps(curve, drafting_s=0.1)
    assert repeating == 40
    assert other < 10


def test_where_drafting_costs_next_to_nothing_no_sequence_pauses() -> None:
    curve = CostCurve({1: 1.0, 2: 1.0, 64: 32.0})
    assert searched_steps(curve, drafting_s=1e-9) == [40, 40]


def test_a_step_without_a_search_says_nothing_of_what_a_proposal_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = AutoDrafters(CostCurve({1: 1e-6, 2: 9.0, 64: 99.0}))
    assert batch.policy is not None
    drafter = batch.start(Context(list(range(40)), vocabulary=5000))
    searched: list[int] = []
    monkeypatch.setattr(Auto, "search", lambda *_: searched.append(1) or np.zeros(0))
    monkeypatch.setattr(Auto, "take", lambda *_: DraftTree())
    paused = 0
    for step in range(60):
        before, calls = batch.policy.drafting_s, len(searched)
        batch.propose_within([drafter], [8])
        batch.observe([drafter], [[200 + step]])
        if len(searched) == calls:
            paused += 1
            assert batch.policy.drafting_s == before
    assert paused > 30


def naive_best(probabilities: list[float], costs: list[float], sequences: int) -> int:
    """The number of nodes with the most tokens a second, the least of several."""
    rates = [
        (sequences + sum(probabilities[:k])) / costs[sequences + k - 1]
        for k in range(len(probabilities) + 1)
    ]
    return rates.index(max(rates))


@settings(deadline=None)
@given(
    st.lists(st.floats(0.01, 1.0), max_size=12),
    st.lists(st.floats(0.0, 1.0), min_size=20, max_size=20),
    st.integers(1, 6),
)
def test_the_best_number_of_nodes_of_all_sequences_is_that_of_trying_all(
    chances: list[float], rises: list[float], sequences: int
) -> None:
    falling = sorted(chances, reverse=True)
    costs = (1.0 + np.cumsum(rises)).tolist()
    found, expected, speedup = best_size(
        np.array(falling), np.array(costs), 0.0, np.zeros((2, 8)), sequences
    )
    assert found == naive_best(falling, costs, sequences)
    assert expected == pytest.approx(sequences + sum(falling[:found]))
    plain = sequences / costs[sequences - 1]
    assert speedup == pytest.approx(expected / costs[sequences + found - 1] / plain)


def test_answers_reach_later_sequences_through_the_pool() -> None:
    batch = AutoDrafters(pool=Pool(100), children=1)
    first = batch.start(Context([7], vocabulary=50))
    batch.observe([first], [[20, 21, 22, 23, 24]])
    batch.finish(first)
    second = batch.start(Context([8, 20, 21], vocabulary=50))
    (tree,) = batch.propose_within([second], [3])
    assert tree.tokens[:1] == (22,)


def test_a_sequence_without_a_part_in_the_pool_neither_gives_nor_takes() -> None:
    batch = AutoDrafters(pool=Pool(100), children=1)
    shy = batch.start(Context([7], vocabulary=50), pooled=False)
    batch.observe([shy], [[20, 21, 22, 23, 24]])
    batch.finish(shy)
    second = batch.start(Context([8, 20, 21], vocabulary=50))
    assert batch.propose_within([second], [3])[0].tokens[:1] != (22,)
    batch.observe([second], [[30, 31, 32, 33, 34]])
    batch.finish(second)
    third = batch.start(Context([9, 30, 31], vocabulary=50), pooled=False)
    assert batch.propose_within([third], [3])[0].tokens[:1] != (32,)


def test_when_the_pool_is_counted_anew_other_sequences_go_on() -> None:
    batch = AutoDrafters(pool=Pool(20), children=1)
    going_on = batch.start(Context([1, 2, 3], vocabulary=500))
    for start in range(100, 400, 10):
        other = batch.start(Context([7], vocabulary=500))
        batch.observe([other], [list(range(start, start + 10))])
        batch.finish(other)
        batch.observe([going_on], [[1, 2, 3]])
        (tree,) = batch.propose_within([going_on], [2])
        assert tree.tokens == (1, 2)


def test_texts_beside_the_pool_stay_when_it_is_counted_anew() -> None:
    text = np.arange(40, 50, dtype=np.int32)
    batch = AutoDrafters(pool=Pool(20), children=1, texts=[text])
    for start in range(100, 400, 10):
        other = batch.start(Context([7], vocabulary=500))
        batch.observe([other], [list(range(start, start + 10))])
        batch.finish(other)
    last = batch.start(Context([41, 42], vocabulary=500))
    (tree,) = batch.propose_within([last], [2])
    assert tree.tokens == (43, 44)


def test_a_sequence_without_room_drafts_nothing() -> None:
    batch = AutoDrafters(children=1)
    drafters = [batch.start(Context([1, 2, 1, 2, 1], vocabulary=3)) for _ in range(2)]
    full, free = batch.propose_within(drafters, [0, 2])
    assert len(full) == 0
    assert len(free) == 2
