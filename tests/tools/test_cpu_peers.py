"""What the tool that measures other engines writes and computes, without them."""

import argparse
import json
from pathlib import Path
from subprocess import CalledProcessError

import numpy as np
import pytest

from ngtcli.config import Settings
from ngtcli.errors import UsageError
from ngtcli.render.tables import to_plain
from tests.tools import cpu_peers
from tests.tools.cpu_peers import Figures, contestants, prompt, tables, write_gguf
from tests.tools.measuring.traces import TraceWriter
from tests.tools.shapes.model import Shape, plan

SHAPE = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}


def test_figures_are_medians_and_ratios_to_llama_cpp_and_float32() -> None:
    found: dict[str, Figures] = {
        "ngt float32": {"token": [0.1, 0.3, 0.2], "1 rows": [0.2, 0.2], "8 rows": [0.5, 0.3, 0.4]},
        "llama.cpp Q8_0": {"token": [0.1], "1 rows": [0.1], "8 rows": [0.25]},
        "ngt int8": {"token": [0.5], "plain": [0.5], "drafted": [0.25], "tokens a pass": [2.0]},
    }
    speeds, times, ratios = tables(found, (1, 8))
    assert to_plain([speeds]).splitlines()[2:] == [
        "ngt float32\t5.00\t0.50\t–\t–\t–\t–",
        "llama.cpp Q8_0\t10.00\t1.00\t–\t–\t–\t–",
        "ngt int8\t2.00\t0.20\t4.00\t0.40\t2.00\t2.00",
    ]
    assert [row[1:] for row in times.rows] == [
        ["200.00", "400.00"],
        ["100.00", "250.00"],
        ["–"] * 2,
    ]
    assert [row[1:] for row in ratios.rows] == [["1.00", "2.00"], ["0.50", "1.25"], ["–"] * 2]
    assert tables({"ngt bfloat16": {"1 rows": [0.1]}}, (1,))[2].rows == [["ngt bfloat16", "–"]]


@pytest.fixture
def args(tmp_path: Path) -> argparse.Namespace:
    (tmp_path / "tiny.json").write_text(json.dumps(SHAPE))
    with TraceWriter(tmp_path / "recording", "", "some", 512) as writer:
        writer.add("1", "summarize", range(64), [*range(20, 40)] * 2)
    words = f"--shape {tmp_path / 'tiny.json'} --replay {tmp_path / 'recording'} --context 80"
    return cpu_peers._arguments([*words.split(), "--rows", "1,4"])


def test_a_turn_measures_passes_plain_tokens_and_drafts_over_a_recording(
    args: argparse.Namespace,
) -> None:
    every = contestants(args)
    ours, theirs = every["ngt bfloat16"](), every["transformers float32"]()
    assert set(ours) == {"token", "1 rows", "4 rows", "plain", "drafted", "tokens a pass"}
    assert set(theirs) == {"token"} and theirs["token"][0] > 0
    assert len(ours["token"]) == cpu_peers.GENERATED  # as of llama.cpp, each by itself
    assert all(s > 0 for of in ours.values() for s in of) and ours["tokens a pass"][0] > 2
    args.limit = 0
    assert set(contestants(args)["ngt int8"]()) == {"token", "1 rows", "4 rows"}
    args.only = "int8,llama.cpp"
    assert {name.split()[0] for name in contestants(args)} <= {"ngt", "llama.cpp"}
    assert len(prompt(200)) == 200 and prompt(0) == []


def test_turns_alternate_and_what_is_missing_or_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    taken = list[str]()

    def turn(name: str, own: object) -> Figures:
        taken.append(name)
        if name == "ngt int8":
            raise CalledProcessError(-11, "python")
        return {"token": [0.5], "1 rows": [0.5]}

    monkeypatch.setattr(cpu_peers, "find_spec", lambda name: None)
    monkeypatch.setattr(cpu_peers, "turn", turn)
    words = "--rows 1 --rounds 2 --only int8,int8-bfloat16 --limit 0 --json"
    cpu_peers.main([*words.split(), str(tmp_path / "a.json")])
    shown = capsys.readouterr()
    assert taken == ["ngt int8", "ngt int8-bfloat16"] * 2
    assert "pip install llama-cpp-python gguf" in shown.err
    assert "| ngt int8, ended by signal 11 | – |" in shown.out
    assert "| ngt int8-bfloat16 | 2.00 |" in shown.out and "llama.cpp F16" not in shown.out
    stored = json.loads((tmp_path / "a.json").read_text())["measured"]
    figures = {"token": [0.5] * 2, "1 rows": [0.5] * 2}
    assert stored == {"ngt int8-bfloat16": figures, "ngt int8, ended by signal 11": {}}


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
    planned = plan(Shape("mixtral", {**SHAPE, "model_type": "mixtral"}), Settings())
    with pytest.raises(UsageError, match="no GGUF is written of mixtral"):
        write_gguf(planned, tmp_path / "a.gguf", "F16")
