"""Attention over grouped queries: as over keys repeated for every head, without the copies."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ngtcli.decoding.attention import GROUPED, attend, grouped, use_grouped
from ngtcli.decoding.probe import target_model
from ngtcli.models.tokenizer import Tokenizer
from tests.support.helpers import FakeBackend
from tests.support.tiny_models import (
    FAMILIES,
    Scripted,
    decode,
    drafts_of,
    generate,
    make_hf,
    prompts,
)

pytestmark = pytest.mark.numeric

CLOSE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


class Layer:
    """What attention reads of the module that calls it."""

    is_causal = True

    def __init__(self, groups: int) -> None:
        self.num_key_value_groups = groups


def states(groups: int, rows: int, length: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Queries, keys and values of two key heads, and a mask under which each row sees itself."""
    torch.manual_seed(rows)
    out = [
        torch.randn(1, heads, n, 16).to(dtype)
        for heads, n in ((2 * groups, rows), (2, length), (2, length))
    ]
    hidden = torch.rand(1, 1, rows, length) < 0.5
    hidden[..., range(rows), range(rows)] = False
    return [
        *out,
        torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min),
    ]


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize("rows", [2, 8, 9, 33, 64])
@pytest.mark.parametrize("groups", [2, 4, 7])
def test_grouped_attention_equals_attention_over_repeated_keys(
    groups: int, rows: int, dtype: torch.dtype
) -> None:
    query, key, value, mask = states(groups, rows, 80, dtype)
    result = grouped(query, key, value, mask, 0.3).double()
    scores = 0.3 * query.double() @ key.double().repeat_interleave(groups, 1).transpose(2, 3)
    weights = torch.softmax(scores + mask.double(), -1)
    expected = weights @ value.double().repeat_interleave(groups, 1)
    assert (result - expected).abs().max() < CLOSE[dtype]
    with_boolean_mask = grouped(query, key, value, mask == 0, 0.3).double()
    assert (with_boolean_mask - expected).abs().max() < CLOSE[dtype]


def repeated(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """torch's own attention, the keys of a group copied for each of its heads."""
    groups = query.shape[1] // key.shape[1]
    keys = key.repeat_interleave(groups, 1)
    values = value.repeat_interleave(groups, 1)
    return scaled_dot_product_attention(query, keys, values, mask, scale=scale)


def bits_of_a_row_stay(attention: Any, groups: int, rows: int, dtype: torch.dtype) -> bool:
    """Return whether a row has the same bits at each of four positions, among other rows."""
    query, key, value, mask = states(groups, rows, 256, dtype)
    results = []
    for position in (0, 1, rows // 2, rows - 1):
        queries, _, _, masks = states(groups, rows, 256, dtype)
        queries = queries.flip(2)
        queries[:, :, position] = query[:, :, 0]
        masks[:, :, position] = mask[:, :, 0]
        results.append(attention(queries, key, value, masks, 0.3)[:, :, position])
    return all(torch.equal(results[0], result) for result in results)


@pytest.mark.parametrize("rows", [4, 8, 32, 64])
@pytest.mark.parametrize("groups", [4, 7])
def test_the_bits_of_a_row_depend_on_its_place_and_neighbours_no_more_than_torchs(
    groups: int, rows: int
) -> None:
    """In float32 torch's own depend on the place with MKL's kernels for AVX2."""
    for dtype in CLOSE:
        if bits_of_a_row_stay(repeated, groups, rows, dtype):
            assert bits_of_a_row_stay(grouped, groups, rows, dtype)


@pytest.mark.parametrize(
    "special",
    [
        {},
        {"position_bias": torch.ones(1, 8, 5, 5)},
        {"dropout": 0.0, "is_causal": True},
    ],
)
def test_special_arguments_are_left_to_the_original_attention(special: dict[str, Any]) -> None:
    query, key, value, mask = states(4, 5, 5)
    layer: Any = Layer(4)
    for attention_mask in (None, mask, mask.expand(1, 8, 5, 5)):
        result = attend(layer, query, key, value, attention_mask, scaling=0.3, **special)[0]
        expected = sdpa_attention_forward(
            layer, query, key, value, attention_mask, scaling=0.3, **special
        )[0]
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="softcap"):
        attend(layer, query, key, value, mask, scaling=0.3, softcap=30.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_are_verified_with_the_tokens_of_generate(family: str) -> None:
    hf = make_hf(family)
    truth = {tuple(p): generate(hf, p, 24) for p in prompts(4)}
    assert use_grouped(hf) == (family != "gemma2-sliding")  # its softcap is for eager attention
    model = target_model(hf, Tokenizer(FakeBackend()), family)
    for prompt, expected in truth.items():
        assert generate(hf, list(prompt), 24) == expected
        drafter = Scripted(drafts_of(truth, wrong=2))
        assert decode(model, drafter, list(prompt), max_tokens=24).output == expected


def test_models_without_groups_keep_their_attention() -> None:
    single = make_hf("llama", num_key_value_heads=4)
    assert not use_grouped(single)
    assert single.config._attn_implementation == "sdpa"
    hf = make_hf("llama")
    assert use_grouped(hf)
    assert hf.config._attn_implementation == GROUPED
