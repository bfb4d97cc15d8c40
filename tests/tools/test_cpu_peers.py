"""What the tool that measures other engines writes and computes, without them."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from ngtcli.config import Settings
from ngtcli.errors import UsageError
from ngtcli.measure.options import Shape, find_shape
from ngtcli.measure.shape_model import plan
from ngtcli.render.tables import to_plain
from tests.tools import cpu_peers
from tests.tools.cpu_peers import Measured, contestants, prompt, table, write_gguf

SHAPE = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}  # fmt: skip


def test_figures_are_medians_over_turns_and_ratios_to_llama_cpp() -> None:
    found = {"ngt float32": Measured(), "llama.cpp Q8_0": Measured()}
    for seconds in (0.1, 0.3, 0.2):
        found["ngt float32"].add(Measured([seconds], {"1": [seconds], "8": [2 * seconds]}))
        found["llama.cpp Q8_0"].add(Measured([0.1], {"1": [0.1], "8": [0.25]}))
    found["transformers float32, prompt lookup"] = Measured([0.5], {}, 2.0)
    assert to_plain([table(found, (1, 8))]).splitlines()[1:] == [
        "ngt float32\t5.00\t0.50\t1.0\t200.0 (1.00)\t400.0 (2.00)",
        "llama.cpp Q8_0\t10.00\t1.00\t1.0\t100.0 (1.00)\t250.0 (2.50)",
        "transformers float32, prompt lookup\t2.00\t0.20\t2.0\t–\t–",
    ]
    assert table({"ngt float32": Measured([0.1], {1: [0.1]})}, (1,)).rows[0][2] == "–"


def test_a_turn_measures_ours_and_transformers(tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(SHAPE))
    args = argparse.Namespace(shape=str(tmp_path / "tiny.json"), context=80, rows=[1, 4])
    every = contestants()
    for name in ("ngt bfloat16", "transformers float32, prompt lookup"):
        made = every[name](args)
        assert all(s > 0 for s in made.token_s) and made.tokens_a_pass >= 1
        assert list(made.pass_s) == ([1, 4] if name.startswith("ngt") else [])
    assert len(prompt(200)) == 200 and prompt(0) == []


def test_without_the_packages_a_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu_peers, "find_spec", lambda name: None)
    monkeypatch.setattr(cpu_peers, "turn", lambda name, own: Measured([0.5], {"1": [0.5]}))
    cpu_peers.main(["--rows", "1", "--rounds", "2", "--only", "ngt"])
    shown = capsys.readouterr()
    assert "pip install llama-cpp-python gguf" in shown.err and shown.err.count("\n") == 1
    assert "| ngt bfloat16 | 2.00 |" in shown.out and "llama.cpp F16" not in shown.out


@pytest.mark.parametrize("name", ["qwen2", "llama"])
@pytest.mark.parametrize("kind", ["Q8_0", "F16"])
def test_a_gguf_has_the_shape_and_every_tensor(tmp_path: Path, name: str, kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    planned = plan(Shape(name, {**SHAPE, "model_type": name}), Settings())
    write_gguf(planned, tmp_path / "a.gguf", kind)
    read = gguf.GGUFReader(tmp_path / "a.gguf")
    fields = {key: field.contents() for key, field in read.fields.items()}
    assert fields["general.architecture"] == name and fields[f"{name}.block_count"] == 2
    assert fields[f"{name}.attention.head_count_kv"] == 2 and fields[f"{name}.vocab_size"] == 512
    tensors = {tensor.name: tensor for tensor in read.tensors}
    assert len(tensors) == len(list(planned.empty.named_parameters()))
    up = tensors["blk.1.ffn_up.weight"]
    assert (up.tensor_type.name, list(up.shape)) == (kind, [64, 96])
    values = gguf.quants.dequantize(up.data, up.tensor_type)
    assert values.shape == (96, 64) and 0.01 < values.std() < 0.03
    assert (tensors["output_norm.weight"].data == np.float32(1)).all()
    assert ("blk.0.attn_q.bias" in tensors) == (name == "qwen2")


def test_other_shapes_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    planned = plan(find_shape("qwen3-30b-a3b"), Settings())
    with pytest.raises(UsageError, match="no GGUF is written of qwen3_moe"):
        write_gguf(planned, tmp_path / "a.gguf", "F16")
