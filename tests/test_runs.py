"""`ngt runs`: a line for each answer, whatever goes wrong with it, and what its sums say."""

import errno
import json
import os
import stat
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ngtcli.config import Settings
from ngtcli.errors import NgtError
from ngtcli.session import runs
from ngtcli.session.runs import ModelRuns, RunRecord, append, folder, read_runs, totals
from tests.support.helpers import HARBOUR, ngt

FEW = ("--max-tokens", "6")


def record(number: int = 0, **more: Any) -> RunRecord:
    own = {"model": "builtin", "method": "auto", "preset": "ask", "finish_reason": "stop"}
    at = "2026-01-02T03:04:05Z"
    return RunRecord(id=f"{number:08x}", at=at, by="ask", task="ask", **{**own, **more})


def printed(*words: str) -> Any:
    return json.loads(ngt("runs", *words, "--json").stdout)


def test_an_answer_has_a_line_of_its_figures_and_no_text() -> None:
    done = ngt("ask", "-d", HARBOUR, "Who built the harbour?", "--json", *FEW)
    answer, (line,) = json.loads(done.stdout), printed("list")
    figures = answer["statistics"]
    for name in ("prompt_tokens", "new_tokens", "steps", "drafted_tokens", "prefill_s", "decode_s"):
        assert line[name] == figures[name]
    assert (line["task"], line["method"], line["documents"]) == ("ask", "auto", 1)
    assert line["settings"]["max_tokens"] == 6 and "model" not in line["settings"]
    # One token a pass, at the cost of a pass over one row.
    cost_s = answer["policy"]["cost_s"]["1"]
    assert line["plain_s"] == pytest.approx(cost_s * figures["new_tokens"], abs=1e-5)
    text = (folder() / "runs.jsonl").read_text()
    assert json.loads(text).keys() <= {one.name for one in fields(RunRecord)}
    assert not any(word in text for word in ("built the", "harbour.txt", answer["text"]))
    assert printed("show") == line == printed("show", line["id"][:6])
    assert stat.S_IMODE((folder() / "runs.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder().stat().st_mode) == 0o700
    assert json.loads(ngt("env", "--json").stdout)["log folder"] == str(folder())


def test_text_is_kept_where_it_is_wanted_and_nothing_with_no_log() -> None:
    asked = ("ask", "-d", HARBOUR, "Who \ud800 built it?", "--method", "none", *FEW)
    assert ngt(*asked, "--no-log").returncode == 0 and not folder().exists()
    assert (
        ngt(*asked, "--set", "log_text=yes", "--system", "Be brief.", "--stop", "zz").returncode
        == 0
    )
    line = printed("show")
    assert line["question"] == "Who ? built it?" and line["text"] and line["plain_s"] is None
    assert line["names"] == ["harbour.txt"] or line["names"] == [HARBOUR]
    assert not {"system", "stop"} & set(line["settings"])
    assert ngt(*asked, "--no-log", "--set", "log_text=yes").returncode == 2


def test_a_name_that_is_not_utf_8_can_be_read_again() -> None:
    append(record(settings=dict(runs._differing(Settings(embedder="model \udcff")))))
    assert [run.settings for run in read_runs()[0]] == [{"embedder": "model ?"}]


def test_each_line_of_a_batch_has_one_and_those_decoded_together_are_not_compared(
    tmp_path: Path,
) -> None:
    lines = [json.dumps({"context": "The tide is high at noon.", "question": "When?"})] * 2
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, '{"context": 1}']))
    ngt("batch", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"), *FEW)
    found, damaged = read_runs()
    assert [(run.by, run.task, run.plain_s) for run in found] == [("batch", "ask", None)] * 2
    assert not damaged and printed("stats")[0]["saved_s"] is None
    assert b"unknown" in ngt("runs", "stats").stdout


def disk_is_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("kind", ["full", "in the way"])
def test_what_cannot_be_logged_is_one_line_and_the_answer_stands(kind: str, own_home: Path) -> None:
    if kind == "in the way":
        own_home.mkdir()
        (own_home / "state").write_text("a file")
    with patch("ngtcli.system.journal.write_all", disk_is_full):
        done = ngt("ask", "-d", HARBOUR, "Who?", *FEW)
    assert done.returncode == 0 and done.stdout
    said = [line for line in done.stderr.decode().splitlines() if "log" in line]
    assert len(said) == 1 and said[0].endswith("; --no-log leaves the log out")
    if kind == "full":
        assert read_runs() == ([], 0)


def test_processes_that_write_at_once_lose_no_line_and_the_files_are_bounded(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_LOCK_S", 60.0)  # however busy the machine

    def written(count: int) -> None:
        children = []
        for child in range(4):
            if not (process := os.fork()):
                code = 1
                try:
                    for number in range(count):
                        append(record(child * 1000 + number))
                    code = 0
                finally:
                    os._exit(code)
            children.append(process)
        assert [os.waitpid(process, 0)[1] for process in children] == [0] * 4

    written(40)
    found, damaged = read_runs()
    ids = [f"{child * 1000 + number:08x}" for child in range(4) for number in range(40)]
    assert sorted(run.id for run in found) == ids and not damaged
    with patch.object(runs, "MOST", 4_000):
        written(40)
        found, damaged = read_runs()
        assert not damaged and len(found) > 8
        sizes = [path.stat().st_size for path in folder().iterdir()]
        assert len(sizes) == 2 and max(sizes) <= 4_000


def test_damaged_lines_are_left_out_and_counted() -> None:
    append(record(1))
    path = folder() / "runs.jsonl"
    with path.open("ab") as file:
        file.write(b'\xff\xfe\n{"id": 1}\n[]\n' + b"[" * 9000 + b'\n{"id": "torn')
    append(record(2, new_tokens=3))
    with path.open("ab") as file:  # of a later version
        file.write(path.read_bytes().splitlines()[0][:-1] + b', "more": 1}\n')
    found, damaged = read_runs()
    assert [run.id for run in found] == ["00000001", "00000002", "00000001"] and damaged == 5
    assert b"left out 5 damaged lines of the log" in ngt("runs", "list").stderr
    path.write_bytes(b"x" * (2 * runs.MOST + 1))
    with pytest.raises(NgtError, match="more than 16 MB"):
        read_runs()


def test_a_log_that_another_process_holds_is_left_alone() -> None:
    append(record())
    with runs.LineFile(folder() / "runs.jsonl"):
        with patch.object(runs, "_LOCK_S", 0.0), pytest.raises(OSError, match="another process"):
            append(record())
    assert len(read_runs()[0]) == 1


def test_the_sums_of_a_model_are_those_of_its_runs() -> None:
    one = record(new_tokens=30, steps=10, decode_s=1.0, plain_s=2.5, drafted_tokens=40)
    two = record(new_tokens=10, steps=10, decode_s=3.0)
    other = record(model="big", new_tokens=5, steps=5, decode_s=1.0, plain_s=0.9)
    small, big = totals([other, one, two])
    assert (small.model, small.runs, small.compared_runs) == ("builtin", 2, 1)
    assert (small.mean_acceptance_length, small.tokens_per_s, small.saved_s) == (2.0, 10.0, 1.5)
    assert big.saved_s == pytest.approx(-0.1) and ModelRuns(model="x").saved_s is None
    for run in (other, one, two):
        append(run)
    rows = [line.split("\t") for line in ngt("runs", "stats").stdout.decode().splitlines()]
    assert rows == [
        ["builtin", "2", "40", "2.00", "10.0", "2.50 s", "1.50 s (2.50×)", "1 run"],
        ["big", "1", "5", "1.00", "5.0", "0.90 s", "-0.10 s (0.90×)", "1 run"],
    ]
    assert ngt("runs", "list", "--last", "1").stdout.count(b"\n") == 1
    assert len(printed("list", "--last", "0")) == 3


def test_an_unknown_run_and_an_empty_log_are_told() -> None:
    assert b"the log is empty" in ngt("runs", "show").stderr
    assert ngt("runs", "list").stdout == b""
    append(record())
    done = ngt("runs", "show", "zz")
    assert done.returncode == 3 and b"the log has no run 'zz'" in done.stderr
