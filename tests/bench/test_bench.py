"""`ngt bench` as a shell runs it: its table, JSON, files, interruption; and what tools record."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from ngtcli.cli.schema import build
from tests.support import warm
from tests.support.helpers import END, HARBOUR, ngt, tool
from tests.tools.measuring.traces import TraceWriter, read_traces
from tests.tools.record import record
from tests.tools.replay import replay


def test_a_live_run_prints_one_object() -> None:
    done = ngt(
        "bench",
        "--limit",
        "1",
        "--rounds",
        "1",
        "--max-tokens",
        "6",
        "--against",
        "hf",
        "--methods",
        "trie,nonsense",
        "--num-draft",
        "4,16",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(b"ngt: nonsense was not measured: unknown method 'nonsense'")
    body = json.loads(done.stdout)
    validator = Draft202012Validator(build("bench"))
    validator.validate(body)
    with pytest.raises(ValidationError):
        validator.validate({**body, "rows": [{**body["rows"][0], "new": 1}]})
    assert body["kind"] == "live"
    assert body["questions"] == 2
    rows = body["rows"]
    assert [(r["method"], r["num_draft"]) for r in rows] == [
        ("none", None),
        ("trie", 4),
        ("trie", 16),
        ("hf", None),
        ("hf-prompt-lookup", None),
    ]
    assert all(r["same_ids"] == 2 and r["new_tokens"] > 0 for r in rows)
    assert rows[0]["mean_acceptance_length"] == rows[3]["mean_acceptance_length"] == 1.0
    assert [r["method"] for r in body["refused"]] == ["nonsense"]
    for row in rows[:3]:
        assert sum(row["share"].values()) == pytest.approx(1, abs=1e-3)
        assert row["share"].keys() == {"prefill", *row["step_us"]}
        assert row["prefill_ms"] > 0
        assert row["step_us"]["forward"] > 0
    assert rows[3]["share"] is None
    assert rows[3]["prefill_ms"] is None
    assert {"command", "date", "versions", "device_name", "dtype"} <= set(body)


def test_prompts_come_from_json_lines_and_the_table_goes_to_a_file(tmp_path: Path) -> None:
    lines = tmp_path / "p.jsonl"
    message = "Say this again: the slate came by rail, the slate came by rail."
    lines.write_text(json.dumps({"id": 1, "task": "qa", "message": message}) + "\n")
    done = ngt(
        "bench",
        "--prompts",
        str(lines),
        "--methods",
        "trie",
        "--rounds",
        "1",
        "--max-tokens",
        "6",
        "-o",
        str(tmp_path / "out.txt"),
    )
    assert done.returncode == 0
    assert done.stdout == done.stderr == b""
    title, headings, plain, trie, empty, facts = (tmp_path / "out.txt").read_text().splitlines()
    assert title == "# 1 prompt, at most 64 draft nodes per step"
    assert empty == ""
    by_heading = dict(zip(headings.split("\t"), trie.split("\t"), strict=True))
    assert by_heading["method"] == "trie"
    assert by_heading["speed-up"].endswith("×")
    parts = ("prefill", "draft", "tree", "forward", "verify", "cache")
    assert sum(int(by_heading[part].rstrip("%")) for part in parts) == pytest.approx(100, abs=3)
    assert plain.startswith("none\t1.00×\t")
    assert facts.startswith("# builtin · float32 on cpu")


def test_ctrl_c_keeps_what_was_measured() -> None:
    """Rounds without end, interrupted when the first is through (seen by the clock of others)."""
    code = (
        "import sys, time, os, signal, threading\n"
        "import ngtcli.bench.live as live\n"
        "real, count = live.decoded, [0]\n"
        "def decoded(*given):\n"
        "    count[0] += 1\n"
        "    if count[0] == 6:\n        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(*given)\n"
        "live.decoded = decoded\n"
        "from ngtcli.cli.app import run\n"
        f"sys.argv = ['ngt', 'bench', {HARBOUR!r}, '--methods=trie', '--rounds=999',"
        " '--max-tokens=5', '--json']\nsys.exit(run())\n"
    )
    done = warm.run(code=code)
    assert done.returncode == 130, done.stderr
    body = json.loads(done.stdout)
    assert body["interrupted"]
    assert body["questions"] == 1
    assert len(body["rows"]) == 2
    assert b"interrupted" in done.stderr
    assert b"Traceback" not in done.stderr


def replayed(*arguments: str) -> Any:
    """What `python -m tests.tools.replay` does."""
    return tool(replay, "tests.tools.replay", *arguments)


def record_by_hand(folder: Path) -> Path:
    """A recording of three questions for each of two tasks, whose answers repeat their prompts."""
    with TraceWriter(folder, "print", "tiny", 97) as writer:
        for i in range(6):
            prompt = [*range(10, 40), 50 + i, *range(10, 40), 5]
            writer.add(str(i), "ab"[i % 2], prompt, [*range(12, 30), 50 + i, END])
    return folder


def test_flags_say_which_part_of_a_recording_is_replayed_and_how(tmp_path: Path) -> None:
    folder = str(record_by_hand(tmp_path / "r"))
    methods = (folder, "--methods", "trie, recycling")
    part = ("--tasks", "b,a", "--limit", "2", "--ids", "odd", "--num-draft", "4,8", "--fresh")
    body = json.loads(replayed(*methods, *part, "--set", "n=4", "--json").stdout)
    assert body["questions"] == 2
    assert body["fresh"] is True
    assert body["model"] == "tiny"
    rows = [(r["method"], r["num_draft"], r["task"]) for r in body["rows"]]
    assert rows == [("trie", k, task) for k in (4, 8) for task in ("b", "overall")]
    assert max(int(k) for r in body["rows"] for k in r["acceptance_histogram"]) == 3  # of a window
    assert [r["method"] for r in body["refused"]] == ["recycling"]
    page = tmp_path / "r.html"
    done = replayed(*methods, "--html", str(page))
    assert done.returncode == 0
    assert b"\ntrie\t" in done.stdout
    assert b"recycling\t" in done.stdout
    assert "python -m tests.tools.replay" in page.read_text()
    for more, words in (
        ((HARBOUR,), b"unexpected extra argument"),
        (("--tasks", "a,xyz"), b"no task 'xyz'"),
        (("--rounds", "3"), b"--rounds"),
    ):
        assert words in replayed(*methods, *more).stderr
    assert b"no method can run: it needs" in replayed(folder, "--methods", "recycling").stderr


def test_a_recording_can_be_replayed(tmp_path: Path) -> None:
    folder = str(tmp_path / "trace")
    recording = (folder, HARBOUR, "--max-tokens", "30")
    out = tool(record, "tests.tools.record", *recording).stdout.decode()
    assert out.startswith("1 prompt, ")
    assert out.endswith(f" tokens: {folder}\n")
    body = json.loads(replayed(folder, "--methods", "trie", "--json").stdout)
    assert body["kind"] == "replay"
    assert body["questions"] == 1
    assert body["model"] == "builtin"
    row = body["rows"][0]
    assert f"1 prompt, {row['new_tokens']} tokens" in out
    assert row["mean_acceptance_length"] > 1
    assert b"not empty" in tool(record, "tests.tools.record", *recording).stderr
    assert {trace.room for trace in read_traces(Path(folder)).traces} == {30}  # as the run had


def test_a_recording_has_the_models_best_tokens_if_they_are_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    arguments = (str(folder), HARBOUR, "--max-tokens", "20", "--dtype", "float32", "--top", "3")
    assert tool(record, "tests.tools.record", *arguments).returncode == 0
    (trace,) = read_traces(folder).traces
    rows = len(trace.prompt_ids) + len(trace.output_ids) - 1
    assert len(trace.top.ids) == len(trace.top.log_probabilities) == rows
    assert {len(row) for row in (*trace.top.ids, *trace.top.log_probabilities)} == {3}
    # Greedy decoding chose the best token after each token from the end of the prompt on.
    after_prompt = trace.top.ids[len(trace.prompt_ids) - 1 :]
    assert tuple([row[0] for row in after_prompt]) == trace.output_ids
    for row in trace.top.log_probabilities:
        assert 0.0 >= row[0] >= row[1] >= row[2]
