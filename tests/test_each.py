"""`ngt ask --each`: a question of each file, to a pipe, a table or a folder, and over all."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ngtcli.cli.schema import build
from ngtcli.errors import ModelError
from tests.support.fakes import FakeAnswers
from tests.support.helpers import Done, ngt

NAMES = ["a.txt", "b.txt", "c.txt"]


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder with three texts, an empty file and one that is no text."""
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in NAMES:
        (docs / name).write_text(f"Text {name[0]} of three.")
    (docs / "empty.txt").touch()
    (docs / "odd.txt").write_bytes(b"\0\1\2")
    return docs


def ask(docs: Path, *options: str, question: str = "Who?") -> Done:
    return ngt("ask", "--each", "-d", str(docs), question, *options)


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def refuse_b(text: str) -> None:
    if "Text b" in text:
        raise ModelError("no scores", "Try again.")


def test_each_file_is_asked_by_itself_and_the_answers_stand_in_the_order_of_the_files(
    docs: Path, fake: FakeAnswers
) -> None:
    done = ask(docs)
    heads = "\n\n".join(f"==> {name} <==\nText {name[0]} of three." for name in NAMES)
    assert (done.returncode, done.stdout.decode()) == (0, f"{heads}\n")
    assert b"empty.txt: empty" in done.stderr and b"odd.txt: binary" in done.stderr
    assert len(fake.asked) == 3 and all(text.count("of three") == 1 for text in fake.asked)
    before = ngt("ask", "--each", str(docs), "Who?")  # words before the question are paths
    assert before.stdout == done.stdout
    assert ask(docs, "--limit", "2").stdout == heads.rpartition("\n\n")[0].encode() + b"\n"
    twice = ngt("ask", "--each", str(docs), *(f"{docs}/{n}" for n in NAMES), "Who?")
    assert twice.stdout == done.stdout


def test_json_lines_are_of_the_schema_and_a_file_that_fails_has_its_error_in_its_place(
    docs: Path, fake: FakeAnswers
) -> None:
    fake.before = refuse_b
    done = ask(docs, "--json")
    rows: list[Any] = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 7 and [row["id"] for row in rows] == NAMES
    assert rows[0]["text"] == "Text a of three." and rows[0]["question"] == "Who?"
    assert [document["name"] for document in rows[2]["documents"]] == ["c.txt"]
    assert rows[1]["error"] == {"message": "no scores", "hint": "Try again.", "exit_code": 4}
    for row in rows:
        Draft202012Validator(build("ask")).validate(row)
    plain = ask(docs)
    assert plain.returncode == 7 and b"b.txt" not in plain.stdout
    assert b"1 of 3 files failed" in plain.stderr


def test_a_table_gets_a_row_a_file_and_the_same_command_asks_only_what_failed_or_changed(
    tmp_path: Path, docs: Path, fake: FakeAnswers
) -> None:
    out, fake.before = tmp_path / "out.csv", refuse_b
    done = ask(docs, "-o", str(out))
    assert done.returncode == 7 and b"b.txt: no scores. Try again." in done.stderr
    rows = [{"file": name, "answer": f"Text {name[0]} of three."} for name in NAMES]
    assert done.stdout == b"" and cells(out) == [rows[0], rows[2]]
    fake.before, fake.asked = lambda _: None, []
    again = ask(docs, "-o", str(out))
    assert again.returncode == 0 and len(fake.asked) == 1 and cells(out) == rows
    assert b"made before and not again: 2 of 3 files" in again.stderr
    (docs / "c.txt").write_text("Text c has changed.")
    fake.asked = []
    assert ask(docs, "-o", str(out)).returncode == 0 and len(fake.asked) == 1
    assert cells(out)[2]["answer"] == "Text c has changed."


@pytest.mark.parametrize("out", ["answers.csv", "answers.json", "answers/"])
def test_what_is_written_among_the_documents_is_none_of_them(
    docs: Path, fake: FakeAnswers, out: str
) -> None:
    for more in (3, 0):
        fake.asked = []
        assert ask(docs, "-o", f"{docs}/{out}").returncode == 0
        assert len(fake.asked) == more


def test_the_answers_in_a_folder_are_those_to_the_last_question_and_the_others_are_kept(
    tmp_path: Path, docs: Path, fake: FakeAnswers
) -> None:
    out = tmp_path / "out"
    for asked, cite, question in (3, "", "Who?"), (3, "--cite", "Who?"), (0, "", "Who?"):
        fake.asked = []
        assert ask(docs, "-o", f"{out}/", *filter(None, [cite]), question=question).returncode == 0
        assert len(fake.asked) == asked and len([*out.glob("*.txt")]) == 3
    (out / "a.txt.txt").unlink()
    (out / "b.txt.txt").write_text("edited")
    assert ask(docs, "-o", f"{out}/").returncode == 0 and fake.asked == []
    assert (out / "a.txt.txt").read_text() == "Text a of three.\n"
    assert (out / "b.txt.txt").read_text() == "edited"
    assert ask(docs, "-o", f"{out}/", question="When?").returncode == 2 and fake.asked == []


@pytest.mark.parametrize("out", ["out.json", "out/", None])
def test_reduce_asks_once_more_over_all_answers_with_the_files_as_sources(
    tmp_path: Path, docs: Path, fake: FakeAnswers, out: str | None
) -> None:
    where = () if out is None else ("-o", f"{tmp_path}/{out}")
    for asked in (4, 4 if out is None else 1):  # the second run has the answers of the first
        fake.asked = []
        done = ask(docs, *where, "--reduce", "Which of them?")
        assert done.returncode == 0 and len(fake.asked) == asked
        *_, last = fake.asked
        assert "Which of them?" in last and all(f"{name}\nText {name[0]}" in last for name in NAMES)
        assert b"==> Which of them? (3 files) <==\na.txt Text a of\n" in done.stdout


def test_the_answer_over_all_is_the_last_json_line_and_of_no_file(
    docs: Path, fake: FakeAnswers
) -> None:
    lines = ask(docs, "--reduce", "Which?", "--json").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["id"] for row in rows] == [*NAMES, "Which?"] and rows[-1]["question"] == "Which?"
    Draft202012Validator(build("ask")).validate(rows[-1])


def test_without_answers_nothing_is_asked_over_all(docs: Path, fake: FakeAnswers) -> None:
    (docs / "a.txt").write_text("Text b, too.")
    (docs / "c.txt").write_text("Text b again.")
    fake.before = refuse_b
    done = ask(docs, "--reduce", "Which?")
    assert (done.returncode, done.stdout, len(fake.asked)) == (7, b"", 3)
    assert b"there is no answer to ask over" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--each", "-o", "{tmp}/a.xlsx"], "ends in .csv, .tsv, .jsonl or .json"),
        (["--each", "-o", "{tmp}/no/a.csv"], "no such folder"),
        (["--each", "-o", "{tmp}/a.csv", "--json"], "--json does nothing with a table"),
        (["--each", "-o", "{tmp}/a.csv", "--show-thinking"], "-o FOLDER/"),
        (["--each", "-o", "{tmp}/docs/a.txt/"], "file exists"),
        (["--each", "--dry-run"], "--dry-run does nothing with an answer for each file"),
        (["--each", "--restart"], "--restart does nothing with standard output"),
        (["--each", "-o", "{tmp}/a.csv", "--force"], "--force does nothing with an answer for"),
        (["--each", "--no-serve"], "--serve does nothing"),
        (["--each", "--reduce", " "], "the question is empty"),
        (["--reduce", "Which?"], "--reduce does nothing with one answer"),
        (["--limit", "2"], "--limit does nothing with one answer"),
    ],
)
def test_what_each_cannot_do_is_refused_before_anything_is_read(
    tmp_path: Path, docs: Path, fake: FakeAnswers, options: list[str], said: str
) -> None:
    done = ngt(
        "ask", "-d", str(docs), "Who?", *(o.replace("{tmp}", str(tmp_path)) for o in options)
    )
    assert (done.returncode, done.stdout) == (2, b"") and said in done.stderr.decode()
    assert fake.asked == [] and {p.name for p in tmp_path.iterdir()} == {"docs"}
