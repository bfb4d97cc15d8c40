"""`auto`: its blend against a naive one, its policy against brute force, and several sequences."""

import json
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ngtcli.drafting.auto.config import CONFIG, Options
from ngtcli.drafting.auto.core.blend import new_query
from ngtcli.drafting.auto.core.forms import ROW_TOTAL, RowArrays, named
from ngtcli.drafting.auto.core.growth import Growth, _depth_first, grow
from ngtcli.drafting.auto.core.learning import attribute
from ngtcli.drafting.auto.core.sizes import best_size, count_accepted
from ngtcli.drafting.auto.drafter import Auto
from ngtcli.drafting.auto.escapes import EscapeTallies
from ngtcli.drafting.auto.policy import Pause, Policy
from ngtcli.drafting.auto.sources import table
from ngtcli.drafting.auto.sources.scores import learn_ranks, no_ranks
from ngtcli.drafting.auto.sources.table import first_escapes
from ngtcli.drafting.costs import SHORT, CostCurve, Costs
from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.drafting.origins import ORIGINS, SOURCES
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.tree import DraftTree
from ngtcli.drafting.tries.counts import (
    FIRST_CHILD,
    FREQUENT,
    NEXT_SIBLING,
    NONE,
    PREVIOUS_SIBLING,
    TOKEN,
    CountTrie,
    _find_run,
)
from ngtcli.drafting.tries.files import POOLS
from ngtcli.system.arrays import read_header
from tests.support.background_counts import build_counts, count_of
from tests.support.driven_drafters import DrafterBatch, DrafterRun
from tests.support.helpers import HARBOUR, ngt
from tests.support.naive_blend import NaiveBlend
from tests.support.naive_copy import NaiveCopy
from tests.support.tiny_models import check_tree, make_drafter

ids = st.lists(st.integers(0, 4), max_size=40)
SHAPE = first_escapes().shape
ORDERS, UNSEEN = CONFIG.orders, CONFIG.unseen_probability
DEAR = CostCurve({1: 1.0, 2: 9.0, 64: 99.0})


def costing(curve: CostCurve) -> DraftSettings:
    return DraftSettings(costs=Costs({SHORT: curve}))


def test_sources_and_origins_stand_in_one_order_everywhere() -> None:
    """The numbers in compiled code are indices into the tables, the reports name origins."""
    assert tuple(kind.origin for kind in table.SOURCES) == SOURCES
    assert table.ORIGINS == ORIGINS


@given(st.lists(ids, max_size=4), st.integers(1, 5))
@example([list(range(1000)) * 2], 7)  # more nodes than its first arrays hold
@settings(deadline=None)
def test_counts_are_those_of_a_plain_scan(texts: list[list[int]], depth: int) -> None:
    trie = CountTrie(depth)
    scanned: Counter[tuple[int, ...]] = Counter()
    for text in texts:
        trie.end()
        half = len(text) // 2
        trie.extend(text[:half])
        trie.extend(text[half:])
        for start in range(len(text)):
            for end in range(start + 1, min(start + depth, len(text)) + 1):
                scanned[tuple(text[start:end])] += 1

    assert {sequence: count_of(trie, sequence) for sequence in scanned} == scanned
    assert trie.used == len(scanned) + 1
    frequent_nodes = [node for node in trie.arrays.frequent if node != NONE]
    frequent_tokens = [int(trie.arrays.nodes[node, TOKEN]) for node in frequent_nodes]
    counts = [count for sequence, count in scanned.items() if len(sequence) == 1]
    highest_counts = sorted(counts, reverse=True)[:FREQUENT]
    frequent_counts = [scanned[(token,)] for token in frequent_tokens]
    assert sorted(frequent_counts, reverse=True) == highest_counts


def children(trie: CountTrie, node: int) -> list[int]:
    """The tokens of a node's children; asserts that each links back to the one before it."""
    nodes = trie.arrays.nodes
    tokens = []
    previous = NONE
    child = nodes[node, FIRST_CHILD]
    while child != NONE:
        assert nodes[child, PREVIOUS_SIBLING] == previous
        tokens.append(int(nodes[child, TOKEN]))
        previous = child
        child = nodes[child, NEXT_SIBLING]
    return tokens


@given(ids)
@settings(deadline=None)
def test_put_first_met_first_reverses_the_children_of_every_node(text: list[int]) -> None:
    trie = CountTrie(3)
    trie.extend(text)
    last_met_first = [children(trie, node) for node in range(trie.used)]
    trie.put_first_met_first()
    assert [children(trie, node)[::-1] for node in range(trie.used)] == last_met_first
    assert all(count_of(trie, [token]) == text.count(token) for token in set(text))


def prepared(
    prompt: list[int],
    output: list[int],
    earlier: list[int],
    seed: int,
    general: list[int],
    predicted: Sequence[int] = (),
) -> DrafterRun:
    """A drafter that has begun, with random escapes of `seed` and texts of every kind."""
    escapes = np.random.default_rng(seed).uniform(0.05, 0.95, SHAPE)
    pool = Pool(answers=[np.array(earlier, np.int32)] if earlier else [])
    background = build_counts([general], least=()) if general else None
    settings = DraftSettings(pool=pool, background=background)
    drafter = Auto(settings, Options(loglinear=False))
    drafter.tallies = EscapeTallies(escapes, trust=1e6)
    followed = DrafterRun(drafter, Context(prompt, predicted=predicted))
    if output:
        followed.emit(output)
    return followed


def following(prompt: list[int], predicted: list[int]) -> list[list[int]]:
    """A predicted text as it is counted: after the end of the prompt. None if it is empty."""
    return [[*prompt[-ORDERS:], *predicted]] if predicted else []


def copyable(prompt: list[int], predicted: list[int]) -> list[int]:
    """The tokens that may be copied before the answer begins."""
    tokens = []
    for text in following(prompt, predicted):
        tokens += [*text, NONE]
    return tokens + prompt


@given(ids, ids, ids, ids, ids, st.integers(1, 24), st.integers(0, 9))
@settings(deadline=None, max_examples=80)
def test_the_tree_holds_the_likeliest_nodes_of_the_naive_blend(
    prompt: list[int],
    output: list[int],
    pool: list[int],
    general: list[int],
    predicted: list[int],
    budget: int,
    seed: int,
) -> None:
    followed = prepared(prompt, output, pool, seed, general, predicted)
    drafter = followed.drafter
    escapes = drafter.tallies.escape
    sources = drafter.sources
    growth = Growth(
        *grow(
            sources.arrays,
            sources.stage.arrays,
            sources.matches,
            escapes,
            budget,
            0.0,
            CONFIG.children,
        )
    )

    earlier = [pool] if pool else []
    texts = [following(prompt, predicted), [output], [prompt], earlier, [general], []]
    naive = NaiveBlend(texts, escapes, NaiveCopy(copyable(prompt, predicted), output))
    expected = naive.tree((prompt + output)[-ORDERS:], budget)
    assert growth.probabilities.tolist() == pytest.approx(expected, rel=1e-4)
    for node, parent in enumerate(growth.parents.tolist()):
        assert -1 <= parent < node
    assert set(growth.credited.tolist()) <= set(range(len(SOURCES)))
    check_tree(followed.propose(budget))


@given(ids, ids, ids, ids, st.integers(0, 9), st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_attribution_sums_to_the_probability_of_the_token(
    prompt: list[int],
    output: list[int],
    general: list[int],
    expected_text: list[int],
    seed: int,
    token: int,
) -> None:
    drafter = prepared(prompt, output, [], seed, general, expected_text).drafter
    escapes = drafter.tallies.escape
    tables = named(drafter.sources.arrays)
    matches = drafter.sources.matches
    query = new_query(matches)
    predicted = np.zeros(SHAPE)
    reached = np.zeros(SHAPE)
    tallies = escapes, predicted, reached, np.zeros((len(escapes), 2))
    probability, _ = attribute(tables, matches, token, tallies, query, np.empty(len(query.keys)))

    texts = [following(prompt, expected_text), [output], [prompt], [], [general], []]
    naive = NaiveBlend(texts, escapes, NaiveCopy(copyable(prompt, expected_text), output))
    seen_probability = naive.probabilities((prompt + output)[-ORDERS:]).get(token, 0.0)
    assert 0 <= probability - seen_probability <= UNSEEN + 1e-9
    seen_share = seen_probability / probability if probability else 0.0
    assert predicted.sum() == pytest.approx(seen_share, abs=1e-6)
    assert (reached - predicted >= -1e-9).all()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_depth_first_puts_the_likeliest_chain_first(draws: list[int]) -> None:
    parents = np.array([min(draw, i) - 1 for i, draw in enumerate(draws)], np.int32)
    order = _depth_first(parents).tolist()
    assert sorted(order) == list(range(len(parents)))
    visited: set[int] = set()
    for previous, node in zip([-1, *order], order, strict=False):
        assert parents[node] == -1 or parents[node] in visited
        children = [i for i, parent in enumerate(parents) if parent == previous]
        if children:
            assert node == children[0]
        visited.add(node)


def test_an_answer_joins_the_pool_whose_counts_are_bounded() -> None:
    drafter = Auto(DraftSettings(pool=Pool(limit=10)))
    for answer in ([1, 2, 3, 4], [2] * 6, *[[3, 4, 3, 4, 3, 4]] * 9):
        followed = DrafterRun(drafter, Context([0]))
        followed.emit(answer)
        followed.close()
    drafter.begin(Context([0]))
    earlier_answers = drafter.shared.earlier.trie
    assert count_of(earlier_answers, [4, 3]) > 0
    assert earlier_answers.tokens <= 20


def test_a_drafter_begins_with_the_tallies_of_earlier_sessions() -> None:
    pool = Pool(
        tally_predicted=np.full(SHAPE, 300.0).ravel(), tally_reached=np.full(SHAPE, 1000.0).ravel()
    )
    drafter = Auto(DraftSettings(pool=pool), Options(trust=100))
    assert drafter.tallies.escape == pytest.approx(0.7)
    assert drafter.tallies.reached == pytest.approx(100.0)


SIZE = first_escapes().size


@pytest.mark.parametrize(
    ("predicted_size", "reached_size"), [(3, 3), (SIZE + 84, SIZE + 84), (SIZE, 1)]
)
def test_tallies_of_another_version_are_ignored(predicted_size: int, reached_size: int) -> None:
    pool = Pool(tally_predicted=np.ones(predicted_size), tally_reached=np.ones(reached_size))
    escapes = Auto(DraftSettings(pool=pool)).tallies.escape
    assert escapes == pytest.approx(first_escapes(), abs=1e-3)


def test_a_process_that_has_seen_much_still_learns() -> None:
    """Every match was right a million times, and some are wrong for one long answer."""
    drafter = Auto(DraftSettings(pool=Pool()))
    drafter.tallies.predicted[:] = 1e6
    drafter.tallies.reached[:] = 1e6
    DrafterRun(drafter, Context([0])).emit(random.Random(1).choices(range(4), k=2000))
    assert (drafter.tallies.predicted / drafter.tallies.reached).min() < 0.98


def test_emitted_tokens_move_the_escapes() -> None:
    drafter = Auto(options=Options(trust=5))
    followed = DrafterRun(drafter, Context([1, 2, 3, 4, 5, 6, 7, 8] * 3))
    escapes = drafter.tallies.escape
    before = escapes.copy()
    followed.emit([1, 2, 3, 4, 5, 6, 7, 8] * 4)
    assert (escapes < before - 1e-4).any()  # what was copied was right each time
    assert escapes.min() >= 0.001
    assert escapes.max() <= 0.999


def weights_after(ranks: RowArrays, token: int) -> dict[int, float]:
    """The successors of a token with their weights."""
    row = zip(ranks.tokens[token].tolist(), ranks.weights[token].tolist(), strict=True)
    return {successor: weight for successor, weight in row if weight > 0}


def test_ranks_keep_the_strongest_of_more_than_have_room() -> None:
    ranks = no_ranks(40)
    five = np.array([5], np.int32)
    for first in range(0, 30, 3):
        learn_ranks(five, np.array([[first, first + 1, first + 2]]), tuple(ranks))
    weights = weights_after(ranks, 5)
    assert len(weights) == CONFIG.ranks_kept
    assert {27, 28, 29} <= weights.keys()


@given(st.lists(st.lists(st.integers(0, 7), min_size=3, max_size=3, unique=True), max_size=30))
def test_ranks_weigh_recent_and_high_ranks_most(rows: list[list[int]]) -> None:
    ranks = no_ranks(21)
    five = np.array([5], np.int32)
    expected: dict[int, float] = {}
    for row in rows:
        learn_ranks(five, np.array([row]), tuple(ranks))
        expected = {token: weight / 2 for token, weight in expected.items()}
        for rank, token in enumerate(row):
            expected[token] = expected.get(token, 0.0) + 1 / (rank + 1)
        expected = {token: weight for token, weight in expected.items() if weight >= 1e-3}

    weights = weights_after(ranks, 5)
    assert sum(weights.values()) == pytest.approx(ranks.facts[5, ROW_TOTAL])
    common = {token: weights.get(token, 0.0) for token in expected}
    assert common == pytest.approx(expected, abs=2e-3)
    assert weights_after(ranks, 6) == {}


def test_an_answer_with_auto_reports_its_policy_and_is_remembered(tmp_path: Path) -> None:
    document = str(tmp_path / "harbour.txt")
    shutil.copy(HARBOUR, document)
    command = ("summarize", document, "--max-tokens", "24", "--json-tokens")
    body = json.loads(ngt(*command, "--set", "pool_documents=yes").stdout)
    assert sum(body["policy"]["budgets"].values()) <= body["statistics"]["steps"]
    assert {token["origin"] for token in body["tokens"]} <= {*Auto.origins, "model"}
    (pool,) = POOLS.paths()
    assert read_header(pool)[0]["tokens"] == str(body["statistics"]["new_tokens"])


def test_chances_that_do_not_come_true_are_trusted_less() -> None:
    policy = Policy(CURVES["cheap"])
    chances = np.full(8, 0.2)
    assert policy.choose(chances)[0] == 8
    tokens = np.arange(8, dtype=np.int32)
    parents = np.full(8, -1, np.int32)
    for _ in range(6):  # none of the eight is the emitted token
        count_accepted(tokens, parents, chances, np.array([99], np.int32), policy.tally)
    assert policy.choose(chances) == (0, 0)
    assert policy.report().came_true < 0.2
    for _ in range(300):  # time passes
        policy.choose(np.zeros(0))
    assert policy.choose(chances)[0] == 8


@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=20),
    st.integers(0, 5),
    st.integers(0, 9),
    st.booleans(),
)
def test_accepted_and_expected_nodes_are_counted_but_for_those_below_the_last_emitted_token(
    draws: list[float], seed: int, last: int, is_bonus_unknown: bool
) -> None:
    """`is_bonus_unknown`: the path to `last` is followed by a token that is not in the tree."""
    rng = random.Random(seed)
    chances = np.array(sorted(draws, reverse=True))
    parents = np.array([rng.randrange(-1, i) for i in range(len(draws))], np.int32)
    tokens = np.arange(len(draws), dtype=np.int32)  # all different: a path is named by its tokens
    leaf = min(last, len(draws) - 1)
    path: list[int] = []
    node = leaf
    while node >= 0:
        path.insert(0, node)
        node = int(parents[node])

    tally = np.zeros((2, 8))
    emitted = [*path, 77] if is_bonus_unknown else path
    count_accepted(tokens, parents, chances, np.array(emitted, np.int32), tally)

    below_leaf: list[int] = []
    for i in range(len(draws)):
        if parents[i] == leaf or parents[i] in below_leaf:
            below_leaf.append(i)
    uncounted = [] if is_bonus_unknown else below_leaf
    assert tally[0].sum() == len(path)
    assert tally[1].sum() == pytest.approx(sum(draws) - chances[uncounted].sum())


@pytest.mark.parametrize("is_right", [False, True])
def test_the_policy_learns_from_a_search_of_which_nothing_is_drafted(is_right: bool) -> None:
    """Where nothing pays, it is counted all the same whether the likeliest token was emitted."""
    drafter = Auto(costing(DEAR))
    followed = DrafterRun(drafter, Context([1, 2, 3, 4, 5, 6, 1, 2], vocabulary=10))
    assert not followed.propose(8)
    followed.emit([3 if is_right else 9])
    assert drafter.shared.policy is not None
    accepted, expected = drafter.shared.policy.tally.sum(axis=1)
    assert accepted == is_right
    assert expected > 0.5


CURVES = {
    "flat": CostCurve({1: 1.0, 64: 1.0}),
    "cheap": CostCurve({1: 1.0, 64: 1.6}),
    "steep": CostCurve({1: 1.0, 2: 2.0, 64: 64.0}),
    "stepped": CostCurve({1: 1.0, 8: 1.0, 9: 2.0, 16: 2.0, 17: 4.0, 64: 16.0}),
}


def step(policy: Policy, pause: Pause, chances: list[float], repeats: bool = False) -> int | None:
    """The number of nodes in a step, as `auto` decides it; None in a pause."""
    if pause.goes_on(repeats):
        policy.skip()
        return None
    size, paying = policy.choose(np.array(chances))
    policy.pauses += pause.learn(paying > 0)
    return size


def test_a_cost_measured_too_high_is_found_out() -> None:
    policy = Policy(CostCurve({1: 1.0, 2: 9.0, 8: 9.0, 64: 9.0}))
    pause = Pause()
    sizes: list[int] = []
    for _ in range(CONFIG.exploration * 400):
        size = step(policy, pause, [0.5] * 8, repeats=True)
        assert size is not None
        policy.curve.learn(1 + size, 1.0)  # in truth all passes cost the same
        sizes.append(size)
    assert sizes[0] == 0
    assert sizes[-100:].count(8) > 90


@pytest.mark.parametrize("chances", [[0.5, 0.25, 0.12, 0.06], [0.9, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]])
@pytest.mark.parametrize(("factor", "steps"), [(2.5, 32), (4.0, 16), (4.0, 50), (0.3, 40)])
def test_a_machine_that_was_slow_for_a_while_is_forgiven(
    chances: list[float], factor: float, steps: int
) -> None:
    def cost(rows: int) -> float:
        return 1.0 + 0.02 * (rows - 1)

    policy = Policy(CostCurve({rows: cost(rows) for rows in (1, 2, 4, 8, 16, 64)}))
    best = max((1 + sum(chances[:k])) / cost(1 + k) for k in range(len(chances) + 1))
    rng = random.Random(0)
    rates = []
    for answer in range(12):
        policy.start(policy.curve)
        pause = Pause()
        tokens = 0.0
        seconds = 0.0
        for index in range(256):
            size = step(policy, pause, chances) or 0
            slowness = factor if answer == 1 and index < steps else 1.0
            measured = cost(1 + size) * slowness * rng.uniform(0.9, 1.1)
            policy.curve.learn(1 + size, measured)
            tokens += 1 + sum(chances[:size])
            seconds += cost(1 + size)
        rates.append(tokens / seconds)
    assert min(rates[2:]) > 0.94 * best


@pytest.mark.parametrize(
    "output",
    [[50, 51, 52, 53, 60, 50, 51, 52, 53], [3, 4, 5, 6]],
    ids=["repeats itself", "repeats its prompt"],
)
def test_a_repetition_ends_the_pause_at_once(output: list[int]) -> None:
    drafter = Auto()
    followed = DrafterRun(drafter, Context([1, 2, 3, 4, 5, 6, 7]))
    drafter._pause.left = 99
    for token in output[:-1]:
        followed.emit([token])
        assert not followed.propose(4)
    followed.emit(output[-1:])
    assert followed.propose(4)


def test_costs_follow_what_passes_take() -> None:
    curve = CostCurve({1: 1.0, 8: 2.0, 64: 3.0})
    for _ in range(300):
        curve.learn(8, 5.0)
    assert curve.at(8) == pytest.approx(5.0, rel=0.05)
    before = curve.at(1)
    curve.learn(1, 1000.0)
    assert curve.at(1) < 1.5 * before  # one disturbed step does not say everything


@given(st.lists(st.tuples(st.integers(1, 80), st.floats(0.1, 10.0)), max_size=60))
def test_more_rows_never_cost_less_after_any_passes(passes: list[tuple[int, float]]) -> None:
    curve = CostCurve({1: 1.0, 2: 1.1, 8: 1.5, 64: 4.0})
    for rows, factor in passes:
        curve.learn(rows, curve.at(rows) * factor)
        seconds = list(curve.by_rows().values())
        assert seconds == sorted(seconds)
        assert seconds[0] > 0


SIZES = (1, 2, 4, 8, 12, 16, 32, 64)


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.floats(0.001, 1.0), min_size=64, max_size=64), st.floats(0.0, 0.2))
def test_where_passes_are_padded_the_nodes_fill_a_size(draws: list[float], slope: float) -> None:
    curve = CostCurve({rows: 1.0 + slope * rows for rows in SIZES}, sizes=SIZES)
    nodes, _ = Policy(curve).choose(np.array(sorted(draws, reverse=True)))
    assert nodes + 1 in SIZES or nodes == 64


@given(st.integers(0, 200))
def test_a_padded_pass_costs_what_its_size_does(nodes: int) -> None:
    curve = CostCurve({1: 1.0, 4: 2.0, 32: 3.0, 64: 5.0}, sizes=SIZES)
    size = next((s for s in SIZES if s > nodes), nodes + 1)
    assert curve.filled(nodes) == size - 1
    assert curve.at(nodes + 1) == curve.at(size) == curve.table(201)[nodes]
    assert curve.table_measured(201)[nodes] == curve.at(size)
    other = CostCurve({1: 1.0, 4: 2.0, 32: 3.0, 64: 5.0}, sizes=SIZES)
    curve.learn(nodes + 1, 9.0)
    other.learn(size, 9.0)
    assert curve.by_rows() == other.by_rows()


def test_no_node_is_expected_to_come_more_than_once() -> None:
    """However much oftener than predicted earlier ones came."""
    tally = np.array([[50.0] * 8, [5.0] * 8])
    costs = np.linspace(1.0, 1.1, 65)
    best, expected, _ = best_size(np.full(4, 0.9), costs, 0.0, tally, 1)
    assert (best, expected) == (4, 5.0)


short_texts = st.lists(st.integers(0, 5), min_size=2, max_size=30)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(short_texts, short_texts), min_size=1, max_size=3))
def test_without_costs_and_pool_each_sequence_drafts_as_it_does_alone(
    runs: list[tuple[list[int], list[int]]],
) -> None:
    batch = DrafterBatch()
    together = [batch.begin(prompt, output, vocabulary=6) for prompt, output in runs]
    trees = batch.propose(together, [8] * len(runs))
    for tree, (prompt, output) in zip(trees, runs, strict=True):
        single = DrafterRun(make_drafter("auto"), Context(prompt, vocabulary=6))
        single.emit(output)
        single_tree = single.propose(8)
        assert tree.tokens == single_tree.tokens
        assert tree.parents == single_tree.parents


def drafted(batch: DrafterBatch, prompt: list[int], budget: int, pooled: bool = True) -> DraftTree:
    """The draft for a sequence that begins with `prompt`, without branches."""
    (tree,) = batch.propose([batch.begin(prompt, private=not pooled, chains=True)], [budget])
    return tree


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ([1, 2, 3, 4, 5, 9, 1, 2], (3, 4, 5)),
        ([7, 1, 2, 3, 4, 8, 1, 2, 5, 6, 9, 1, 2], (3, 4)),  # as its first place continues
    ],
)
def test_with_one_child_drafts_are_chains(prompt: list[int], tokens: tuple[int, ...]) -> None:
    tree = drafted(DrafterBatch(), prompt, len(tokens))
    assert tree.tokens == tokens
    assert tree.parents == tuple(range(-1, len(tree) - 1))


def test_a_chain_is_searched_to_its_end_though_none_of_it_paid_before() -> None:
    batch = DrafterBatch(costing(DEAR))
    sequence = batch.begin([*range(40), 0, 1], chains=True)
    assert len(batch.propose([sequence], [16])[0]) == 0
    sequence.emit([2])
    batch.shared.use_costs(CostCurve({1: 1.0, 64: 1.0}))
    (tree,) = batch.propose([sequence], [16])
    assert tree.tokens == tuple(range(3, 19))


def test_the_likelier_sequence_gets_the_rows_where_rows_are_dear() -> None:
    # Two rows more cost little, further ones as much as a pass each.
    curve = CostCurve({1: 1.0, 2: 1.0, 4: 1.01, 5: 3.0, 64: 100.0})
    batch = DrafterBatch(costing(curve))
    sure = batch.begin([1, 2, 3, 4] * 8 + [1, 2])
    unsure = batch.begin([*range(10, 40), 5, 7, 5, 8, 5, 9, 5])
    sizes = [len(tree) for tree in batch.propose([sure, unsure], [8, 8])]
    assert sizes == [2, 0]


def searched_steps(curve: CostCurve, drafting_s: float) -> list[int]:
    """Searches of a text that repeats itself and of one without repetition, in 40 joint steps."""
    batch = DrafterBatch(costing(curve))
    policy = batch.shared.policy
    assert policy is not None
    policy.learn_drafting = lambda seconds: None  # type: ignore[method-assign]
    policy.drafting_s = drafting_s
    sequences = [batch.begin([1, 2, 3, 4] * 8), batch.begin(range(100, 140))]
    drafters = [sequence.drafter for sequence in sequences]
    counts = [0, 0]
    search = Auto.search

    def counted_search(drafter: Auto, *arguments: Any) -> Any:
        growth = search(drafter, *arguments)
        if growth is not None:
            counts[drafters.index(drafter)] += 1
        return growth

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Auto, "search", counted_search)
        for step in range(40):
            batch.propose(sequences, [8, 8])
            sequences[0].emit([1 + step % 4])
            sequences[1].emit([200 + step])
    return counts


def test_a_sequence_that_gets_no_rows_pauses_unless_drafting_costs_next_to_nothing() -> None:
    curve = CostCurve({1: 1.0, 2: 1.0, 64: 32.0})
    repeating, other = searched_steps(curve, drafting_s=0.1)
    assert repeating == 40
    assert other < 10
    assert searched_steps(curve, drafting_s=1e-9) == [40, 40]


def naive_best_size(probabilities: list[float], costs: list[float], sequences: int) -> int:
    """The number of nodes with the most tokens a second, the lowest if several have it."""
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
    nodes, tokens, speedup = best_size(
        np.array(falling), np.array(costs), 0.0, np.zeros((2, 8)), sequences
    )
    assert nodes == naive_best_size(falling, costs, sequences)
    assert tokens == pytest.approx(sequences + sum(falling[:nodes]))
    plain_rate = sequences / costs[sequences - 1]
    assert speedup == pytest.approx(tokens / costs[sequences + nodes - 1] / plain_rate)


def test_answers_reach_later_sequences_through_the_pool() -> None:
    batch = DrafterBatch(DraftSettings(pool=Pool(100)))
    batch.begin([7], [20, 21, 22, 23, 24]).close()
    assert drafted(batch, [8, 20, 21], 3).tokens[:1] == (22,)


def test_sequences_of_a_batch_share_their_tallies_but_for_private_ones() -> None:
    batch = DrafterBatch(DraftSettings(pool=Pool(100)))
    first = batch.begin([7], private=False).drafter
    second = batch.begin([7], private=False).drafter
    private = batch.begin([7], private=True).drafter
    assert first.tallies is second.tallies
    assert second.tallies is not private.tallies


def test_a_sequence_without_a_part_in_the_pool_neither_gives_nor_takes() -> None:
    batch = DrafterBatch(DraftSettings(pool=Pool(100)))
    batch.begin([7], [20, 21, 22, 23, 24], private=True).close()
    assert drafted(batch, [8, 20, 21], 3).tokens[:1] != (22,)
    batch.begin([8], [30, 31, 32, 33, 34]).close()
    assert drafted(batch, [9, 30, 31], 3, pooled=False).tokens[:1] != (32,)


def test_sequences_go_on_and_texts_stay_when_the_pool_is_counted_again() -> None:
    text = np.arange(40, 50, dtype=np.int32)
    batch = DrafterBatch(DraftSettings(pool=Pool(20)), texts=[text])
    going_on = batch.begin([1, 2, 3] * 4, chains=True)
    for start in range(100, 400, 10):
        batch.begin([7], range(start, start + 10)).close()
        going_on.emit([1, 2, 3])
        (tree,) = batch.propose([going_on], [2])
        assert tree.tokens == (1, 2)
    assert drafted(batch, [41, 42], 2).tokens == (43, 44)


def test_a_sequence_without_room_drafts_nothing() -> None:
    batch = DrafterBatch()
    sequences = [batch.begin([1, 2, 1, 2, 1]) for _ in range(2)]
    assert [len(tree) for tree in batch.propose(sequences, [0, 2])] == [0, 2]


def test_an_answer_with_which_another_drafter_goes_on_joins_the_pool_once() -> None:
    pool = Pool(100, quotes=True)
    single = DrafterRun(Auto(DraftSettings(pool=pool)), Context([7]))
    single.emit([1, 2, 3])
    single.close(keep=False)
    single.close()
    DrafterBatch(DraftSettings(pool=pool)).begin([7], [1, 2, 3, 4, 5]).close()
    assert [answer.tolist() for answer in pool.answers] == [[1, 2, 3, 4, 5]]


@given(
    st.lists(st.integers(0, 3), max_size=12),
    st.lists(st.integers(0, 3), max_size=4),
    st.integers(0, 6),
)
def test_a_reference_is_found_where_a_plain_search_finds_it(
    drawn_text: list[int], drawn_run: list[int], drawn_start: int
) -> None:
    # The bytes of multiples of 256 also match between the borders of tokens.
    text = [256 * token for token in drawn_text]
    run = [256 * token for token in drawn_run]
    start = min(drawn_start, len(text))
    expected = -1
    if run:
        last = len(text) - len(run)
        matches = (i for i in range(start, last + 1) if text[i : i + len(run)] == run)
        expected = next(matches, -1)
    assert _find_run(np.array(run, np.int32), np.array(text, np.int32), start) == expected
