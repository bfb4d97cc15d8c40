"""What `ngt env -v` says that a model needs, against models that were really loaded."""

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


def by_form(found: ModelNeeds) -> dict[str, Need]:
    return {need.form: need for need in found.forms}


def has(monkeypatch: pytest.MonkeyPatch, free: int | None) -> None:
    """Let so many bytes be free."""
    monkeypatch.setattr(memory_needs, "free_memory", lambda _: free)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_and_cache_take_what_a_loaded_model_takes(
    family: str, tied: bool, tmp_path: Path
) -> None:
    hf = make_hf(family, tie_word_embeddings=tied)
    (tmp_path / "alone").mkdir()
    found = needs_of(config_alone(tmp_path / "alone", hf), "cpu")
    forms = by_form(found)
    assert [*forms] == ["float32", "bfloat16", "int8 in float32", "int8 in bfloat16"]
    assert found.dtype == "bfloat16"
    assert found.context == hf.config.max_position_embeddings
    assert found.parameters == sum(one.numel() for one in hf.parameters())
    for dtype in (torch.float32, torch.bfloat16):
        own = hf.to(dtype)
        name = str(dtype).removeprefix("torch.")
        assert forms[name].weight_bytes == sum(one.nbytes for one in own.parameters())
        model = TargetModel(own, Tokenizer(LongBackend()), family)
        model.start(100)
        model.prefill([5] * 70)
        whole = sum(buffer.nbytes for buffer in model.cache.buffers)
        for form in (name, f"int8 in {name}"):
            assert whole == model.cache.capacity * (forms[form].cache_bytes or 0)


@pytest.mark.skipif(KERNEL is None, reason="no product of 8-bit integers here")
@pytest.mark.parametrize("family", ["qwen2", "gemma"])
def test_8_bit_weights_take_what_a_quantized_model_takes(family: str, tmp_path: Path) -> None:
    assert KERNEL is not None
    hf = make_hf(family, tie_word_embeddings=family == "gemma").to(torch.bfloat16)
    hf.save_pretrained(tmp_path)
    forms = by_form(needs_of(str(tmp_path), "cpu"))
    for dtype in (torch.float32, torch.bfloat16):
        own, _ = load_quantized(str(tmp_path), replace(INT8, dtype=dtype))
        held = {id(m.packed): m.packed.numel() for m in own.modules() if hasattr(m, "packed")}
        sizes = [*held.values()]
        sizes += [p.nbytes for p in own.parameters() if p.is_floating_point()]
        sizes += [one.weight.nbytes for one in own.modules() if isinstance(one, MappedEmbedding)]
        name = str(dtype).removeprefix("torch.")
        assert forms[f"int8 in {name}"].weight_bytes == sum(sizes)


def test_the_context_that_fits_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hf = make_hf("llama", max_position_embeddings=32768)
    folder = config_alone(tmp_path, hf)
    last = dict[str, int]()
    least = 4 * sum(one.numel() for one in hf.parameters())
    for free in [*range(0, 40 * least, 4 * least), GB]:
        has(monkeypatch, free)
        for name, need in by_form(needs_of(folder, "cpu")).items():
            assert need.tokens is not None
            assert need.cache_bytes is not None
            assert last.get(name, 0) <= need.tokens <= 32768
            last[name] = need.tokens
            if not need.tokens:
                assert free < SPARE * need.weight_bytes + 2 * need.cache_bytes
                assert "does not fit" in str(need)
                continue
            places = min(capacity_for(need.tokens), 32768)
            cache = need.cache_bytes * (places if need.tokens > 256 else need.tokens)
            assert SPARE * need.weight_bytes + cache <= free
            assert f"{need.tokens:,} tokens fit" in str(need)
    assert set(last.values()) == {32768}
    has(monkeypatch, None)
    found = needs_of(folder, "cpu")
    assert {need.tokens for need in found.forms} == {None}
    assert "fit" not in str(found.forms[0])
    assert not any("free" in line for line in found.facts["memory"])


@pytest.mark.parametrize("family", ["mistral-sliding", "gemma2-sliding", "gemma3-sliding"])
def test_sliding_layers_need_memory_for_their_window_alone(
    family: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The context that is said to fit is near the longest whose buffers do fit."""
    kinds = {"layer_types": ["sliding_attention", "full_attention"]} if "gemma3" in family else {}
    hf = make_hf(family, max_position_embeddings=65536, **kinds)
    folder = config_alone(tmp_path, hf)
    hf = hf.to(torch.bfloat16)
    model = TargetModel(hf, Tokenizer(LongBackend()), family)
    model.context = 65536
    model.start(20_000)
    model.prefill([5] * 2)
    taken = sum(buffer.nbytes for buffer in model.cache.buffers)
    has(monkeypatch, int(SPARE * sum(one.nbytes for one in hf.parameters())) + taken + 1)
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


def test_weights_without_room_do_not_fit_whatever_the_cache_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A recurrent model's takes nothing, some models' is not known."""
    folder = config_alone(tmp_path, families.build(families.family("mamba")))
    for numbers in (CacheNumbers(0), None):
        monkeypatch.setattr(memory_needs, "cache_numbers", lambda _, found=numbers: found)
        has(monkeypatch, 1000)
        assert {need.tokens for need in needs_of(folder, "cpu").forms} == {0}
        has(monkeypatch, GB)
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


def test_env_says_it_in_a_pipe_a_terminal_and_json(tmp_path: Path) -> None:
    shutil.copy(BUILTIN_PATH / "config.json", tmp_path)
    given = ["env", "-m", str(tmp_path)]
    told = [line.split("\t") for line in ngt(*given).stdout.decode().splitlines()]
    assert all(len(line) == 2 for line in told)
    facts = [what for what, _ in told]
    at = facts.index("model")
    assert facts[at:] == ["model", *["memory"] * 5, "quickest"]
    assert told[at][1].startswith(f"{tmp_path}: 6.1 million parameters in bfloat16, 4,096 tokens")
    shown, code = in_terminal(*given, columns=60, NO_COLOR="1")
    lines = re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 60
    assert "tokens fit" in " ".join(shown.split())
    body = json.loads(ngt("env", "-v", "--json", NGT_MODEL=str(tmp_path)).stdout)
    Draft202012Validator(build("env")).validate(body)
    assert body["model"]["forms"][0]["tokens"] == 4096
    own = json.loads(ngt("env", "-v", "--json").stdout)["model"]
    assert own["name"] == "builtin"
    assert own["dtype"] == "float32"  # as it is computed
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
    """With a torch that is not built for CPUs alone, only torch can tell."""
    build = {"torch": "2.9.1+cu128"}
    monkeypatch.setattr(about.metadata, "version", lambda name: build.get(name, "1.0"))
    monkeypatch.setattr(about, "pick_device", lambda wanted: {"auto": "mps"}[wanted])
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
