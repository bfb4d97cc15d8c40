"""GGUF files: written here from tiny models, loaded, and compared with what they hold."""

import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ngtcli.decoding.load import ModelSpec, load_model
from ngtcli.errors import ModelError
from ngtcli.models import gguf as gguf_module
from ngtcli.models.checkpoint import BUILTIN_PATH, check_models, find
from ngtcli.models.pretrained import load_config, load_tokenizer
from ngtcli.models.quantized import cached_weights
from ngtcli.models.stand_in import source_of
from ngtcli.models.weights.checkpoints import read_checkpoint
from ngtcli.models.weights.load_quantized import load_quantized
from ngtcli.system.files import home
from tests.support.helpers import HARBOUR, ngt
from tests.support.int8_layers import INT8, KERNEL
from tests.support.recording_reporter import RecordingReporter
from tests.support.tokenizer_kinds import backend
from tests.tools.gguf_files import ARCHITECTURES, stored, write

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(find_spec("gguf") is None, reason="the package gguf is missing"),
]
SIZES = {
    "vocab_size": 800,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 32,
    "max_position_embeddings": 256,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "norm_topk_prob": True,
    "bos_token_id": None,
}
MORE: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32},
    "gemma2": {"sliding_window": 12},
    "gemma3_text": {"sliding_window": 12},
}
# The values of a bfloat16 have 8 bits, those of a block at most that many and a scale.
KINDS = ["Q8_0", "Q5_0", "Q4_0", "BF16", "F16", "F32"]


def tiny(family: str, **changes: Any) -> Any:
    """A random float32 model whose greedy choices are not near ties."""
    width = 16 if family in ("llama", "qwen2") else 32  # of a head; others need not divide by heads
    sizes = {**SIZES, "head_dim": width}
    if family.startswith("gemma"):
        sizes |= {"sliding_window": 12, "query_pre_attn_scalar": 256}
    config = transformers.AutoConfig.for_model(family, **{**sizes, **changes})
    torch.manual_seed(0)
    hf = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.mul_(6.0) if parameter.ndim > 1 else parameter.add_(0.1)
    return hf


def write_model(path: Path, hf: Any, kind: str = "Q8_0", tokens: Any = None, **fields: Any) -> Any:
    """Write the model to a file; return it with the values that the file holds."""
    import gguf

    weights = {n: p.detach().numpy() for n, p in hf.named_parameters()}
    tensors = stored(hf.config, weights, kind)
    extra = MORE.get(hf.config.model_type, {})
    write(path, hf.config, tensors, tokens or backend("qwen"), **{**extra, **fields})
    with torch.no_grad():
        for parameter in hf.parameters():
            if parameter.ndim > 1 and kind != "F32":  # blocks go along rows, as their order does
                quantization = gguf.GGMLQuantizationType[kind]
                packed = gguf.quants.quantize(parameter.numpy(), quantization)
                values = torch.from_numpy(np.array(gguf.quants.dequantize(packed, quantization)))
                parameter.copy_(values if kind == "F16" else values.bfloat16())
    return hf


def read(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    folder = find(str(path))
    config = transformers.AutoConfig.from_pretrained(folder)
    hf, report = read_checkpoint(folder, config, dtype=dtype)
    assert not any(report.values()), report
    return hf


@torch.inference_mode()
def scores(hf: Any) -> torch.Tensor:
    out: torch.Tensor = hf(torch.arange(3, 40)[None]).logits
    return out


@pytest.mark.search
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_the_logits_are_those_of_the_values_in_the_file(
    family: str, tied: bool, tmp_path: Path
) -> None:
    tied |= family.startswith("gemma")  # always, in such files
    expected = write_model(tmp_path / "a.gguf", tiny(family, tie_word_embeddings=tied))
    loaded = read(tmp_path / "a.gguf")
    assert loaded.config.get_text_config().dtype == torch.float32
    torch.testing.assert_close(scores(loaded), scores(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_each_quantization_is_read_as_its_values(kind: str, tmp_path: Path) -> None:
    expected = write_model(tmp_path / "a.gguf", tiny("llama"), kind).state_dict()
    file_dtype = {"F32": torch.float32, "F16": torch.float16}.get(kind, torch.bfloat16)
    for dtype in (torch.float32, file_dtype):
        tensors = read(tmp_path / "a.gguf", dtype).state_dict()
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], expected[name].to(dtype)) for name in expected)
    config = json.loads((Path(find(str(tmp_path / "a.gguf"))) / "config.json").read_text())
    assert config["dtype"] == str(file_dtype).removeprefix("torch.")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text"])
def test_the_configuration_is_that_which_transformers_reads(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "a.gguf", tiny(family))
    quick = json.loads((Path(find(str(tmp_path / "a.gguf"))) / "config.json").read_text())
    shutil.rmtree(home("cache") / "stand-ins")
    monkeypatch.setattr(gguf_module, "_TABLE_MODEL_TYPES", {})
    slow = json.loads((Path(find(str(tmp_path / "a.gguf"))) / "config.json").read_text())
    assert quick == slow


def test_long_matrices_are_dequantized_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngtcli.models.weights.gguf_weights._CHUNK_ELEMENTS", 64 * 7)
    expected = write_model(tmp_path / "a.gguf", tiny("qwen2")).state_dict()
    tensors = read(tmp_path / "a.gguf").state_dict()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


ROPES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"rope_type": "linear", "factor": 4.0}, {"rope_scaling_type": "linear"}),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {"rope_scaling_type": "yarn", "rope_scaling_orig_ctx_len": 64},
    ),
]


@pytest.mark.parametrize(("rope", "file_fields"), ROPES)
def test_rotary_scaling_is_read(
    rope: dict[str, Any], file_fields: dict[str, Any], tmp_path: Path
) -> None:
    import gguf

    hf = tiny("qwen2", rope_parameters={"rope_theta": 10000.0, **rope})
    file_fields = {
        name: value for name, value in file_fields.items() if name != "rope_scaling_type"
    }
    kind = gguf.RopeScalingType(rope["rope_type"])
    fields = {"rope_scaling_type": kind, "rope_scaling_factor": 4.0, **file_fields}
    expected = write_model(tmp_path / "a.gguf", hf, **fields)
    torch.testing.assert_close(scores(read(tmp_path / "a.gguf")), scores(expected))


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_rotary_factors_of_llama_3_are_read_and_others_refused(
    factor: float, tmp_path: Path
) -> None:
    base = {"rope_theta": 500000.0, "rope_type": "default"}
    rope = {
        **base,
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    hf = tiny("llama", rope_parameters=rope)
    plain = tiny("llama", rope_parameters=base)
    inverse_frequencies = hf.model.rotary_emb.inv_freq
    factors = (plain.model.rotary_emb.inv_freq / inverse_frequencies).numpy()
    assert factors.max() == factor
    assert len({*factors.round(3)}) > 2
    for name, numbers in (("a", factors), ("b", factors[::-1].copy())):
        weights = {n: p.detach().numpy() for n, p in hf.named_parameters()}
        tensors = [*stored(hf.config, weights, "F32"), ("rope_freqs.weight", numbers, "F32")]
        write(tmp_path / f"{name}.gguf", hf.config, tensors, backend("qwen"))
    loaded = read(tmp_path / "a.gguf")
    assert torch.equal(loaded.model.rotary_emb.inv_freq, inverse_frequencies)
    with pytest.raises(ModelError, match="does not support the rotary factors"):
        find(str(tmp_path / "b.gguf"))


@pytest.mark.search
@pytest.mark.skipif(KERNEL is None, reason="no product of 8-bit integers here")
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_int8_is_that_of_the_dequantized_checkpoint_and_is_kept(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert KERNEL is not None
    write_model(tmp_path / "a.gguf", tiny(family)).bfloat16().save_pretrained(tmp_path / "true")
    expected, _ = load_quantized(str(tmp_path / "true"), INT8)
    folder = find(str(tmp_path / "a.gguf"))
    quantized, report = load_quantized(folder, INT8)
    assert not any(report.values())
    # Norms are float32 in the file and bfloat16 in the other checkpoint.
    torch.testing.assert_close(scores(quantized), scores(expected), rtol=0.05, atol=0.5)
    assert str(tmp_path / "a.gguf") in {cached.folder for cached in cached_weights()}
    # The GGUF file is not read again.
    monkeypatch.setattr("ngtcli.models.weights.checkpoints.gguf_weights", None)
    reported = RecordingReporter()
    again, _ = reported.of(lambda: load_quantized(folder, INT8))
    assert torch.equal(scores(again), scores(quantized))
    assert reported.statuses[-1].startswith("Read")


def test_the_tokenizer_is_that_of_the_file_without_reading_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = backend("qwen")
    path = tmp_path / "model.gguf"
    write_model(path, tiny("qwen2"), tokens=original)
    loaded = load_tokenizer(str(path))
    monkeypatch.setattr(gguf_module, "_write_folder", None)
    again = load_tokenizer(str(tmp_path))  # the folder has no other model
    texts = ["The tide came in at noon.", "naïve café, “quoted” 1234\n\n x", "<|im_end|>a"]
    for text in texts:
        assert loaded.backend(text)["input_ids"] == original(text)["input_ids"]
        assert again.encode(text) == loaded.encode(text)
    assert loaded.backend.chat_template == original.chat_template
    assert loaded.backend.eos_token == "<|im_end|>"
    assert loaded.fingerprint == again.fingerprint
    assert load_config(str(path)).max_position_embeddings == 256
    check_models(str(path))


def test_all_tokens_that_end_a_turn_are_end_ids(tmp_path: Path) -> None:
    tokens = backend("qwen")
    write_model(tmp_path / "a.gguf", tiny("qwen2"), tokens=tokens, eot_token_id=5)
    ends = set(tokens.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))
    assert load_model(ModelSpec(str(tmp_path / "a.gguf"), "cpu")).end_ids == ends | {5}


def test_a_changed_file_is_read_anew_and_a_lost_part_made_again(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_model(path, tiny("llama"))
    first = find(str(path))
    part = Path(first) / "tokenizer.json"
    for harm in (part.unlink, lambda: part.write_bytes(b"")):  # removed; of a disk that failed
        harm()
        assert find(str(path)) == first
        assert part.stat().st_size > 1000
    assert source_of(first)
    assert source_of(tmp_path) is None
    write_model(path, tiny("qwen2"))
    os.utime(path, ns=(1, 1))
    assert find(str(path)) != first
    assert load_config(str(path)).model_type == "qwen2"


def test_an_unreadable_gguf_file_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.gguf"
    write_model(path, tiny("llama"))
    content = path.read_bytes()
    foreign = content.replace(b"llama", b"lorem")
    for number, data in enumerate(
        (content[:-1000], content[:100], b"GGUX" + content[4:], b"", foreign)
    ):
        broken = tmp_path / f"{number}.gguf"
        broken.write_bytes(data)
        with pytest.raises(ModelError) as caught:
            load_model(ModelSpec(str(broken), "cpu"))
        assert "\n" not in str(caught.value)
        assert str(broken) in str(caught.value)
        assert caught.value.exit_code == 4
        assert caught.value.hint
    assert "gemma3, " in caught.value.hint
    assert "t5" not in caught.value.hint
    with pytest.raises(ModelError, match="6 GGUF files: 0.gguf, 1.gguf") as caught:
        find(str(tmp_path))
    assert caught.value.hint == f"Name one of them: -m {tmp_path / '0.gguf'}"
    with pytest.raises(ModelError, match="no such file") as caught:
        find(str(tmp_path / "aa.gguf"))
    assert "a.gguf?" in caught.value.hint
    with pytest.raises(ModelError, match="where a whole folder is needed"):
        find(str(path), only_folders=True)
    write(tmp_path / "b.gguf", tiny("llama").config, [])
    with pytest.raises(ModelError, match="has no tokenizer"):
        find(str(tmp_path / "b.gguf"))
    parts = tmp_path / "parts"
    parts.mkdir()
    for number in (1, 2, 3):
        part = parts / f"c-{number:05}-of-00003.gguf"
        write_model(part, tiny("llama"), uint16=("split.count", 3))
        for name in (part, parts):
            with pytest.raises(ModelError, match="one of 3 parts"):
                find(str(name))


def test_commands_answer_from_a_file_and_say_what_it_is(tmp_path: Path, own_home: Path) -> None:
    hf = transformers.AutoModelForCausalLM.from_pretrained(BUILTIN_PATH, dtype=torch.float32)
    path = tmp_path / "builtin.gguf"
    weights = {n: p.detach().numpy() for n, p in hf.named_parameters()}
    write(path, hf.config, stored(hf.config, weights, "Q8_0"), load_tokenizer("builtin").backend)
    dry = ngt("summarize", "-m", str(path), "--dry-run", HARBOUR)
    assert dry.returncode == 0, dry.stderr
    flags = ("-m", str(path), "--dtype", "float32", "--set", "calibrate=no", "--method", "trie")
    done = ngt("summarize", *flags, "--max-tokens", "8", HARBOUR)
    assert done.returncode == 0, done.stderr
    assert b"its tokenizer has" not in done.stderr  # as many tokens as the model
    dequantization = "dequantized to bfloat16"
    lines = [line for line in done.stderr.decode().splitlines() if "GGUF" in line]
    assert lines == [
        f"ngt: {path} is a GGUF file with weights in Q8_0, {dequantization}; computed in float32"
    ]
    assert [*(home("cache") / "stand-ins").iterdir()]
