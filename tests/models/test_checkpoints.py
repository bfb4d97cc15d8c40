"""Checkpoints that are read and packed weight by weight, from files of each kind."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ngtcli.models.weights import checkpoints
from ngtcli.models.weights.checkpoints import read_checkpoint
from ngtcli.models.weights.convert import Conversion
from ngtcli.models.weights.formats import WeightFormat, prepacks
from ngtcli.models.weights.linear import PackedLinear, prepack_floats
from tests.support.families import FAMILIES
from tests.support.recording_reporter import RecordingReporter
from tests.support.tiny_models import make_hf, pack_layers, packed_from

if prepack_floats(torch.ones(8, 8)) is None:
    pytest.skip("torch has no packed products here", allow_module_level=True)
pytestmark = pytest.mark.cpu
BF16 = torch.bfloat16
F32 = torch.float32


def assert_alike(model: Any, expected: Any) -> None:
    """Assert that both models have the same modules, weights and logits."""
    assert str(model) == str(expected)
    assert model.dtype == expected.dtype
    assert not model.training
    tensors = model.state_dict()
    expected_tensors = expected.state_dict()
    assert tensors.keys() == expected_tensors.keys()
    for name, tensor in tensors.items():
        pair = [t.to_dense() if t.is_mkldnn else t for t in (tensor, expected_tensors[name])]
        assert pair[0].dtype == pair[1].dtype, name
        assert torch.equal(*pair)
    with torch.inference_mode():
        ids = torch.arange(3, 30)[None]
        assert torch.equal(model(ids).logits, expected(ids).logits)


@pytest.mark.parametrize(
    ("kind", "shards"),
    [("llama", 1), ("qwen2", 3), ("gemma2", 1), ("gpt_neox", 3), ("mixtral", 1), ("phi", 3)],
)
@pytest.mark.parametrize(("dtype", "tied"), [(F32, True), (BF16, False), (BF16, True)])
def test_packing_while_reading_equals_packing_afterwards(
    kind: str, shards: int, dtype: torch.dtype, tied: bool, tmp_path: Path
) -> None:
    family = next(candidate for candidate in FAMILIES if candidate.kind == kind)
    values = {**family.values, "tie_word_embeddings": tied}
    config = transformers.AutoConfig.for_model(kind, **values)
    torch.manual_seed(0)
    hf = transformers.AutoModelForCausalLM.from_config(config, dtype=BF16)
    size = sum(p.nbytes for p in hf.parameters()) // shards + 1
    hf.save_pretrained(tmp_path, max_shard_size=size if shards > 1 else "1GB")
    assert (len([*tmp_path.glob("*.safetensors")]) > 1) == (shards > 1)
    expected = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    pack_layers(expected)
    packed = packed_from(tmp_path, dtype)
    assert_alike(packed, expected)
    assert packed.config.to_json_string() == expected.config.to_json_string()


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("prefix", ["model.", ""])
def test_a_head_and_an_embedding_that_are_both_stored_have_their_own_weights(
    equal: bool, prefix: str, tmp_path: Path
) -> None:
    make_hf("llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    embedding = tensors["model.embed_tokens.weight"]
    tensors = {prefix + name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    tensors["lm_head.weight"] = embedding.clone() if equal else embedding + 1
    save_file(tensors, file, {"format": "pt"})
    packed = packed_from(tmp_path, F32)
    assert torch.equal(packed.get_input_embeddings().weight, embedding)
    assert torch.equal(packed.get_output_embeddings().weight, embedding if equal else embedding + 1)
    expected = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=F32)
    ids = torch.arange(3, 30)[None]
    with torch.inference_mode():
        torch.testing.assert_close(packed(ids).logits, expected(ids).logits, rtol=1e-4, atol=1e-4)


def test_a_tied_embedding_reads_the_mapped_file(tmp_path: Path) -> None:
    """It keeps the file's dtype; only the rows that are looked up are converted."""
    hf = make_hf("llama", tie_word_embeddings=True).to(BF16)
    hf.save_pretrained(tmp_path)
    for dtype in filter(prepacks, (F32, BF16)):
        embedding = packed_from(tmp_path, dtype).get_input_embeddings()
        assert embedding.weight.dtype == BF16
        assert embedding.dtype == dtype
        address = embedding.weight.data_ptr()
        areas = (
            re.match(r"(\w+)-(\w+) .*" + re.escape(str(tmp_path)), line)
            for line in Path("/proc/self/maps").read_text().splitlines()
        )
        assert any(area and int(area[1], 16) <= address < int(area[2], 16) for area in areas)
        assert torch.equal(embedding(torch.arange(97)), hf.get_input_embeddings().weight.to(dtype))


def test_memory_freed_between_weights_is_returned_to_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise the C library kept up to a gigabyte of a model of 0.5 billion parameters."""
    returns = list[int]()
    monkeypatch.setattr("ngtcli.models.weights.convert.return_memory", lambda: returns.append(1))
    make_hf("llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    packed = packed_from(tmp_path, F32)
    assert len(returns) == sum(isinstance(module, PackedLinear) for module in packed.modules())


def test_a_layer_that_cannot_be_packed_is_loaded_unpacked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ngtcli.models.weights.convert.prepack_floats", lambda weight: None)
    make_hf("llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    model = packed_from(tmp_path, F32)
    assert_alike(model, transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=F32))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_pickles_are_packed_when_they_are_read(tmp_path: Path) -> None:
    hf = make_hf("llama", tie_word_embeddings=True)
    hf.config.save_pretrained(tmp_path)
    torch.save(hf.state_dict(), tmp_path / "pytorch_model.bin")
    pack_layers(hf)
    assert_alike(packed_from(tmp_path, F32), hf)


def test_an_error_of_packing_ends_the_loading(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("ngtcli.models.weights.convert.prepack_floats", full)
    make_hf("llama").save_pretrained(tmp_path)
    with pytest.raises(MemoryError):
        packed_from(tmp_path, F32)


def test_weights_that_stay_as_they_are_stay_in_the_mapped_file(tmp_path: Path) -> None:
    make_hf("llama").to(BF16).save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)

    def is_mapped() -> bool:
        return str(tmp_path) in Path("/proc/self/maps").read_text()

    for dtype, mapped in ((BF16, True), (F32, False)):
        hf, _ = read_checkpoint(str(tmp_path), config, None, dtype)
        assert hf.dtype == dtype
        assert is_mapped() == mapped
        del hf


def test_progress_in_bytes_is_shown_while_a_large_checkpoint_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_MIN_BAR_BYTES", 1.0)
    monkeypatch.setattr("ngtcli.system.progress._UPDATE_INTERVAL_S", 0.0)
    make_hf("llama").save_pretrained(tmp_path, max_shard_size="20KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    reported = RecordingReporter()
    conversion = Conversion(WeightFormat(F32, packed=True))
    reported.of(lambda: read_checkpoint(str(tmp_path), config, conversion, F32))
    statuses = reported.statuses
    assert len(statuses) == len(index["weight_map"])
    assert re.fullmatch(r"Reading █{9,10}░? \d+/\d+ kB, .*", statuses[-1])
    assert re.match(r"Reading █░{9} \d+/\d+ kB", statuses[0])
