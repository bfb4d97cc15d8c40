"""`auto`: counts, blending and tree against naive forms; the budget against brute force."""

import heapq
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import make_target
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cli import HARBOUR
from test_lossless import decode, plain, prompts
from typer.testing import CliRunner

from ngtcli.cli.app import app
from ngtcli.decode.sampling import SamplingSettings
from ngtcli.draft.auto import Auto, AutoOptions, fitted_escapes
from ngtcli.draft.blend import (
    BUCKETS,
    NOWHERE,
    ORDERS,
    SOURCES,
    advance,
    bucket_of,
    credit,
)
from ngtcli.draft.budget import FIRST_REST, LOOK_AROUND, PATIENCE, Policy
from ngtcli.draft.costs import CostCurve
from ngtcli.draft.drafter import Context, DraftSettings, make_drafter
from ngtcli.draft.growth import _depth_first, grow
from ngtcli.errors import UsageError
from ngtcli.trie.counts import NONE, CountTrie
from ngtcli.trie.pool import (
    QUOTE,
    SUFFIX,
    Pool,
    load_pool,
    own_words,
    pool_path,
    save_pool,
    used_last,
)
from ngtcli.trie.store import TrieFileError


def never() -> bool:
    return False


def always() -> bool:
    return True


ids = st.lists(st.integers(0, 4), max_size=40)


@given(st.lists(ids, max_size=4), st.integers(1, 5))
@settings(deadline=None)
def test_counts_are_those_of_a_plain_scan(texts: list[list[int]], depth: int) -> None:
    trie = CountTrie(depth)
    wanted: Counter[tuple[int, ...]] = Counter()
    for text in texts:
        trie.end()
        for piece in (text[: len(text) // 2], text[len(text) // 2 :]):
            trie.extend(piece)
        for at in range(len(text)):
            wanted.update(tuple(text[at : at + k]) for k in range(1, depth + 1)
                          if at + k <= len(text))  # fmt: skip
    for sequence, count in wanted.items():
        assert trie.count_of(sequence) == count
    assert trie.used == len(wanted) + 1
    top = [int(trie.nodes[n, 0]) for n in trie.top if n != NONE]
    frequent = sorted((-c, s[0]) for s, c in wanted.items() if len(s) == 1)
    assert sorted(-wanted[(t,)] for t in top) == [c for c, _ in frequent]


def test_a_trie_grows_past_its_first_arrays() -> None:
    rng = random.Random(0)
    text = [rng.randrange(1000) for _ in range(3000)]
    trie = CountTrie(7)
    trie.extend(text)
    assert trie.used > 1 << 12
    assert trie.count_of(text[100:107]) >= 1
    assert trie.count_of([text[5]]) == text.count(text[5])


class Naive:
    """The blend written over lists of texts, with dictionaries."""

    def __init__(self, texts: list[list[list[int]]], escapes: np.ndarray) -> None:
        self.texts, self.escapes = texts, escapes

    def follows(self, source: int, context: tuple[int, ...]) -> Counter[int]:
        out: Counter[int] = Counter()
        for text in self.texts[source]:
            for at in range(len(context), len(text)):
                if tuple(text[at - len(context) : at]) == context:
                    out[text[at]] += 1
        return out

    def chances(self, context: list[int]) -> dict[int, float]:
        out: Counter[int] = Counter()
        mass = 1.0
        for k in range(ORDERS - 1, -1, -1):
            for source in range(len(SOURCES)):
                if k > len(context):
                    continue
                found = self.follows(source, tuple(context[len(context) - k :]))
                total = sum(found.values())
                if not total:
                    continue
                stay = self.escapes[source, k, bucket_of(total, len(found))]
                for token, count in found.items():
                    out[token] += mass * (1 - stay) * count / total
                mass *= stay
        return dict(out)

    def tree(self, context: list[int], budget: int) -> list[float]:
        """Chances of the likeliest nodes, in falling order."""
        heap = [(-p, [t]) for t, p in self.chances(context).items()]
        heapq.heapify(heap)
        out = []
        while heap and len(out) < budget:
            p, path = heapq.heappop(heap)
            out.append(-p)
            for token, q in self.chances(context + path).items():
                heapq.heappush(heap, (p * q, path + [token]))
        return out


def prepared(prompt: list[int], output: list[int], earlier: list[int], seed: int) -> Auto:
    rng = np.random.default_rng(seed)
    escapes = rng.uniform(0.05, 0.95, (len(SOURCES), ORDERS, BUCKETS))
    pool = Pool(answers=[np.array(earlier, np.int32)] if earlier else [])
    drafter = Auto(AutoOptions(trust=1e6), escapes, pool=pool)
    drafter.reset(Context(prompt))
    if output:
        drafter.observe(output)
    return drafter


@given(ids, ids, ids, st.integers(1, 24), st.integers(0, 9))
@settings(deadline=None, max_examples=60)
def test_the_tree_holds_the_likeliest_nodes_of_the_naive_blend(
    prompt: list[int], output: list[int], pool: list[int], budget: int, seed: int
) -> None:
    drafter = prepared(prompt, output, pool, seed)
    naive = Naive([[output], [prompt], [pool] if pool else [], []], drafter.escapes)
    _, parents, chances, origins, _ = grow(drafter._held, drafter._at, drafter.escapes, budget, 0.0)
    wanted = naive.tree((prompt + output)[-ORDERS:], budget)
    assert chances.tolist() == pytest.approx(wanted, rel=1e-4)
    assert all(-1 <= p < i for i, p in enumerate(parents.tolist()))
    assert set(origins.tolist()) <= set(range(len(SOURCES)))
    drafter.propose([], budget).check()


@given(ids, ids, st.integers(0, 9), st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_credit_sums_to_the_chance_of_the_token(
    prompt: list[int], output: list[int], seed: int, token: int
) -> None:
    drafter = prepared(prompt, output, [], seed)
    naive = Naive([[output], [prompt], [], []], drafter.escapes)
    stops, visits = np.zeros_like(drafter.escapes), np.zeros_like(drafter.escapes)
    chance = credit(drafter._held, drafter._at, token, drafter.escapes, stops, visits)
    found = naive.chances((prompt + output)[-ORDERS:])
    left = chance - found.get(token, 0.0)
    assert 0 <= left <= NOWHERE + 1e-9
    assert stops.sum() == pytest.approx(found.get(token, 0.0) / chance if chance else 0.0, abs=1e-6)
    assert (visits - stops >= -1e-9).all()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_depth_first_puts_the_likeliest_chain_first(draws: list[int]) -> None:
    parents = np.array([min(d, i) - 1 for i, d in enumerate(draws)], np.int32)
    order = _depth_first(parents).tolist()
    assert sorted(order) == list(range(len(parents)))
    seen: set[int] = set()
    for before, node in zip([-1, *order], order, strict=False):
        assert parents[node] == -1 or parents[node] in seen
        children = [i for i, p in enumerate(parents) if p == before]
        if children:
            assert node == children[0]
        seen.add(node)


def test_places_move_with_the_text() -> None:
    drafter = prepared([1, 2, 3, 1, 2], [3, 1], [4, 1, 2], 0)
    fresh = np.full_like(drafter._at, NONE)
    fresh[:, 0] = 0
    for token in [1, 2, 3, 1, 2, 3, 1]:
        advance(drafter._held, fresh, token)
    assert fresh[1].tolist() == drafter._at[1].tolist()
    assert fresh[2].tolist() == drafter._at[2].tolist()


def test_an_answer_joins_the_pool_and_the_pool_is_bounded() -> None:
    drafter = Auto(AutoOptions(), fitted_escapes(), pool=Pool(limit=10))
    for answer in ([7, 8, 9, 7], [5, 6, 5], [1, 2, 3, 4], [2, 2, 2, 2, 2, 2]):
        drafter.reset(Context([0]))
        drafter.observe(answer)
    drafter.reset(Context([0]))
    assert drafter.pool is not None
    assert [a.tolist() for a in drafter.pool.answers] == [[1, 2, 3, 4], [2] * 6]
    assert drafter._earlier.count_of([2, 2]) > 0
    for _ in range(9):  # what is drafted from is bounded as well
        drafter.reset(Context([0]))
        drafter.observe([3, 4, 3, 4, 3, 4])
    assert drafter._earlier.tokens <= 20
    without = Auto(AutoOptions(), fitted_escapes())
    without.observe([7, 8])
    without.reset(Context([0]))
    assert without._earlier.tokens == 0


def test_the_pool_holds_no_text_of_the_prompt_unless_told() -> None:
    prompt = [1, 2, 3, 4, 5, 6]
    answer = [9, 8, 2, 3, 4, 5, 7, 9, 1, 2, 3]
    assert list(own_words(answer, prompt)) == [[9, 8], [7, 9, 1, 2, 3]]
    assert [a.tolist() for a in Pool(quotes=True).add(answer, prompt)] == [answer]
    assert [a.tolist() for a in Pool().add(answer, prompt)] == [[9, 8], [7, 9, 1, 2, 3]]
    assert Pool().add(prompt, prompt) == []


@given(ids, ids)
def test_no_run_of_four_tokens_of_the_prompt_is_kept(answer: list[int], prompt: list[int]) -> None:
    known = {tuple(prompt[i : i + QUOTE]) for i in range(len(prompt) - QUOTE + 1)}
    kept = list(own_words(answer, prompt))
    for run in kept:
        assert not known & {tuple(run[i : i + QUOTE]) for i in range(len(run) - QUOTE + 1)}
    if not known:
        assert kept == ([answer] if answer else [])


def test_the_least_recently_used_answer_goes_first(tmp_path: Path) -> None:
    old, other, said = [1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12], [0, 2, 3, 4, 5, 0]
    pool = Pool(limit=18)
    for answer in (old, other, said):
        pool.add(answer, [])
    assert [a.tolist() for a in pool.answers] == [other, old, said]
    pool.add([20] * 6, [])
    assert [a.tolist() for a in pool.answers] == [old, said, [20] * 6]
    path = tmp_path / f"x{SUFFIX}"  # the same order by way of a file
    first = tallied([old, other])
    first.limit = 18
    save_pool(path, first, "tiny", 97)
    again = load_pool(path, 97, 18, False)
    again.stops, again.visits = first.stops, first.visits
    again.add(said, [])
    save_pool(path, again, "tiny", 97)
    assert [a.tolist() for a in load_pool(path, 97, 18, False).answers] == [other, old, said]


@given(st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=6), ids)
def test_used_answers_are_those_with_a_run_in_common(
    answers: list[list[int]], said: list[int]
) -> None:
    def runs(text: list[int]) -> set[tuple[int, ...]]:
        return {tuple(text[i : i + QUOTE]) for i in range(len(text) - QUOTE + 1)}

    wanted = sorted(answers, key=lambda a: bool(runs(a) & runs(said)))
    arrays = [np.array(a, np.int32) for a in answers]
    assert [a.tolist() for a in used_last(arrays, np.array(said, np.int32))] == wanted


def tallied(answers: list[list[int]]) -> Pool:
    pool = Pool(stops=np.full(6, 1.5), visits=np.full(6, 4.0))
    for answer in answers:
        pool.add(answer, [])
    return pool


def test_a_pool_is_stored_and_two_sessions_add_up(tmp_path: Path) -> None:
    path = tmp_path / f"x{SUFFIX}"
    assert load_pool(path, 97, 100, False).answers == []
    one, other = tallied([[1, 2, 3]]), tallied([[4, 5]])
    save_pool(path, one, "tiny", 97)
    save_pool(path, other, "tiny", 97)
    save_pool(path, one, "tiny", 97)  # nothing new in it
    found = load_pool(path, 97, 100, False)
    assert [a.tolist() for a in found.answers] == [[1, 2, 3], [4, 5]]
    assert found.stops is not None
    assert found.stops.tolist() == [1.5] * 6
    assert [a.tolist() for a in load_pool(path, 97, 4, False).answers] == [[4, 5]]


def test_a_damaged_pool_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / f"x{SUFFIX}"
    save_pool(path, tallied([[1, 2, 96]]), "tiny", 97)
    with pytest.raises(TrieFileError, match="out of range"):
        load_pool(path, 96, 100, False)
    whole = path.read_bytes()
    for bad in (whole[:-5], whole[:-3] + b"abc", b"", b"{}" * 40):
        path.write_bytes(bad)
        with pytest.raises(TrieFileError):
            load_pool(path, 97, 100, False)
        save_pool(path, tallied([[5, 6]]), "tiny", 97)  # begun anew
        assert [a.tolist() for a in load_pool(path, 97, 100, False).answers] == [[5, 6]]


def test_tallies_of_earlier_sessions_are_taken_up() -> None:
    shape = (len(SOURCES), ORDERS, BUCKETS)
    pool = Pool(stops=np.full(shape, 300.0).ravel(), visits=np.full(shape, 1000.0).ravel())
    drafter = Auto(AutoOptions(trust=100), fitted_escapes(), pool=pool)
    assert drafter.escapes == pytest.approx(0.7)
    assert drafter.visits == pytest.approx(100.0)
    odd = Pool(stops=np.ones(3), visits=np.ones(3))  # of another version's shape
    assert Auto(AutoOptions(), fitted_escapes(), pool=odd).escapes == pytest.approx(
        fitted_escapes(), abs=1e-3
    )


def test_what_comes_moves_the_escapes() -> None:
    drafter = Auto(AutoOptions(trust=5), fitted_escapes())
    drafter.reset(Context([1, 2, 3, 4, 5, 6, 7, 8] * 3))
    before = drafter.escapes[1].copy()
    drafter.observe([1, 2, 3, 4, 5, 6, 7, 8] * 4)
    assert (drafter.escapes[1] < before - 0.01).any()  # the prompt was right each time
    assert drafter.escapes.min() >= 0.001
    assert drafter.escapes.max() <= 0.999


@pytest.mark.parametrize(
    "sampling", [SamplingSettings(), SamplingSettings(temperature=0.9, seed=3)]
)
def test_auto_changes_no_token(sampling: SamplingSettings) -> None:
    model = make_target("llama", seed=4)
    costs = CostCurve({1: 1e-3, 64: 2e-3})
    for settings_ in (DraftSettings(), DraftSettings(costs=costs)):
        drafter = make_drafter("auto", settings_)
        for prompt in prompts(8):
            wanted = plain(model, prompt, sampling)
            assert decode(model, drafter, prompt, sampling).output == wanted


@pytest.mark.parametrize("option", ["trust=0", "trust=x", "trst=1"])
def test_wrong_options_are_named(option: str) -> None:
    with pytest.raises(UsageError):
        make_drafter(f"auto:{option}", DraftSettings())


CURVES = {
    "flat": CostCurve({1: 1.0, 64: 1.0}),
    "cheap": CostCurve({1: 1.0, 64: 1.6}),
    "steep": CostCurve({1: 1.0, 2: 2.0, 64: 64.0}),
    "stepped": CostCurve({1: 1.0, 8: 1.0, 9: 2.0, 16: 2.0, 17: 4.0, 64: 16.0}),
}


@pytest.mark.parametrize("name", list(CURVES))
@given(st.lists(st.floats(0.0, 1.0), min_size=0, max_size=64))
def test_the_budget_is_the_best_of_all(name: str, draws: list[float]) -> None:
    chances = np.array(sorted(draws, reverse=True))
    chosen = Policy(CURVES[name]).choose(chances)
    rates = [(1 + chances[:k].sum()) / CURVES[name].at(1 + k) for k in range(len(chances) + 1)]
    assert rates[chosen] == pytest.approx(max(rates))


def test_steep_costs_buy_nothing_and_flat_costs_everything() -> None:
    chances = np.full(64, 0.3)
    assert Policy(CURVES["steep"]).choose(chances) == 0
    assert Policy(CURVES["flat"]).choose(chances) == 64
    assert Policy(CURVES["stepped"]).choose(np.full(64, 0.02)) == 7


def test_drafts_that_do_not_pay_are_looked_for_less_and_less() -> None:
    policy = Policy(CURVES["steep"])
    looks = []
    for step in range(600):
        if not policy.resting(never):
            looks.append(step)
            policy.choose(np.full(8, 0.01))
    assert looks[:PATIENCE] == list(range(PATIENCE))
    gaps = np.diff(looks[PATIENCE - 1 :])
    assert gaps[0] == FIRST_REST + 1
    assert all(b in (2 * a - 1, a) for a, b in zip(gaps, gaps[1:], strict=False))
    assert policy.stand_downs == len(gaps) + 1


def test_a_cost_measured_too_high_is_found_out() -> None:
    policy = Policy(CostCurve({1: 1.0, 2: 9.0, 8: 9.0, 64: 9.0}))
    sizes = []
    for _ in range(LOOK_AROUND * 400):
        if policy.resting(always):
            continue
        size = policy.choose(np.full(8, 0.5))
        policy.curve.learn(1 + size, 1.0)  # in truth all passes cost the same
        sizes.append(size)
    assert sizes[0] == 0
    assert sizes[-1] == 8


def test_a_text_that_repeats_ends_the_rest_at_once() -> None:
    policy = Policy(CURVES["steep"])
    for _ in range(PATIENCE):
        policy.choose(np.full(8, 0.01))
    assert policy.resting(never)
    assert not policy.resting(always)


def test_costs_follow_what_passes_take_and_never_fall_with_rows() -> None:
    curve = CostCurve({1: 1.0, 8: 2.0, 64: 3.0})
    for _ in range(300):
        curve.learn(8, 5.0)
    assert curve.at(8) == pytest.approx(5.0, rel=0.05)
    assert curve.at(64) >= curve.at(8)
    curve.learn(1, 1000.0)
    assert curve.at(1) < 1.2  # one disturbed step says little
    assert curve.at(128) > curve.at(64) - 1e-9
    with pytest.raises(ValueError, match="one row"):
        CostCurve({2: 1.0})


def test_the_fitted_escapes_are_whole() -> None:
    escapes = fitted_escapes()
    assert escapes.shape == (len(SOURCES), ORDERS, BUCKETS)
    assert ((escapes > 0) & (escapes < 1)).all()


def test_the_pools_are_listed_and_cleared() -> None:
    invoke = CliRunner().invoke
    assert json.loads(invoke(app, ["trie", "pool", "show", "--json"]).stdout) == []
    path = pool_path("print", "tiny")
    save_pool(path, tallied([[1, 2, 3]]), "tiny", 97)
    path.with_name(f"broken{SUFFIX}").write_bytes(b"x")
    (row,) = json.loads(invoke(app, ["trie", "pool", "show", "--json"]).stdout)
    assert (row["model"], row["answers"], row["tokens"]) == ("tiny", 1, 3)
    assert "tiny" in invoke(app, ["trie", "pool", "show"]).stdout
    assert json.loads(invoke(app, ["trie", "pool", "clear", "--json"]).stdout)["files"] == 2
    assert not path.exists()


def test_an_answer_with_auto_reports_its_policy_and_is_remembered(tmp_path: Path) -> None:
    text = tmp_path / "harbour.txt"
    text.write_text(Path(HARBOUR).read_text())
    invoke = CliRunner().invoke
    wanted = ["summarize", str(text), "--max-tokens", "24", "--json-tokens"]
    plain_run = json.loads(invoke(app, [*wanted, "--method", "none"]).stdout)
    done = invoke(app, [*wanted, "--method", "auto", "--explain", "--pool-documents"])
    body = json.loads(done.stdout)
    assert body["text"] == plain_run["text"]
    assert sum(body["policy"]["budgets"].values()) <= body["statistics"]["steps"]
    assert {t["origin"] for t in body["tokens"]} <= {*Auto.origins, "model"}
    assert "step 1 · " in done.stderr
    (pool,) = json.loads(invoke(app, ["trie", "pool", "show", "--json"]).stdout)
    assert pool["tokens"] == body["statistics"]["new_tokens"]
    without = invoke(app, [*wanted, "--method", "auto", "--no-pool", "--no-calibrate"])
    assert json.loads(without.stdout)["text"] == plain_run["text"]
    (after,) = json.loads(invoke(app, ["trie", "pool", "show", "--json"]).stdout)
    assert after["tokens"] == pool["tokens"]
