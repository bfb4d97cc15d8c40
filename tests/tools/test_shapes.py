"""Tests of replays with real passes: acceptance is that of a replay without them, and the KV cache
is that of the model."""

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


def replay(
    folder: Path, shape: str, methods: Sequence[str] = METHODS, **options: Any
) -> shape_replay.ShapeResult:
    return run_shape(folder, shape, ReplayOptions(methods=methods, **options), SETTINGS)


def tiny_shape(**changes: Any) -> Shape:
    return Shape("tiny", {**TINY, **changes})


def build_with_stock(shape: Shape) -> Built:
    return build(plan(shape, SETTINGS), SETTINGS, print, stock=True)


def write_shape(path: Path, values: dict[str, Any]) -> str:
    path.write_text(json.dumps(values))
    return str(path)


@pytest.fixture
def shape_file(tmp_path: Path) -> str:
    return write_shape(tmp_path / "tiny.json", TINY)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording whose answers quote their prompts, with other tokens in between."""
    folder = tmp_path_factory.mktemp("recordings") / "r"
    body = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]
    answers = (
        [40, 41, *body[2:12], 42, *body[5:9], 3],
        [50, *body[:6], 51, 52, 40, 41, 7, 3],
        [*body[4:16], 3],
    )
    with TraceWriter(folder, "print", "somebody", 97) as writer:
        writer.add("1", "summarization", body * 3, answers[0], room=64)
        writer.add("2", "qa", [30, *body, 31, *body], answers[1], room=64)
        writer.add("3", "qa", [30, *body, 32], answers[2], room=64)
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
        parameters = plan(find_shape(name), SETTINGS).parameters
        assert parameters / 1e9 == pytest.approx(count, abs=0.005)


def test_a_shape_can_be_a_file_or_a_folder(shape_file: str, tmp_path: Path) -> None:
    write_shape(tmp_path / "config.json", TINY)

    assert find_shape(shape_file) == Shape("tiny", TINY)
    assert find_shape(str(tmp_path)) == Shape(tmp_path.name, TINY)


def test_a_model_too_large_for_the_memory_is_refused_before_it_is_made(
    recording: Path, shape_file: str
) -> None:
    with (
        patch.object(shape_model, "free_memory", lambda _: 8 * 10**3),
        patch.object(shape_replay, "build", side_effect=AssertionError),
        pytest.raises(ModelError, match="billion parameters in float32 take") as caught,
    ):
        replay(recording, shape_file)
    assert "--dtype bfloat16" in caught.value.hint


def test_a_model_that_fits_the_memory_is_accepted() -> None:
    check_memory(plan(tiny_shape(), SETTINGS), 100)


def test_the_memory_estimate_covers_the_cache() -> None:
    built = build_with_stock(tiny_shape())
    model = built.model

    model.start(200)
    model.prefill([1] * 200)

    cache_bytes = sum(tensor.nbytes for tensor in model.cache.rows())
    assert built.plan.cache_bytes(200) == cache_bytes


@pytest.mark.parametrize(
    "shape",
    [tiny_shape(), tiny_shape(tie_word_embeddings=True), Shape("experts", EXPERTS)],
    ids=["plain", "tied", "experts"],
)
def test_random_weights_are_the_same_each_time_and_give_finite_logits(shape: Shape) -> None:
    planned = plan(shape, SETTINGS)
    hf = make_hf(planned)
    again = make_hf(planned)

    assert sum(parameter.numel() for parameter in hf.parameters()) == planned.parameters
    for parameter, same in zip(hf.parameters(), again.parameters(), strict=True):
        assert torch.equal(parameter, same)

    norms = [weight for name, weight in hf.named_parameters() if name.endswith("norm.weight")]
    assert norms
    assert all((weight == 1).all() for weight in norms)

    logits = hf(torch.arange(40)[None]).logits
    assert torch.isfinite(logits).all()
    assert logits.std() > 0


def test_the_stock_model_is_unprepared_and_shares_the_weights() -> None:
    built = build_with_stock(tiny_shape())
    stock = built.stock

    unprepared = make_hf(built.plan)
    assert stock.config._attn_implementation == unprepared.config._attn_implementation
    pairs = list(zip(built.model.hf.parameters(), stock.parameters(), strict=True))
    assert pairs
    assert all(ours.data_ptr() == theirs.data_ptr() for ours, theirs in pairs)
    assert build(built.plan, SETTINGS, print, stock=False).stock is None


def test_a_mixture_of_experts_verifies_drafts() -> None:
    assert build_with_stock(Shape("experts", EXPERTS)).model.takes_drafts


@pytest.mark.parametrize("rounds", [1, 2])
def test_acceptance_is_that_of_the_replay_without_passes(
    rounds: int, recording: Path, shape_file: str
) -> None:
    options = ReplayOptions(methods=METHODS, num_drafts=(16,))
    expected = to_json(run_replay(recording, options, SETTINGS, print, print))

    result = to_json(replay(recording, shape_file, num_drafts=(16,), rounds=rounds))

    assert result["questions"] == 3
    assert not result["refused"]
    assert not result["notes"]
    keys = ("questions", "new_tokens", "steps", "mean_acceptance_length", "acceptance_histogram")
    rows = {(row["method"], row["task"]): row for row in result["rows"]}
    for expected_row in expected["rows"]:
        row = rows[expected_row["method"], expected_row["task"]]
        assert {key: row[key] for key in keys} == {key: expected_row[key] for key in keys}
    for row in result["rows"]:
        assert row["tokens_per_s"] > 0
        assert row["speedup"] > 0
        if row["method"] == "none":
            assert row["speedup"] == 1.0


def test_a_shape_whose_layers_keep_states_replays_chains(recording: Path, tmp_path: Path) -> None:
    mamba = {
        "model_type": "mamba2",
        "state_size": 8,
        "num_heads": 8,
        "head_dim": 8,
        "n_groups": 1,
        "vocab_size": 97,
        "hidden_size": 32,
        "num_hidden_layers": 2,
    }
    shape = write_shape(tmp_path / "states.json", mamba)
    options = ReplayOptions(methods=("none", "prompt-lookup"), num_drafts=(16,))
    expected = to_json(run_replay(recording, options, SETTINGS, print, print))

    result = to_json(run_shape(recording, shape, options, SETTINGS))

    assert not result["notes"]
    keys = ("method", "task", "steps", "mean_acceptance_length")
    rows = [{key: row[key] for key in keys} for row in result["rows"]]
    for expected_row in expected["rows"]:
        assert {key: expected_row[key] for key in keys} in rows
    assert rows[-1]["mean_acceptance_length"] > 1.5


@pytest.mark.parametrize("method", ["none", "prompt-lookup", "trie"])
def test_the_cache_after_a_replay_is_that_of_one_pass(method: str, recording: Path) -> None:
    built = build_with_stock(tiny_shape())
    model = built.model
    traces = read_traces(recording)
    for trace in traces.traces:
        PromptCache(model).put(trace)
        drafter = parse_method(method, DraftSettings()).build()
        sequence = RecordedSequence(model, drafter, context_of(trace, traces), trace, 16)

        steps = list(steps_of(model, sequence))

        assert steps
        assert sequence.token_ids == list(trace.output_ids)
        tokens = [*trace.prompt_ids, *trace.output_ids]
        expected = built.stock(torch.tensor([tokens[:-1]]), use_cache=True).past_key_values
        expected_tensors = []
        for layer in expected.layers:
            expected_tensors += [layer.keys, layer.values]
        for cached, expected_tensor in zip(model.cache.rows(), expected_tensors, strict=True):
            # Accepted nodes after the recorded end may be cached as well.
            assert cached.shape[2] <= len(tokens) + 16
            torch.testing.assert_close(cached[:, :, : len(tokens) - 1], expected_tensor)


def test_a_note_says_that_ids_beyond_the_vocabulary_are_folded(
    recording: Path, tmp_path: Path
) -> None:
    shape = write_shape(tmp_path / "small.json", {**TINY, "vocab_size": 45})

    result = replay(recording, shape, ["trie"])

    assert any("from 45 on are taken modulo 45" in note for note in result.notes)


def test_a_background_is_limited_to_the_vocabulary_of_the_shape(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = write_shape(tmp_path / "wide.json", {**TINY, "vocab_size": 60})
    vocabularies: list[int] = []

    def recorded_background(traces: TraceSet, *_: object) -> None:
        vocabularies.append(traces.vocabulary)

    monkeypatch.setattr(replaying, "recorded_background", recorded_background)

    replay(recording, shape, ["auto"], limit=1)

    assert vocabularies == [60]


def test_a_question_longer_than_the_context_is_refused(recording: Path, tmp_path: Path) -> None:
    shape = write_shape(tmp_path / "short.json", {**TINY, "max_position_embeddings": 32})

    with pytest.raises(ContextOverflowError, match="1: prompt and answer have 66 tokens"):
        replay(recording, shape)


LABEL = "random weights of shape tiny; tokens from the recording"


@pytest.fixture
def arguments(recording: Path, shape_file: str) -> list[str]:
    """The arguments of a short run of the tool."""
    settings = ["--threads", "1", "--device", "cpu"]
    return [str(recording), "--shape", shape_file, "--limit", "1", "--methods", "trie", *settings]


def test_the_label_says_that_weights_are_random(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    tool.main(arguments)

    assert capsys.readouterr().out.startswith(f"### {LABEL}")


def test_the_tool_prints_json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    tool.main([*arguments, "--json"])

    result = json.loads(capsys.readouterr().out)
    assert result["kind"] == "shape"
    assert result["label"] == LABEL
    assert result["shape"] == "tiny"
    assert "versions" in result
    assert result["rows"][0]["step_ms"] > 0


def test_the_tool_refuses_an_unknown_task(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="no task 'x'"):
        tool.main([*arguments, "--tasks", "x"])
