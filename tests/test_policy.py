"""How many nodes pay: against brute force on made-up costs, and over a text that changes."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.draft.auto.config import CONFIG, Options
from ngtcli.draft.auto.drafter import Auto
from ngtcli.draft.auto.escapes import fitted_escapes
from ngtcli.draft.auto.policy import Pause, Policy, Repeats, best_size, count_accepted
from ngtcli.draft.costs import SHORT, CostCurve, Costs
from ngtcli.draft.drafter import Context


def never() -> bool:
    return False


def always() -> bool:
    return True


ids = st.lists(st.integers(0, 4), max_size=40)


@given(ids, st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=12))
def test_repeats_are_those_of_a_plain_search(prompt: list[int], steps: list[list[int]]) -> None:
    repeats, output = Repeats(prompt), []
    for step in steps:
        output += step
        text = prompt + output
        runs = [text[i : i + 4] for i in range(len(text) - 3)]
        assert repeats.at_end(output) == (len(runs) > 0 and runs[-1] in runs[:-1])


def test_chances_that_do_not_come_true_are_trusted_less() -> None:
    policy = Policy(CURVES["cheap"])
    chances = np.full(8, 0.2)
    assert policy.choose(chances)[0] == 8
    nodes, parents = np.arange(8, dtype=np.int32), np.full(8, -1, np.int32)
    for _ in range(6):  # none of the eight is what came
        count_accepted(nodes, parents, chances, np.array([99], np.int32), policy.tally)
    assert policy.choose(chances) == (0, 0)
    assert policy.report().came_true < 0.2
    for _ in range(300):  # time passes
        policy.choose(np.zeros(0))
    assert policy.choose(chances)[0] == 8


@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=20), st.integers(0, 5), st.integers(0, 9),
    st.booleans(),
)  # fmt: skip
def test_nodes_that_came_true_are_counted_but_for_those_after_all_that_was_emitted(
    draws: list[float], seed: int, token: int, other: bool
) -> None:
    rng = random.Random(seed)
    chances = np.array(sorted(draws, reverse=True))
    parents = np.array([rng.randrange(-1, i) for i in range(len(draws))], np.int32)
    tokens = np.arange(len(draws), dtype=np.int32)  # all different: a path is named by its tokens
    path, node = [], min(token, len(draws) - 1)
    while node >= 0:
        path.append(node)
        node = int(parents[node])
    tally = np.zeros((2, 8))
    emitted = np.array([*path[::-1], *([77] if other else [])], np.int32)
    count_accepted(tokens, parents, chances, emitted, tally)
    unknown: list[int] = []  # all below the last one
    for i in range(len(draws)):
        if not other and (parents[i] == path[0] or parents[i] in unknown):
            unknown.append(i)
    assert tally[0].sum() == len(path)
    assert tally[1].sum() == pytest.approx(sum(draws) - chances[unknown].sum())


def test_what_is_not_drafted_is_learned_from() -> None:
    """Where nothing pays, the policy hears all the same whether its expectations came true."""
    steep = Costs({SHORT: CostCurve({1: 1.0, 2: 9.0, 64: 99.0})})
    for came_true in (False, True):
        drafter = Auto(Options(), fitted_escapes(), steep)
        drafter.reset(Context([1, 2, 3, 4, 5, 6, 1, 2], vocabulary=10))
        assert not drafter.propose((), 8)
        drafter.observe([3 if came_true else 9])
        assert drafter.policy is not None
        accepted, expected = drafter.policy.tally.sum(axis=1)
        assert accepted == came_true and expected > 0.5


CURVES = {
    "flat": CostCurve({1: 1.0, 64: 1.0}),
    "cheap": CostCurve({1: 1.0, 64: 1.6}),
    "steep": CostCurve({1: 1.0, 2: 2.0, 64: 64.0}),
    "stepped": CostCurve({1: 1.0, 8: 1.0, 9: 2.0, 16: 2.0, 17: 4.0, 64: 16.0}),
}


def step(
    policy: Policy, pause: Pause, chances: list[float], repeats: Callable[[], bool] = never
) -> int | None:
    """The nodes of a step, as `auto` decides them; None in a pause."""
    if pause.goes_on(repeats):
        policy.skip("paused")
        return None
    size, paying = policy.choose(np.array(chances))
    policy.stand_downs += pause.learn(paying > 0)
    return size


@pytest.mark.parametrize("name", list(CURVES))
@given(st.lists(st.floats(0.0, 1.0), min_size=0, max_size=64))
def test_the_budget_is_the_best_of_all(name: str, draws: list[float]) -> None:
    chances = np.array(sorted(draws, reverse=True))
    chosen, _ = Policy(CURVES[name]).choose(chances)
    rates = [(1 + chances[:k].sum()) / CURVES[name].at(1 + k) for k in range(len(chances) + 1)]
    assert rates[chosen] == pytest.approx(max(rates))


def test_steep_costs_buy_nothing_and_flat_costs_everything() -> None:
    chances = np.full(64, 0.3)
    assert Policy(CURVES["steep"]).choose(chances) == (0, 0)
    assert Policy(CURVES["flat"]).choose(chances) == (64, 64)
    assert Policy(CURVES["stepped"]).choose(np.full(64, 0.02)) == (7, 7)


def test_drafts_that_do_not_pay_are_looked_for_less_and_less() -> None:
    policy, pause = Policy(CURVES["steep"]), Pause()
    looks = [s for s in range(600) if step(policy, pause, [0.01] * 8) is not None]
    assert looks[: CONFIG.patience] == list(range(CONFIG.patience))
    gaps = np.diff(looks[CONFIG.patience - 1 :])
    assert gaps[0] == CONFIG.first_pause + 1
    assert all(b in (2 * a - 1, a) for a, b in zip(gaps, gaps[1:], strict=False))
    assert policy.stand_downs == len(gaps) + 1


def test_a_cost_measured_too_high_is_found_out() -> None:
    policy, pause = Policy(CostCurve({1: 1.0, 2: 9.0, 8: 9.0, 64: 9.0})), Pause()
    sizes = []
    for _ in range(CONFIG.exploration * 400):
        size = step(policy, pause, [0.5] * 8, always)
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
    rng, rates = random.Random(0), []
    for answer in range(12):
        policy.start(policy.curve)
        pause, tokens, time = Pause(), 0.0, 0.0
        for at in range(256):
            size = step(policy, pause, chances) or 0
            slow = factor if answer == 1 and at < steps else 1.0
            policy.curve.learn(1 + size, cost(1 + size) * slow * rng.uniform(0.9, 1.1))
            tokens, time = tokens + 1 + sum(chances[:size]), time + cost(1 + size)
        rates.append(tokens / time)
    assert min(rates[2:]) > 0.94 * best


def test_a_calibration_that_was_disturbed_is_mended() -> None:
    policy = Policy(CostCurve({1: 1.0, 2: 4.0, 8: 4.0, 64: 4.0}))
    sizes, pause = [], Pause()
    for at in range(4096):
        if at % 256 == 0:
            policy.start(policy.curve)
            pause = Pause()
        size = step(policy, pause, [0.5, 0.25, 0.12, 0.06]) or 0
        policy.curve.learn(1 + size, 1.0)
        sizes.append(size)
    assert sizes[:3] == [0] * 3
    assert sum(size > 0 for size in sizes[-500:]) > 450


def test_a_text_that_repeats_ends_the_pause_at_once() -> None:
    policy, pause = Policy(CURVES["steep"]), Pause()
    for _ in range(CONFIG.patience):
        assert step(policy, pause, [0.01] * 8) is not None
    assert step(policy, pause, [0.01] * 8) is None
    assert step(policy, pause, [0.01] * 8, always) is not None


def test_costs_follow_what_passes_take_and_never_fall_with_rows() -> None:
    curve = CostCurve({1: 1.0, 8: 2.0, 64: 3.0})
    for _ in range(300):
        curve.learn(8, 5.0)
    assert curve.at(8) == pytest.approx(5.0, rel=0.05)
    assert curve.at(64) >= curve.at(8)
    before = curve.at(1)
    curve.learn(1, 1000.0)
    assert curve.at(1) < 1.5 * before  # one disturbed step does not say everything
    assert curve.at(128) > curve.at(64) - 1e-9
    with pytest.raises(ValueError, match="one row"):
        CostCurve({2: 1.0})


@given(st.lists(st.tuples(st.integers(1, 80), st.floats(0.1, 10.0)), max_size=60))
def test_whatever_passes_take_more_rows_never_cost_less(passes: list[tuple[int, float]]) -> None:
    curve = CostCurve({1: 1.0, 2: 1.1, 8: 1.5, 64: 4.0})
    for rows, factor in passes:
        curve.learn(rows, curve.at(rows) * factor)
        seconds = list(curve.by_rows().values())
        assert seconds == sorted(seconds) and seconds[0] > 0


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


def test_trials_of_another_number_of_nodes_fill_a_size_too() -> None:
    policy = Policy(CostCurve({rows: 1.0 + 0.05 * rows for rows in SIZES}, sizes=SIZES))
    chosen = {policy.choose(0.8 ** np.arange(1, 64))[0] for _ in range(8 * CONFIG.exploration)}
    assert len(chosen) > 2 and all(nodes + 1 in SIZES for nodes in chosen - {63})


def test_no_node_is_expected_to_come_more_than_once() -> None:
    """However much oftener than predicted earlier ones came."""
    tally = np.array([[50.0] * 8, [5.0] * 8])
    costs = np.linspace(1.0, 1.1, 65)
    best, expected, _ = best_size(np.full(4, 0.9), costs, 0.0, tally, 1)
    assert (best, expected) == (4, 5.0)
