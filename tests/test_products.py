"""Attention by matrix products: against float64, and row by row."""

from itertools import pairwise

import pytest
import torch
from helpers import make_hf
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ngtcli.decode import attention, products
from ngtcli.decode.attention import FOLDED, PRODUCTS, grouped, use_grouped
from ngtcli.decode.products import Products, by_products, try_products

HALVES = [torch.bfloat16, torch.float16]
States = tuple[Tensor, Tensor, Tensor, Tensor]


def states(
    dtype: torch.dtype, groups: int, of_keys: int, rows: int, length: int, widths: tuple[int, int],
    size: float = 1.0, hidden: float = 0.4,
) -> States:  # fmt: skip
    """Queries, keys, values and a mask under which each row sees one place at least."""
    torch.manual_seed(rows * length)
    width, of_values = widths
    query = (size * torch.randn(1, groups * of_keys, rows, width)).to(dtype)
    key, value = (torch.randn(1, of_keys, length, w).to(dtype) for w in (width, of_values))
    seen = torch.rand(1, 1, rows, length) >= hidden
    seen[0, 0, range(rows), torch.randint(length, (rows,))] = True
    return query, key, value, torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)


def true(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    keys, values = (t.double().repeat_interleave(groups, 1) for t in (key, value))
    scores = scale * query.double() @ keys.transpose(2, 3) + mask.double()
    return scores.softmax(-1) @ values


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@settings(max_examples=60)
@given(
    st.sampled_from(HALVES), st.integers(1, 7), st.integers(1, 4), st.integers(1, 40),
    st.integers(1, 700), st.tuples(*2 * [st.integers(1, 80)]), st.floats(0.1, 8.0),
    st.sampled_from([0.0, 0.4, 0.99]),
)  # fmt: skip
def test_it_is_attention(
    dtype: torch.dtype, groups: int, of_keys: int, rows: int, length: int,
    widths: tuple[int, int], size: float, hidden: float,
) -> None:  # fmt: skip
    given = states(dtype, groups, of_keys, rows, length, widths, size, hidden)
    scale = widths[0] ** -0.5
    wanted = true(*given, scale)
    # Of single numbers the largest is compared: weights of few keys have errors of whole roundings.
    most = (0.03 if dtype == torch.bfloat16 else 0.004) * max(1.0, size)
    for factor in (scale, None):
        found = by_products(*given, factor)
        assert found.shape == wanted.shape and found.dtype == dtype
        assert error(found, wanted) < most


@pytest.mark.parametrize("size", [1.0, 4.0, 10.0])
def test_scores_keep_their_digits(size: float) -> None:
    """Its error is near SDPA's, where scores rounded as they are lose several times as much."""
    query, key, value, mask = states(torch.bfloat16, 4, 8, 8, 2048, (64, 64), size, 0.0)
    key += 2 * torch.randn(1, 8, 1, 64).bfloat16()  # which all scores of a row share
    wanted = true(query, key, value, mask, 0.125)
    own, other = (
        error(attend(query, key, value, mask, 0.125), wanted) for attend in (by_products, grouped)
    )
    scores = 0.125 * query.view(1, 8, 32, 64) @ key.transpose(2, 3)
    rounded = error((scores.softmax(-1) @ value).view(wanted.shape), wanted)
    assert own < 6 * other and own < 0.6 * rounded


def test_a_row_that_sees_no_sampled_key_attends() -> None:
    query, key, value, mask = states(torch.bfloat16, 2, 2, 4, 256, (16, 16), 4.0, 0.0)
    mask[...] = torch.finfo(mask.dtype).min
    mask[..., 40:60] = 0
    wanted = true(query, key, value, mask, 0.25)
    assert error(by_products(query, key, value, mask, 0.25), wanted) < 0.05


def test_heads_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = states(torch.bfloat16, 2, 5, 4, 300, (32, 16))
    whole = by_products(*given, 0.2)
    monkeypatch.setattr(products, "_SCORES", 2 * 2 * 4 * 300)  # two heads of keys
    torch.testing.assert_close(by_products(*given, 0.2), whole, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("length", [63, 1024, 1536, 5000])
@pytest.mark.parametrize("heads", [(32, 8, 64), (14, 2, 64), (4, 4, 128)])
def test_the_bits_of_a_row_do_not_depend_on_others(
    heads: tuple[int, int, int], length: int
) -> None:
    """Skipped where the trial refuses this machine's products, as then they are not used."""
    count, of_keys, width = heads
    if not try_products(*heads, torch.bfloat16, grouped).pay:
        pytest.skip("products do not pay here, or give a row other bits beside others")
    query, key, value, mask = states(
        torch.bfloat16, count // of_keys, of_keys, 80, length, (width, width)
    )
    found = []
    for rows in (80, 64, 33, 32, 17, 8, 5, 4):
        found.append(by_products(query[:, :, :rows], key, value, mask[:, :, :rows], None))
    for more, fewer in pairwise(found):
        assert torch.equal(more[:, :, : fewer.shape[2]], fewer)


def test_a_model_attends_so_behind_long_texts_where_it_pays(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    used: list[int] = []

    def look(query: Tensor, *more: Tensor) -> Tensor:
        used.append(query.shape[2])
        return by_products(query, *more)  # type: ignore[arg-type]

    for pay, name in ((False, FOLDED), (True, PRODUCTS)):
        monkeypatch.setenv("NGT_HOME", str(tmp_path_factory.mktemp("home")))
        monkeypatch.setattr(attention, "try_products", lambda *_, pay=pay: Products(pay))
        hf = make_hf("llama").to(torch.bfloat16)
        assert use_grouped(hf) and hf.config._attn_implementation == name
        monkeypatch.setattr(attention, "by_products", look)
        attend = attention.AttentionInterface()[name]
        layer = hf.model.layers[0].self_attn
        for length, rows in ((1024, 1), (1024, 8), (1000, 8), (1024, 300)):
            used.clear()
            groups = layer.num_key_value_groups
            given = states(torch.bfloat16, groups, 2, rows, length, (16, 16))
            out = attend(layer, *given, scaling=0.25)[0]
            assert used == ([max(rows, -(-4 // groups))] if pay and (length, rows) in (
                (1024, 1), (1024, 8)) else [])  # fmt: skip
            assert error(out.transpose(1, 2), true(*given, 0.25)) < 0.03
        monkeypatch.setattr(attention, "by_products", by_products)


def test_what_a_trial_stores_is_checked() -> None:
    with pytest.raises(ValueError, match="neither"):
        Products(1)  # type: ignore[arg-type]
