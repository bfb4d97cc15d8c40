"""Checkpoints that are quantised already: written here by their formats, and computed by ngt."""

import copy
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from ngtcli.decode.exactness import is_alike
from ngtcli.decode.load import Wanted, load_model
from ngtcli.draft.drafter import DraftSettings
from ngtcli.errors import ModelError
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.model_files.quantized import kept
from ngtcli.model_files.scheme import scheme_of
from ngtcli.weights.forms import Form
from ngtcli.weights.linear import Int4Groups, PackedLinear, bits_of, int4_groups
from ngtcli.weights.load_quantized import load_quantized
from ngtcli.weights.stored import stored_layers
from tests.support.helpers import changed
from tests.support.int8_layers import INT4, INT8, KERNEL
from tests.support.tiny_models import decode, generate, make_drafter, make_hf
from tests.tools import quantised_files as files

needs_int8 = pytest.mark.skipif(KERNEL is None, reason="no product of 8-bit integers here")
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
KINDS: dict[str, tuple[dict[str, Any], Callable[[Tensor], files.Made], int]] = {
    "w8a8": (files.W8A8, files.w8a8, 8),
    "gptq": (files.four_bits("gptq", 32), lambda w: files.gptq(w, 32), 4),
    "gptq-order": (
        files.four_bits("gptq", 32, desc_act=True, checkpoint_format="gptq_v2"),
        lambda w: files.gptq(w, 32, False, torch.arange(w.shape[1]).flip(0), True),
        4,
    ),
    "gptq-all": (files.four_bits("gptq", -1), lambda w: files.gptq(w, w.shape[1]), 4),
    "awq": (files.four_bits("awq", 32), lambda w: files.awq(w, 32), 4),
}


def form_of(bits: int) -> Form:
    if bits == 8 and KERNEL is None:
        pytest.skip("no product of 8-bit integers here")
    return INT8 if bits == 8 else INT4


@torch.inference_mode()
def scores(hf: Any) -> Tensor:
    out: Tensor = hf(torch.arange(3, 40)[None]).logits
    return out


@pytest.mark.search
@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_computed_by_its_own_integers(
    kind: str, family: str, tmp_path: Path
) -> None:
    about, make, bits = KINDS[kind]
    hf = make_hf(family, tie_word_embeddings=family == "qwen2", **SIZES)
    true = files.write(tmp_path, hf, about, make)
    told: list[str] = []
    given = true.folder, form_of(bits), told.append, told.append
    (found, report), (again, _) = load_quantized(*given), load_quantized(*given)
    assert not any(report.values()) and bits_of(found) == bits
    assert all(line.startswith("Read") for line in told) and len([*kept()]) == 1
    assert torch.equal(scores(found), scores(again))
    wanted = scores(true.dequantised)
    assert (
        scores(found) - wanted
    ).norm() / wanted.norm() < 0.1  # inputs are rounded, too: to 7 bits here and there
    own = {
        name for name, m in found.named_modules() if isinstance(m, PackedLinear) and m.storage.bits
    }
    assert own == set(true.layers)


@needs_int8
def test_8_bits_are_the_checkpoints_integers_and_scales(tmp_path: Path) -> None:
    true = files.write(tmp_path, make_hf("llama", **SIZES), files.W8A8, files.w8a8)
    found, _ = load_quantized(true.folder, INT8)
    least = 0
    source = torch.Generator().manual_seed(0)
    for name, made in true.layers.items():
        layer, whole = found.get_submodule(name), made.tensors["weight"]
        scale = made.tensors["weight_scale"].flatten()
        least = min(least, int(whole.min()))
        assert torch.equal(layer.storage.scale, scale.float())
        assert torch.equal(
            (layer(torch.eye(whole.shape[1])) / layer.storage.scale).round().t(), whole
        )
        # By its definition: each row's inputs divided by their largest, times the integers.
        rows = torch.randn((5, whole.shape[1]), generator=source)
        most = rows.double().abs().amax(1, keepdim=True)
        inputs = (rows.double() * KERNEL.most / most).round() * most / KERNEL.most
        wanted = inputs @ made.weight.t()
        assert torch.allclose(layer(rows).double(), wanted, rtol=1e-5, atol=1e-5)
    assert least == -128


def stored(made: files.Made, about: dict[str, Any], folder: Path) -> Any:
    (folder / "config.json").write_text(json.dumps({"quantization_config": about}))
    save_file({f"a.{key}": one for key, one in made.tensors.items()}, folder / "a.safetensors")
    slices = {f"a.{key}": _Slice(one) for key, one in made.tensors.items()}
    return stored_layers(slices, scheme_of(folder))["a.weight"]


class _Slice:
    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return [*self._tensor.shape]

    def get_dtype(self) -> str:
        return {torch.int32: "I32", torch.int8: "I8"}.get(self._tensor.dtype, "F16")

    def __getitem__(self, _: object) -> Tensor:
        return self._tensor


def by_definition(tensors: Mapping[str, Tensor], method: str) -> Tensor:
    """The weight (out, in), float64, of 4-bit tensors: by plain integers, each by itself."""

    def whole(name: str) -> list[list[int]]:
        return [[int(one) % 2**32 for one in row] for row in tensors[name].tolist()]

    weights, zeros, scales = whole("qweight"), whole("qzeros"), tensors["scales"].double()
    if method == "gptq":
        zeros = [[(one + 0x11111111) % 2**32 for one in row] for row in zeros]
    outputs = scales.shape[1]
    inputs = len(weights) * (1 if method == "awq" else 8)
    places = {0: 0, 1: 4, 2: 1, 3: 5, 4: 2, 5: 6, 6: 3, 7: 7} if method == "awq" else range(8)
    out = torch.empty(outputs, inputs, dtype=torch.float64)
    for i in range(inputs):
        group = int(tensors["g_idx"][i]) if "g_idx" in tensors else i * len(scales) // inputs
        for o in range(outputs):
            if method == "awq":
                one = weights[i][o // 8] >> 4 * places[o % 8] & 15
            else:
                one = weights[i // 8][o] >> 4 * (i % 8) & 15
            zero = zeros[group][o // 8] >> 4 * places[o % 8] & 15
            out[o, i] = (one - zero) * scales[group, o]
    return out


@settings(max_examples=15, deadline=None)
@given(
    method=st.sampled_from(["gptq", "gptq_v2", "awq"]), outputs=st.integers(1, 4),
    groups=st.integers(1, 3), group=st.sampled_from([32, 64, 96, 128]), sym=st.booleans(),
    shuffled=st.booleans(), low=st.floats(-1, 0.5), seed=st.integers(0, 1000),
)  # fmt: skip
def test_4_bits_are_repacked_without_loss(
    tmp_path_factory: pytest.TempPathFactory, method: str, outputs: int, groups: int, group: int,
    sym: bool, shuffled: bool, low: float, seed: int,
) -> None:  # fmt: skip
    source = torch.Generator().manual_seed(seed)
    # Rows that are above zero throughout have zero points of 0, whose borrow reaches others.
    weight = torch.rand((8 * outputs, groups * group), generator=source) + torch.where(
        torch.rand(8 * outputs, 1, generator=source) < 0.5, 0.0, low
    )
    if method == "awq":
        made, about = files.awq(weight, group, sym), files.four_bits("awq", group)
    else:
        order = torch.randperm(groups * group, generator=source) if shuffled else None
        made = files.gptq(weight, group, sym, order, method == "gptq_v2")
        about = files.four_bits("gptq", group, checkpoint_format=method)
    layer = stored(made, about, tmp_path_factory.mktemp("a"))
    assert torch.equal(layer.dequantised().double(), by_definition(made.tensors, method))
    whole, scales, zeros, back = layer.four_bits()
    integers, pairs = int4_groups(whole, scales, zeros)
    found = PackedLinear(Int4Groups(integers, layer.size, pairs, back), None)
    # A weight of 1 bit in one group alone shows each integer: inputs are exact, scales rounded.
    rounded = scales.bfloat16().double().repeat_interleave(group, 0)
    exact = (whole.t().double() - zeros.double().repeat_interleave(group, 0)) * rounded
    if back is not None:
        exact = torch.empty_like(exact).index_copy_(0, back, exact)
    shown = found(torch.eye(groups * group, dtype=torch.bfloat16)).double()
    steps = rounded if back is None else torch.empty_like(rounded).index_copy_(0, back, rounded)
    assert ((shown - exact).abs() <= steps / 8).all()  # less than half a step: the same integers
    rows = torch.randn((9, groups * group), generator=source).bfloat16()
    wanted = rows.double() @ made.weight.t()
    error = (found(rows).double() - wanted).norm() / wanted.norm().clamp_min(1e-9)
    size = wanted.abs().sum() and (rows.double().abs() @ made.weight.abs().t()).norm()
    assert error * wanted.norm() <= 4e-3 * size
    assert is_alike(found, layer.size, torch.bfloat16, [1, 3, 4, 5, 9])


@pytest.mark.search
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_drafts_and_gives_the_tokens_of_generate(kind: str, tmp_path: Path) -> None:
    about, make, bits = KINDS[kind]
    form_of(bits)
    true = files.write(tmp_path, make_hf("llama", **SIZES), about, make)
    for file in BUILTIN_PATH.glob("token*"):
        shutil.copy(file, tmp_path)
    model = load_model(Wanted(true.folder, "cpu", "bfloat16" if bits == 4 else "float32"))
    assert not model.plain_reason and bits_of(model.hf) == bits
    prompt = [5, 6, 7, 8, 9] * 6
    drafted = decode(model, make_drafter("trie", DraftSettings(lp=2)), prompt, max_tokens=20)
    plain = decode(model, make_drafter("none", DraftSettings()), prompt, max_tokens=20)
    assert drafted.output == plain.output
    assert plain.output == generate(model.hf, prompt, 20)[: len(plain.output)]


@needs_int8
def test_4_bits_are_quantised_to_8_where_that_is_asked_for(tmp_path: Path) -> None:
    about, make, _ = KINDS["gptq-order"]
    true = files.write(tmp_path, make_hf("llama", **SIZES), about, make)
    told: list[str] = []
    found, _ = load_quantized(true.folder, INT8, progress=told.append)
    four, _ = load_quantized(true.folder, INT4)
    again, _ = load_quantized(true.folder, INT8)
    assert (bits_of(found), bits_of(four), len([*kept()])) == (8, 4, 2)
    assert torch.equal(scores(found), scores(again)) and told[-1].startswith("Quantised")
    wanted = scores(true.dequantised)
    assert (scores(found) - wanted).norm() / wanted.norm() < 0.1


def _without(**changes: Any) -> dict[str, Any]:
    about = copy.deepcopy(files.W8A8)
    for key, value in changes.items():
        part, _, own = key.partition("__")
        (about["config_groups"]["group_0"][part] if own else about)[own or key] = value
    return about


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        (
            _without(input_activations__dynamic=False),
            "input_activations have dynamic False, not True",
        ),
        (_without(input_activations__strategy="group"), "have strategy 'group', not 'token'"),
        (_without(weights__strategy="tensor"), "weights have strategy 'tensor', not 'channel'"),
        (_without(weights__num_bits=4), "weights have num_bits 4, not 8"),
        (_without(weights__symmetric=False), "weights have symmetric False, not True"),
        (_without(format="pack-quantized"), "its format is pack-quantized"),
        (_without(kv_cache_scheme={"num_bits": 8}), "it has a kv_cache_scheme"),
        (_without(config_groups=[]), "not understood"),
        (files.four_bits("gptq", 128, bits=3), "its weights have 3 bits, not 4"),
        (files.four_bits("gptq", 16), "16 inputs share a scale, no multiple of 32"),
        (files.four_bits("gptq", 128, checkpoint_format="marlin"), "form is marlin, not gptq"),
        (files.four_bits("awq", 128, version="GEMV"), "its form is gemv, not gemm"),
    ],
)
def test_another_scheme_is_named(about: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = changed(tmp_path / "model", quantization_config=about)
    assert reason in scheme_of(folder).reason and not scheme_of(folder).bits
    with pytest.raises(ModelError, match="is not installed|are not installed") as caught:
        load_model(Wanted(folder, "cpu"))
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def _lacks_zeros(tensors: dict[str, Tensor]) -> None:
    tensors.pop("model.layers.0.mlp.up_proj.qzeros")


def _other_size(tensors: dict[str, Tensor]) -> None:
    own = "model.layers.0.mlp.up_proj.scales"
    tensors[own] = tensors[own][:1].contiguous()


def _uneven(tensors: dict[str, Tensor]) -> None:
    tensors["model.layers.0.mlp.up_proj.g_idx"][0] = 1


def _expert(tensors: dict[str, Tensor]) -> None:
    for key in ("qweight", "qzeros", "scales"):
        own = tensors[f"model.layers.0.mlp.up_proj.{key}"].clone()
        tensors[f"model.layers.0.mlp.experts.0.up_proj.{key}"] = own


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_lacks_zeros, "mlp.up_proj is not quantised as config.json says: it has g_idx 64, qw"),
        (_other_size, r"mlp.up_proj is not quantised as config.json says.* scales 1×96"),
        (_uneven, "as many inputs do not always share a scale"),
        (_expert, "experts.0.up_proj is quantised, an expert of a mixture"),
    ],
)
def test_tensors_that_do_not_belong_together_are_refused(
    harm: Callable[[dict[str, Tensor]], None], words: str, tmp_path: Path
) -> None:
    about, make, _ = KINDS["gptq"]
    true = files.write(tmp_path, make_hf("llama", **SIZES), about, make)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    harm(tensors)
    save_file(tensors, file)
    with pytest.raises(ModelError, match=words) as caught:
        load_quantized(true.folder, INT4)
    assert caught.value.hint


def test_an_embedding_of_4_bits_is_dequantised(tmp_path: Path) -> None:
    about, make, _ = KINDS["gptq"]
    hf = make_hf("llama", vocab_size=64, **SIZES)
    true = files.write(tmp_path, hf, about, make, keep=())
    apart, _ = load_quantized(true.folder, INT4)
    assert apart.lm_head.storage.bits == 4
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("model.embed_tokens.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    found, _ = load_quantized(true.folder, INT4)
    assert torch.equal(found.lm_head.packed, apart.lm_head.packed)
    wanted = true.layers["lm_head"].weight.float()
    assert torch.allclose(found.get_input_embeddings().weight, wanted, rtol=1e-3, atol=1e-6)
