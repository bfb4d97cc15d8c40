"""`ngt batch` and `ngt summarize -o FOLDER/`: order, resuming, retries, streams, exit codes."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
from jsonschema import Draft202012Validator

from ngtcli.cli.schema import build
from ngtcli.config import Settings
from ngtcli.documents.read import DocumentReader
from ngtcli.engine.batch import line_requests
from ngtcli.engine.batch.line_requests import LineRequests
from ngtcli.errors import ClosedPipeError, ModelError
from tests.support.fakes import FakeAnswers
from tests.support.helpers import HARBOUR, Done, in_terminal, ngt, without_note
from tests.support.warm import Warm


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Thirteen lines, three of which are wrong; texts repeat."""
    (tmp_path / "tide.txt").write_text("Tide four is in a file.")
    numerals = ["one", "two", "three"]
    rows: list[Any] = [
        {"id": f"n{i}", "context": f"Tide {numerals[i % 3]} came at {i % 3}."} for i in range(9)
    ]
    rows[2] |= {"question": "When did it come?"}
    rows[4] |= {"question": "When?", "settings": {"max_tokens": 5}}
    rows[5] |= {"settings": {"dtype": "float16"}}
    rows += [{"paths": ["tide.txt"]}, {"paths": ["nowhere.txt"]}, {"context": "Last one of all."}]
    lines = [json.dumps(row) for row in rows]
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join([*lines[:7], "{not json", *lines[7:]]) + "\n")
    return path


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A folder with a.txt, b.txt and c.txt."""
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in "abc":
        (docs / f"{name}.txt").write_text(f"Text {name} of three.")
    return docs


FAILING = [5, 7, 11]  # positions of the lines that are wrong
IDS = ["n0", "n1", "n2", "n3", "n4", "n5", "n6", 8, "n7", "n8", 11, 12, 13]


def run(source: Path, *options: str, name: str = "out.jsonl") -> Done:
    return ngt("batch", str(source), "-o", str(source.parent / name), *options)


def parse(lines: bytes) -> list[Any]:
    return [json.loads(line) for line in lines.splitlines()]


def read(source: Path, name: str = "out.jsonl") -> list[Any]:
    return parse((source.parent / name).read_bytes())


def without_statistics(rows: list[Any]) -> list[tuple[Any, Any, Any]]:
    return [(row["id"], row.get("text"), row.get("error")) for row in rows]


def test_warnings_name_their_line_and_quiet_leaves_them_out(
    tmp_path: Path, fake: FakeAnswers
) -> None:
    fake.finish_reason = "length"
    source = tmp_path / "in.jsonl"
    source.write_text('{"context": "One."}\n{"context": "Two."}\n')
    done = run(source)
    assert done.returncode == 0
    for number in (1, 2):
        assert f"ngt: line {number}: the answer is cut off" in done.stderr.decode()
    quiet = run(source, "-q", name="quiet.jsonl")
    assert quiet.returncode == 0
    assert quiet.stderr == b""


def test_answers_and_errors_are_in_the_order_of_the_lines(source: Path, fake: FakeAnswers) -> None:
    done = run(source, "--batch-size", "3")
    assert done.returncode == 7
    assert done.stdout == b""
    assert b"3 of 13 lines failed" in done.stderr
    assert b"--retry-failed" in done.stderr
    rows = read(source)
    assert [row["id"] for row in rows] == IDS
    assert [i for i, row in enumerate(rows) if "error" in row] == FAILING
    assert [rows[i]["error"]["exit_code"] for i in FAILING] == [2, 3, 3]
    assert rows[10]["text"] == "Tide four is in"
    assert rows[10]["documents"][0]["name"] == "tide.txt"
    assert rows[2]["task"] == "ask"
    assert rows[3]["task"] == "summarize"
    assert rows[4]["settings"]["max_tokens"] == 5
    assert rows[2]["settings"]["max_tokens"] == 256
    validator = Draft202012Validator(build("batch"))
    for row in rows:
        validator.validate(row)


@pytest.mark.parametrize("stop_at", [1, 4, 8])
def test_an_interrupted_run_resumes(source: Path, fake: FakeAnswers, stop_at: int) -> None:
    run(source, name="uninterrupted.jsonl")
    questions = len(fake.asked)
    fake.asked = []

    def stop(text: str) -> None:
        if len(fake.asked) == stop_at:
            raise KeyboardInterrupt

    fake.before = stop
    done = run(source, "--batch-size", "2")
    assert done.returncode == 130
    assert b"interrupted" in done.stderr
    ids = [row["id"] for row in read(source)]
    assert ids == IDS[: len(ids)]
    journal = source.parent / "out.jsonl.journal"
    journal_lines = journal.read_text().splitlines() if journal.exists() else ["head"]
    done_lines = len(journal_lines) - 1

    fake.before = lambda _: None
    resumed = run(source)
    assert resumed.returncode == 7
    message = f"already done: {done_lines} of 13 lines"
    assert (message in resumed.stderr.decode()) == (done_lines > 0)
    expected = read(source, "uninterrupted.jsonl")
    assert without_statistics(read(source)) == without_statistics(expected)
    # The two questions of the interrupted step may be asked again.
    assert len(fake.asked) <= questions + 2

    fake.asked = []
    assert run(source).returncode == 7
    assert not fake.asked


def test_an_error_caused_by_ctrl_c_ends_the_run(
    source: Path, fake: FakeAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.before = Mock(side_effect=RuntimeError)
    monkeypatch.setattr("ngtcli.system.process.interrupted", lambda: True)
    done = run(source)
    assert done.returncode == 130
    assert b"interrupted; the same command" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--max-tokens", "9"), b"max_tokens 256, now 9"),
        (("--shard", "1/2"), b"shard '1/1', now '1/2'"),
    ],
)
def test_a_run_with_other_settings_is_not_resumed(
    source: Path, fake: FakeAnswers, flags: tuple[str, ...], message: bytes
) -> None:
    assert run(source).returncode == 7
    before = (source.parent / "out.jsonl").read_bytes()

    done = run(source, *flags)

    assert done.returncode == 2
    assert message in done.stderr
    assert (source.parent / "out.jsonl").read_bytes() == before


def test_a_run_is_resumed_with_settings_that_change_no_answer(
    source: Path, fake: FakeAnswers
) -> None:
    assert run(source).returncode == 7
    fake.asked = []
    assert run(source, "--set", "threads=1").returncode == 7
    assert not fake.asked


def test_a_run_with_another_input_is_restarted_but_not_resumed(
    source: Path, fake: FakeAnswers
) -> None:
    assert run(source).returncode == 7
    before = (source.parent / "out.jsonl").read_bytes()
    source.write_text(source.read_text() + '{"context": "More."}\n')

    done = run(source)
    assert done.returncode == 2
    assert b"the input has changed" in done.stderr
    assert (source.parent / "out.jsonl").read_bytes() == before

    assert run(source, "--restart").returncode == 7
    assert len(read(source)) == 14


def failed_positions(rows: list[Any]) -> list[int]:
    return [position for position, row in enumerate(rows) if "error" in row]


def test_failed_lines_are_retried_in_their_places(source: Path, fake: FakeAnswers) -> None:
    def refuse(text: str) -> None:
        if "two" in text:
            raise ModelError("no scores", hint="Try again.")
        if "four" in text:
            raise RuntimeError("shapes do not match")

    fake.before = refuse
    assert run(source, "--limit", "6").returncode == 7
    done = run(source, "--retry-failed")  # and continues with the other lines
    assert done.returncode == 7
    assert b"already done: 3 of 13 lines" in done.stderr
    before = read(source)
    assert len(failed_positions(before)) == 7
    assert before[1]["error"]["message"] == "no scores"
    assert before[10]["error"]["message"] == "RuntimeError: shapes do not match"

    fake.before = lambda _: None
    fake.asked = []
    (source.parent / "nowhere.txt").write_text("It is there now.")
    done = run(source, "--retry-failed")
    assert done.returncode == 7
    assert b"2 of 13 lines failed" in done.stderr
    assert len(fake.asked) == 5
    after = read(source)
    assert failed_positions(after) == FAILING[:2]
    for position in set(range(len(IDS))) - set(failed_positions(before)):
        assert after[position] == before[position]
    assert after[11]["text"] == "It is there now."


@pytest.fixture
def lines_of_three(tmp_path: Path, three: Path) -> Path:
    """A batch with a line for each document of `three`, one for all, and one without a file."""
    rows: list[dict[str, Any]] = [{"id": name, "paths": [f"docs/{name}.txt"]} for name in "abc"]
    rows.append({"id": "all", "paths": ["docs"]})
    rows.append({"id": "none", "context": "The tide."})
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return source


def test_lines_whose_documents_changed_are_named(
    lines_of_three: Path, three: Path, fake: FakeAnswers
) -> None:
    """They are named even if answers came out of order, and if another line is retried."""

    def fail_for_b_alone(text: str) -> None:
        if "Text b" in text and "Text c" not in text:
            raise ModelError("no scores", hint="Try again.")

    fake.before = fail_for_b_alone
    assert run(lines_of_three, "--limit", "4", "--batch-size", "4").returncode == 7
    fake.before = lambda _: None
    fake.asked = []
    (three / "a.txt").write_text("Text a is another.")

    done = run(lines_of_three, "--retry-failed")

    assert done.returncode == 0
    assert b"the documents of 2 lines have changed or disappeared since" in done.stderr
    assert b"the answers were made: 'a', 'all'; --restart" in done.stderr
    assert len(read(lines_of_three)) == 5
    assert len(fake.asked) == 2


def test_lines_whose_documents_disappeared_are_named_until_they_are_back(
    lines_of_three: Path, three: Path, fake: FakeAnswers
) -> None:
    assert run(lines_of_three).returncode == 0
    fake.asked = []
    os.utime(three / "b.txt", (1, 1))  # has another time, but the same text
    (three / "c.txt").unlink()
    with (lines_of_three.parent / "out.jsonl.journal").open("ab") as file:
        file.write(b'{"index":0')  # a line that was cut off

    done = run(lines_of_three)
    assert b"of 2 lines have changed" in done.stderr
    assert b": 'c', 'all';" in done.stderr

    (three / "c.txt").write_text("Text c of three.")
    done = run(lines_of_three)
    assert b"already done: 5 of 5 lines\n" in done.stderr
    assert b"changed" not in done.stderr
    assert not fake.asked


def test_a_resumed_batch_lists_folders_and_examines_files_once(
    tmp_path: Path, three: Path, fake: FakeAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"paths": ["docs"]}\n{"paths": ["docs/a.txt"]}\n' * 9)
    assert run(source).returncode == 0
    scandir = Mock(side_effect=os.scandir)
    stamp_of = Mock(side_effect=line_requests.stamp_of)
    load = Mock()
    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(line_requests, "stamp_of", stamp_of)
    monkeypatch.setattr(line_requests, "load", load)

    assert b"already done: 18 of 18 lines\n" in run(source).stderr

    assert scandir.call_args_list.count(call(str(three))) == 1
    examined = [arguments.args[0] for arguments in stamp_of.call_args_list]
    assert len(examined) == 3
    assert len(set(examined)) == 3
    assert not load.called


def test_a_shard_has_every_nth_line(source: Path, fake: FakeAnswers) -> None:
    run(source, "--shard", "2/3")
    assert [row["id"] for row in read(source)] == IDS[1::3]


@pytest.mark.parametrize("shard", ["0/3", "4/3", "a", "1/0", "-1/2"])
def test_an_invalid_shard_is_refused(source: Path, fake: FakeAnswers, shard: str) -> None:
    assert run(source, "--shard", shard).returncode == 2


def test_rows_without_o_go_to_stdout_in_the_order_of_the_lines(
    source: Path, fake: FakeAnswers
) -> None:
    piped = ngt("batch", "-", stdin=source.read_bytes(), cwd=source.parent)
    named = ngt("batch", str(source))
    assert piped.returncode == 7
    assert named.returncode == 7
    rows = parse(piped.stdout)
    assert [row["id"] for row in rows] == IDS
    assert without_statistics(rows) == without_statistics(parse(named.stdout))
    assert not list(source.parent.glob("*.journal"))


def test_a_batch_without_failures_writes_nothing_to_stderr(fake: FakeAnswers) -> None:
    done = ngt("batch", "-", stdin=b'{"context": "The tide."}\n')
    assert done.returncode == 0
    assert without_note(done.stderr) == b""


def test_vllm_warns_of_settings_of_a_line_without_effect(
    tmp_path: Path, fake: FakeAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home" / "config" / "presets").mkdir(parents=True)
    preset = "template: '{documents}'\nnum_draft: 9\nmethod: trie\n"
    (tmp_path / "home" / "config" / "presets" / "summarize.yaml").write_text(preset)
    rows: list[Any] = [{"context": f"Tide {i}."} for i in range(3)]
    rows.append({"context": "Tide.", "question": "When?", "settings": {"temperature": 2.5}})
    data = "\n".join(map(json.dumps, rows)).encode()
    home = str(tmp_path / "home")
    done = ngt("batch", "-", "--engine", "vllm", stdin=data, NGT_HOME=home)
    lines = done.stderr.decode().splitlines()
    for name, ignored, used in (("num_draft", 9, 64), ("method", "trie", "auto")):
        words = f"vLLM drafts for all texts as for ask, with {name} {used}: {name} {ignored} of"
        assert sum(words in line for line in lines) == 1
    answers = parse(done.stdout)
    assert [row["settings"]["num_draft"] for row in answers[:3]] == [64] * 3
    assert "temperature 2.5 is out of range" in answers[3]["error"]["message"]
    assert done.returncode == 7
    assert b"vLLM" not in ngt("batch", "-", stdin=data, NGT_HOME=home).stderr


def test_a_closed_pipe_ends_the_run_quietly(
    source: Path, fake: FakeAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []

    def head(line: str) -> None:
        if printed:
            raise ClosedPipeError("standard output is closed")
        printed.append(line)

    monkeypatch.setattr("ngtcli.cli.batch.print_line", head)
    done = ngt("batch", str(source))
    assert done.returncode == 0
    assert without_note(done.stderr) == b""
    assert len(fake.asked) < 10


def test_files_that_cannot_be_the_input_or_the_output_are_refused(source: Path) -> None:
    folder = str(source.parent)
    (source.parent / "empty.jsonl").write_text("\n")
    (source.parent / "there.jsonl").write_text("mine\n")
    (source.parent / "in.jsonl.journal").write_text('{"context": "Tide one."}\n')
    before = {path: path.read_bytes() for path in source.parent.iterdir() if path.is_file()}
    for arguments, code, words in (
        (("-", "-o", f"{folder}/there.jsonl"), 2, b"--force"),
        ((str(source), "-o", f"{folder}/there.jsonl"), 2, b"--force"),
        ((str(source), "-o", f"{folder}/there.jsonl", "--restart"), 2, b"--force"),
        ((str(source), "-o", str(source), "--restart"), 2, b"is also the input"),
        ((f"{source}.journal", "-o", str(source), "--restart"), 2, b"its journal is"),
        ((str(source), "-o", folder), 2, b"a folder"),
        ((str(source), "-o", f"{folder}/none/out.jsonl"), 2, b"no such folder"),
        ((f"{folder}/empty.jsonl",), 3, b"empty"),
        ((folder,), 3, b"is a directory"),
        ((f"{folder}/none.jsonl",), 3, b"no such file"),
        (("-",), 3, b"empty"),
    ):
        done = ngt("batch", *arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert words in done.stderr
    after = {path: path.read_bytes() for path in source.parent.iterdir() if path.is_file()}
    assert after == before


@pytest.mark.parametrize(("stream", "arguments"), [(1, ["in.jsonl"]), (0, ["-", "-o", "in.jsonl"])])
def test_a_stream_from_or_to_the_other_file_is_refused(
    source: Path, fake: FakeAnswers, stream: int, arguments: list[str]
) -> None:
    before = source.read_bytes()
    saved_stream = os.dup(stream)
    with source.open("r+b") as file:
        os.dup2(file.fileno(), stream)
        try:
            more = ["--restart"] if stream == 0 else []
            done = ngt("batch", *arguments, *more, cwd=source.parent, stdin=b'{"context": "a"}')
        finally:
            os.dup2(saved_stream, stream)
            os.close(saved_stream)
    assert done.returncode == 2
    assert b"is also the input" in done.stderr
    assert source.read_bytes() == before


def test_questions_use_another_preset_if_theirs_has_no_place(
    own_home: Path, fake: FakeAnswers
) -> None:
    folder = own_home / "config" / "presets"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("template: 'Mine: {documents}'\nmax_tokens: 7\n")
    rows: list[dict[str, str]] = [{"context": "Tide one.", "question": f"Who {i}?"} for i in (1, 2)]
    data = "\n".join(map(json.dumps, [*rows, {"context": "Tide two."}])).encode()
    done = ngt("batch", "-", "-p", "mine", stdin=data, NGT_HOME=str(own_home))
    assert done.returncode == 0
    rows_out = parse(done.stdout)
    assert [row["preset"] for row in rows_out] == ["ask", "ask", "mine"]
    assert {row["settings"]["max_tokens"] for row in rows_out} == {7}
    assert sorted("Who" in text for text in fake.asked) == [False, True, True]
    assert done.stderr.count(b"preset mine has no place for a question: preset ask is used") == 1


@pytest.mark.parametrize(
    "named",
    ["out.jsonl", "link.txt", "twin.txt", "out.jsonl.journal", "folder/../new.jsonl", "~/x.jsonl"],
)
def test_a_line_that_reads_the_output_is_refused(
    tmp_path: Path, fake: FakeAnswers, named: str
) -> None:
    (tmp_path / "out.jsonl").write_text("The tide came in at noon.\n")
    (tmp_path / "out.jsonl.journal").write_text("The tide went out at six.\n")
    (tmp_path / "link.txt").symlink_to("out.jsonl")
    (tmp_path / "twin.txt").hardlink_to(tmp_path / "out.jsonl")
    rows = [{"context": "Tide one."}, {"paths": [named]}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    (tmp_path / "~").mkdir()  # a folder of that name comes before the user's own
    (tmp_path / "~" / "x.jsonl").touch()
    output = "new.jsonl" if "new" in named else "./~/x.jsonl" if "~" in named else "out.jsonl"
    done = ngt("batch", "in.jsonl", "-o", output, "--restart", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert b"line 2 reads" in done.stderr
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert after == before
    assert not fake.asked


def test_few_readers_are_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed: list[str] = []
    monkeypatch.setattr(
        DocumentReader, "close", lambda files: closed.append(files._settings.reading.field)
    )
    reader = LineRequests({}, None, str(tmp_path), None)
    for field in "abcdae":
        documents = reader._reader(Settings().replace(field=field))
        assert reader._reader(Settings.of(max_tokens=9).replace(field=field)) is documents
    assert sorted(closed) == list("abcd")
    reader.close()
    assert closed[4:] == ["e"]


@pytest.mark.parametrize(("named", "strict"), [("texts", "no"), ("texts/*", "yes")])
def test_outputs_in_folders_and_patterns_are_skipped(
    tmp_path: Path, fake: FakeAnswers, named: str, strict: str
) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("Tide one came in.")
    (tmp_path / "in.jsonl").write_text(json.dumps({"paths": [named]}) + "\n")
    done = ngt(
        "batch", "in.jsonl", "-o", "texts/out.jsonl", "--set", f"strict={strict}", cwd=tmp_path
    )
    row = json.loads((tmp_path / "texts" / "out.jsonl").read_text())
    assert [d["name"] for d in row["documents"]] == ["a.txt"], row
    assert done.returncode == 0
    assert b"out.jsonl: this command writes it" in done.stderr
    assert (b"out.jsonl.journal: this command writes it" in done.stderr) is (named == "texts/*")
    assert "this command writes it" in {file["reason"] for file in row["skipped"]}


def test_a_line_of_a_stream_cannot_read_what_the_run_writes(
    tmp_path: Path, fake: FakeAnswers
) -> None:
    data = b'{"context": "Tide one."}\n{"paths": ["out.jsonl"]}\n'
    done = ngt("batch", "-", "-o", "out.jsonl", cwd=tmp_path, stdin=data)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert done.returncode == 7
    assert "text" in rows[0]
    assert "would overwrite it" in rows[1]["error"]["message"]


def test_a_terminal_shows_one_status_line(source: Path, fake: FakeAnswers) -> None:
    shown, code = in_terminal("batch", str(source), "-o", str(source.parent / "out.jsonl"))
    assert code == 7
    assert "\r\x1b[K" in shown
    assert "13 of 13 lines · 3 failed · 10 documents" in shown
    assert max(part.count("\n") for part in shown.split("\x1b[K")[:-3]) <= 1
    parts = in_terminal("batch", str(source))[0].split('{"id": ')
    assert len(parts) == 14
    assert [p[-30:] for p in parts[:-1] if p and not p.endswith(("\n", "\x1b[K"))] == []


# --- the real engine ---


def test_answers_are_those_of_the_single_commands(tmp_path: Path) -> None:
    text = Path(HARBOUR).read_text()
    long = "The tide came in at noon that day. " * 400
    rows = [
        {"id": 1, "context": text},
        {"id": 2, "documents": [{"name": "harbour.txt", "text": text}], "question": "Who?"},
        {"id": 4, "context": long, "settings": {"overflow": "error"}},
        {"id": 5, "context": long, "settings": {"max_tokens": 2}},
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    short = ("--max-tokens", "6", "--set", "pool=no")

    assert run(source, *short).returncode == 7

    results = read(source)
    for result in results:
        Draft202012Validator(build("batch")).validate(result)
    summary, answer, too_long, in_parts = results
    for result, command in (
        (summary, ("summarize", HARBOUR)),
        (answer, ("ask", "-d", HARBOUR, "Who?")),
    ):
        expected = json.loads(ngt(*command, "--json", *short).stdout)
        assert result["text"] == expected["text"]
        assert result["exact"] == expected["exact"]
        prompt_tokens = expected["statistics"]["prompt_tokens"]
        assert result["statistics"]["prompt_tokens"] == prompt_tokens
    assert too_long["error"]["exit_code"] == 5
    assert len(in_parts["parts"]) > 1


def test_a_stream_is_answered_line_by_line() -> None:
    command = ("batch", "-", "--max-tokens", "4", "--method", "none", "--set", "threads=1")
    with Warm(*command, stdin=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        for number in (1, 2):
            process.stdin.write(b'{"context": "The tide came in at noon."}\n')
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == number
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert b"interrupted" in process.stderr.read()


# --- a file each ---


def test_a_folder_has_a_file_per_text_and_resumes(
    tmp_path: Path, three: Path, fake: FakeAnswers
) -> None:
    out = tmp_path / "out"
    done = ngt("summarize", str(three), "-o", f"{out}/")
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    file_names = {path.name for path in out.iterdir()}
    assert file_names == {".ngt.journal", "a.txt", "b.txt", "c.txt"}
    assert (out / "b.txt").read_text() == "Text b of three.\n"

    (three / "b.txt").write_text("Text b is another one.")
    (out / "c.txt").unlink()
    fake.asked = []
    resumed = ngt("summarize", str(three), "-o", str(out))  # no slash, as the folder exists
    assert resumed.returncode == 0
    assert b"2 of 3 files" in resumed.stderr
    assert (out / "c.txt").read_text() == "Text c of three.\n"  # from the journal
    assert len(fake.asked) == 1
    assert (out / "b.txt").read_text() == "Text b is another\n"


def test_files_of_a_folder_are_answered_again_with_other_settings(
    tmp_path: Path, three: Path, fake: FakeAnswers
) -> None:
    command = ("summarize", str(three), "-o", f"{tmp_path}/out/")
    assert ngt(*command).returncode == 0
    fake.asked = []
    assert ngt(*command, "--max-tokens", "9").returncode == 0
    assert len(fake.asked) == 3


@pytest.mark.parametrize("flags", [(), ("--restart",)])
def test_a_foreign_file_in_the_folder_is_refused_before_any_answer(
    tmp_path: Path, three: Path, fake: FakeAnswers, flags: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "b.txt").write_text("my own notes")
    (out / "c.txt").symlink_to(tmp_path / "nowhere")

    done = ngt("summarize", str(three), "-o", str(out), *flags)

    assert done.returncode == 2
    message = b"out/b.txt: already exists, and this command did not write it, and 1 more\n"
    assert message in done.stderr
    assert b"--force" in done.stderr
    assert fake.asked == []
    assert (out / "b.txt").read_text() == "my own notes"


def test_foreign_files_in_the_folder_are_overwritten_with_force(
    tmp_path: Path, three: Path, fake: FakeAnswers
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "b.txt").write_text("my own notes")
    (out / "c.txt").symlink_to(tmp_path / "nowhere")
    command = ("summarize", str(three), "-o", str(out))

    assert ngt(*command, "--force").returncode == 0
    assert (out / "b.txt").read_text() == "Text b of three.\n"
    assert (tmp_path / "nowhere").read_text() == "Text c of three.\n"  # the link is followed

    fake.asked = []
    assert ngt(*command).returncode == 0
    assert fake.asked == []
    assert ngt(*command, "--restart").returncode == 0
    assert len(fake.asked) == 3


def test_a_restart_without_a_folder_has_no_effect(
    tmp_path: Path, three: Path, fake: FakeAnswers
) -> None:
    done = ngt("summarize", str(three), "-o", str(tmp_path / "one.txt"), "--restart")
    assert done.returncode == 0
    assert b"--restart has no effect without -o FOLDER/" in done.stderr


def test_a_file_that_is_created_during_the_run_is_kept(
    tmp_path: Path, three: Path, fake: FakeAnswers
) -> None:
    out = tmp_path / "out"

    def create_b(text: str) -> None:
        if "Text b" in text:
            (out / "b.txt").write_text("mine")

    fake.before = create_b
    done = ngt("summarize", str(three), "-o", f"{out}/")
    assert done.returncode == 7
    assert b"b.txt: already exists" in done.stderr
    assert (out / "b.txt").read_text() == "mine"
    assert {path.name for path in out.glob("*.txt")} == {"a.txt", "b.txt", "c.txt"}


def test_a_file_that_fails_does_not_end_the_run(tmp_path: Path, fake: FakeAnswers) -> None:
    def refuse(text: str) -> None:
        if "two" in text:
            raise ModelError("no scores", hint="Try again.")

    for name in ("one", "two", "three"):
        (tmp_path / f"{name}.txt").write_text(f"Text {name} of three.")
    (tmp_path / "bad.txt").write_bytes(b"\0\1\2")
    fake.before = refuse
    files = [str(tmp_path / f"{name}.txt") for name in ("one", "bad", "two", "three")]
    done = ngt("summarize", *files, "-o", f"{tmp_path}/out/")
    assert done.returncode == 7
    assert b"2 of 4 files failed" in done.stderr
    assert b"bad.txt: binary" in done.stderr
    assert b"two.txt: no scores. Try again." in done.stderr
    assert {p.name for p in (tmp_path / "out").glob("*.txt")} == {"one.txt", "three.txt"}
    fake.before = lambda _: None
    fake.asked = []
    (tmp_path / "bad.txt").write_text("Text four is mended.")
    assert ngt("summarize", *files, "-o", f"{tmp_path}/out").returncode == 0
    assert len(fake.asked) == 2


def test_a_full_disk_ends_the_run(
    tmp_path: Path, three: Path, fake: FakeAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ngtcli.engine.batch.table.write_atomically", full)
    done = ngt("summarize", str(three), "-o", f"{tmp_path}/out/")
    assert done.returncode == 1
    assert b"no space left" in done.stderr
    assert len(fake.asked) == 1


def test_summaries_beside_their_texts_are_not_summarized(tmp_path: Path, fake: FakeAnswers) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_text("Text a of three.")
    (notes / "b.md").write_text("Text b of three.")
    for questions in (2, 0):
        fake.asked = []
        done = ngt("summarize", str(notes), "-o", str(notes))
        assert done.returncode == 0
        assert len(fake.asked) == questions
    assert b"notes/: 2 answers that ngt wrote" in done.stderr
    names = {".ngt.journal", "a.txt", "b.md", "a.txt.txt", "b.txt"}
    assert {path.name for path in notes.iterdir()} == names
    only = ngt("summarize", str(notes / "a.txt.txt"), "-o", str(notes))
    assert only.returncode == 3
    assert b"are answers that this command wrote" in only.stderr
    (notes / "a").write_text("Text c of three.")  # whose summary would be a.txt
    assert ngt("summarize", str(notes), "-o", str(notes)).returncode == 0
    assert (notes / "a-2.txt").read_text() == "Text c of three.\n"
    assert (notes / "a.txt").read_text() == "Text a of three."


def test_a_line_may_set_method_and_num_draft() -> None:
    """They decide what drafts, and nothing of the text."""
    settings_of_lines: list[dict[str, Any]] = [
        {},
        {"method": "none"},
        {"method": "trie", "num_draft": 8},
        {"method": "nonsense"},
    ]
    context = "The quay was built in 1871. It is long."
    lines = [{"context": context, "settings": settings} for settings in settings_of_lines]
    stdin = "".join(json.dumps(line) + "\n" for line in lines).encode()

    done = ngt("batch", "-", "--method", "llma", "--max-tokens", "12", stdin=stdin)

    llma, plain, trie, invalid = parse(done.stdout)
    assert llma["drafted_by"] == "llma"
    assert plain["drafted_by"] == "none"
    assert trie["drafted_by"] == "trie"
    assert trie["settings"]["num_draft"] == 8
    assert llma["text"] == plain["text"]
    assert trie["text"] == plain["text"]
    assert "nonsense" in json.dumps(invalid["error"])
