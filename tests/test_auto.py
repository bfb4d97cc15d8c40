"""`auto`: counts, blending and tree against naive forms; no token is changed."""

import heapq
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers import HARBOUR, check_tree, decode, make_drafter, make_target, plain, prompts
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ngtcli.cli.app import app
from ngtcli.config import Settings
from ngtcli.draft.auto.blend import BACKGROUND, BUCKETS, ORDERS, UNSEEN, bucket_of, match_end
from ngtcli.draft.auto.config import Options
from ngtcli.draft.auto.drafter import Auto
from ngtcli.draft.auto.escapes import Tallies, attribute, fitted_escapes
from ngtcli.draft.auto.growth import _depth_first, grow
from ngtcli.draft.auto.ranks import SUM, WIDTH, Ranks
from ngtcli.draft.costs import SHORT, CostCurve, Costs
from ngtcli.draft.drafter import Context, DraftSettings, Feedback
from ngtcli.draft.origins import SOURCES
from ngtcli.draft.pool import (
    Pool,
)
from ngtcli.draft.tree import DraftTree
from ngtcli.errors import UsageError
from ngtcli.trie.background import DEPTH, build_counts
from ngtcli.trie.counts import (
    FIRST_CHILD,
    NEXT_SIBLING,
    NONE,
    PREVIOUS_SIBLING,
    TOKEN,
    CountTrie,
)

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
    top = [int(trie.arrays.nodes[n, TOKEN]) for n in trie.arrays.frequent if n != NONE]
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


def children(trie: CountTrie, node: int) -> list[int]:
    """Tokens of a node's list, read from both ends."""
    nodes, found, child, last = trie.arrays.nodes, [], trie.arrays.nodes[node, FIRST_CHILD], NONE
    while child != NONE:
        assert nodes[child, PREVIOUS_SIBLING] == last
        found.append(int(nodes[child, TOKEN]))
        child, last = nodes[child, NEXT_SIBLING], child
    return found


@given(ids)
@settings(deadline=None)
def test_what_was_met_first_stands_first_once_lists_are_turned_round(text: list[int]) -> None:
    trie = CountTrie(3)
    trie.extend(text)
    recent = [children(trie, node) for node in range(trie.used)]
    trie.put_first_met_first()
    assert [children(trie, node)[::-1] for node in range(trie.used)] == recent
    assert all(trie.count_of([token]) == text.count(token) for token in set(text))


class Naive:
    """The blend, written over lists of texts, with dictionaries."""

    def __init__(self, texts: list[list[list[int]]], escapes: np.ndarray) -> None:
        self.texts, self.escapes = texts, escapes

    def follows(self, source: int, context: tuple[int, ...]) -> Counter[int]:
        out: Counter[int] = Counter()
        for text in self.texts[source]:
            for at in range(len(context), len(text)):
                if tuple(text[at - len(context) : at]) == context:
                    out[text[at]] += 1
        return out

    def bucket(self, found: Counter[int]) -> int:
        return bucket_of(sum(found.values()), len(found))

    def background_bucket(self, found: Counter[int]) -> int:
        total, top = sum(found.values()), max(found.values())
        seen = sum(total > most for most in (1, 4, 24))
        return 3 * seen + (0 if top >= 0.75 * total else 1 if top >= 0.3 * total else 2)

    def probabilities(self, context: list[int]) -> dict[int, float]:
        out: Counter[int] = Counter()
        mass = 1.0
        for k in range(ORDERS - 1, -1, -1):
            for source in range(len(SOURCES)):
                if k > len(context) or (source == BACKGROUND and not 0 < k < DEPTH):
                    continue
                found = self.follows(source, tuple(context[len(context) - k :]))
                total = sum(found.values())
                if not total:
                    continue
                bucket = self.background_bucket if source == BACKGROUND else self.bucket
                stay = self.escapes[source, k, bucket(found)]
                for token, count in found.items():
                    out[token] += mass * (1 - stay) * count / total
                mass *= stay
        return dict(out)

    def tree(self, context: list[int], budget: int) -> list[float]:
        """Chances of the likeliest nodes, in falling order."""
        heap = [(-p, [t]) for t, p in self.probabilities(context).items()]
        heapq.heapify(heap)
        out = []
        while heap and len(out) < budget:
            p, path = heapq.heappop(heap)
            out.append(-p)
            for token, q in self.probabilities(context + path).items():
                heapq.heappush(heap, (p * q, path + [token]))
        return out


def prepared(
    prompt: list[int], output: list[int], earlier: list[int], seed: int, general: list[int]
) -> Auto:
    rng = np.random.default_rng(seed)
    escapes = rng.uniform(0.05, 0.95, (len(SOURCES), ORDERS, BUCKETS))
    pool = Pool(answers=[np.array(earlier, np.int32)] if earlier else [])
    background = build_counts([(general, 1.0)], least=()) if general else None
    drafter = Auto(Options(trust=1e6), escapes, pool=pool, background=background)
    drafter.reset(Context(prompt))
    if output:
        drafter.observe(output)
    return drafter


@given(ids, ids, ids, ids, st.integers(1, 24), st.integers(0, 9))
@settings(deadline=None, max_examples=80)
def test_the_tree_holds_the_likeliest_nodes_of_the_naive_blend(
    prompt: list[int], output: list[int], pool: list[int], general: list[int], budget: int,
    seed: int,
) -> None:  # fmt: skip
    drafter = prepared(prompt, output, pool, seed, general)
    texts = [[output], [prompt], [pool] if pool else [], [general], []]
    naive = Naive(texts, drafter.tallies.arrays.escape)
    escapes = drafter.tallies.arrays.escape
    growth = grow(drafter.sources.arrays, drafter.matches.nodes, escapes, budget, 0.0)
    parents, origins = growth.parents, growth.origins
    wanted = naive.tree((prompt + output)[-ORDERS:], budget)
    assert growth.probabilities.tolist() == pytest.approx(wanted, rel=1e-4)
    assert all(-1 <= p < i for i, p in enumerate(parents.tolist()))
    assert set(origins.tolist()) <= set(range(len(SOURCES)))
    check_tree(drafter.propose([], budget))


@given(ids, ids, ids, st.integers(0, 9), st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_attribution_sums_to_the_probability_of_the_token(
    prompt: list[int], output: list[int], general: list[int], seed: int, token: int
) -> None:
    drafter = prepared(prompt, output, [], seed, general)
    escapes = drafter.tallies.arrays.escape
    naive = Naive([[output], [prompt], [], [general], []], escapes)
    tallies = Tallies(escapes, np.zeros_like(escapes), np.zeros_like(escapes))
    chance = attribute(drafter.sources.arrays, drafter.matches.nodes, token, tuple(tallies))
    found = naive.probabilities((prompt + output)[-ORDERS:])
    left = chance - found.get(token, 0.0)
    assert 0 <= left <= UNSEEN + 1e-9
    assert tallies.predicted.sum() == pytest.approx(
        found.get(token, 0.0) / chance if chance else 0.0, abs=1e-6
    )
    assert (tallies.reached - tallies.predicted >= -1e-9).all()


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
    drafter = prepared([1, 2, 3, 1, 2], [3, 1], [4, 1, 2], 0, [2, 1])
    nodes = drafter.matches.nodes
    fresh = np.empty_like(nodes)
    match_end(drafter.sources.arrays, fresh, np.array([1, 2, 3, 1, 2, 3, 1], np.int32))
    assert fresh[1].tolist() == nodes[1].tolist()
    assert fresh[2].tolist() == nodes[2].tolist()


def test_an_answer_joins_the_pool_and_the_pool_is_bounded() -> None:
    drafter = Auto(Options(), fitted_escapes(), pool=Pool(limit=10))
    for answer in ([7, 8, 9, 7], [5, 6, 5], [1, 2, 3, 4], [2, 2, 2, 2, 2, 2]):
        drafter.reset(Context([0]))
        drafter.observe(answer)
    drafter.reset(Context([0]))
    assert drafter.pool is not None
    assert [a.tolist() for a in drafter.pool.answers] == [[1, 2, 3, 4], [2] * 6]
    assert drafter.sources.pool.count_of([2, 2]) > 0
    for _ in range(9):  # what is drafted from is bounded as well
        drafter.reset(Context([0]))
        drafter.observe([3, 4, 3, 4, 3, 4])
    assert drafter.sources.pool.tokens <= 20
    without = Auto(Options(), fitted_escapes())
    without.observe([7, 8])
    without.reset(Context([0]))
    assert without.sources.pool.tokens == 0


def test_tallies_of_earlier_sessions_are_taken_up() -> None:
    shape = (len(SOURCES), ORDERS, BUCKETS)
    pool = Pool(predicted=np.full(shape, 300.0).ravel(), reached=np.full(shape, 1000.0).ravel())
    drafter = Auto(Options(trust=100), fitted_escapes(), pool=pool)
    assert drafter.tallies.arrays.escape == pytest.approx(0.7)
    assert drafter.tallies.arrays.reached == pytest.approx(100.0)
    odd = Pool(predicted=np.ones(3), reached=np.ones(3))  # of another version's shape
    assert Auto(Options(), fitted_escapes(), pool=odd).tallies.arrays.escape == pytest.approx(
        fitted_escapes(), abs=1e-3
    )


def test_what_comes_moves_the_escapes() -> None:
    drafter = Auto(Options(trust=5), fitted_escapes())
    drafter.reset(Context([1, 2, 3, 4, 5, 6, 7, 8] * 3))
    escapes = drafter.tallies.arrays.escape
    before = escapes[1].copy()
    drafter.observe([1, 2, 3, 4, 5, 6, 7, 8] * 4)
    assert (escapes[1] < before - 0.01).any()  # the prompt was right each time
    assert escapes.min() >= 0.001
    assert escapes.max() <= 0.999


@pytest.mark.parametrize("sampling", [Settings(), Settings(temperature=0.9, seed=3)])
def test_auto_changes_no_token(sampling: Settings) -> None:
    model = make_target("llama", seed=4)
    costs = Costs({SHORT: CostCurve({1: 1e-3, 64: 2e-3})})
    for settings_ in (DraftSettings(), DraftSettings(costs=costs)):
        drafter = make_drafter("auto", settings_)
        for prompt in prompts(8):
            wanted = plain(model, prompt, sampling)
            assert decode(model, drafter, prompt, sampling).output == wanted


def test_scores_that_predict_nothing_are_seldom_read() -> None:
    for follows, least, most in (((2, 3, 4), 80, 80), ((9, 9, 9), 8, 20)):
        drafter = Auto(Options(), fitted_escapes())
        drafter.reset(Context([1], vocabulary=12))
        rng, asked = random.Random(0), 0
        for step in range(180):
            drafter.propose([], 4)
            if drafter.top_k:
                drafter.learn(Feedback(DraftTree(), np.array([follows])))
                asked += step >= 100
            drafter.observe([rng.choice([2, 3, 4])])
        assert least <= asked <= most


@given(st.lists(st.lists(st.integers(0, 7), min_size=3, max_size=3, unique=True), max_size=30))
def test_ranks_weigh_what_was_ranked_high_of_late(rows: list[list[int]]) -> None:
    ranks = Ranks(21)
    wanted: dict[int, float] = {}
    for row in rows:
        ranks.learn([5], np.array([row]))
        wanted = {t: w / 2 for t, w in wanted.items()}
        for rank, t in enumerate(row):
            wanted[t] = wanted.get(t, 0.0) + 1 / (rank + 1)
        wanted = {t: w for t, w in wanted.items() if w >= 1e-3}
    found = ranks.of(5)
    assert sum(found.values()) == pytest.approx(ranks.arrays.sums[5, SUM])
    assert {t: found.get(t, 0.0) for t in wanted} == pytest.approx(wanted, abs=2e-3)
    assert ranks.of(6) == {}


def test_ranks_keep_no_more_than_their_width_and_lose_the_weakest() -> None:
    ranks = Ranks(40)
    for first in range(0, 30, 3):
        ranks.learn([5], np.array([[first, first + 1, first + 2]]))
    found = ranks.of(5)
    assert len(found) == WIDTH
    assert {27, 28, 29, 24, 25, 26} <= found.keys()


@pytest.mark.parametrize("option", ["trust=0", "trust=x", "trst=1"])
def test_wrong_options_are_named(option: str) -> None:
    with pytest.raises(UsageError):
        make_drafter(f"auto:{option}", DraftSettings())


def test_the_fitted_escapes_are_whole() -> None:
    escapes = fitted_escapes()
    assert escapes.shape == (len(SOURCES), ORDERS, BUCKETS)
    assert ((escapes > 0) & (escapes < 1)).all()


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
