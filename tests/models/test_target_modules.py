"""Which modules are quantized: each kind compared with float64 products of its integers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.models.falcon.modeling_falcon import FalconLinear
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.longcat_flash.modeling_longcat_flash import LongcatFlashTopkRouter
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts
from transformers.pytorch_utils import Conv1D

from ngtcli.models.weights.convert import Conversion, convertible
from ngtcli.models.weights.linear import PackedLinear
from ngtcli.models.weights.load_quantized import set_activation_dtype
from ngtcli.models.weights.target_modules import TargetModule
from tests.support.int8_layers import INT8, KERNEL, dequantize, expected_matmul

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(KERNEL is None, reason="no product of 8-bit integers here"),
]


def quantizable(hf: Any) -> list[TargetModule]:
    return convertible(with_device(hf), INT8)


def with_device(hf: Any) -> Any:
    """Give a module the attributes that models of `transformers` have."""
    if not isinstance(hf, transformers.PreTrainedModel):
        hf.device = torch.device("cpu")
        hf.all_tied_weights_keys = {}
    return hf


def quantize(hf: Any) -> list[TargetModule]:
    """Quantize a model in place; return the modules whose weights were quantized."""
    targets = quantizable(hf)
    conversion = Conversion(INT8)
    conversion.find_destinations(hf)
    remaining = {name: weight.detach() for name, weight in hf.named_parameters()}
    for name in list(conversion.destinations):
        if name in remaining:
            conversion.convert(name, remaining.pop(name))
    for name, weight in remaining.items():
        conversion.store.add(name, weight)
    conversion.fill(hf, conversion.store.finish())
    return targets


def random(module: Any, seed: int = 0) -> Any:
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=source) * 0.3)
    return module.requires_grad_(False)


@pytest.mark.parametrize("kind", [lambda: Conv1D(30, 40), lambda: FalconLinear(40, 30)])
def test_a_layer_of_another_class_gives_the_product_of_its_integers(kind: Any) -> None:
    hf = nn.Sequential(random(kind()))
    layer = hf[0]
    rows = torch.randn(7, 40)
    exact = layer(rows)
    weight = layer.weight.t() if isinstance(layer, Conv1D) else layer.weight
    (target,) = quantize(hf)
    assert target.transposed == isinstance(layer, Conv1D)
    assert isinstance(hf[0], PackedLinear)
    result = hf[0](rows)
    assert torch.allclose(
        result.double(), expected_matmul(hf[0], weight, rows), rtol=1e-5, atol=1e-5
    )
    assert within_rounding(result, exact, weight, rows)


def within_rounding(result: Tensor, exact: Tensor, weight: Tensor, rows: Tensor) -> bool:
    """Return whether rounding both factors to 8 bits can explain the difference."""
    # Half a rounding step of each factor, times the magnitudes of the other.
    steps = (
        rows.abs().sum(1, keepdim=True) * weight.abs().amax(1) / 254
        + rows.abs().amax(1, keepdim=True) * weight.abs().sum(1) / 126  # 7 bits on some CPUs
        + rows.shape[1] * rows.abs().amax(1, keepdim=True) * weight.abs().amax(1) / 254 / 126
    )
    return bool(((result - exact).abs() <= 1.01 * steps + 1e-5).all())


EXPERTS = {
    "mixtral": (MixtralExperts, {"num_local_experts": 5, "intermediate_size": 24}),
    "gpt_oss": (GptOssExperts, {"num_local_experts": 5, "intermediate_size": 24}),
    "nemotron_h": (
        NemotronHExperts,
        {"n_routed_experts": 5, "moe_intermediate_size": 24, "num_experts_per_tok": 2},
    ),
}


def experts(family: str) -> nn.Module:
    kind, changes = EXPERTS[family]
    config = transformers.AutoConfig.for_model(family, hidden_size=32, **changes)
    config._experts_implementation = "eager"
    return with_device(nn.ModuleDict({"experts": random(kind(config))}))


def routed(rows: int, seed: int, experts_per_row: int = 2) -> Iterator[Tensor]:
    """Inputs of experts: rows, the experts of each, and their weights."""
    source = torch.Generator().manual_seed(seed)
    yield torch.randn(rows, 32, generator=source)
    yield torch.rand(rows, 5, generator=source).topk(experts_per_row).indices
    yield torch.rand(rows, experts_per_row, generator=source).softmax(1)


@pytest.mark.parametrize("family", EXPERTS)
def test_experts_give_what_the_weights_of_their_integers_give(family: str) -> None:
    hf: Any = experts(family)
    inputs = list(routed(20, 1))
    unquantized = hf.experts(*inputs)
    names = [place.name for place in quantizable(hf)]
    expected = dequantize(experts(family)).experts(*inputs)
    assert len(names) == 2
    assert len(quantize(hf)) == 2
    result = hf.experts(*inputs)
    assert (result - expected).norm() < 0.03 * expected.norm()  # inputs are rounded as well
    assert (result - unquantized).norm() < 0.05 * unquantized.norm()
    assert not any(parameter.ndim == 3 for parameter in hf.parameters())


@pytest.mark.parametrize("family", EXPERTS)
def test_a_row_of_experts_has_the_same_bits_whatever_stands_beside_it(family: str) -> None:
    hf: Any = experts(family)
    quantize(hf)
    rows, expert_ids, weights = routed(24, 2)
    alone = torch.cat(
        [hf.experts(*(t[i : i + 1] for t in (rows, expert_ids, weights))) for i in range(24)]
    )
    for size in (2, 5, 16, 24):
        parts = zip(*(t.split(size) for t in (rows, expert_ids, weights)), strict=True)
        assert torch.equal(torch.cat([hf.experts(*part) for part in parts]), alone)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 99))
def test_each_expert_computes_the_rows_that_chose_it(
    rows: int, experts_per_row: int, seed: int
) -> None:
    hf: Any = experts("mixtral")
    quantize(hf)
    inputs, expert_ids, weights = routed(rows, seed, experts_per_row)
    layer = hf.experts
    expected = torch.zeros(rows, 32)
    for row in range(rows):
        for choice in range(experts_per_row):
            expert = int(expert_ids[row, choice])
            gate, up = layer.gate_up_proj[expert](inputs[row : row + 1]).chunk(2, -1)
            out = layer.down_proj[expert](layer.act_fn(gate) * up)[0]
            expected[row] += out * weights[row, choice]
    assert torch.allclose(layer(inputs, expert_ids, weights), expected, rtol=1e-4, atol=1e-5)


def test_weights_of_experts_may_be_wider_than_the_rows() -> None:
    hf: Any = experts("mixtral")
    quantize(hf)
    rows, expert_ids, weights = routed(6, 4)
    result = hf.experts(rows.bfloat16(), expert_ids, weights)
    expected = hf.experts(rows, expert_ids, weights)
    assert result.dtype == torch.bfloat16
    assert (result - expected).norm() < 0.03 * expected.norm()


def test_an_expert_that_stands_for_none_adds_nothing() -> None:
    hf: Any = experts("mixtral")
    quantize(hf)
    inputs, expert_ids, weights = routed(3, 3)
    result = hf.experts(inputs, torch.full_like(expert_ids, 5), weights)
    assert torch.equal(result, torch.zeros(3, 32))


def test_expert_routers_stay_unquantized() -> None:
    hf = transformers.AutoModelForCausalLM.from_config(
        transformers.JetMoeConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=1,
            num_key_value_heads=2,
            kv_channels=8,
            intermediate_size=24,
            num_local_experts=4,
        )
    )
    names = {id(module): name for name, module in hf.named_modules()}
    routers = [name for name in names.values() if name.endswith("router.layer")]
    assert routers
    assert not {names[id(place.layer)] for place in quantizable(hf)} & set(routers)


def test_quantized_weights_can_be_read_but_not_computed_with() -> None:
    hf: Any = nn.Sequential(random(nn.Linear(40, 30)))
    quantize(hf)
    hf.config = transformers.LlamaConfig()
    set_activation_dtype(hf, torch.bfloat16)
    weight = hf[0].weight
    rows = torch.randn(3, 40)
    assert weight.dtype == torch.bfloat16
    assert weight.device == rows.device
    assert weight.shape == (30, 40)
    with pytest.raises(TypeError):
        nn.functional.linear(rows.bfloat16(), weight)
    with pytest.raises(TypeError):
        rows @ weight


def test_a_router_that_is_multiplied_without_its_layer_stays() -> None:
    config = transformers.LongcatFlashConfig(hidden_size=32, n_routed_experts=4, zero_expert_num=2)
    router = LongcatFlashTopkRouter(config)
    assert not quantizable(nn.ModuleDict({"router": router}))
