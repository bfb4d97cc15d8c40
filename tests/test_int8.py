"""Layers of 8-bit weights and activations, against the integers' products in float64."""

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ngtcli.errors import ModelError
from ngtcli.weights import int8, int8_order
from ngtcli.weights.int8 import Int8Embedding, Int8Linear, Way, quantized
from ngtcli.weights.int8_order import ORDERS, Packer, find_order, layout, ordered, packed_weight
from ngtcli.weights.packed import elements
from tests.support.int8_layers import WAY, WAYS, layer_of, true_product
from tests.support.tiny_models import make_hf

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.skipif(WAY is None, reason="no product of 8-bit integers here"),
]


def made(
    outputs: int, inputs: int, bias: bool = False, seed: int = 0, way: Way | None = WAY
) -> tuple[Int8Linear, Tensor]:
    """A layer and its weight."""
    assert way is not None
    source = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=source)
    own = nn.Parameter(torch.randn(outputs, generator=source)) if bias else None
    return layer_of(weight, own, way, Packer()), weight


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 70), st.integers(1, 150), st.integers(1, 20), st.floats(-30, 30), st.booleans(),
    st.integers(0, 99), st.sampled_from(WAYS or [Way()]),
)  # fmt: skip
def test_a_layer_gives_the_product_of_its_integers(
    outputs: int, inputs: int, count: int, magnitude: float, bias: bool, seed: int, way: Way
) -> None:
    layer, weight = made(outputs, inputs, bias, seed, way)
    rows = torch.randn(count, inputs, generator=torch.Generator().manual_seed(seed + 1))
    rows *= 10.0 ** (magnitude * torch.linspace(0, 1, count)[:, None])
    rows[0, ::2] = 0
    true, found = true_product(layer, weight, rows), layer(rows).double()
    # An input half-way between two integers may be rounded either way in float32: one of them.
    most = rows.double().abs().amax(1, keepdim=True) / layer.way.most
    one = most * quantized(weight)[1].double() * int8._LARGEST
    close = (found - true).abs() <= 1e-5 * true.abs() + 1.001 * one
    assert close.all()
    assert ((found - true).abs() <= 1e-5 * true.abs() + 1e-5 * one * inputs).double().mean() > 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_have_the_same_bits_whatever_stands_beside_them(dtype: torch.dtype) -> None:
    layer, _ = made(200, 130, bias=True)
    rows = torch.randn(64, 130).to(dtype)
    rows[3] = rows[4]
    alone = torch.cat([layer(row[None]) for row in rows])
    for size in (2, 3, 5, 16, 33, 64):
        found = torch.cat([layer(part) for part in rows.split(size)])
        assert torch.equal(found, alone)
    assert torch.equal(alone[3], alone[4]) and alone.dtype == dtype


def test_a_row_that_is_no_number_stays_by_itself() -> None:
    layer, _ = made(30, 40)
    rows = torch.randn(6, 40)
    true = layer(rows)
    rows[1, 3], rows[4, 5] = torch.nan, torch.inf
    found = layer(rows)
    others = [0, 2, 3, 5]
    assert torch.equal(found[others], true[others])
    assert not torch.isfinite(found[[1, 4]]).all(1).any()


def test_zeros_and_no_rows_at_all() -> None:
    layer, _ = made(30, 40)
    assert torch.equal(layer(torch.zeros(3, 40)), torch.zeros(3, 30))
    assert layer(torch.zeros(2, 0, 40)).shape == (2, 0, 30)
    assert layer(torch.randn(2, 5, 40)).shape == (2, 5, 30)


def test_zero_weights_give_zeros() -> None:
    assert WAY is not None
    weight = torch.randn(6, 20)
    weight[2] = 0
    assert (layer_of(weight, None, WAY, Packer())(torch.randn(5, 20))[:, 2] == 0).all()


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_is_found_part_by_part_and_no_byte_may_differ(
    order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_order, "_AT_ONCE", 64)
    monkeypatch.setattr(int8_order, "elements", lambda packed: packed)
    source = torch.Generator().manual_seed(0)
    whole = torch.randint(-127, 128, (300, 70), generator=source).to(torch.int8)
    data = ordered(whole, order)
    assert find_order(data, whole) == order
    for at in (0, len(data) // 2, len(data) - 1):
        other = data.clone()
        other[at] += 1
        assert find_order(other, whole) is None


@pytest.mark.parametrize("shape", [(100, 64), (130, 200), (512, 96), (64, 1)])
def test_an_embedding_reads_its_rows_from_the_layer(shape: tuple[int, int]) -> None:
    layer, weight = made(*shape)
    whole, scale = quantized(weight)
    order = find_order(layer.packed, whole)
    if order is None:
        pytest.skip("packed in an order that is not known here")
    embedding = Int8Embedding(layer, order, torch.float32)
    ids = torch.randint(shape[0], (2, 7))
    assert torch.equal(embedding(ids), (whole.float() * scale[:, None])[ids])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_weight_is_the_nearest_of_255_multiples_of_its_outputs_scale(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "_AT_ONCE", 90)  # two outputs at a time
    weight = (torch.randn(37, 40) * 10.0 ** torch.linspace(-3, 3, 37)[:, None]).to(dtype)
    whole, scale = quantized(weight)
    assert (whole.abs().amax(1) == 127).all()
    wrong = whole.double() * scale.double()[:, None] - weight.double()
    assert (wrong.abs() <= 0.5001 * scale[:, None]).all()


def test_the_way_that_is_found_is_right() -> None:
    found = int8._try().way
    assert found is not None and int8._is_right(found)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.integers(1, 300), st.integers(1, 5), st.booleans())
def test_padded_rows_leave_the_bits_of_the_others(
    outputs: int, inputs: int, count: int, bias: bool
) -> None:
    layer, weight = made(outputs, inputs, bias)
    rows = torch.randn(count, inputs)
    single = layer(rows)
    layer.way = replace(layer.way, least=4)
    assert torch.equal(layer(rows), single)
    whole, _ = layer.way.quantized(rows)
    scale, zeros = torch.ones(outputs), torch.zeros(outputs, dtype=torch.int32)
    sums = layer.way.product(whole, layer.packed, scale, zeros)
    true = (whole.double() - layer.way.zero) @ quantized(weight)[0].double().T
    assert torch.equal(sums.double(), true)  # whole numbers below 2 ** 24


def test_the_least_rows_are_chosen_for_each_size_and_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hf = make_hf("llama")
    hf.a, hf.b, hf.c = made(96, 64)[0], made(96, 64)[0], made(64, 96)[0]
    clock = [0.0]

    def taken(self: Any, inputs: Tensor) -> Tensor:
        quick = self.way.least == 4 and self.in_features == 64
        clock[0] += 0.5 if quick else 1.0
        return inputs

    monkeypatch.setattr(Int8Linear, "forward", taken)
    monkeypatch.setattr(int8.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr("ngtcli.system.trials.busy", lambda threads: False)
    spent = []
    for _ in range(2):  # the second time it is stored
        for layer in (hf.a, hf.b, hf.c):
            layer.way = replace(layer.way, least=1)
        int8.choose_least(hf)
        spent.append(clock[0])
        assert [layer.way.least for layer in (hf.a, hf.b, hf.c)] == [4, 4, 1]
    assert spent[0] == spent[1] > 0


def test_no_other_way_than_the_trial_has_is_read_from_its_file() -> None:
    for changes in ({"most": 126}, {"least": 0}, {"scheme": 0}):
        with pytest.raises(ValueError, match="another way"):
            replace(Way(), **changes)


def test_a_machine_without_a_right_product_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "_is_right", lambda way: False)
    monkeypatch.setattr(int8.Trial, "find", lambda self, make: make())
    with pytest.raises(ModelError, match="no right product of 8-bit integers"):
        int8.find_way()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(1, 1), (64, 64), (70, 130), (200, 5)])
def test_each_integer_lies_where_the_order_says(order: int, shape: tuple[int, int]) -> None:
    whole = torch.randint(-127, 128, shape, dtype=torch.int8)
    data = ordered(whole, order)
    assert torch.equal(layout(order, *shape).rows(data, torch.arange(shape[0])), whole)
    if order:  # behind the integers, what an input of one at each place would give, negated
        sums = data[-4 * (-(-shape[0] // order) * order) :].view(torch.int32)
        assert torch.equal(sums[: shape[0]].long(), -whole.sum(1, dtype=torch.int64))


def test_weights_ordered_here_are_those_that_the_library_orders() -> None:
    packer = Packer()
    for seed in range(3):
        whole = torch.randint(-127, 128, (70, 130), generator=torch.Generator().manual_seed(seed))
        data = packer.pack(whole.to(torch.int8))
        packed = packer.opaque(data, 70, 130)
        true = packed_weight(whole.to(torch.int8))
        assert torch.equal(elements(packed), elements(true))


def test_where_the_order_is_known_the_library_orders_one_weight_of_a_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    real = int8_order.packed_weight
    monkeypatch.setattr(int8_order, "packed_weight", lambda w: asked.append(w) or real(w))
    packer = Packer()
    for _ in range(4):
        packer.pack(torch.ones((70, 130), dtype=torch.int8))
    if packer.known[70, 130].order is None or not int8_order.makes_opaque():
        pytest.skip("an order that is not known here, or a torch that makes no such tensors")
    assert len(asked) == 1
    packer.pack(torch.ones((71, 130), dtype=torch.int8))
    assert len(asked) == 2


def test_memory_of_ours_is_what_the_kernel_reads() -> None:
    """Else weights could not lie in a file; known of Linux, where torch 2.13 is tested."""
    layer, _ = made(70, 130)
    if sys.platform == "linux" and torch.__version__.startswith("2.13"):
        assert int8_order.makes_opaque()
    if int8_order.makes_opaque():
        assert layer.held is not None
        assert torch.ops.mkldnn.data_ptr(layer.packed) == layer.held.data_ptr()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("opaque", [True, False])
def test_however_a_weight_is_ordered_its_products_are_the_same(
    known: bool, opaque: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, (layer, weight) = torch.randn(5, 130), made(70, 130)
    if not known:
        monkeypatch.setattr(int8_order, "ORDERS", ())
    if not opaque:
        monkeypatch.setattr(int8_order, "makes_opaque", lambda: False)
    packer = Packer()
    assert WAY is not None
    for _ in range(2):
        found = layer_of(weight, None, WAY, packer)
        assert torch.equal(found(rows), layer(rows))
    assert found.held is not None and found.held.is_mkldnn == (not opaque)
