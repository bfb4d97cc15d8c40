"""Checkpoints that are read weight by weight: what is packed as it comes, and from which files."""

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


def alike(found: Any, true: Any) -> None:
    """Both have the same modules, weights and scores."""
    assert str(found) == str(true)
    assert found.dtype == true.dtype
    assert not found.training
    ours = found.state_dict()
    theirs = true.state_dict()
    assert ours.keys() == theirs.keys()
    for name, one in ours.items():
        same = [t.to_dense() if t.is_mkldnn else t for t in (one, theirs[name])]
        assert same[0].dtype == same[1].dtype, name
        assert torch.equal(*same)
    with torch.inference_mode():
        ids = torch.arange(3, 30)[None]
        assert torch.equal(found(ids).logits, true(ids).logits)


@pytest.mark.parametrize(
    ("kind", "shards"),
    [("llama", 1), ("qwen2", 3), ("gemma2", 1), ("gpt_neox", 3), ("mixtral", 1), ("phi", 3)],
)
@pytest.mark.parametrize(("dtype", "tied"), [(F32, True), (BF16, False), (BF16, True)])
def test_packing_while_reading_equals_packing_afterwards(
    kind: str, shards: int, dtype: torch.dtype, tied: bool, tmp_path: Path
) -> None:
    family = next(one for one in FAMILIES if one.kind == kind)
    values = {**family.values, "tie_word_embeddings": tied}
    config = transformers.AutoConfig.for_model(kind, **values)
    torch.manual_seed(0)
    hf = transformers.AutoModelForCausalLM.from_config(config, dtype=BF16)
    size = sum(p.nbytes for p in hf.parameters()) // shards + 1
    hf.save_pretrained(tmp_path, max_shard_size=size if shards > 1 else "1GB")
    assert (len([*tmp_path.glob("*.safetensors")]) > 1) == (shards > 1)
    true = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    pack_layers(true)
    found = packed_from(tmp_path, dtype)
    alike(found, true)
    assert found.config.to_json_string() == true.config.to_json_string()


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("prefix", ["model.", ""])
def test_a_head_and_an_embedding_that_are_both_stored_have_their_own_weights(
    equal: bool, prefix: str, tmp_path: Path
) -> None:
    make_hf("llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    own = tensors["model.embed_tokens.weight"]
    tensors = {prefix + name.removeprefix("model."): one for name, one in tensors.items()}
    tensors["lm_head.weight"] = own.clone() if equal else own + 1
    save_file(tensors, file, {"format": "pt"})
    found = packed_from(tmp_path, F32)
    assert torch.equal(found.get_input_embeddings().weight, own)
    assert torch.equal(found.get_output_embeddings().weight, own if equal else own + 1)
    true = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=F32)
    ids = torch.arange(3, 30)[None]
    with torch.inference_mode():
        torch.testing.assert_close(found(ids).logits, true(ids).logits, rtol=1e-4, atol=1e-4)


def test_a_tied_embedding_reads_the_mapped_file(tmp_path: Path) -> None:
    """In its dtype, whatever the model's: of a table of rows those that are looked up."""
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
    """The C library kept up to a gigabyte of a model of 0.5 billion parameters."""
    given = list[int]()
    monkeypatch.setattr("ngtcli.models.weights.convert.return_memory", lambda: given.append(1))
    make_hf("llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    found = packed_from(tmp_path, F32)
    assert len(given) == sum(isinstance(one, PackedLinear) for one in found.modules())


def test_a_layer_that_cannot_be_packed_comes_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ngtcli.models.weights.convert.prepack_floats", lambda weight: None)
    make_hf("llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    found = packed_from(tmp_path, F32)
    alike(found, transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=F32))
    assert found.get_output_embeddings().weight is found.get_input_embeddings().weight


def test_pickles_are_packed_when_they_are_read(tmp_path: Path) -> None:
    hf = make_hf("llama", tie_word_embeddings=True)
    hf.config.save_pretrained(tmp_path)
    torch.save(hf.state_dict(), tmp_path / "pytorch_model.bin")
    pack_layers(hf)
    alike(packed_from(tmp_path, F32), hf)


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


def test_bytes_are_told_while_a_large_checkpoint_is_read(
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
    told = reported.statuses
    assert len(told) == len(index["weight_map"])
    assert re.fullmatch(r"Reading █{9,10}░? \d+/\d+ kB, .*", told[-1])
    assert re.match(r"Reading █░{9} \d+/\d+ kB", told[0])
