"""Replay against live runs, against a hand-worked recording, and its files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from ngtcli.config import Settings
from ngtcli.decoding.limits import Limits
from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.drafting.tree import DraftTree, chain
from ngtcli.errors import InputError, UsageError
from ngtcli.models.checkpoint import BUILTIN_PATH
from tests.support.helpers import END, SHARED
from tests.support.runs import Run
from tests.support.tiny_models import make_drafter, make_target
from tests.tools.measuring.replaying import (
    ReplayOptions,
    outcome_of,
    replay,
    run_replay,
    select,
    walk,
)
from tests.tools.measuring.results import ReplayResult, percentile
from tests.tools.measuring.top_tokens import top_tokens
from tests.tools.measuring.traces import NO_TOP, TopTokens, Trace, TraceWriter, read_traces
from tests.tools.spec_bench import convert


def replayed(folder: Path, methods: list[str], nodes: list[int], **more: Any) -> ReplayResult:
    options = ReplayOptions(methods=methods, num_drafts=nodes, **more)
    return run_replay(folder, options, Settings.of(background="none"), print, print)


SPEC_BENCH = SHARED / "traces" / "specbench-vicuna7b"
PROMPTS = [[5, 6, 7, 5, 6, 8, 5, 6], [9, 9, 9, 9], list(range(10, 60)) * 2, [40, 41, 40, 41, 40]]


@pytest.mark.search
@pytest.mark.parametrize("method", ["none", "trie", "trie:learn_output=true"])
@pytest.mark.parametrize("num_draft", [1, 8, 64])
def test_a_replay_counts_what_the_live_run_counted(
    method: str, num_draft: int, tmp_path: Path
) -> None:
    model = make_target("llama", seed=3)
    runs = []
    with TraceWriter(tmp_path / "t", "print", "tiny", model.vocabulary) as writer:
        for i, prompt in enumerate(PROMPTS):
            context = Context(prompt, None, (tuple(prompt),))
            drafter = make_drafter(method, DraftSettings())
            runs.append(Run(model, drafter, context, Settings(), Limits(40, num_draft)).finish())
            room = min(40, model.context - len(prompt))  # so that every draft fits the context
            writer.add(str(i), "all", prompt, runs[-1].output, room=room)
    for trace, run in zip(read_traces(tmp_path / "t").traces, runs, strict=True):
        assert list(trace.output_ids) == run.output
        drafter = make_drafter(method, DraftSettings())
        context = Context(trace.prompt_ids, None, (trace.prompt_ids,))
        again = replay(trace, drafter, context, num_draft)
        live = run.statistics
        assert again.histogram == live.acceptance_histogram
        assert again.drafted == live.drafted_tokens
        assert again.steps == live.steps
        assert len(again.ids) == live.new_tokens
        assert again.histogram
        assert again.histogram.total() == len(again.draft_us)  # type: ignore


def test_best_tokens_are_those_of_the_models_logits_after_each_token() -> None:
    model = make_target("llama", seed=3)
    token_ids = PROMPTS[0]
    top = top_tokens(model, token_ids, 4)
    with torch.inference_mode():
        logits = model.hf(torch.tensor([token_ids]), use_cache=False).logits[0, :-1]
    expected = logits.double().log_softmax(-1).sort(-1, descending=True)
    assert np.array_equal(top.ids, expected.indices[:, :4])
    assert np.allclose(top.log_probabilities, expected.values[:, :4], atol=1e-3)


def test_best_tokens_are_read_as_they_were_written(tmp_path: Path) -> None:
    top = TopTokens(((3, 4), (5, 6), (7, 8)), ((-0.5, -1.5), (-0.25, -2.0), (-1.0, -1.25)))
    with TraceWriter(tmp_path / "t", "print", "tiny", 97) as writer:
        writer.add("with", "all", (1, 2), (3, 9), top=top)
        writer.add("without", "all", (1, 2), (3, 9))
    with_top, without = read_traces(tmp_path / "t").traces
    assert with_top.top == top
    assert without.top == TopTokens()


def test_a_replay_shows_a_drafter_the_best_tokens_after_accepted_nodes_alone() -> None:
    rows = ((10, 11), (20, 21), (30, 31), (40, 41), (50, 51))
    top = TopTokens(rows, ((-0.1, -2.5),) * 5)
    trace = Trace("a", "all", (1, 2), (3, 4, 5, 6), 10, top=top)
    outcome = outcome_of(trace, done=1, accepted=2, top_k=1)
    assert outcome.tree == chain([4, 5])
    assert outcome.stop == 1
    assert outcome.top is not None
    assert outcome.top.tolist() == [[30], [40], [50]]
    assert outcome_of(trace, 1, 2, top_k=0).top is None
    assert outcome_of(replace(trace, top=TopTokens()), 1, 2, top_k=1).top is None


def test_recorded_best_tokens_let_auto_draft_the_runners_up(tmp_path: Path) -> None:
    # The prompt has none of the answer. After a first token 1 the model ranks 2 second, and after a
    # second one 2 comes: nothing but the recorded rows tells so.
    output = (1, 3, 4, 5, 1, 2, 9)
    rows = [(60, 61)] * 9
    rows[3] = (3, 2)  # after the first 1, which is position 3
    steps: dict[str, int] = {}
    for name, top in (("with", TopTokens(tuple(rows), ((-1.0, -2.0),) * 9)), ("without", NO_TOP)):
        with TraceWriter(tmp_path / name, "print", "tiny", 97) as writer:
            writer.add("1", "all", (50, 51, 52), output, top=top)
        # Without the log-linear stage, which learns so much of so few tokens that both are alike.
        method = "auto:loglinear=false"
        made_steps = replayed(tmp_path / name, [method], [16]).rows[0].steps
        assert made_steps is not None
        steps[name] = made_steps
    assert steps["with"] < steps["without"]


def test_walk_follows_the_recording_and_passes_over_probes() -> None:
    assert walk(chain([4, 5, 6]), [4, 5, 9], 0) == 2
    assert walk(chain([4, 5, 6]), [4, 5], 0) == 2
    assert walk(chain([4]), [5, 4], 0) == 0
    assert walk(DraftTree((4, 5), (-1, 0), probes=1), [4, 5], 0) == 1


HEAD = {"format": "ngt-trace", "version": 1, "model": "m", "tokenizer": "t", "vocabulary": 97}
LINE = {"id": "a", "task": "b", "prompt_ids": [1], "output_ids": [9], "references": [], "room": 4}


def without(row: dict[str, Any], key: str) -> str:
    return json.dumps({k: v for k, v in row.items() if k != key})


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("trace.json", "{}", "not a recording of version 1"),
        ("trace.json", "[", "not JSON"),
        ("trace.json", "[" * 300_000, "nested too deeply"),
        ("trace.json", "[]", "not a JSON object"),
        ("trace.json", without(HEAD, "model"), "model, tokenizer or vocabulary"),
        ("trace.json", json.dumps({**HEAD, "vocabulary": "97"}), "vocabulary is '97'"),
        ("traces.jsonl", "", "empty"),
        ("traces.jsonl", "7\n", ":1: not a JSON object"),
        ("traces.jsonl", '\n{"id": "a", "ta', ":2: not JSON"),
        ("traces.jsonl", '{"id": 1}\n', ":1: key 'task' is missing or empty"),
        ("traces.jsonl", without(LINE, "task"), ":1: key 'task' is missing or empty"),
        ("traces.jsonl", json.dumps({**LINE, "room": True}), ":1: room is true"),
        ("traces.jsonl", json.dumps({**LINE, "output_ids": []}), ":1: key 'output_ids' is missing"),
        ("traces.jsonl", json.dumps({**LINE, "task": "\ud800"}), ":1: half of a character"),
        ("traces.jsonl", "\0", "binary"),
        (
            "traces.jsonl",
            json.dumps({**LINE, "output_ids": [9, 999]}),
            ":1: output_ids[1] is 999, no id below 97",
        ),
        (
            "traces.jsonl",
            json.dumps({**LINE, "references": [[1], [True]]}),
            ":1: references[1][0] is true",
        ),
        ("traces.jsonl", json.dumps({**LINE, "top": {"ids": [[1], [2]]}}), ":1: top has 2 rows"),
        ("traces.jsonl", json.dumps({**LINE, "top": {"ids": [[1]]}}), "0 of log-probabilities"),
        (
            "traces.jsonl",
            json.dumps({**LINE, "top": {"ids": [[1]], "log_probabilities": [[]]}}),
            ":1: the rows of top have different widths, or none",
        ),
        (
            "traces.jsonl",
            json.dumps({**LINE, "top": {"ids": [[97]], "log_probabilities": [[0]]}}),
            ":1: top.ids[0][0] is 97, no id below 97",
        ),
    ],
)
def test_a_broken_recording_is_named_with_what_is_wrong(
    name: str, text: str, words: str, tmp_path: Path
) -> None:
    with TraceWriter(tmp_path / "t", "print", "tiny", 97) as writer:
        writer.add("1", "all", [1, 2], [3, END])
    (tmp_path / "t" / name).write_text(text)
    with pytest.raises(InputError) as caught:
        read_traces(tmp_path / "t")
    assert str(caught.value).startswith(str(tmp_path / "t" / name))
    assert words in str(caught.value)
    assert caught.value.hint


def test_a_recording_by_hand_needs_neither_references_nor_room(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps(HEAD))
    short = {"id": 7, "task": "b", "prompt_ids": [1], "output_ids": [9, 8]}
    (tmp_path / "traces.jsonl").write_text(json.dumps(short))
    (trace,) = read_traces(tmp_path).traces
    assert trace.id == "7"
    assert trace.room == 1024
    assert trace.references == ()


def test_a_recording_past_the_bound_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps(HEAD))
    (tmp_path / "traces.jsonl").write_text((json.dumps(LINE) + "\n") * 12_000)
    assert len(read_traces(tmp_path).traces) == 12_000
    with pytest.raises(InputError, match="more than 1 MB") as caught:
        read_traces(tmp_path, max_mb=1)
    assert "--set max_mb" in caught.value.hint


def test_a_number_of_drafts_in_a_spec_is_what_is_drafted_and_what_the_row_says(
    tmp_path: Path,
) -> None:
    prompt = [*range(10, 50), 5, *range(10, 50), 5]
    with TraceWriter(tmp_path / "t", "print", "tiny", 97) as writer:
        writer.add("1", "a", prompt, [*range(10, 49), END])
    specs = ["trie", "trie:num_draft=8", "trie:n=13:num_draft=0", "none"]
    rows = replayed(tmp_path / "t", specs, [4, 12]).rows
    whole = [r for r in rows if r.task == "overall"]
    assert [(r.method, r.num_draft) for r in whole] == [
        ("trie", 4),
        ("trie", 12),
        ("trie:num_draft=8", 8),
        ("trie:n=13:num_draft=0", 0),
        ("none", 0),
    ]
    assert whole[2].steps == 40 // 9 + 1
    assert whole[3].steps == 40
    assert all((r.nodes_per_step or 0) <= (r.num_draft or 0) for r in whole)
    (asked,) = (r for r in replayed(tmp_path / "t", ["trie"], [8]).rows if r.task == "a")
    assert asked.acceptance_histogram == whole[2].acceptance_histogram


def test_a_replay_without_drafts_accepts_none_of_them(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t", "print", "tiny", 97) as writer:
        writer.add("1", "a", [1, 2, 3], [4, 5, END])
    (row, overall) = replayed(tmp_path / "t", ["none"], [8]).rows
    assert row.draft_acceptance_rate == overall.draft_acceptance_rate == 0.0
    assert row.num_draft == 0
    assert row.nodes_per_step == 0.0
    assert row.undrafted_share == 1.0
    assert row.draft_us_median <= row.draft_us_p99
    assert percentile([], 50) == 0.0
    assert percentile([1.0, 2.0, 4.0], 75) == 3.0


def test_odd_and_even_ids_are_the_two_halves_and_turns_stay_together(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t", "print", "tiny", 97) as writer:
        for name in ("1", "1/2", "2", "q3", "none", "12", "doc2-5"):
            writer.add(name, "a", [1, 2, 3, 1, 2], [3, 1, 2, END])
    traces = read_traces(tmp_path / "t").traces
    odd, even = (select(traces, [], None, ids) for ids in ("odd", "even"))
    assert [t.id for t in odd] == ["1", "1/2", "q3"]
    assert [t.id for t in even] == ["2", "none", "12", "doc2-5"]
    assert [t.id for t in select(traces, [], 1, "even")] == ["2"]
    assert replayed(tmp_path / "t", ["none"], [4], ids="odd").questions == 3
    with pytest.raises(UsageError, match="no ids 'uneven'") as caught:
        select(traces, [], None, "uneven")
    assert caught.value.hint == "Did you mean even?"


@pytest.mark.search
@pytest.mark.skipif(not SPEC_BENCH.is_dir(), reason="the Spec-Bench recording is not here")
@pytest.mark.parametrize(
    ("method", "task", "length"), [("trie", "rag", 1.77), ("trie:learn_output=true", "rag", 2.05)]
)
def test_the_recording_of_a_7b_model_gives_its_known_figures(
    method: str, task: str, length: float, tmp_path: Path
) -> None:
    convert(SPEC_BENCH, tmp_path / "r")
    rows = replayed(tmp_path / "r", [method], [32], tasks=[task]).rows
    assert rows[0].questions == 80
    assert rows[0].mean_acceptance_length == pytest.approx(length, abs=0.02)


def test_a_name_too_long_for_a_folder_is_no_recording(tmp_path: Path) -> None:
    for folder in (tmp_path, Path("x" * 5000)):
        with pytest.raises(InputError, match="no recording here"):
            read_traces(folder)


def test_spec_bench_files_become_traces_with_history_in_later_turns(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    lines = {"question_id": 7, "model_id": "vicuna"}
    tokenizer = PreTrainedTokenizerFast.from_pretrained(BUILTIN_PATH)
    tokenizer.save_pretrained(folder / "tokenizer")
    question = {"question_id": 7, "category": "writing", "turns": ["Say it.", "Again."]}
    choices = [{"turns": ["It is so."] * 2, "new_tokens": [0, 0]}]
    (folder / "question.jsonl").write_text(json.dumps(question) + "\n")
    (folder / "answers.jsonl").write_text(json.dumps({**lines, "choices": choices}) + "\n")
    assert convert(folder, tmp_path / "all", every_turn=True) == 2  # lengths of 0 cannot be right
    first, second = read_traces(tmp_path / "all").traces
    assert first.id == "7"
    assert second.id == "7/2"
    assert first.task == "writing"
    assert first.room == 1024
    assert first.output_ids == second.output_ids
    assert second.prompt_ids[: len(first.prompt_ids) - 2] == first.prompt_ids[:-2]
    assert len(second.prompt_ids) > len(first.prompt_ids) + len(first.output_ids)
    convert(folder, tmp_path / "first")
    assert len(read_traces(tmp_path / "first").traces) == 1
    assert (tmp_path / "first" / "tokenizer").is_dir()
