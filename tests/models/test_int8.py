"""Layers of 8-bit weights and activations, against the integers' products in float64."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ngtcli.errors import ModelError
from ngtcli.models.weights import formats, linear, onednn
from ngtcli.models.weights.formats import int8_kernel
from ngtcli.models.weights.linear import PackedLinear, quantize_weight
from ngtcli.models.weights.onednn import (
    Int8Kernel,
)
from tests.support.int8_layers import KERNEL, KERNELS, expected_matmul, layer_of

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.skipif(KERNEL is None, reason="no product of 8-bit integers here"),
]


def make_layer(
    outputs: int, inputs: int, bias: bool = False, seed: int = 0, kernel: Int8Kernel | None = KERNEL
) -> tuple[PackedLinear, Tensor]:
    """A layer and its weight."""
    assert kernel is not None
    source = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=source)
    bias_parameter = nn.Parameter(torch.randn(outputs, generator=source)) if bias else None
    return layer_of(weight, bias_parameter, kernel), weight


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 70),
    st.integers(1, 150),
    st.integers(1, 20),
    st.floats(-30, 30),
    st.booleans(),
    st.integers(0, 99),
    st.sampled_from(KERNELS or [Int8Kernel()]),
)
def test_a_layer_gives_the_product_of_its_integers(
    outputs: int,
    inputs: int,
    count: int,
    magnitude: float,
    bias: bool,
    seed: int,
    kernel: Int8Kernel,
) -> None:
    layer, weight = make_layer(outputs, inputs, bias, seed, kernel)
    rows = torch.randn(count, inputs, generator=torch.Generator().manual_seed(seed + 1))
    rows *= 10.0 ** (magnitude * torch.linspace(0, 1, count)[:, None])
    rows[0, ::2] = 0
    expected = expected_matmul(layer, weight, rows)
    result = layer(rows).double()
    # An input half-way between two integers may be rounded either way in float32: one of them.
    row_step = rows.double().abs().amax(1, keepdim=True) / kernel.qmax
    step = row_step * quantize_weight(weight)[1].double() * onednn.QMAX
    is_close = (result - expected).abs() <= 1e-5 * expected.abs() + 1.001 * step
    assert is_close.all()
    assert (
        (result - expected).abs() <= 1e-5 * expected.abs() + 1e-5 * step * inputs
    ).double().mean() > 0.5


class Matmuls(TorchDispatchMode):
    """Notes the rows and outputs of each int8 matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.onednn.qlinear_pointwise.default:
            self.sizes.append(tuple(result.shape))
        return result


@pytest.mark.skipif(Int8Kernel(signed=True) not in KERNELS, reason="signed sums are not exact here")
@pytest.mark.parametrize("outputs", [1, 16, 64, 128, 256, 257])
def test_no_matmul_is_so_small_that_amx_leaves_it_to_the_slow_kernel(outputs: int) -> None:
    layer, weight = make_layer(outputs, 96, kernel=Int8Kernel(signed=True))
    rows = torch.randn(9, 96)
    expected = expected_matmul(layer, weight, rows)
    for count in (1, 2, 3, 9):
        with Matmuls() as matmuls:
            out = layer(rows[:count])
        assert torch.allclose(out.double(), expected[:count], rtol=1e-4)
        [(padded_count, _)] = matmuls.sizes
        assert padded_count * outputs > 256


@pytest.mark.parametrize("size", [(200, 130), (64, 64), (192, 4096), (1024, 320)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_have_the_same_bits_whatever_stands_beside_them(
    dtype: torch.dtype, size: tuple[int, int]
) -> None:
    outputs, inputs = size
    layer, _ = make_layer(outputs, inputs, bias=True)
    rows = (torch.randn(64, inputs) * 10.0 ** torch.linspace(-9, 9, 64)[:, None]).to(dtype)
    rows[3] = rows[4]
    rows[5, ::2] = 0
    rows[6] = 0
    alone = torch.cat([layer(row[None]) for row in rows])
    for count in (2, 3, 5, 16, 33, 64):
        batched = torch.cat([layer(part) for part in rows.split(count)])
        assert torch.equal(batched, alone)
    assert torch.equal(alone[3], alone[4])
    assert alone.dtype == dtype


def test_rows_with_nan_or_infinity_change_no_other_row() -> None:
    layer, _ = make_layer(30, 40)
    rows = torch.randn(6, 40)
    expected = layer(rows)
    rows[1, 3] = torch.nan
    rows[4, 5] = torch.inf
    result = layer(rows)
    finite_rows = [0, 2, 3, 5]
    assert torch.equal(result[finite_rows], expected[finite_rows])
    assert not torch.isfinite(result[[1, 4]]).all(1).any()


def test_rows_of_zeros_and_no_rows_are_allowed() -> None:
    layer, _ = make_layer(30, 40)
    assert torch.equal(layer(torch.zeros(3, 40)), torch.zeros(3, 30))
    assert layer(torch.zeros(2, 0, 40)).shape == (2, 0, 30)
    assert layer(torch.randn(2, 5, 40)).shape == (2, 5, 30)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_weight_is_the_nearest_of_255_multiples_of_its_outputs_scale(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "_CHUNK_ELEMENTS", 90)  # two outputs at a time
    weight = (torch.randn(37, 40) * 10.0 ** torch.linspace(-3, 3, 37)[:, None]).to(dtype)
    quantized, scale = quantize_weight(weight)
    assert (quantized.abs().amax(1) == 127).all()
    errors = quantized.double() * scale.double()[:, None] - weight.double()
    assert (errors.abs() <= 0.5001 * scale[:, None]).all()


def test_the_first_correct_kernel_is_chosen_and_signed_inputs_need_amx(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert int8_kernel().is_correct()
    kernels = Int8Kernel(True, 127), Int8Kernel(False, 127), Int8Kernel(False, 63)
    correct: list[Int8Kernel] = []
    monkeypatch.setattr(Int8Kernel, "is_correct", lambda self: self in correct)
    for instructions, correct_kernels, expected in (
        ({"amx_int8"}, kernels, kernels[0]),
        (set(), kernels, kernels[1]),
        ({"amx_int8"}, kernels[1:], kernels[1]),
        (set(), kernels[2:], kernels[2]),
        ({"amx_int8"}, (), None),
        (set(), kernels[:1], None),
    ):
        correct[:] = correct_kernels
        monkeypatch.setattr(
            formats, "instruction_sets", lambda instructions=instructions: frozenset(instructions)
        )
        if expected is None:
            with pytest.raises(ModelError, match="no int8 matmul of this CPU"):
                int8_kernel.__wrapped__()
        else:
            assert int8_kernel.__wrapped__() == expected


def test_the_kernel_reads_our_memory() -> None:
    """Otherwise weights could not be mapped from a file."""
    storage: Any = make_layer(70, 130)[0].packed_weight
    assert torch.ops.mkldnn.data_ptr(storage.packed) == storage.buffer.data_ptr()
