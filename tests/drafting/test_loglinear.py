"""The log-linear stage of `auto`: against a naive one, and what it learns."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.drafting.auto import weights as stage_weights
from ngtcli.drafting.auto.config import CONFIG, Options
from ngtcli.drafting.auto.core.cells import FEATURES, SIZE, STARTS
from ngtcli.drafting.auto.core.growth import Growth, grow
from ngtcli.drafting.auto.drafter import Auto
from ngtcli.drafting.auto.escapes import EscapeTallies
from ngtcli.drafting.auto.sources.table import first_escapes
from ngtcli.drafting.auto.weights import (
    FITTED,
    StageWeights,
    first_weights,
    neutral_weights,
)
from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.tries.classes import (
    BLANK,
    CLASSES,
    MARK,
    NUMBER,
    REST_OF_WORD,
    WORD,
    class_of,
)
from tests.support.background_counts import build_counts
from tests.support.driven_drafters import DrafterBatch, DrafterRun
from tests.support.naive_blend import NaiveBlend
from tests.support.naive_copy import NaiveCopy
from tests.support.naive_stage import Cell, NaiveStage

IDS = st.lists(st.integers(0, 4), max_size=30)
PROMPTS = st.lists(st.integers(0, 4), min_size=1, max_size=40)
TOKEN_CLASSES = [0, 1, 2, 3]  # of the tokens 0 to 3; that of 4 is not known


def number_of(cell: Cell) -> int:
    """The number of a cell in the arrays."""
    name, values = cell
    at = next(i for i, feature in enumerate(FEATURES) if feature.name == name)
    return STARTS[at] + int(np.ravel_multi_index(values, FEATURES[at].shape))


def prepared(prompt: list[int], pool: list[int], general: list[int], seed: int) -> DrafterRun:
    """A drafter with random escapes, which learns nothing of them."""
    counts = replace(
        build_counts([general or [0, 1]], least=()), classes=np.array(TOKEN_CLASSES, np.int8)
    )
    earlier = Pool(answers=[np.array(pool, np.int32)] if pool else [])
    drafter = Auto(DraftSettings(pool=earlier, background=counts))
    escapes = np.random.default_rng(seed).uniform(0.05, 0.95, first_escapes().shape)
    drafter.tallies = EscapeTallies(escapes, trust=1e9)
    return DrafterRun(drafter, Context(prompt))


def naive_blend(
    drafter: Auto, prompt: list[int], answer: list[int], pool: list[int], general: list[int]
) -> NaiveBlend:
    texts = [[], [answer], [prompt], [pool] if pool else [], [general or [0, 1]], []]
    return NaiveBlend(texts, drafter.tallies.escape, NaiveCopy(prompt, answer))


@settings(deadline=None, max_examples=60)
@given(PROMPTS, IDS, IDS, IDS, st.integers(0, 9))
def test_candidates_have_the_probabilities_of_the_naive_stage(
    prompt: list[int], answer: list[int], pool: list[int], general: list[int], seed: int
) -> None:
    followed = prepared(prompt, pool, general, seed)
    drafter = followed.drafter
    assert isinstance(drafter, Auto)
    if answer:
        followed.emit(answer)
    weights = np.random.default_rng(seed).normal(0.0, 0.5, SIZE)
    drafter.weights.factors[:] = np.exp(weights)
    naive = NaiveStage(prompt, TOKEN_CLASSES)
    blend = naive_blend(drafter, prompt, answer, pool, general)
    for _, cells in naive.candidates(blend, answer, 0.0).values():
        naive.weights.update({cell: weights[number_of(cell)] for cell in cells})
    sources = drafter.sources
    growth = Growth(
        *grow(
            sources.arrays,
            sources.stage.arrays,
            sources.matches,
            drafter.tallies.escape,
            24,
            0.0,
            CONFIG.children,
        )
    )
    of_root = growth.parents == -1
    found = dict(
        zip(growth.tokens[of_root].tolist(), growth.probabilities[of_root].tolist(), strict=True)
    )
    wanted = {token: p for token, (p, _) in naive.candidates(blend, answer, 0.0).items()}
    assert found == pytest.approx({token: wanted[token] for token in found}, rel=1e-4)
    left_out = [p for token, p in wanted.items() if token not in found]
    assert max(left_out, default=0.0) <= growth.probabilities[-1] * (1 + 1e-4)


@settings(deadline=None, max_examples=60)
@given(PROMPTS, IDS, IDS, IDS, st.integers(0, 9))
def test_weights_are_those_of_naive_steps_along_the_gradient(
    prompt: list[int], answer: list[int], pool: list[int], general: list[int], seed: int
) -> None:
    followed = prepared(prompt, pool, general, seed)
    drafter = followed.drafter
    assert isinstance(drafter, Auto)
    drafter.weights.restore(*neutral_weights())
    naive = NaiveStage(prompt, TOKEN_CLASSES)
    for at, token in enumerate(answer):
        naive.learn(naive_blend(drafter, prompt, answer[:at], pool, general), answer[:at], token)
    if answer:
        followed.emit(answer)
    wanted = np.zeros(SIZE)
    for cell, weight in naive.weights.items():
        wanted[number_of(cell)] = weight
    np.testing.assert_allclose(np.log(drafter.weights.factors), wanted, rtol=1e-3, atol=1e-5)


def test_what_comes_near_the_place_last_copied_becomes_likelier() -> None:
    prompt = [token for at in range(60) for token in (100 + at, 7)]
    chances = []
    for is_on in (False, True):
        drafter = Auto(options=Options(loglinear=is_on))
        drafter.weights.restore(*neutral_weights())
        followed = DrafterRun(drafter, Context(prompt))
        for at in range(0, 44, 2):  # every second number: no match of two tokens says which comes
            followed.emit([100 + at, 7])
        followed.propose(16)
        assert drafter._growth is not None
        tokens, parents, probabilities, *_ = drafter._growth
        chances.append(probabilities[(tokens == 144) & (parents == -1)].sum())
    without, with_stage = chances
    assert with_stage > 2 * without


def test_learned_weights_reach_the_next_answer_and_the_pool() -> None:
    pool = Pool()
    drafter = Auto(DraftSettings(pool=pool))
    followed = DrafterRun(drafter, Context([1, 2, 3, 4, 5] * 4))
    followed.emit([1, 2, 3, 4, 5] * 4)
    followed.close()
    learned = drafter.weights.factors.copy()
    assert (learned != first_weights()[0]).any()
    assert pool.factors is not None
    assert pool.factors.tolist() == learned.tolist()
    drafter.begin(Context([1, 2]))
    assert drafter.weights.factors.tolist() == learned.tolist()
    assert Auto(DraftSettings(pool=pool)).weights.factors.tolist() == learned.tolist()


def test_an_answer_without_the_stage_leaves_its_weights_in_the_pool() -> None:
    pool = Pool(factors=np.full(SIZE, 2.0), squares=np.full(SIZE, 3.0))
    drafter = Auto(DraftSettings(pool=pool), Options(loglinear=False))
    followed = DrafterRun(drafter, Context([1, 2, 3]))
    followed.emit([1, 2, 3])
    followed.close()
    assert pool.tally_predicted is not None
    assert pool.factors is not None
    assert (pool.factors == 2.0).all()
    assert pool.squares is not None
    assert (pool.squares == 3.0).all()


@pytest.mark.parametrize("sizes", [(3, 3), (SIZE, SIZE - 1), (SIZE + 1, SIZE + 1)])
def test_stored_weights_of_other_cells_are_left_alone(sizes: tuple[int, int]) -> None:
    weights = StageWeights(neutral_weights())
    weights.restore(np.full(sizes[0], 2.0), np.full(sizes[1], 2.0))
    assert (weights.factors == 1.0).all()
    assert (weights.squares == 0.0).all()


def test_a_private_text_teaches_the_weights_of_others_nothing() -> None:
    batch = DrafterBatch(DraftSettings(pool=Pool()))
    public, private = (batch.begin([1, 2, 3, 1, 2], private=p) for p in (False, True))
    private.emit([3, 1, 2, 3, 1, 2])
    assert isinstance(public.drafter, Auto)
    assert isinstance(private.drafter, Auto)
    assert (private.drafter.weights.factors != first_weights()[0]).any()
    assert (public.drafter.weights.factors == first_weights()[0]).all()


def test_what_is_taken_back_is_unlearned_beside_what_another_sequence_taught() -> None:
    weights = StageWeights(neutral_weights())
    before = weights.copied()
    weights.factors[:2] = 1.5
    weights.squares[:2] = 4.0
    changes = weights.changes_since(before)
    weights.factors[1] *= 2.0  # another sequence
    weights.squares[1] += 1.0
    weights.undo(changes)
    assert weights.factors[:2].tolist() == pytest.approx([1.0, 2.0])
    assert weights.squares[:2].tolist() == pytest.approx([0.0, 1.0])


def test_the_fitted_weights_are_those_of_the_features() -> None:
    stored = json.loads(FITTED.read_text(encoding="utf-8"))
    assert {name: tuple(entry["shape"]) for name, entry in stored.items()} == {
        feature.name: feature.shape for feature in FEATURES
    }
    factors, squares = first_weights()
    assert (factors > 0.0).all()
    assert (factors != 1.0).any()
    assert (squares >= 0.0).all()
    assert np.isfinite(first_weights()).all()
    assert StageWeights(first_weights()).factors.tolist() == factors.tolist()


def test_a_feature_of_other_cells_than_were_fitted_begins_with_neutral_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = json.loads(FITTED.read_text(encoding="utf-8"))
    stored["texts"]["shape"] = [3, 3]
    (tmp_path / "weights.json").write_text(json.dumps(stored))
    monkeypatch.setattr(stage_weights, "FITTED", tmp_path / "weights.json")
    factors, squares = first_weights.__wrapped__()
    cells = STARTS[1]  # of the first feature
    assert (factors[:cells] == 1.0).all()
    assert (squares[:cells] == 0.0).all()
    assert factors[cells:].tolist() == first_weights()[0, cells:].tolist()


def test_features_have_names_of_their_own_and_every_cell_a_number() -> None:
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)
    assert SIZE == sum(int(np.prod(feature.shape)) for feature in FEATURES)
    assert all(feature.tells for feature in FEATURES)


@pytest.mark.parametrize(
    ("token", "wanted"),
    [
        ("\u2581tide", WORD),
        ("\u0120tide", WORD),
        (" tide", WORD),
        ("tide", REST_OF_WORD),
        ("##tide", REST_OF_WORD),
        ("\u00e9", REST_OF_WORD),
        ("1971", NUMBER),
        ("\u25817", NUMBER),
        (",", MARK),
        ("\u2581(", MARK),
        ("#", MARK),
        ("\u2581", BLANK),
        ("\u010a\u010a", BLANK),
        ("\n", BLANK),
        ("<0x0A>", BLANK),
    ],
)
def test_a_token_has_the_class_of_its_text(token: str, wanted: int) -> None:
    assert class_of(token) == wanted < CLASSES
