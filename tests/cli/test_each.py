"""`ngt ask --each`: a question of each file, to a pipe, a table or a folder."""

import csv
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ngtcli.cli.schema import build
from ngtcli.errors import ModelError
from ngtcli.server.client import Remote
from ngtcli.server.places import Place
from ngtcli.system.journal import LineFile
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
        raise ModelError("no scores", hint="Try again.")


def test_a_server_that_has_ended_leaves_its_questions_to_a_model_loaded_here(
    docs: Path, fake: FakeAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ask(docs)
    monkeypatch.setattr(Remote, "of", lambda _: Remote(Place(key="nobody-is-there")))
    done = ask(docs)
    assert done.returncode == 0
    assert done.stdout == expected.stdout
    assert done.stderr.count(b"the server has ended") == 1


def test_each_answers_about_every_file_in_order(docs: Path, fake: FakeAnswers) -> None:
    done = ask(docs)
    heads = "\n\n".join(f"==> {name} <==\nText {name[0]} of three." for name in NAMES)
    assert done.returncode == 0
    assert done.stdout.decode() == f"{heads}\n"
    assert b"empty.txt: empty" in done.stderr
    assert b"odd.txt: binary" in done.stderr
    assert len(fake.asked) == 3
    assert all(text.count("of three") == 1 for text in fake.asked)
    for words in (("Who?", str(docs)), (str(docs), "Who?")):
        assert ngt("ask", "--each", *words).stdout == done.stdout
    assert ask(docs, "--limit", "2").stdout == heads.rpartition("\n\n")[0].encode() + b"\n"
    twice = ngt("ask", "--each", str(docs), *(f"{docs}/{n}" for n in NAMES), "Who?")
    assert twice.stdout == done.stdout


def test_json_lines_match_the_schema_and_include_errors(docs: Path, fake: FakeAnswers) -> None:
    fake.before = refuse_b
    done = ask(docs, "--json")
    rows: list[Any] = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 7
    assert [row["id"] for row in rows] == NAMES
    assert rows[0]["text"] == "Text a of three."
    assert rows[0]["question"] == "Who?"
    assert [document["name"] for document in rows[2]["documents"]] == ["c.txt"]
    assert rows[1]["error"] == {"message": "no scores", "hint": "Try again.", "exit_code": 4}
    for row in rows:
        Draft202012Validator(build("ask")).validate(row)
    plain = ask(docs)
    assert plain.returncode == 7
    assert b"b.txt" not in plain.stdout
    assert b"1 of 3 files failed" in plain.stderr


def test_a_table_has_a_row_per_file_and_resumes(
    tmp_path: Path, docs: Path, fake: FakeAnswers
) -> None:
    out = tmp_path / "out.csv"
    fake.before = refuse_b
    done = ask(docs, "-o", str(out))
    assert done.returncode == 7
    assert b"b.txt: no scores. Try again." in done.stderr
    rows = [{"file": name, "answer": f"Text {name[0]} of three."} for name in NAMES]
    assert done.stdout == b""
    assert cells(out) == [rows[0], rows[2]]
    fake.before = lambda _: None
    fake.asked = []
    again = ask(docs, "-o", str(out))
    assert again.returncode == 0
    assert len(fake.asked) == 1
    assert cells(out) == rows
    assert b"already done: 2 of 3 files" in again.stderr
    (docs / "c.txt").write_text("Text c has changed.")
    fake.asked = []
    assert ask(docs, "-o", str(out)).returncode == 0
    assert len(fake.asked) == 1
    assert cells(out)[2]["answer"] == "Text c has changed."


@pytest.mark.parametrize("out", ["answers.csv", "answers.json", "answers/"])
def test_outputs_among_the_documents_are_not_read(docs: Path, fake: FakeAnswers, out: str) -> None:
    for more in (3, 0):
        fake.asked = []
        assert ask(docs, "-o", f"{docs}/{out}").returncode == 0
        assert len(fake.asked) == more


def test_a_folder_has_the_answers_to_the_last_question(
    tmp_path: Path, docs: Path, fake: FakeAnswers
) -> None:
    out = tmp_path / "out"
    for asked, cite, question in (3, "", "Who?"), (3, "--cite", "Who?"), (0, "", "Who?"):
        fake.asked = []
        assert ask(docs, "-o", f"{out}/", *filter(None, [cite]), question=question).returncode == 0
        assert len(fake.asked) == asked
        assert len([*out.glob("*.txt")]) == 3
    (out / "a.txt").unlink()
    (out / "b.txt").write_text("edited")
    assert ask(docs, "-o", f"{out}/").returncode == 0
    assert fake.asked == []
    assert (out / "a.txt").read_text() == "Text a of three.\n"
    assert (out / "b.txt").read_text() == "edited"
    assert ask(docs, "-o", f"{out}/", question="When?").returncode == 2
    assert fake.asked == []


def test_documents_are_identified_by_their_path(tmp_path: Path, fake: FakeAnswers) -> None:
    docs = tmp_path / "docs"
    out = tmp_path / "out"
    (docs / "a").mkdir(parents=True)
    (docs / "a" / "notes.txt").write_text("Text a of three.")
    for where in (f"{out}/", str(tmp_path / "t.csv")):
        assert ask(docs, "-o", where).returncode == 0
    (docs / "b").mkdir(exist_ok=True)
    (docs / "b" / "notes.txt").write_text("Text b of three.")
    fake.asked = []
    for where in (f"{out}/", str(tmp_path / "t.csv")):
        assert ask(docs, "-o", where).returncode == 0
    assert len(fake.asked) == 2
    assert all("Text b" in text for text in fake.asked)
    assert {one.name: one.read_text() for one in out.glob("*.txt")} == {
        "notes.txt": "Text a of three.\n",
        "b_notes.txt": "Text b of three.\n",
    }
    assert [row["file"] for row in cells(tmp_path / "t.csv")] == ["a/notes.txt", "b/notes.txt"]


def test_answer_files_are_named_after_their_documents(tmp_path: Path, fake: FakeAnswers) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in ("a.txt", "a.md", "b.md", "c.txt"):
        (docs / name).write_text(f"Text {name}.")
    assert ask(docs, "-o", f"{tmp_path}/out/").returncode == 0
    names = {one.name for one in (tmp_path / "out").iterdir()}
    assert names == {".ngt.journal", "a.md.txt", "a.txt.txt", "b.txt", "c.txt"}
    assert ask(docs, "-o", f"{docs}/").returncode == 0  # no document is written over
    assert (docs / "c.txt").read_text() == "Text c.txt."
    assert (docs / "c.txt.txt").read_text() == "Text c.txt. Answer the\n"
    fake.asked = []
    assert ask(docs, question="When?").returncode == 0
    assert len(fake.asked) == 4
    listed = ngt("docs", "list", str(docs))
    assert b"c.txt.txt" not in listed.stdout
    assert b"4 answers that ngt wrote" in listed.stderr
    assert ngt("docs", "list", f"{tmp_path}/out").returncode == 0  # answers alone are documents
    (docs / "c.txt.txt").write_text("The user's own.")  # in the place of an answer
    listed = ngt("docs", "list", str(docs))
    assert b"c.txt.txt" in listed.stdout
    assert b"3 answers that ngt wrote" in listed.stderr


@pytest.mark.parametrize("out", ["mine.csv", "theirs/"])
def test_restart_does_not_overwrite_foreign_files(
    tmp_path: Path, docs: Path, fake: FakeAnswers, out: str
) -> None:
    (tmp_path / "theirs").mkdir()
    mine = tmp_path / ("mine.csv" if out == "mine.csv" else "theirs/a.txt")
    mine.write_text("my own")
    where = ("-o", f"{tmp_path}/{out}")
    for flags in ((), ("--restart",)):
        done = ask(docs, *where, *flags)
        assert done.returncode == 2
        assert b"--force" in done.stderr
        assert mine.read_text() == "my own"
        assert fake.asked == []
    assert ask(docs, *where, "--force").returncode == 0
    assert "Text a" in mine.read_text()
    fake.asked = []
    assert ask(docs, *where, "--restart").returncode == 0
    assert len(fake.asked) == 3
    mine.write_text("edited")
    assert ask(docs, *where, "--restart", question="When?").returncode == 2
    assert mine.read_text() == "edited"
    assert ask(docs, *where, "--restart", "--force", question="When?").returncode == 0
    assert "Text a" in mine.read_text()


def test_cut_off_answers_are_reported_in_every_output(
    tmp_path: Path, docs: Path, fake: FakeAnswers
) -> None:
    fake.finish_reason = "length"
    warning = b"the answer is cut off: it reached --max-tokens"
    out = str(tmp_path / "t.json")
    for flags in ((), ("-o", out)):
        done = ask(docs, *flags)
        assert done.returncode == 0
        assert done.stderr.count(warning) == 3
        for name in ("a.txt", "b.txt", "c.txt"):
            assert f"ngt: file {name}: ".encode() + warning in done.stderr
    quiet = ask(docs, "-q")
    assert quiet.returncode == 0
    assert quiet.stderr == b""
    assert [row["finish_reason"] for row in json.loads(Path(out).read_text())] == ["length"] * 3


def test_a_damaged_journal_and_a_busy_one_are_named(
    tmp_path: Path, docs: Path, fake: FakeAnswers
) -> None:
    out = tmp_path / "t.csv"
    assert ask(docs, "-o", str(out)).returncode == 0
    journal = tmp_path / "t.csv.journal"
    journal.write_bytes(journal.read_bytes()[:-30])
    done = ask(docs, "-o", str(out))
    assert done.returncode == 2
    assert b"differs from what its journal t.csv.journal says, which is damaged" in done.stderr
    with closing(LineFile(journal)):
        done = ask(docs, "-o", str(out))
    assert done.returncode == 2
    assert b"another process is writing it" in done.stderr
    assert b"Wait for it" in done.stderr
    assert b"--restart" not in done.stderr


def test_a_missing_question_and_a_removed_flag_are_errors(docs: Path) -> None:
    done = ngt("ask", "--each", str(docs))
    assert done.returncode == 2
    assert b"there is no question, only the path" in done.stderr
    done = ask(docs, "--reduce", "Which?")
    assert done.returncode == 2
    assert b'"Which of them agree?" answers.csv' in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--each", "-o", "{tmp}/a.xlsx"], "ends in .csv, .tsv, .jsonl or .json"),
        (["--each", "-o", "{tmp}/no/a.csv"], "no such folder"),
        (["--each", "-o", "{tmp}/docs/a.txt/"], "file exists"),
        (["--each", "--dry-run"], "--dry-run prints one prompt, and each file has its own"),
    ],
)
def test_unsupported_flags_of_each_are_refused_before_reading(
    tmp_path: Path, docs: Path, fake: FakeAnswers, options: list[str], said: str
) -> None:
    done = ngt(
        "ask", "-d", str(docs), "Who?", *(o.replace("{tmp}", str(tmp_path)) for o in options)
    )
    assert done.returncode == 2
    assert done.stdout == b""
    assert said in done.stderr.decode()
    assert fake.asked == []
    assert {p.name for p in tmp_path.iterdir()} == {"docs"}


def test_a_link_and_its_file_are_one_document(tmp_path: Path, fake: FakeAnswers) -> None:
    note = tmp_path / "note.txt"
    note.write_text("Text a of three.")
    link = tmp_path / "link.txt"
    link.symlink_to(note)
    out = tmp_path / "t.csv"
    command = ("ask", "--each", "Who?", "-o", str(out))
    assert ngt(*command, str(note), str(link)).returncode == 0
    assert len(fake.asked) == 1
    assert ngt(*command, str(link)).returncode == 0
    assert len(fake.asked) == 1
    assert [row["file"] for row in cells(out)] == ["link.txt"]


def test_a_table_reports_rows_of_deleted_files(
    tmp_path: Path, docs: Path, fake: FakeAnswers
) -> None:
    out = tmp_path / "t.csv"
    assert ask(docs, "-o", str(out)).returncode == 0
    text = (docs / "b.txt").read_text()
    (docs / "b.txt").unlink()
    fake.asked = []
    done = ask(docs, "-o", str(out))
    warning = b"t.csv leaves out 1 file that no longer exists: docs/b.txt;"
    assert warning in done.stderr
    assert [row["file"] for row in cells(out)] == ["a.txt", "c.txt"]
    (docs / "b.txt").write_text(text)
    done = ask(docs, "-o", str(out))
    assert b"not exist" not in done.stderr
    assert [row["file"] for row in cells(out)] == NAMES
    assert fake.asked == []


def test_a_table_of_another_command_is_refused_by_the_name_of_that_command(
    docs: Path, fake: FakeAnswers
) -> None:
    table = str(docs.parent / "table.csv")
    assert ngt("summarize", "--per-file", str(docs), "-o", table).returncode == 0
    done = ask(docs, "-o", table)
    assert done.returncode == 2
    line, hint = done.stderr.decode().splitlines()[-2:]
    assert line.endswith("table.csv.journal was started by ngt summarize, not by ngt ask")
    assert hint == "Name another file with -o, or write it again with --restart."
