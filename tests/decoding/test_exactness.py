"""Exact forward passes of variable size: the tokens and bits of plain decoding, or not used."""

import random
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ngtcli.config import Settings
from ngtcli.decoding.attention import use_grouped
from ngtcli.decoding.exactness.choice import Exactness
from ngtcli.decoding.exactness.layers import layers_are_invariant
from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.exactness.whole_vectors import (
    RaggedFunctions,
    WholeVectors,
    has_two_formulas,
)
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.model import Origin, TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.drafting.tree import chain
from ngtcli.models.tokenizer import Tokenizer
from tests.support.helpers import FakeBackend, sample_cases
from tests.support.rounding import SAMPLINGS, Guessing, rounded, run
from tests.support.tiny_models import make_drafter, make_hf, pack_layers

pytestmark = pytest.mark.numeric

# Rows that fill whole vectors of the CPU; models with other rows are rejected at once.
WHOLE = {"head_dim": 32, "intermediate_size": 128}


@pytest.fixture
def tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow models whose rows do not fill whole vectors; they round too coarsely for it to show."""
    monkeypatch.setattr(
        "ngtcli.decoding.exactness.whole_vectors.has_two_formulas", lambda *_: False
    )


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore the number of threads when a test ends."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


FLOATS = (torch.float32, torch.bfloat16, torch.float16)
ACTIVATIONS = (nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Mish(), nn.Softplus(), nn.ELU())


@cache
def revealing_values(function: nn.Module, dtype: torch.dtype) -> torch.Tensor:
    """Values for which the two formulas of a function differ, or any values if none do."""
    if dtype == torch.float32:
        numbers = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0)) * 4
    else:
        numbers = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
        numbers = numbers[numbers.isfinite()]
    single_results = function(torch.stack((numbers, numbers), 1)[:, 0])
    revealing = numbers[function(numbers) != single_results]
    assert has_two_formulas(function, dtype) >= (len(revealing) > 0)
    return revealing if len(revealing) else numbers


@pytest.mark.usefixtures("threads")
@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(ACTIVATIONS),
    st.sampled_from(FLOATS),
    st.integers(1, 9),
    st.integers(1, 70),
    st.sampled_from([64, 65, 1152, 4864, 6912]),
    st.integers(0, 2**32),
)
def test_a_row_of_an_activation_function_has_the_same_bits_alone_and_among_others(
    function: nn.Module, dtype: torch.dtype, thread_count: int, rows: int, width: int, seed: int
) -> None:
    """For each value the two formulas differ, so that the way torch splits the work shows."""
    torch.set_num_threads(thread_count)
    values = revealing_values(function, dtype)
    generator = torch.Generator().manual_seed(seed)
    batch = values[torch.randint(len(values), (1, rows, width), generator=generator)]
    whole_vectors = WholeVectors(function)
    expected = torch.cat([whole_vectors(batch[:, row : row + 1]) for row in range(rows)], 1)
    assert torch.equal(whole_vectors(batch), expected)
    strided = batch.transpose(1, 2).contiguous().transpose(1, 2)  # not contiguous in memory
    assert torch.equal(whole_vectors(strided), expected)
    if width % 64 == 0:
        assert torch.equal(function(batch[:, :1]), expected[:, :1])


@pytest.mark.usefixtures("threads")
def test_functions_that_compute_parts_of_vectors_are_detected() -> None:
    for thread_count, width, is_ragged in ((1, 64, False), (1, 65, True), (3, 65_536 + 64, True)):
        torch.set_num_threads(thread_count)
        values = torch.zeros(width)
        with RaggedFunctions() as watch:
            (values + values).abs().neg().mul_(2).to(torch.bfloat16).sum()
            WholeVectors(nn.SiLU())(values)
        assert not watch.found
        with watch:
            nn.functional.silu(values)
        assert watch.found == (is_ragged and has_two_formulas(nn.functional.silu, torch.float32))


class RarelyDifferent(nn.Linear):
    """A linear layer that changes one bit in about four thousand if it gets a single row."""

    def forward(self, activations: torch.Tensor) -> torch.Tensor:
        out = super().forward(activations).double()
        out = out.mul(4096).round().div(4096)  # so that it is the same on any machine
        if activations.shape[1] == 1:
            is_changed = (out * 4096).long() % 4001 == 0
            out = out + is_changed / 4096
        return out.to(activations.dtype)


def test_a_layer_whose_bits_rarely_depend_on_the_number_of_rows_is_detected() -> None:
    layer = RarelyDifferent(16, 24).double()
    assert not layers_are_invariant(layer, [1, 2, 4, 36])
    assert layers_are_invariant(layer, [4, 8, 36])
    for shape in ((2, 3, 4), (3, 4)):  # of experts, and of a layer of another kind
        unknown = nn.Module()
        unknown.experts = nn.Parameter(torch.zeros(shape))
        assert not layers_are_invariant(unknown, [4, 8])


class Router(nn.Module):
    """A router with a weight of its own: softmax over the experts, of which it chooses one."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight
        self._layer = (layer,)
        self.down_proj_bias = nn.Parameter(torch.zeros(3, 4, dtype=torch.double))  # only added

    def forward(self, activations: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = self._layer[0](activations[None])[0].softmax(1)
        return scores, *scores.topk(1)


def test_a_router_is_tested_like_a_layer() -> None:
    router = Router(RarelyDifferent(16, 24).double())
    assert not layers_are_invariant(router, [1, 2, 4, 36])
    assert layers_are_invariant(router, [4, 8, 36])
    router.other = nn.Parameter(torch.zeros(3, 4))
    assert not layers_are_invariant(router, [4, 8, 36])


class Odd(nn.Linear):
    """A linear layer whose result is different in forward passes of `odd` rows."""

    odd = 0

    def forward(self, activations: torch.Tensor) -> torch.Tensor:
        return super().forward(activations) * 0 + (activations.shape[1] == self.odd)


@pytest.mark.parametrize(("kind", "size"), [(nn.Linear, 24), (Odd, 23)])
def test_each_kind_and_size_of_layer_is_tested_with_each_number_of_rows(
    kind: Any, size: int
) -> None:
    last = Odd(16, 24)
    layers = nn.Sequential(kind(16, size), last).double()
    assert layers_are_invariant(layers[1:], [4, 8, 36])
    for last.odd in (4, 8, 36):
        assert not layers_are_invariant(layers, [4, 8, 36])


def bfloat16(hf: Any) -> TargetModel:
    return target_model(hf.to(torch.bfloat16), Tokenizer(FakeBackend()), "bfloat16")


def test_sizes_leave_no_block_with_few_rows_and_capacity_is_that_of_the_largest() -> None:
    model = rounded(make_hf("llama", max_position_embeddings=900))
    model.context = 900
    model.start(300, Numerics(PassRows(36, 4)))
    model.prefill([1] * 225)
    shapes = []
    for nodes in (0, 2, 8, 31, 32, 35):
        layout = model.lay_out([(1, chain([2] * nodes))])
        shapes.append((layout.rows, layout.capacity))
        assert len(model.score(layout)[0]) == nodes + 1
    assert shapes == [(rows, 320) for rows in (4, 4, 12, 32, 36, 36)]
    with pytest.raises(ValueError, match="37 rows in a pass of 36"):
        model.lay_out([(1, chain([2] * 36))])


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from([1, 4]))
def test_a_size_holds_its_rows(rows: int, spare: int, min_rows: int) -> None:
    pass_rows = PassRows(rows + spare + 3, min_rows)
    size = pass_rows.size("cpu", rows)
    assert max(rows, min_rows) <= size <= pass_rows.max
    assert size == pass_rows.max or size <= 32 or not 0 < size % 32 < 4


class SizeDependent:
    """Make a model's logits depend on the size of forward passes of fewer rows than `min_rows`."""

    def __init__(self, model: TargetModel, min_rows: int) -> None:
        self._score = model.score
        self._min_rows = min_rows
        model.score = self  # type: ignore[method-assign]

    def __call__(self, layout: Any) -> list[torch.Tensor]:
        return [scores + 0.125 * (layout.rows < self._min_rows) for scores in self._score(layout)]


@pytest.mark.usefixtures("tails")
@pytest.mark.parametrize(
    ("min_rows", "expected"), [(1, PassRows(36, 1)), (4, PassRows(36, 4)), (8, PassRows.fixed(32))]
)
def test_passes_have_the_fewest_rows_that_change_no_bit(min_rows: int, expected: PassRows) -> None:
    model = rounded(make_hf("llama"))
    SizeDependent(model, min_rows)
    assert Exactness(model).numerics("on", 32, 100) == Numerics(expected)


def test_auto_takes_passes_of_any_size_in_half_precision_where_they_are_exact() -> None:
    model = bfloat16(make_hf("llama", **WHOLE))
    exactness = Exactness(model)
    rows = exactness.any_number(32, 100)
    assert rows is None or (rows.max == 36 and rows.min in (1, 4))
    assert exactness.numerics("auto", 32, 100) == Numerics(rows)
    assert exactness.numerics("off", 32, 100) == NOT_EXACT


def test_half_precision_chosen_by_rule_is_exact_in_passes_of_fixed_size() -> None:
    model = bfloat16(make_hf("llama"))
    exactness = Exactness(model)
    with patch.object(exactness, "any_number", return_value=None):
        assert exactness.numerics("auto", 31, 100) == NOT_EXACT
        with patch.object(exactness, "_is_exact", return_value=True):
            model.origin = Origin(half_by_rule=True)
            assert exactness.numerics("auto", 31, 100) == Numerics(PassRows.fixed(32))
            with patch.object(TargetModel, "takes_drafts", False):
                assert exactness.numerics("on", 31, 100) == NOT_EXACT
    single = target_model(make_hf("llama"), Tokenizer(FakeBackend()), "float32")
    single.origin = Origin(dtype_why="it is quicker")
    assert Exactness(single).numerics("auto", 31, 100) == NOT_EXACT


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_rows_of_a_prompt_have_the_same_bits_in_a_cache_of_any_size(
    attention: str, dtype: torch.dtype
) -> None:
    """Exact forward passes may therefore reuse rows from a cache of another size."""
    sizes = {"num_attention_heads": 12, "num_key_value_heads": 3, "head_dim": 32}
    hf = make_hf("llama", hidden_size=96, max_position_embeddings=4096, **sizes).to(dtype)
    hf.set_attn_implementation(attention)
    use_grouped(hf)
    model = target_model(hf, Tokenizer(FakeBackend()), attention)
    model.context = 4096
    caches = []
    ids = random.Random(0).choices(range(97), k=400)
    for capacity in (600, 1300, 3500):
        model.start(capacity, Numerics(PassRows.fixed(8)))
        model.prefill(ids, 256)
        caches.append([rows.clone() for rows in model.cache.rows()])
    for cached_rows in caches[1:]:
        for expected, rows in zip(caches[0], cached_rows, strict=True):
            assert torch.equal(rows, expected)


# Family, query heads, key heads, and whether the layers are packed.
KINDS = [
    ("llama", 4, 4, False),
    ("llama", 7, 1, True),
    ("qwen2", 4, 2, True),
    ("mistral-sliding", 4, 1, False),
    ("gemma2-sliding", 4, 2, False),
    ("gemma3-sliding", 4, 4, True),
]


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(sample_cases(KINDS)),
    st.integers(0, 2**32),
    st.integers(1, 60),
    st.sampled_from([3, 8, 20, 32]),
    SAMPLINGS,
)
def test_drafts_of_any_form_change_no_token_and_no_bit_of_a_cached_row(
    kind: tuple[str, int, int, bool], seed: int, length: int, max_draft: int, sampling: Settings
) -> None:
    """In bfloat16, in forward passes of variable size, compared with plain decoding."""
    model, numerics = bfloat16_model(*kind)
    if not numerics.is_exact:  # this machine's kernels give other bits
        return
    rng = random.Random(seed)
    prompt = [rng.randrange(97) for _ in range(length)]
    limits = Limits(24, max_draft)
    plain, plain_text = run(model, make_drafter("none"), prompt, sampling, limits, numerics)
    plain_rows = [states.clone() for states in model.cache.rows()]
    drafted, drafted_text = run(
        model, Guessing(plain.output, seed), prompt, sampling, limits, numerics
    )
    assert drafted.output == plain.output
    assert drafted_text == plain_text
    assert drafted.exact
    for before, after in zip(plain_rows, model.cache.rows(), strict=True):
        common = min(before.shape[2], after.shape[2])
        assert common >= length
        assert torch.equal(before[:, :, :common], after[:, :, :common])


@cache
def bfloat16_model(
    family: str, query_heads: int, key_heads: int, packed: bool
) -> tuple[TargetModel, Numerics]:
    """The model, and the numerics of an answer with up to 32 drafts."""
    changes = {"num_attention_heads": query_heads, "hidden_size": 32 * query_heads, **WHOLE}
    hf = make_hf(family, num_key_value_heads=key_heads, **changes)
    hf.to(torch.bfloat16)
    if packed:
        pack_layers(hf)
    use_grouped(hf)
    model = target_model(hf, Tokenizer(FakeBackend()), family)
    model.end_ids = frozenset()
    return model, Exactness(model).numerics("auto", 32, 160)
