"""Exact passes with as many rows as they need: plain tokens and bits, or they are not used."""

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

# Rows of whole vectors: others are found at once, which the first tests leave out.
WHOLE = {"head_dim": 32, "intermediate_size": 128}


@pytest.fixture
def tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that round so coarsely that the ends of vectors do not show may have such ends."""
    monkeypatch.setattr(
        "ngtcli.decoding.exactness.whole_vectors.has_two_formulas", lambda *_: False
    )


@pytest.fixture
def threads() -> Iterator[None]:
    """The number of threads is as before when a test ends."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


FLOATS = (torch.float32, torch.bfloat16, torch.float16)
ACTIVATIONS = (nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Mish(), nn.Softplus(), nn.ELU())


@cache
def telling(function: nn.Module, dtype: torch.dtype) -> torch.Tensor:
    """Numbers for which a function's two formulas differ, or any where none do."""
    if dtype == torch.float32:
        some = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0)) * 4
    else:
        some = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
        some = some[some.isfinite()]
    single = function(torch.stack((some, some), 1)[:, 0])
    found = some[function(some) != single]
    assert has_two_formulas(function, dtype) >= (len(found) > 0)
    return found if len(found) else some


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
    function: nn.Module, dtype: torch.dtype, count: int, rows: int, width: int, seed: int
) -> None:
    """All its numbers tell formulas apart; so torch's own way of sharing them is tried."""
    torch.set_num_threads(count)
    numbers, source = telling(function, dtype), torch.Generator().manual_seed(seed)
    given = numbers[torch.randint(len(numbers), (1, rows, width), generator=source)]
    whole = WholeVectors(function)
    true = torch.cat([whole(given[:, at : at + 1]) for at in range(rows)], 1)
    assert torch.equal(whole(given), true)
    turned = given.transpose(1, 2).contiguous().transpose(1, 2)  # not one number after another
    assert torch.equal(whole(turned), true)
    if width % 64 == 0:
        assert torch.equal(function(given[:, :1]), true[:, :1])


@pytest.mark.usefixtures("threads")
def test_functions_that_are_computed_of_parts_of_vectors_are_found() -> None:
    for count, width, ragged in ((1, 64, False), (1, 65, True), (3, 65_536 + 64, True)):
        torch.set_num_threads(count)
        given = torch.zeros(width)
        with RaggedFunctions() as seen:
            (given + given).abs().neg().mul_(2).to(torch.bfloat16).sum()
            WholeVectors(nn.SiLU())(given)
        assert not seen.found
        with seen:
            nn.functional.silu(given)
        assert seen.found == (ragged and has_two_formulas(nn.functional.silu, torch.float32))


class Rare(nn.Linear):
    """Gives a lone row another bit in one number of some thousands."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        out = super().forward(given).double().mul(4096).round().div(4096)  # the same on any machine
        odd = given.shape[1] == 1 and (out * 4096).long() % 4001 == 0
        return (out + odd / 4096 if given.shape[1] == 1 else out).to(given.dtype)


def test_a_layer_that_seldom_shows_the_number_of_rows_is_found() -> None:
    layer = Rare(16, 24).double()
    assert not layers_are_invariant(layer, [1, 2, 4, 36])
    assert layers_are_invariant(layer, [4, 8, 36])
    for shape in ((2, 3, 4), (3, 4)):  # of experts, and of a layer of another kind
        unknown = nn.Module()
        unknown.experts = nn.Parameter(torch.zeros(shape))
        assert not layers_are_invariant(unknown, [4, 8])


class Router(nn.Module):
    """Chooses of two experts one by a weight of its own, the softmax over the last dimension."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self._layer = layer.weight, (layer,)
        self.down_proj_bias = nn.Parameter(torch.zeros(3, 4, dtype=torch.double))  # only added

    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = self._layer[0](given[None])[0].softmax(1)
        return scores, *scores.topk(1)


def test_what_chooses_experts_is_tried_as_a_layer() -> None:
    router = Router(Rare(16, 24).double())
    assert not layers_are_invariant(router, [1, 2, 4, 36])
    assert layers_are_invariant(router, [4, 8, 36])
    router.other = nn.Parameter(torch.zeros(3, 4))
    assert not layers_are_invariant(router, [4, 8, 36])


class Odd(nn.Linear):
    """Gives other numbers in passes of `odd` rows."""

    odd = 0

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return super().forward(given) * 0 + (given.shape[1] == self.odd)


@pytest.mark.parametrize(("kind", "size"), [(nn.Linear, 24), (Odd, 23)])
def test_each_kind_and_size_of_layer_is_given_passes_of_each_size(kind: Any, size: int) -> None:
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
def test_a_size_holds_its_rows(rows: int, more: int, least: int) -> None:
    wanted = PassRows(rows + more + 3, least)
    size = wanted.size("cpu", rows)
    assert max(rows, least) <= size <= wanted.max
    assert size == wanted.max or size <= 32 or not 0 < size % 32 < 4


class Fewer:
    """Makes scores depend on the rows of a pass where these are fewer than `least`."""

    def __init__(self, model: TargetModel, least: int) -> None:
        self._score, self._least = model.score, least
        model.score = self  # type: ignore[method-assign]

    def __call__(self, layout: Any) -> list[torch.Tensor]:
        return [scores + 0.125 * (layout.rows < self._least) for scores in self._score(layout)]


@pytest.mark.usefixtures("tails")
@pytest.mark.parametrize(
    ("least", "wanted"), [(1, PassRows(36, 1)), (4, PassRows(36, 4)), (8, PassRows.fixed(32))]
)
def test_passes_have_the_rows_they_need_where_these_do_not_show(
    least: int, wanted: PassRows
) -> None:
    model = rounded(make_hf("llama"))
    Fewer(model, least)
    assert Exactness(model).numerics("on", 32, 100) == Numerics(wanted)


def test_auto_takes_passes_of_any_size_in_half_precision_where_they_are_exact() -> None:
    model = bfloat16(make_hf("llama", **WHOLE))
    exactness = Exactness(model)
    rows = exactness.any_number(32, 100)
    assert rows is None or (rows.max == 36 and rows.min in (1, 4))
    assert exactness.numerics("auto", 32, 100) == Numerics(rows)
    assert exactness.numerics("off", 32, 100) == NOT_EXACT


def test_half_precision_that_a_trial_chose_is_exact_at_the_price_of_rows() -> None:
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
    """So that rows which were kept in another cache count in exact passes, too."""
    sizes = {"num_attention_heads": 12, "num_key_value_heads": 3, "head_dim": 32}
    hf = make_hf("llama", hidden_size=96, max_position_embeddings=4096, **sizes).to(dtype)
    hf.set_attn_implementation(attention)
    use_grouped(hf)
    model = target_model(hf, Tokenizer(FakeBackend()), attention)
    model.context, found = 4096, []
    ids = random.Random(0).choices(range(97), k=400)
    for capacity in (600, 1300, 3500):
        model.start(capacity, Numerics(PassRows.fixed(8)))
        model.prefill(ids, 256)
        found.append([rows.clone() for rows in model.cache.rows()])
    assert all(torch.equal(a, b) for other in found for a, b in zip(found[0], other, strict=True))


# Families with their heads of queries and of keys, packed or not.
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
def test_drafts_of_any_form_change_no_token_and_no_bit_of_a_kept_row(
    kind: tuple[str, int, int, bool], seed: int, length: int, most: int, sampling: Settings
) -> None:
    """In bfloat16, in passes that have as many rows as they need, against plain decoding."""
    model, numerics = bfloat16_model(*kind)
    if not numerics.is_exact:  # this machine's kernels give other bits
        return
    rng = random.Random(seed)
    prompt = [rng.randrange(97) for _ in range(length)]
    limits = Limits(24, most)
    truth, text = run(model, make_drafter("none"), prompt, sampling, limits, numerics)
    kept = [states.clone() for states in model.cache.rows()]
    found, found_text = run(model, Guessing(truth.output, seed), prompt, sampling, limits, numerics)
    assert found.output == truth.output
    assert found_text == text
    assert found.exact
    for one, other in zip(kept, model.cache.rows(), strict=True):
        same = min(one.shape[2], other.shape[2])
        assert same >= length
        assert torch.equal(one[:, :, :same], other[:, :, :same])


@cache
def bfloat16_model(
    family: str, of_queries: int, of_keys: int, packed: bool
) -> tuple[TargetModel, Numerics]:
    """The model, and the numerics of an answer with up to 32 drafts."""
    changes = {"num_attention_heads": of_queries, "hidden_size": 32 * of_queries, **WHOLE}
    hf = make_hf(family, num_key_value_heads=of_keys, **changes)
    hf.to(torch.bfloat16)
    if packed:
        pack_layers(hf)
    use_grouped(hf)
    model = target_model(hf, Tokenizer(FakeBackend()), family)
    model.end_ids = frozenset()
    return model, Exactness(model).numerics("auto", 32, 160)
