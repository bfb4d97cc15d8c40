"""The GPU report, end to end on the CPU with a shape of a few thousand weights."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ngtcli.config import Settings
from tests.support.tiny_models import make_target
from tests.tools import gpu_report
from tests.tools.gpu_report import logits_error
from tests.tools.shapes.model import Shape, make_hf, plan
from tests.tools.shapes.timing import read_bytes

SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 8192,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
FLAGS = (
    "--device cpu --threads 1 --questions 1 --tokens 6 --prompt 16 --rows 1,4 --contexts 64,4096"
    " --methods prompt-lookup,trie --num-draft 8"
).split()


@pytest.fixture
def shape(tmp_path: Path) -> str:
    (tmp_path / "tiny.json").write_text(json.dumps(SHAPE))
    return str(tmp_path / "tiny.json")


def test_every_part_has_lines_and_figures(
    shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_report.main([*FLAGS, "--shapes", shape, "--json", str(tmp_path / "report.json")])

    table = capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    lines = report["lines"]
    parts = report["parts"]
    assert not any(line["measure"] in ("failed", "left out") for line in lines), table
    assert {line["part"] for line in lines} == {
        "machine",
        "same tokens",
        "shape",
        "scores",
        "step",
        "plain",
        "replay",
    }
    assert all(line["value"] in table for line in lines)

    for name in ("builtin float32", "builtin bfloat16 exact", "tiny", "tiny exact"):
        figures = parts["same tokens"][name]["figures"]
        assert figures["answers"] == 2
        assert figures["same"] == 2
    for name in ("builtin", "tiny"):
        assert parts["scores"][name]["figures"]["difference"] < 1e-4

    steps = parts["step"]["tiny behind 64"]["figures"]
    assert [step["rows"] for step in steps] == [1, 4]
    assert all(step["seconds"] > 0 for step in steps)
    assert "tiny behind 4096" not in parts["step"]  # beyond the shape's context
    assert set(parts["plain"]["tiny"]["figures"]) == {"ngt", "generate"}
    label = parts["replay"]["tiny"]["figures"]["label"]
    assert label == "random weights of shape tiny; tokens from the recording"


def test_a_part_that_fails_or_has_no_time_says_so(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = gpu_report.parse_arguments(
        [*FLAGS, "--shapes", f"nonesuch,{shape}", "--methods", "trie"]
    )
    recording = gpu_report.record_builtin(Settings.of(device="cpu"), args)
    monkeypatch.setattr(gpu_report, "record_builtin", lambda *_: recording)
    # The test above runs these parts, which take the longest.
    for part in ("builtin_scores", "builtin_sameness", "sameness", "replay"):
        monkeypatch.setattr(gpu_report.Report, part, lambda *_: (None, []))

    error = ValueError("no such\nlayer")
    with patch("tests.tools.gpu_report.logits_error", side_effect=error):
        report = gpu_report.Report(args).run()
    values = {(line.part, line.subject): line.value for line in report.lines}
    assert values["shape", "nonesuch"].startswith("FileNotFoundError: ")
    assert values["scores", "tiny"] == "ValueError: no such"
    assert values["plain", "tiny"]

    args.minutes = 0.0
    report = gpu_report.Report(args).run()
    assert {line.measure for line in report.lines[1:]} == {"left out"}


def test_logits_of_another_model_are_far_off() -> None:
    model = make_target(seed=1)
    other_model = make_target(seed=2)

    assert logits_error(model, model.hf, [1, 3, 8]) < 1e-4
    assert logits_error(model, other_model.hf, [1, 3, 8]) > 0.5


def test_the_bytes_read_exclude_the_embedding_table() -> None:
    untied = plan(Shape("tiny", SHAPE), Settings.of(device="cpu"))
    weight_bytes = sum(parameter.nbytes for parameter in make_hf(untied).parameters())
    table_bytes = SHAPE["vocab_size"] * SHAPE["hidden_size"] * 4
    assert read_bytes(untied, 1) == weight_bytes - table_bytes
    assert read_bytes(untied, 64) == weight_bytes - table_bytes


def test_the_bytes_read_include_a_table_that_is_also_the_output_layer() -> None:
    tied = plan(Shape("tied", {**SHAPE, "tie_word_embeddings": True}), Settings.of(device="cpu"))
    assert read_bytes(tied, 1) == tied.weight_bytes


def test_the_bytes_read_exclude_experts_that_are_not_chosen() -> None:
    shape = {
        **SHAPE,
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "head_dim": 8,
    }
    moe = plan(Shape("experts", shape), Settings.of(device="cpu"))
    assert torch.finfo(moe.dtype).bits == 32

    # 2 layers, 8 experts, 3 matrices of 32 x 16, 4 bytes a weight. Many rows choose all experts,
    # one row chooses 2 of the 8.
    expert_bytes = 2 * 8 * 3 * 32 * 16 * 4
    difference = read_bytes(moe, 10_000) - read_bytes(moe, 1)
    assert difference == pytest.approx(expert_bytes * 0.75, rel=1e-3)
