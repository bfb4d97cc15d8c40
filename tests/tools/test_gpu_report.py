"""The GPU report, end to end on the CPU with a shape of a few thousand weights."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from ngtcli.config import Settings
from tests.support.tiny_models import make_target
from tests.tools import gpu_report
from tests.tools.gpu_report import score_error
from tests.tools.shapes.model import Shape, make_hf, plan
from tests.tools.shapes.timing import read_bytes

SHAPE = {
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


def test_every_part_gives_lines_and_figures(
    shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_report.main([*FLAGS, "--shapes", shape, "--json", str(tmp_path / "r.json")])
    table = capsys.readouterr().out
    found = json.loads((tmp_path / "r.json").read_text())
    assert not any(line["what"] in ("failed", "left out") for line in found["lines"]), table
    parts = {line["part"] for line in found["lines"]}
    assert parts == {"machine", "same tokens", "shape", "scores", "step", "plain", "replay"}
    for name in ("builtin float32", "builtin bfloat16 exact", "tiny", "tiny exact"):
        figures = found["parts"]["same tokens"][name]["figures"]
        assert figures["same"] == figures["answers"] == 2
    for name in ("builtin", "tiny"):
        assert found["parts"]["scores"][name]["figures"]["difference"] < 1e-4
    steps = found["parts"]["step"]["tiny behind 64"]["figures"]
    assert [s["rows"] for s in steps] == [1, 4] and all(s["seconds"] > 0 for s in steps)
    assert "tiny behind 4096" not in found["parts"]["step"]  # beyond the shape's context
    assert set(found["parts"]["plain"]["tiny"]["figures"]) == {"ngt", "generate"}
    replayed = found["parts"]["replay"]["tiny"]["figures"]
    assert replayed["label"] == "random weights of shape tiny; tokens from the recording"
    assert all(line["value"] in table for line in found["lines"])


def test_a_part_that_fails_or_has_no_time_says_so(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = gpu_report._arguments([*FLAGS, "--shapes", f"nonesuch,{shape}", "--methods", "trie"])
    made = gpu_report.own_recording(Settings.of(device="cpu"), args)
    monkeypatch.setattr(gpu_report, "own_recording", lambda *_: made)
    for other in ("builtin_scores", "builtin_sameness", "sameness", "replay"):  # run above
        monkeypatch.setattr(gpu_report.Report, other, lambda *_: (None, []))
    with patch("tests.tools.gpu_report.score_error", side_effect=ValueError("so\nit is")):
        lines = {(x.part, x.of): x for x in gpu_report.Report(args).run().lines}
    assert lines["shape", "nonesuch"].value.startswith("FileNotFoundError: ")
    assert lines["scores", "tiny"].value == "ValueError: so"
    assert lines["plain", "tiny"].value
    args.minutes = 0.0
    assert {x.what for x in gpu_report.Report(args).run().lines[1:]} == {"left out"}


def test_scores_of_another_model_are_told_apart() -> None:
    one, two = make_target(seed=1), make_target(seed=2)
    assert score_error(one, one.hf, [1, 3, 8]) < 1e-4
    assert score_error(one, two.hf, [1, 3, 8]) > 0.5


def test_the_bytes_read_leave_out_the_table_and_the_experts_not_taken() -> None:
    settings = Settings.of(device="cpu")
    planned = plan(Shape("tiny", SHAPE), settings)
    whole = sum(p.nbytes for p in make_hf(planned).parameters())
    assert read_bytes(planned, 1) == read_bytes(planned, 64) == whole - 8192 * 32 * 4
    tied = plan(Shape("tied", {**SHAPE, "tie_word_embeddings": True}), settings)
    assert read_bytes(tied, 1) == tied.weight_bytes
    experts = {
        **SHAPE,
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "head_dim": 8,
    }
    mixed = plan(Shape("experts", experts), settings)
    of_experts = 2 * 8 * 3 * 32 * 16 * 4  # layers, experts, matrices, inputs, outputs, bytes
    less = read_bytes(mixed, 10_000) - read_bytes(mixed, 1)
    assert less == pytest.approx(of_experts * 0.75, rel=1e-3)
    assert torch.finfo(mixed.dtype).bits == 32
