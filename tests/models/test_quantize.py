"""Whole models whose layers are quantized while they are read."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from ngtcli.decoding.load import ModelSpec, load_model
from ngtcli.errors import ModelError
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.models.weights import checkpoints
from ngtcli.models.weights.formats import int8_kernel
from ngtcli.models.weights.load_quantized import load_quantized, summary
from tests.support.families import family
from tests.support.int8_layers import INT8, KERNEL, dequantize, named_tensors
from tests.support.recording_reporter import RecordingReporter
from tests.support.tiny_models import FAMILIES, make_hf, saved, scores

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.skipif(KERNEL is None, reason="no product of 8-bit integers here"),
]


def loaded(folder: str, dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, Any]]:
    return load_quantized(folder, replace(INT8, dtype=dtype))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_gives_what_its_dequantized_weights_give(
    family: str, tied: bool, tmp_path: Path
) -> None:
    hf = make_hf(family, tie_word_embeddings=tied)
    folder = saved(tmp_path, hf)
    quantized, report = loaded(folder)
    assert not any(report.values())
    again, _ = loaded(folder)
    assert_holds_the_same(quantized, again)
    assert torch.equal(scores(again), scores(quantized))
    assert again.dtype == quantized.dtype
    assert {n: b.dtype for n, b in again.named_buffers()} == {
        n: b.dtype for n, b in quantized.named_buffers()
    }
    assert not any(isinstance(module, nn.Linear) for module in quantized.modules())
    embedding = quantized.get_input_embeddings()
    assert torch.equal(embedding.weight, hf.get_input_embeddings().weight)
    expected = scores(dequantize(hf))
    error = (scores(quantized) - expected).norm() / expected.norm()
    assert error < 0.06  # inputs are rounded as well


def assert_holds_the_same(first: Any, second: Any) -> None:
    """Assert that two models hold the same bytes, both floats and prepacked integers."""
    tensors = named_tensors(first)
    second_tensors = named_tensors(second)
    assert tensors.keys() == second_tensors.keys()
    different = [
        name
        for name, tensor in tensors.items()
        if tensor.dtype != second_tensors[name].dtype
        or not torch.equal(tensor, second_tensors[name])
    ]
    assert different == []


RECURRENT = "mamba2", "falcon_mamba", "jamba"  # their states add up what was rounded
MORE = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_oss": {"num_local_experts": 4, "head_dim": 8},
    **{name: family(name).values for name in ("falcon", "mixtral", "qwen3_moe", *RECURRENT)},
}
ALL_QUANTIZED = {"gpt2", "falcon"}  # others have routers, or multiply by the weight of a layer
SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize("family", MORE)
def test_other_layers_and_experts_are_read_and_kept_as_integers(
    family: str, tmp_path: Path
) -> None:
    config = AutoConfig.for_model(family, **{**SMALL, **MORE[family], "vocab_size": 60})
    torch.manual_seed(0)
    hf = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2.0 if family in RECURRENT else 6.0)
    folder = saved(tmp_path, hf)
    first, report = loaded(folder)
    again, _ = loaded(folder)
    assert not any(report.values())
    assert_holds_the_same(first, again)
    if family in ALL_QUANTIZED:
        assert torch.equal(scores(first), scores(again))
    else:  # some kernels of floats give other bits where a weight lies at another place in memory
        torch.testing.assert_close(scores(first), scores(again), rtol=1e-4, atol=1e-4)
    if "experts" in str(hf):
        hf.set_experts_implementation("eager")
    expected = scores(dequantize(hf))
    assert (scores(first) - expected).norm() < 0.08 * expected.norm()  # inputs are rounded as well
    assert summary(first, 0.0)[0] > 0.8
    assert not any(one.ndim == 3 and one.shape[1] > 1 for one in first.parameters())


@pytest.mark.parametrize("name", ["none", "int8"])
def test_integer_weights_without_a_quantization_config_are_refused(
    name: str, tmp_path: Path
) -> None:
    hf = make_hf("llama")
    state = {n: w.to(torch.int8) if "proj" in n else w for n, w in hf.state_dict().items()}
    shutil.copy(BUILTIN_PATH / "tokenizer.json", saved(tmp_path, hf, state_dict=state))
    with pytest.raises(ModelError, match="the weights are integers"):
        load_model(ModelSpec(str(tmp_path), "cpu", quantize=name))


@pytest.mark.parametrize(("positions", "expected"), [(64, []), (4096, ["only 17% of the weights"])])
def test_a_mostly_unquantized_model_is_reported_in_one_line(
    positions: int, expected: list[str], tmp_path: Path
) -> None:
    changes = {**MORE["gpt2"], "n_positions": positions, "vocab_size": 60}
    config = AutoConfig.for_model("gpt2", **changes, bos_token_id=0, eos_token_id=0)
    folder = saved(tmp_path, AutoModelForCausalLM.from_config(config))
    reported = RecordingReporter()
    reported.of(lambda: load_quantized(folder, INT8))
    warnings = reported.warnings
    assert len(warnings) == len(expected)
    for words, warning in zip(expected, warnings, strict=True):
        assert words in warning


@pytest.mark.parametrize("tied", [False, True])
def test_shards_and_a_pickle_give_what_one_file_gives(tmp_path: Path, tied: bool) -> None:
    hf = make_hf("qwen2", tie_word_embeddings=tied)
    saved(tmp_path / "many", hf, max_shard_size="10KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    (tmp_path / "pickle").mkdir()
    torch.save(hf.state_dict(), tmp_path / "pickle" / "pytorch_model.bin")
    hf.config.save_pretrained(tmp_path / "pickle")
    single_file, _ = loaded(saved(tmp_path / "one", hf))
    for name in ("many", "pickle"):
        assert torch.equal(scores(single_file), scores(loaded(str(tmp_path / name))[0]))


def test_weights_that_are_quantized_already_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, make_hf("llama"))
    config = json.loads((tmp_path / "config.json").read_text())
    quantization = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config | quantization))
    with pytest.raises(ModelError, match="the weights are already quantized"):
        loaded(folder)


def test_a_weight_of_another_shape_is_reported(tmp_path: Path) -> None:
    folder = saved(tmp_path, make_hf("llama"))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 40}))
    _, report = loaded(folder)
    assert len(report["mismatched_keys"]) == 6


def test_missing_weights_are_reported(tmp_path: Path) -> None:
    hf = make_hf("llama")
    state = {n: v for n, v in hf.state_dict().items() if "layers.1.mlp" not in n}
    _, report = loaded(saved(tmp_path, hf, state_dict=state))
    assert len(report["missing_keys"]) == 3


def test_the_generation_config_is_read(tmp_path: Path) -> None:
    hf = make_hf("llama")
    hf.generation_config.eos_token_id = [5, 7]
    assert loaded(saved(tmp_path, hf))[0].generation_config.eos_token_id == [5, 7]


def test_integers_and_the_dtype_of_most_tensors_are_seen_in_the_files(tmp_path: Path) -> None:
    half = torch.zeros(2, 2).bfloat16()
    norm = torch.zeros(2)
    mask = torch.zeros(2).to(torch.uint8)
    for has_integers, tensors in (
        (False, {"mask": mask}),
        (True, {"b.weight": mask}),
        (True, {"b.weight": mask.to(torch.int8)}),
    ):
        save_file(
            {"a": half, "c": half + 1, "norm": norm, **tensors}, tmp_path / "model.safetensors"
        )
        arguments = str(tmp_path), None, False
        if has_integers:
            with pytest.raises(ModelError, match="the weights are integers"):
                checkpoints._open_weights(*arguments)
            continue
        stored = checkpoints._open_weights(*arguments)
        assert stored is not None
        assert checkpoints._most_frequent_dtype(stored.values()) == torch.bfloat16


def test_another_device_is_refused_in_two_lines() -> None:
    with pytest.raises(ModelError, match="int8 needs a CPU") as error:
        int8_kernel("cuda")
    assert "--device cpu" in error.value.hint
