"""The program that measures other engines: its turns, tables and files, without those engines."""

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


def test_the_tables_have_medians_and_ratios_to_llama_cpp_and_float32() -> None:
    figures: dict[str, Figures] = {
        "ngt float32": {"token": [0.1, 0.3, 0.2], "1 rows": [0.2, 0.2], "8 rows": [0.5, 0.3, 0.4]},
        "llama.cpp Q8_0": {"token": [0.1], "1 rows": [0.1], "8 rows": [0.25]},
        "ngt int8": {"token": [0.5], "plain": [0.5], "drafted": [0.25], "tokens a pass": [2.0]},
    }

    speeds, times, ratios = tables(figures, (1, 8))

    assert to_plain([speeds]).splitlines()[2:] == [
        "ngt float32\t5.00\t0.50\t–\t–\t–\t–",
        "llama.cpp Q8_0\t10.00\t1.00\t–\t–\t–\t–",
        "ngt int8\t2.00\t0.20\t4.00\t0.40\t2.00\t2.00",
    ]
    assert times.rows == [
        ["ngt float32", "200.00", "400.00"],
        ["llama.cpp Q8_0", "100.00", "250.00"],
        ["ngt int8", "–", "–"],
    ]
    assert ratios.rows == [
        ["ngt float32", "1.00", "2.00"],
        ["llama.cpp Q8_0", "0.50", "1.25"],
        ["ngt int8", "–", "–"],
    ]


def test_a_ratio_without_its_base_is_missing() -> None:
    ratios = tables({"ngt bfloat16": {"1 rows": [0.1]}}, (1,))[2]
    assert ratios.rows == [["ngt bfloat16", "–"]]


@pytest.fixture
def args(tmp_path: Path) -> argparse.Namespace:
    shape = tmp_path / "tiny.json"
    recording = tmp_path / "recording"
    shape.write_text(json.dumps(SHAPE))
    with TraceWriter(recording, "", "some", 512) as writer:
        writer.add("1", "summarize", range(64), [*range(20, 40)] * 2)
    flags = f"--shape {shape} --replay {recording} --context 80 --rows 1,4"
    return cpu_peers.parse_arguments(flags.split())


def test_ngt_is_measured_by_passes_plain_tokens_and_drafts(args: argparse.Namespace) -> None:
    figures = contestants(args)["ngt bfloat16"]()

    assert set(figures) == {"token", "1 rows", "4 rows", "plain", "drafted", "tokens a pass"}
    assert len(figures["token"]) == cpu_peers.GENERATED
    assert all(value > 0 for values in figures.values() for value in values)
    assert figures["tokens a pass"][0] > 2


def test_nothing_is_drafted_with_a_limit_of_0(args: argparse.Namespace) -> None:
    args.limit = 0
    figures = contestants(args)["ngt int8"]()
    assert set(figures) == {"token", "1 rows", "4 rows"}


def test_generate_is_measured_by_plain_tokens(args: argparse.Namespace) -> None:
    figures = contestants(args)["transformers float32"]()
    assert set(figures) == {"token"}
    assert figures["token"][0] > 0


def test_only_chooses_contestants_by_words_of_their_names(args: argparse.Namespace) -> None:
    args.only = "int8,llama.cpp"
    names = set(contestants(args))
    assert "ngt int8" in names
    assert names <= {"ngt int8", "llama.cpp Q8_0", "llama.cpp F16"}


@pytest.mark.parametrize("length", [0, 200])
def test_a_prompt_has_its_length(length: int) -> None:
    assert len(prompt(length)) == length


def test_turns_alternate_and_failures_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    turns: list[str] = []

    def turn(name: str, arguments: object) -> Figures:
        turns.append(name)
        if name == "ngt int8":
            raise CalledProcessError(-11, "python")
        return {"token": [0.5], "1 rows": [0.5]}

    monkeypatch.setattr(cpu_peers, "find_spec", lambda name: None)
    monkeypatch.setattr(cpu_peers, "turn", turn)
    flags = "--rows 1 --rounds 2 --only int8,int8-bfloat16 --limit 0 --json"
    cpu_peers.main([*flags.split(), str(tmp_path / "figures.json")])

    output = capsys.readouterr()
    assert turns == ["ngt int8", "ngt int8-bfloat16", "ngt int8", "ngt int8-bfloat16"]
    assert "pip install llama-cpp-python gguf" in output.err
    assert "| ngt int8, ended by signal 11 | – |" in output.out
    assert "| ngt int8-bfloat16 | 2.00 |" in output.out
    assert "llama.cpp F16" not in output.out
    assert json.loads((tmp_path / "figures.json").read_text())["measured"] == {
        "ngt int8-bfloat16": {"token": [0.5, 0.5], "1 rows": [0.5, 0.5]},
        "ngt int8, ended by signal 11": {},
    }


@pytest.mark.parametrize("name", ["qwen2", "llama"])
@pytest.mark.parametrize("kind", ["Q8_0", "F16"])
def test_a_gguf_has_the_shape_and_every_tensor(tmp_path: Path, name: str, kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    shape_plan = plan(Shape(name, {**SHAPE, "model_type": name}), Settings())

    write_gguf(shape_plan, tmp_path / "a.gguf", kind)

    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    fields = {key: field.contents() for key, field in reader.fields.items()}
    assert fields["general.architecture"] == name
    assert fields[f"{name}.block_count"] == 2
    assert fields[f"{name}.attention.head_count_kv"] == 2
    assert fields[f"{name}.vocab_size"] == 512

    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == len(list(shape_plan.empty.named_parameters()))
    assert (tensors["output_norm.weight"].data == np.float32(1)).all()
    assert ("blk.0.attn_q.bias" in tensors) == (name == "qwen2")

    up = tensors["blk.1.ffn_up.weight"]
    weights = gguf.quants.dequantize(up.data, up.tensor_type)
    assert up.tensor_type.name == kind
    assert list(up.shape) == [64, 96]
    assert weights.shape == (96, 64)
    assert 0.01 < weights.std() < 0.03


def test_a_gguf_of_another_architecture_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    shape_plan = plan(Shape("mixtral", {**SHAPE, "model_type": "mixtral"}), Settings())
    with pytest.raises(UsageError, match="no GGUF is written of mixtral"):
        write_gguf(shape_plan, tmp_path / "a.gguf", "F16")
