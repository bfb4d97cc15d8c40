"""Replays with real passes: acceptance as without passes, passes as the model's own, labels."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ngtcli.config import Settings
from ngtcli.drafting.drafter import DraftSettings
from ngtcli.drafting.registry import parse_method
from ngtcli.errors import ContextOverflowError, ModelError
from ngtcli.system.json_form import to_json
from tests.tools.measuring import replaying
from tests.tools.measuring.replaying import ReplayOptions, context_of, run_replay
from tests.tools.measuring.traces import TraceSet, TraceWriter, read_traces
from tests.tools.shapes import __main__ as tool
from tests.tools.shapes import model as shape_model
from tests.tools.shapes import replay as shape_replay
from tests.tools.shapes.model import (
    Built,
    Shape,
    build,
    check_memory,
    find_shape,
    make_hf,
    plan,
    shape_names,
)
from tests.tools.shapes.replay import PromptCache, RecordedSequence, run_shape, steps_of

SETTINGS = Settings.of(device="cpu", threads=1, calibrate=False)
TINY: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {
    **TINY,
    "model_type": "qwen3_moe",
    "head_dim": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
METHODS = ("none", "prompt-lookup", "trie")


def asked(
    folder: Path, shape: str, methods: Sequence[str] = METHODS, **more: Any
) -> shape_replay.ShapeResult:
    return run_shape(folder, shape, ReplayOptions(methods=methods, **more), SETTINGS)


def tiny(**changes: Any) -> Shape:
    return Shape("tiny", {**TINY, **changes})


def made(shape: Shape) -> Built:
    return build(plan(shape, SETTINGS), SETTINGS, print, True)


@pytest.fixture
def shape_file(tmp_path: Path) -> str:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return str(path)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers that quote their prompts, with words of their own between."""
    folder = tmp_path_factory.mktemp("recordings") / "r"
    body = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]
    with TraceWriter(folder, "print", "somebody", 97) as writer:
        writer.add("1", "summarization", body * 3, [40, 41, *body[2:12], 42, *body[5:9], 3], (), 64)
        writer.add("2", "qa", [30, *body, 31, *body], [50, *body[:6], 51, 52, 40, 41, 7, 3], (), 64)
        writer.add("3", "qa", [30, *body, 32], [*body[4:16], 3], (), 64)
    return folder


def test_the_shapes_have_as_many_parameters_as_their_makers_say() -> None:
    billions = {
        "llama-3.1-8b": 8.03,
        "llama-3.2-1b": 1.24,
        "qwen2.5-0.5b": 0.49,
        "qwen2.5-7b": 7.62,
        "qwen3-30b-a3b": 30.53,
    }
    assert shape_names() == sorted(billions)
    for name, count in billions.items():
        assert plan(find_shape(name), SETTINGS).parameters / 1e9 == pytest.approx(count, abs=0.005)


def test_a_shape_is_a_name_or_a_file_or_a_folder(shape_file: str, tmp_path: Path) -> None:
    assert find_shape(shape_file) == Shape("tiny", TINY)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    assert find_shape(str(tmp_path)).values == TINY


def test_a_model_too_large_for_the_memory_is_refused_before_it_is_made(
    recording: Path, shape_file: str
) -> None:
    with (
        patch.object(shape_model, "free_memory", lambda _: 8 * 10**3),
        patch.object(shape_replay, "build", side_effect=AssertionError),
        pytest.raises(ModelError, match="billion parameters in float32 take") as caught,
    ):
        asked(recording, shape_file)
    assert "--dtype bfloat16" in caught.value.hint
    check_memory(plan(tiny(), SETTINGS), 100)  # on a real machine this one fits


def test_the_memory_estimate_covers_the_cache() -> None:
    built = made(tiny())
    model = built.model
    model.start(200)
    model.prefill([1] * 200)
    held = sum(rows.nbytes for rows in model.cache.rows())
    assert built.plan.cache_bytes(200) == held


def test_random_weights_are_the_same_each_time_and_give_finite_scores() -> None:
    for shape in (tiny(), tiny(tie_word_embeddings=True), Shape("experts", EXPERTS)):
        planned = plan(shape, SETTINGS)
        one, two = make_hf(planned), make_hf(planned)
        assert sum(p.numel() for p in one.parameters()) == planned.parameters
        assert all(map(torch.equal, one.parameters(), two.parameters()))
        norms = [p for n, p in one.named_parameters() if n.endswith("norm.weight")]
        assert norms and all((p == 1).all() for p in norms)
        scores = one(torch.arange(40)[None]).logits
        assert torch.isfinite(scores).all() and scores.std() > 0


def test_generate_runs_an_unprepared_model_of_the_same_weights() -> None:
    built = made(tiny())
    ours, stock = built.model.hf, built.stock
    assert stock.config._attn_implementation == make_hf(built.plan).config._attn_implementation
    pairs = list(zip(ours.parameters(), stock.parameters(), strict=True))
    assert pairs and all(a.data_ptr() == b.data_ptr() for a, b in pairs)
    assert build(built.plan, SETTINGS, print, False).stock is None


def test_a_mixture_of_experts_verifies_drafts() -> None:
    assert made(Shape("experts", EXPERTS)).model.takes_drafts


@pytest.mark.parametrize("rounds", [1, 2])
def test_acceptance_is_that_of_the_replay_without_passes(
    rounds: int, recording: Path, shape_file: str
) -> None:
    found = to_json(asked(recording, shape_file, num_drafts=(16,), rounds=rounds))
    options = ReplayOptions(methods=METHODS, num_drafts=(16,))
    truth = to_json(run_replay(recording, options, SETTINGS, print, print))
    keys = ("questions", "new_tokens", "steps", "mean_acceptance_length", "acceptance_histogram")
    rows = {(r["method"], r["task"]): [r[k] for k in keys] for r in found["rows"]}
    assert found["questions"] == 3 and not found["refused"] and not found["notes"]
    for row in truth["rows"]:
        assert rows[row["method"], row["task"]] == [row[k] for k in keys]
    for row in found["rows"]:
        assert row["tokens_per_s"] > 0 and row["speedup"] > 0
        if row["method"] == "none":
            assert row["speedup"] == 1.0


def test_a_shape_whose_layers_keep_states_replays_chains(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "states.json"
    own = {"model_type": "mamba2", "state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1}
    path.write_text(
        json.dumps({**own, "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2})
    )
    options = ReplayOptions(methods=("none", "prompt-lookup"), num_drafts=(16,))
    found = to_json(run_shape(recording, str(path), options, SETTINGS))
    truth = to_json(run_replay(recording, options, SETTINGS, print, print))
    of = "method", "task", "steps", "mean_acceptance_length"
    rows = [[{key: row[key] for key in of} for row in made["rows"]] for made in (found, truth)]
    assert all(row in rows[0] for row in rows[1]) and not found["notes"]
    assert found["rows"][-1]["mean_acceptance_length"] > 1.5


@pytest.mark.parametrize("method", ["none", "prompt-lookup", "trie"])
def test_the_passes_are_real(method: str, recording: Path) -> None:
    """What the cache holds afterwards is what one pass over prompt and recorded answer gives."""
    built = made(tiny())
    hf, model = built.stock, built.model
    traces = read_traces(recording)
    for trace in traces.traces:
        PromptCache(model).put(trace)
        drafter = parse_method(method, DraftSettings()).build()
        sequence = RecordedSequence(model, drafter, context_of(trace, traces), trace, 16)
        assert [*steps_of(model, sequence)]
        assert sequence.token_ids == list(trace.output_ids)
        whole = [*trace.prompt_ids, *trace.output_ids]
        truth = hf(torch.tensor([whole[:-1]]), use_cache=True).past_key_values
        wanted = [rows for layer in truth.layers for rows in (layer.keys, layer.values)]
        for rows, true in zip(model.cache.rows(), wanted, strict=True):
            assert rows.shape[2] <= len(whole) + 16  # an accepted end may have rows behind it
            torch.testing.assert_close(rows[:, :, : len(whole) - 1], true)


def test_ids_beyond_the_vocabulary_are_folded_and_said_so(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps({**TINY, "vocab_size": 45}))
    found = asked(recording, str(path), ["trie"])
    assert any("from 45 on are taken modulo 45" in note for note in found.notes)


def test_a_background_holds_no_id_that_the_shape_lacks(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked_for = tmp_path / "wide.json", list[int]()
    path.write_text(json.dumps({**TINY, "vocab_size": 60}))

    def background(traces: TraceSet, *_: object) -> None:
        asked_for.append(traces.vocabulary)

    monkeypatch.setattr(replaying, "recorded_background", background)
    asked(recording, str(path), ["auto"], limit=1)
    assert asked_for == [60]


def test_a_question_longer_than_the_context_is_refused(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.json"
    path.write_text(json.dumps({**TINY, "max_position_embeddings": 32}))
    with pytest.raises(ContextOverflowError, match="1: prompt and answer have 66 tokens"):
        asked(recording, str(path))


def test_the_tool_says_whose_weights_and_whose_tokens(
    recording: Path, shape_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "random weights of shape tiny; tokens from the recording"
    command = [str(recording), "--shape", shape_file, "--limit", "1", "--methods", "trie"]
    tool.main([*command, "--threads", "1", "--device", "cpu"])
    assert capsys.readouterr().out.startswith(f"### {words}")
    tool.main([*command, "--threads", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["label"], found["shape"]) == ("shape", words, "tiny")
    assert "versions" in found and found["rows"][0]["step_ms"] > 0
    with pytest.raises(SystemExit, match="no task 'x'"):
        tool.main([*command, "--tasks", "x"])
