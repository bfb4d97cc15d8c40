"""The memory that `ngt env -v` says a model needs, compared with models that were loaded."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator

from ngtcli.cli import about
from ngtcli.cli.schema import build
from ngtcli.decoding import memory_needs
from ngtcli.decoding.memory_needs import SPARE, CacheNumbers, cache_numbers, needs_of
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.sizes import capacity_for
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.models.needs import ModelNeeds, Need
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.models.weights.linear import MappedEmbedding
from ngtcli.models.weights.load_quantized import load_quantized
from tests.support import families
from tests.support.families import LongBackend
from tests.support.helpers import in_terminal, ngt
from tests.support.hub_server import ID, OTHERS, WEIGHTS, Hub, files_of
from tests.support.int8_layers import INT8, KERNEL
from tests.support.tiny_models import FAMILIES, make_hf, saved

pytestmark = pytest.mark.cpu

GB = 10**9


def config_alone(folder: Path, hf: Any) -> str:
    """A folder with the configuration of a model, in bfloat16, and nothing else."""
    hf.config.dtype = torch.bfloat16
    hf.config.save_pretrained(folder)
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    return str(folder)


def by_form(needs: ModelNeeds) -> dict[str, Need]:
    return {need.form: need for need in needs.forms}


def set_free_memory(monkeypatch: pytest.MonkeyPatch, free_bytes: int | None) -> None:
    monkeypatch.setattr(memory_needs, "free_memory", lambda _: free_bytes)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_and_cache_take_what_a_loaded_model_takes(
    family: str, tied: bool, tmp_path: Path
) -> None:
    hf = make_hf(family, tie_word_embeddings=tied)
    (tmp_path / "alone").mkdir()
    needs = needs_of(config_alone(tmp_path / "alone", hf), "cpu")
    forms = by_form(needs)
    assert [*forms] == ["float32", "bfloat16", "int8 in float32", "int8 in bfloat16"]
    assert needs.dtype == "bfloat16"
    assert needs.context == hf.config.max_position_embeddings
    assert needs.parameters == sum(parameter.numel() for parameter in hf.parameters())
    for dtype in (torch.float32, torch.bfloat16):
        converted = hf.to(dtype)
        name = str(dtype).removeprefix("torch.")
        assert forms[name].weight_bytes == sum(
            parameter.nbytes for parameter in converted.parameters()
        )
        model = TargetModel(converted, Tokenizer(LongBackend()), family)
        model.start(100)
        model.prefill([5] * 70)
        cache_bytes = sum(buffer.nbytes for buffer in model.cache.buffers)
        for form in (name, f"int8 in {name}"):
            assert cache_bytes == model.cache.capacity * (forms[form].cache_bytes or 0)


@pytest.mark.skipif(KERNEL is None, reason="no product of 8-bit integers here")
@pytest.mark.parametrize("family", ["qwen2", "gemma"])
def test_8_bit_weights_take_what_a_quantized_model_takes(family: str, tmp_path: Path) -> None:
    assert KERNEL is not None
    hf = make_hf(family, tie_word_embeddings=family == "gemma").to(torch.bfloat16)
    hf.save_pretrained(tmp_path)
    forms = by_form(needs_of(str(tmp_path), "cpu"))
    for dtype in (torch.float32, torch.bfloat16):
        quantized, _ = load_quantized(str(tmp_path), replace(INT8, dtype=dtype))
        packed_sizes = {
            id(m.packed): m.packed.numel() for m in quantized.modules() if hasattr(m, "packed")
        }
        sizes = [*packed_sizes.values()]
        sizes += [p.nbytes for p in quantized.parameters() if p.is_floating_point()]
        sizes += [
            module.weight.nbytes
            for module in quantized.modules()
            if isinstance(module, MappedEmbedding)
        ]
        name = str(dtype).removeprefix("torch.")
        assert forms[f"int8 in {name}"].weight_bytes == sum(sizes)


def test_a_context_that_is_said_to_fit_does_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hf = make_hf("llama", max_position_embeddings=32768)
    folder = config_alone(tmp_path, hf)
    last_tokens = dict[str, int]()
    float32_bytes = 4 * sum(parameter.numel() for parameter in hf.parameters())
    for free in [*range(0, 40 * float32_bytes, 4 * float32_bytes), GB]:
        set_free_memory(monkeypatch, free)
        for name, need in by_form(needs_of(folder, "cpu")).items():
            assert need.tokens is not None
            assert need.cache_bytes is not None
            assert last_tokens.get(name, 0) <= need.tokens <= 32768
            last_tokens[name] = need.tokens
            if not need.tokens:
                assert free < SPARE * need.weight_bytes + 2 * need.cache_bytes
                assert "does not fit" in str(need)
                continue
            positions = min(capacity_for(need.tokens), 32768)
            cache = need.cache_bytes * (positions if need.tokens > 256 else need.tokens)
            assert SPARE * need.weight_bytes + cache <= free
            assert f"{need.tokens:,} tokens fit" in str(need)
    assert set(last_tokens.values()) == {32768}
    set_free_memory(monkeypatch, None)
    unknown_memory = needs_of(folder, "cpu")
    assert {need.tokens for need in unknown_memory.forms} == {None}
    assert "fit" not in str(unknown_memory.forms[0])
    assert not any("free" in line for line in unknown_memory.facts["memory"])


@pytest.mark.parametrize("family", ["mistral-sliding", "gemma2-sliding", "gemma3-sliding"])
def test_sliding_layers_need_memory_for_their_window_alone(
    family: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The context that is said to fit is near the longest whose buffers really fit."""
    kinds = {"layer_types": ["sliding_attention", "full_attention"]} if "gemma3" in family else {}
    hf = make_hf(family, max_position_embeddings=65536, **kinds)
    folder = config_alone(tmp_path, hf)
    hf = hf.to(torch.bfloat16)
    model = TargetModel(hf, Tokenizer(LongBackend()), family)
    model.context = 65536
    model.start(20_000)
    model.prefill([5] * 2)
    cache_bytes = sum(buffer.nbytes for buffer in model.cache.buffers)
    set_free_memory(
        monkeypatch,
        int(SPARE * sum(parameter.nbytes for parameter in hf.parameters())) + cache_bytes + 1,
    )
    need = by_form(needs_of(folder, "cpu"))["bfloat16"]
    assert need.tokens is not None
    if family == "mistral-sliding":  # all layers slide
        assert need.tokens == 65536
    else:
        assert 0.7 * model.cache.slot_capacity <= need.tokens <= model.cache.slot_capacity


@pytest.mark.parametrize("window", [1, 2, 3, 4])
def test_short_windows_need_the_memory_of_their_slots(window: int) -> None:
    hf = make_hf("mistral-sliding", sliding_window=window, max_position_embeddings=65536)
    model = TargetModel(hf.to(torch.bfloat16), Tokenizer(LongBackend()), "mistral-sliding")
    model.context = 65536
    model.start(20_000)
    model.prefill([5] * 2)
    slot_bytes = sum(buffer.nbytes for buffer in model.cache.buffers)
    numbers = cache_numbers(hf.config)
    assert numbers is not None
    assert numbers.of_capacity(model.cache.slot_capacity) * torch.bfloat16.itemsize == slot_bytes


def test_weights_larger_than_memory_do_not_fit_whatever_the_cache_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The cache of a recurrent model takes nothing; that of some models is unknown."""
    folder = config_alone(tmp_path, families.build(families.family("mamba")))
    for numbers in (CacheNumbers(0), None):
        monkeypatch.setattr(memory_needs, "cache_numbers", lambda _, result=numbers: result)
        set_free_memory(monkeypatch, 1000)
        assert {need.tokens for need in needs_of(folder, "cpu").forms} == {0}
        set_free_memory(monkeypatch, GB)
        fits = {need.tokens for need in needs_of(folder, "cpu").forms}
        assert fits == ({needs_of(folder, "cpu").context} if numbers else {None})


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors"])
def test_quantized_weights_take_what_their_files_take_and_need_a_gpu(
    method: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "model", make_hf("llama"))
    size = (tmp_path / "model" / "model.safetensors").stat().st_size
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    needs = needs_of(folder, "cpu")
    assert [need.form for need in needs.forms] == [method]
    assert abs(needs.forms[0].weight_bytes - size) < 5000  # config.json is counted as well
    assert needs.quickest == (
        "its weights run on a GPU only: name a GGUF file or the original checkpoint",
    )
    on_gpu = needs_of(folder, "mps")
    assert [need.form for need in on_gpu.forms] == [method]
    assert on_gpu.quickest == ("the checkpoint's own dtype: no other is tried on mps",)


def test_env_shows_a_models_needs_in_a_pipe_a_terminal_and_json(tmp_path: Path) -> None:
    shutil.copy(BUILTIN_PATH / "config.json", tmp_path)
    arguments = ["env", "-m", str(tmp_path)]
    fields = [line.split("\t") for line in ngt(*arguments).stdout.decode().splitlines()]
    assert all(len(line) == 2 for line in fields)
    labels = [label for label, _ in fields]
    model_line = labels.index("model")
    assert labels[model_line:] == ["model", *["memory"] * 5, "quickest"]
    assert fields[model_line][1].startswith(
        f"{tmp_path}: 6.1 million parameters in bfloat16, 4,096 tokens"
    )
    shown, code = in_terminal(*arguments, columns=60, NO_COLOR="1")
    lines = re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 60
    assert "tokens fit" in " ".join(shown.split())
    body = json.loads(ngt("env", "-v", "--json", NGT_MODEL=str(tmp_path)).stdout)
    Draft202012Validator(build("env")).validate(body)
    assert body["model"]["forms"][0]["tokens"] == 4096
    builtin = json.loads(ngt("env", "-v", "--json").stdout)["model"]
    assert builtin["name"] == "builtin"
    assert builtin["dtype"] == "float32"  # as it is computed
    assert "model" not in json.loads(ngt("env", "--json").stdout)
    wrong = ngt("env", "-v", "-m", str(tmp_path / "nothing"))
    assert wrong.returncode == 4
    assert b"no such folder" in wrong.stderr
    assert not wrong.stdout


def test_env_says_what_it_knows_of_a_model_that_cannot_be_asked_for(tmp_path: Path) -> None:
    done = ngt("env", "-m", "maker/Large-8B")
    assert done.returncode == 0, done.stderr
    facts = [line.split("\t") for line in done.stdout.decode().splitlines()]
    assert ["download", "once online: ngt models pull maker/Large-8B"] in facts
    memory = [value for name, value in facts if name == "memory"]
    assert memory[0].startswith("8B parameters in bfloat16: about 16.0 GB")
    assert memory[1].startswith("8B parameters in int8: about 8.5 GB")
    assert memory[-1].endswith(" are free")
    body = json.loads(ngt("env", "-m", "maker/Large", "--json").stdout)
    Draft202012Validator(build("env")).validate(body)
    assert body["unreachable"]["estimate"] is None
    assert "HF_HUB_OFFLINE is set" in body["unreachable"]["problem"]
    assert "model" not in body


def test_env_names_the_device_though_a_model_cannot_be_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only torch knows the device, unless it is built for CPUs alone."""
    build = {"torch": "2.9.1+cu128"}
    monkeypatch.setattr(about.metadata, "version", lambda name: build.get(name, "1.0"))
    monkeypatch.setattr(about, "pick_device", lambda device: {"auto": "mps"}[device])
    body = json.loads(ngt("env", "-v", "-m", "maker/Large-8B", "--json").stdout)
    assert body["device"] == "mps"
    assert body["unreachable"]
    assert "ngt env -v" in json.loads(ngt("env", "--json").stdout)["device"]


def test_env_asks_no_torch_for_cpus_when_a_model_cannot_be_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(about.metadata, "version", lambda name: "2.9.1+cpu")
    monkeypatch.setattr(about, "pick_device", None)
    body = json.loads(ngt("env", "-v", "-m", "maker/Large-8B", "--json").stdout)
    assert body["device"] == "cpu"
    assert body["unreachable"]


def test_of_a_hubs_model_no_weights_are_read(tmp_path: Path) -> None:
    files = files_of(BUILTIN_PATH)
    with Hub({ID: {"main": {**files, **OTHERS}}}) as hub:
        done = hub.run(tmp_path, "env", "-v", "-m", ID)
        assert done.returncode == 0, done.stderr
        got = hub.take_downloads()
        assert "config.json" in got
        assert not {WEIGHTS, *OTHERS} & {*got}
        size = f"({len(files[WEIGHTS]) / 1e6:.0f} MB)"
        assert f"download\tngt models pull {ID} {size}\n" in done.stdout
        assert hub.run(tmp_path, "models", "pull", ID).returncode == 0
        again = hub.run(tmp_path, "env", "-v", "-m", ID)
        assert "models pull" not in again.stdout
        assert f"model\t{ID}: 6.1" in again.stdout
        unknown = hub.run(tmp_path, "env", "-m", "maker/Other")
        assert unknown.returncode == 4
        assert "no such model on the hub" in unknown.stderr
