"""How a token is chosen: against `transformers`, SplitMix64 in plain Python, and chance."""

import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ngtcli.config import Settings
from ngtcli.decoding import sampling as keyed_draw
from ngtcli.decoding.assistant import AssistantModel
from ngtcli.decoding.logits import best_tokens, highest
from ngtcli.decoding.sampling import BLOCK, Sampler, draw, keys_of
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.tree import DraftTree
from tests.support.tiny_models import distribution, make_target, prompts

pytestmark = pytest.mark.numeric

WARPED = [
    Settings.of(temperature=0.7),
    Settings.of(temperature=1.0, top_k=1),
    Settings.of(temperature=1.3, top_k=40),
    Settings.of(temperature=0.8, top_p=0.9),
    Settings.of(temperature=1.0, top_p=0.001),
    Settings.of(temperature=2.0, top_p=0.999),
    Settings.of(temperature=0.8, min_p=0.05),
    Settings.of(temperature=0.9, top_k=50, top_p=0.8, min_p=0.01),
]
PENALTIES: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3, "presence_penalty": 0.4},
    {"repetition_penalty": 0.7, "frequency_penalty": 0.2},
    {"frequency_penalty": 0.5},
]


def by_transformers(s: Settings, scores: torch.Tensor) -> torch.Tensor:
    """Probabilities (vocabulary,) as `generate` has them."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(s.answer.temperature)])
    if s.answer.top_k:
        warpers.append(TopKLogitsWarper(s.answer.top_k))
    if s.answer.top_p < 1:
        warpers.append(TopPLogitsWarper(s.answer.top_p))
    if s.answer.min_p:
        warpers.append(MinPLogitsWarper(s.answer.min_p))
    none = torch.empty((1, 0), dtype=torch.long)
    return torch.softmax(warpers(none, scores[None].clone())[0].double(), -1)


@pytest.mark.parametrize("spread", [0.3, 3.0, 9.0])
@pytest.mark.parametrize("warped", WARPED)
def test_the_warped_distribution_is_that_of_transformers(warped: Settings, spread: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (97, 40_000):
        scores = torch.randn(size, generator=generator) * spread
        wanted = by_transformers(warped, scores)
        ours = distribution(warped, scores)
        # Sums of 40,000 probabilities in float32 err by 1e-6: a token just there may go either way.
        differ = (ours > 0) != (wanted > 1e-38)
        assert float(wanted[differ].sum() + ours[differ].sum()) < 2e-5
        assert int(differ[wanted > 1e-6].sum()) <= 1
        assert torch.allclose(ours, wanted, atol=2e-6, rtol=2e-4)


@pytest.mark.parametrize("warped", WARPED)
def test_of_tokens_that_tie_at_the_border_all_survive(warped: Settings) -> None:
    scores = torch.randn(500, generator=torch.Generator().manual_seed(1)).mul(4).round()
    kept = distribution(warped, scores) > 0
    assert kept.any()
    assert float(scores[kept].min()) > float(
        scores[~kept].max(dim=0).values if (~kept).any() else -1e9
    )
    assert bool((kept >= (by_transformers(warped, scores) > 0)).all())


@pytest.mark.parametrize("warped", [Settings(), *WARPED])
def test_rows_together_give_the_tokens_of_each_row_alone(warped: Settings) -> None:
    """The form for devices that are not the CPU: all nodes at once, penalties of each path."""
    scores = torch.randn(9, 1500, generator=torch.Generator().manual_seed(2)) * 3
    tree = DraftTree((7, 8, 7, 9, 7, 5, 7), (-1, 0, -1, 1, 3, 0, 4))
    paths = [(), (7,), (7, 8), (7,), (7, 8, 9), (7, 8, 9, 7), (7, 5), (7, 8, 9, 7, 7)]
    for more in PENALTIES:
        alone, together = (Sampler(warped.replace(**more), [1, 2]) for _ in range(2))
        for said in ([], [1, 5], [7, 7, 600]):
            for sampler in (alone, together):
                sampler.commit(said)
            wanted = [alone.choose(row, path) for row, path in zip(scores, paths, strict=False)]
            assert together.choose_rows(scores, tree).tolist()[: len(paths)] == wanted


def test_numbers_are_those_of_splitmix64() -> None:
    """In plain Python, with the published first outputs for the seed 1234567."""
    state = 1234567
    out = []
    for _ in range(3):
        out.append(keyed_draw._mix(state))
        state += 0x9E3779B97F4A7C15
    assert out == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    mix = keyed_draw._mix
    for seed, position, level in ((0, 0, 0), (2**63 - 1, 131_071, 1), (5, 17, 1)):
        key = mix(mix(mix(seed) + position) + level)
        ids = torch.tensor([[0, 1, 511, 151_935]])
        keys = torch.from_numpy(keys_of(seed, [position])[level])
        found = keyed_draw._numbers(keys, ids)[0].tolist()
        for i, number in zip(ids[0].tolist(), found, strict=True):
            bits = mix((key + i * 0x9E3779B97F4A7C15) % 2**64) >> 12
            assert number == pytest.approx(-math.log((bits + 0.5) / 2**52), rel=1e-12)


def test_a_draw_follows_its_weights_over_blocks_and_in_them() -> None:
    """Chi-square over 30,000 positions, with tokens at both ends of blocks, and zeros."""
    weights = torch.zeros(3 * BLOCK + 7)
    places = [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 5, 3 * BLOCK, 3 * BLOCK + 6]
    shares = torch.tensor([0.3, 0.05, 0.15, 0.2, 0.1, 0.05, 0.15])
    weights[places] = shares * 7
    total = 30_000
    step = 1500
    counts = Counter[int]()
    for at in range(0, total, step):
        keys = map(torch.from_numpy, keys_of(11, range(at, at + step)))
        counts.update(draw(weights.expand(step, -1), *keys).tolist())
    assert set(counts) == set(places)
    wanted = (shares * total).tolist()
    statistic = sum((counts[p] - w) ** 2 / w for p, w in zip(places, wanted, strict=True))
    assert statistic < 22.5  # chi-square, 6 degrees of freedom: p = 0.001


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 700), st.integers(1, 40), st.integers(0, 5), st.booleans())
def test_the_highest_are_those_of_topk(blocks: int, k: int, more: int, infinite: bool) -> None:
    size = blocks * 13 + more
    scores = torch.rand(3, size, generator=torch.Generator().manual_seed(size)) - 0.5
    if infinite:
        scores[1, ::3] = -math.inf
    values, indices = highest(scores, k)
    assert torch.equal(values, scores.topk(min(k, size)).values)
    assert torch.equal(scores.gather(1, indices), values)
    assert all(len(set(row)) == min(k, size) for row in indices.tolist())
    assert best_tokens(scores).tolist() == scores.argmax(-1).tolist()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("warped", [Settings(), *WARPED])
def test_no_token_is_chosen_where_scores_are_no_numbers(warped: Settings, value: float) -> None:
    scores = torch.randn(600)
    scores[17] = value
    assert Sampler(warped, ()).choose(scores) == -1
    assert Sampler(warped, ()).choose(torch.full((600,), -math.inf)) == -1


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 39), max_size=30),
    st.integers(0, 30),
    st.integers(0, 30),
    st.sampled_from([0.7, 1.0, 1.3]),
    st.sampled_from([0.0, 0.4]),
)
def test_penalties_are_the_same_whatever_was_committed(
    said: list[int], prompt: int, committed: int, repetition: float, presence: float
) -> None:
    """Against counts of the whole text, for a text cut anywhere into prompt, output and path."""
    prompt = min(prompt, len(said))
    at = min(prompt + committed, len(said))
    penalties = Settings.of(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=0.2
    )
    sampler = Sampler(penalties, said[:prompt])
    for token in said[prompt:at]:
        sampler.commit([token])
    scores = torch.randn(40, generator=torch.Generator().manual_seed(len(said)))
    wanted = scores.clone()[None]
    if said:
        wanted = RepetitionPenaltyLogitsProcessor(repetition)(torch.tensor([said]), wanted)
    for token, times in Counter(said[prompt:]).items():
        wanted[0, token] -= presence + 0.2 * times
    assert sampler._penalties is not None
    for _ in range(2):  # a look ahead changes nothing
        for path in ([1, 1, 2], said[at:]):
            parts = map(torch.from_numpy, sampler._penalties.gather([Counter(path)]))
            found = sampler._penalties.penalize(scores[None], [*parts])
        assert torch.allclose(found, wanted, atol=1e-6)
    assert sampler.choose(scores, said[at:]) == int(wanted[0].argmax())


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-38, 1e-45, 5e-324])
@pytest.mark.parametrize("more", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_a_tiny_temperature_gives_the_greedy_token(
    temperature: float, more: dict[str, Any]
) -> None:
    scores = torch.tensor([30.0, -1.0, 2.0, -torch.inf])
    sampler = Sampler(Settings.of(temperature=temperature, **more), [1, 2])
    assert sampler.choose(scores) == 0
    mask = np.array([False, True, True, True])
    assert sampler.choose(scores, mask=mask) == 2


@pytest.mark.parametrize("warped", [Settings(), Settings.of(temperature=0.9, top_p=0.9)])
def test_a_draft_model_catches_up_with_whatever_was_accepted(warped: Settings) -> None:
    """What it says is what a new one says of the same text."""
    rng = random.Random(1)
    old = AssistantModel(make_target(), warped)
    prompt = prompts(1, seed=3)[0]
    old.begin(prompt)
    log = TokenLog(prompt)
    for _ in range(12):
        drafts = old.draft(log, 4)
        new = AssistantModel(make_target(), warped)
        new.begin(prompt)
        assert new.draft(log, 4) == drafts
        log.emit([*drafts[: rng.randint(0, 4)], rng.randrange(97)][: rng.randint(1, 5)])
