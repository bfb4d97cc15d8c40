"""An answer that repeats itself ends, whatever is drafted, and never without a word."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngtcli.config import Settings
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.output import MAX_PERIOD, MIN_REPEATED, Repetition
from ngtcli.drafting.drafter import Context, DraftSettings
from tests.support.batches import auto_drafts, cached_target, decode_batch, separate_drafts
from tests.support.helpers import ngt, without_note
from tests.support.runs import Run
from tests.support.tiny_models import make_drafter, make_target, prompts

LOOPING = Settings.of(frequency_penalty=-30.0)  # what was said is said again


def repeats(ids: Sequence[int], times: int) -> bool:
    """The rule literally: one period alone makes up the last tokens, `times` times."""
    for period in range(1, MAX_PERIOD + 1):
        size = max(times * period, MIN_REPEATED)
        end = list(ids[-size:])
        if len(end) == size and end[period:] == end[:-period]:
            return True
    return False


@given(st.integers(0, 10**6), st.integers(1, 70), st.integers(2, 9), st.integers(0, 400))
def test_repetition_is_detected_at_the_first_token_at_which_the_rule_holds(
    seed: int, period: int, times: int, before: int
) -> None:
    rng = random.Random(seed)
    loop = [rng.randrange(5) for _ in range(period)]
    tokens = [rng.randrange(5) for _ in range(before)] + loop * (400 // period + times)
    watch = Repetition(times)
    end = next((i for i, token in enumerate(tokens) if watch.push(token)), None)
    assert end is not None
    assert repeats(tokens[: end + 1], times)
    assert not any(repeats(tokens[:i], times) for i in range(end + 1) if i % 7 == 0 or i == end)


def test_what_nearly_repeats_or_comes_once_is_left_alone() -> None:
    watch = Repetition(6)
    assert not any(watch.push(token) for i in range(40) for token in (*range(30), 100 + i))
    for times in (0, 1):
        watch = Repetition(times)
        assert not any(watch.push(token) for token in [1, 2, 3] * 400)


@pytest.mark.search
@pytest.mark.parametrize("method", ["none", "trie", "prompt-lookup"])
def test_repetition_ends_an_answer_at_the_same_token_whatever_is_drafted(method: str) -> None:
    model = make_target("llama")
    ends = 0
    for prompt in prompts(4):
        context = Context(prompt, outside=((*prompt, *[prompt[0]] * 40),))
        long, cut = (
            Run(
                model,
                make_drafter(drafts, DraftSettings(learn_output=True)),
                context,
                LOOPING,
                Limits(180, 16, max_repeats=max_repeats),
            ).finish()
            for drafts, max_repeats in (("none", 0), (method, 6))
        )
        end = next((i for i in range(len(long.output)) if repeats(long.output[: i + 1], 6)), None)
        assert cut.output == (long.output if end is None else long.output[: end + 1])
        assert (cut.finish_reason == "repetition") == (end is not None)
        assert long.finish_reason != "repetition"
        assert cut.statistics.new_tokens == len(cut.output)
        ends += end is not None
    assert ends


def test_sequences_of_a_batch_end_where_they_do_alone() -> None:
    model = cached_target("llama")
    prompt_ids = prompts(5, seed=3)
    limits = Limits(180, 8, max_repeats=6)
    none = make_drafter("none")
    alone = [Run(model, none, Context(ids), LOOPING, limits).finish() for ids in prompt_ids]
    for drafts in (separate_drafts("trie"), auto_drafts()):
        sequences = decode_batch(model, prompt_ids, drafts, 3, LOOPING, lambda i: limits)
        for sequence, run in zip(sequences, alone, strict=True):
            assert sequence.token_ids == run.output
            assert sequence.finish_reason == run.finish_reason
    assert "repetition" in {sequence.finish_reason for sequence in sequences}


LOOP = ["--set", "frequency_penalty=-30", "--max-tokens", "200"]


def test_a_command_says_that_an_answer_was_cut_off(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("The slate roof was old. It let the rain in.\n")
    cut = ngt("summarize", str(text), "--json", *LOOP)
    assert json.loads(cut.stdout)["finish_reason"] == "repetition"
    assert cut.returncode == 1
    message, hint = without_note(cut.stderr).decode().splitlines()
    assert message == "ngt: the model repeated itself: what it wrote is no answer"
    assert hint.startswith("Name another model with -m")
    unlimited = ngt("summarize", str(text), "--json", *LOOP, "--set", "max_repeats=0")
    assert json.loads(unlimited.stdout)["finish_reason"] == "length"
    assert json.loads(unlimited.stdout)["text"].startswith(json.loads(cut.stdout)["text"])
    assert b"it reached --max-tokens" in unlimited.stderr


def test_a_summary_of_each_file_reports_each_failure_once(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("The slate roof was old. It let the rain in.\n")
    done = ngt("summarize", ".", "-o", "out/", *LOOP, cwd=tmp_path)
    assert done.returncode != 0
    assert done.stderr.count(b"a.txt: the model repeated itself") == 1
    assert done.stderr.count(b"b.txt: the model repeated itself") == 1


def test_a_batch_names_the_lines_that_were_cut_off(tmp_path: Path) -> None:
    line = {"id": "one", "context": "The slate roof was old. It let the rain in."}
    done = ngt("batch", "-", *LOOP, stdin=json.dumps(line).encode() + b"\n", cwd=tmp_path)
    assert json.loads(done.stdout)["finish_reason"] == "repetition"
    assert b"line one: the model repeated itself: what it wrote is no answer" in done.stderr


def test_check_compares_answers_to_their_ends(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("The slate roof was old. It let the rain in.\n")
    done = ngt("check", str(text), "--drafts", "8", "--json", *LOOP, NGT_MAX_REPEATS="2")
    assert done.returncode == 0
    assert {run["new_tokens"] for run in json.loads(done.stdout)["results"]} == {200}


def test_an_answer_that_is_cut_inside_a_character_ends_before_it(tmp_path: Path) -> None:
    """The ids of `--json-tokens` are all there; the text has whole characters only."""
    text = tmp_path / "a.txt"
    text.write_text("The 屋根屋根屋根 was old. The 屋根屋根屋根 was not.\n")
    cut = set()
    for most in range(1, 14):
        done = ngt("summarize", str(text), "--json-tokens", "--max-tokens", str(most))
        body = json.loads(done.stdout)
        assert len(body["tokens"]) == body["statistics"]["new_tokens"]
        assert "\ufffd" not in body["text"]
        assert body["text"] == "".join(token["text"] for token in body["tokens"])
        cut.add(body["tokens"][-1]["text"] == "" and body["finish_reason"] == "length")
    assert True in cut
