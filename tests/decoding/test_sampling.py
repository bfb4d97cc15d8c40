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
        logits = torch.randn(size, generator=generator) * spread
        expected = by_transformers(warped, logits)
        probabilities = distribution(warped, logits)
        # Sums of 40,000 probabilities in float32 err by 1e-6: a token just there may go either way.
        differ = (probabilities > 0) != (expected > 1e-38)
        assert float(expected[differ].sum() + probabilities[differ].sum()) < 2e-5
        assert int(differ[expected > 1e-6].sum()) <= 1
        assert torch.allclose(probabilities, expected, atol=2e-6, rtol=2e-4)


@pytest.mark.parametrize("warped", WARPED)
def test_all_tokens_that_tie_at_the_border_survive(warped: Settings) -> None:
    logits = torch.randn(500, generator=torch.Generator().manual_seed(1)).mul(4).round()
    survives = distribution(warped, logits) > 0
    assert survives.any()
    if not survives.all():
        assert float(logits[survives].min()) > float(logits[~survives].max())
    assert bool((survives >= (by_transformers(warped, logits) > 0)).all())


@pytest.mark.parametrize("warped", [Settings(), *WARPED])
def test_choosing_all_rows_at_once_equals_choosing_them_one_by_one(warped: Settings) -> None:
    """Devices other than the CPU sample all nodes at once, each with its path's penalties."""
    logits = torch.randn(9, 1500, generator=torch.Generator().manual_seed(2)) * 3
    tree = DraftTree((7, 8, 7, 9, 7, 5, 7), (-1, 0, -1, 1, 3, 0, 4))
    paths = [(), (7,), (7, 8), (7,), (7, 8, 9), (7, 8, 9, 7), (7, 5), (7, 8, 9, 7, 7)]
    for penalties in PENALTIES:
        alone, in_one_call = (Sampler(warped.replace(**penalties), [1, 2]) for _ in range(2))
        for committed in ([], [1, 5], [7, 7, 600]):
            for sampler in (alone, in_one_call):
                sampler.commit(committed)
            expected = [alone.choose(row, path) for row, path in zip(logits, paths, strict=False)]
            assert in_one_call.choose_rows(logits, tree).tolist()[: len(paths)] == expected


def test_random_numbers_are_those_of_splitmix64() -> None:
    """Compared with plain Python, which gives the published first outputs for the seed 1234567."""
    state = 1234567
    outputs = []
    for _ in range(3):
        outputs.append(keyed_draw._mix(state))
        state += 0x9E3779B97F4A7C15
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    mix = keyed_draw._mix
    for seed, position, level in ((0, 0, 0), (2**63 - 1, 131_071, 1), (5, 17, 1)):
        key = mix(mix(mix(seed) + position) + level)
        token_ids = torch.tensor([[0, 1, 511, 151_935]])
        keys = torch.from_numpy(keys_of(seed, [position])[level])
        numbers = keyed_draw._numbers(keys, token_ids)[0].tolist()
        for i, number in zip(token_ids[0].tolist(), numbers, strict=True):
            bits = mix((key + i * 0x9E3779B97F4A7C15) % 2**64) >> 12
            assert number == pytest.approx(-math.log((bits + 0.5) / 2**52), rel=1e-12)


def test_a_draw_follows_its_weights_over_blocks_and_in_them() -> None:
    """Chi-square over 30,000 positions, with tokens at both ends of blocks, and zeros."""
    weights = torch.zeros(3 * BLOCK + 7)
    tokens = [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 5, 3 * BLOCK, 3 * BLOCK + 6]
    shares = torch.tensor([0.3, 0.05, 0.15, 0.2, 0.1, 0.05, 0.15])
    weights[tokens] = shares * 7
    total = 30_000
    batch_size = 1500
    counts = Counter[int]()
    for start in range(0, total, batch_size):
        keys = map(torch.from_numpy, keys_of(11, range(start, start + batch_size)))
        counts.update(draw(weights.expand(batch_size, -1), *keys).tolist())
    assert set(counts) == set(tokens)
    expected = (shares * total).tolist()
    statistic = sum((counts[p] - w) ** 2 / w for p, w in zip(tokens, expected, strict=True))
    assert statistic < 22.5  # chi-square, 6 degrees of freedom: p = 0.001


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 700), st.integers(1, 40), st.integers(0, 5), st.booleans())
def test_the_highest_are_those_of_topk(blocks: int, k: int, remainder: int, infinite: bool) -> None:
    size = blocks * 13 + remainder
    logits = torch.rand(3, size, generator=torch.Generator().manual_seed(size)) - 0.5
    if infinite:
        logits[1, ::3] = -math.inf
    values, indices = highest(logits, k)
    assert torch.equal(values, logits.topk(min(k, size)).values)
    assert torch.equal(logits.gather(1, indices), values)
    assert all(len(set(row)) == min(k, size) for row in indices.tolist())
    assert best_tokens(logits).tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("warped", [Settings(), *WARPED])
def test_no_token_is_chosen_where_logits_are_not_numbers(warped: Settings, value: float) -> None:
    logits = torch.randn(600)
    logits[17] = value
    assert Sampler(warped, ()).choose(logits) == -1
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
    tokens: list[int], prompt_length: int, committed: int, repetition: float, presence: float
) -> None:
    """Compared with counts over all tokens, which are cut anywhere into prompt, output and path."""
    prompt_length = min(prompt_length, len(tokens))
    committed_end = min(prompt_length + committed, len(tokens))
    penalties = Settings.of(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=0.2
    )
    sampler = Sampler(penalties, tokens[:prompt_length])
    for token in tokens[prompt_length:committed_end]:
        sampler.commit([token])
    logits = torch.randn(40, generator=torch.Generator().manual_seed(len(tokens)))
    expected = logits.clone()[None]
    if tokens:
        expected = RepetitionPenaltyLogitsProcessor(repetition)(torch.tensor([tokens]), expected)
    for token, count in Counter(tokens[prompt_length:]).items():
        expected[0, token] -= presence + 0.2 * count
    assert sampler._penalties is not None
    for _ in range(2):  # computing penalties changes no count
        for path in ([1, 1, 2], tokens[committed_end:]):
            parts = map(torch.from_numpy, sampler._penalties.gather([Counter(path)]))
            penalized = sampler._penalties.penalize(logits[None], [*parts])
        assert torch.allclose(penalized, expected, atol=1e-6)
    assert sampler.choose(logits, tokens[committed_end:]) == int(expected[0].argmax())


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-38, 1e-45, 5e-324])
@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_a_tiny_temperature_gives_the_greedy_token(
    temperature: float, options: dict[str, Any]
) -> None:
    logits = torch.tensor([30.0, -1.0, 2.0, -torch.inf])
    sampler = Sampler(Settings.of(temperature=temperature, **options), [1, 2])
    assert sampler.choose(logits) == 0
    mask = np.array([False, True, True, True])
    assert sampler.choose(logits, mask=mask) == 2


@pytest.mark.parametrize("warped", [Settings(), Settings.of(temperature=0.9, top_p=0.9)])
def test_a_draft_model_catches_up_with_whatever_was_accepted(warped: Settings) -> None:
    """It drafts what a fresh one drafts after the same tokens."""
    rng = random.Random(1)
    assistant = AssistantModel(make_target(), warped)
    prompt = prompts(1, seed=3)[0]
    assistant.begin(prompt)
    log = TokenLog(prompt)
    for _ in range(12):
        drafts = assistant.draft(log, 4)
        fresh = AssistantModel(make_target(), warped)
        fresh.begin(prompt)
        assert fresh.draft(log, 4) == drafts
        log.emit([*drafts[: rng.randint(0, 4)], rng.randrange(97)][: rng.randint(1, 5)])
