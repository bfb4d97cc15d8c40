"""The question and the paths after it, on the command line of `ngt ask`."""

import json
from pathlib import Path

import pytest

from ngtcli.cli.arguments import question_and_paths
from ngtcli.errors import UsageError
from tests.support.helpers import ngt


@pytest.fixture(autouse=True)
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes").mkdir()
    Path("notes/a.txt").write_text("The quay was built in 1871.")
    Path("b.md").write_text("The tide is high at noon.")


@pytest.mark.parametrize(
    ("words", "question", "paths"),
    [
        (["When is it high?"], "When is it high?", []),
        (["When is it high?", "notes/", "b.md"], "When is it high?", ["notes/", "b.md"]),
        (["When?", "no.txt"], "When?", ["no.txt"]),
        (["When is it high?", "no-such-folder"], "When is it high?", ["no-such-folder"]),
        (["summary", "notes"], "summary", ["notes"]),
        (["When?", "notes/*.txt", "-"], "When?", ["notes/*.txt", "-"]),
        (["notes/", "b.md", "When is it high?"], "When is it high?", ["notes/", "b.md"]),
        (["notes/", "b.md", "When?"], "When?", ["notes/", "b.md"]),
        (["no.txt", "When is it high?"], "When is it high?", ["no.txt"]),
        (["*.md", "When is it high?"], "When is it high?", ["*.md"]),
        (["When and/or why?", "no file.txt"], "When and/or why?", ["no file.txt"]),
    ],
)
def test_paths_follow_the_question_or_come_before_it(
    words: list[str], question: str, paths: list[str]
) -> None:
    assert question_and_paths(words, has_documents=False) == (question, paths)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            "When is it high?",
            "the question is 4 words without quotes",
            "ngt ask 'When is it high?'",
        ),
        ("When is it high? notes b.md", "4 words without", "ngt ask 'When is it high?' notes b.md"),
        ("notes", "there is no question, only the path notes", "ngt ask 'Who signed it?' notes"),
        ("b.md notes/", "no question, only the paths b.md, notes/", "'Who signed it?' b.md notes/"),
        ("b.md *.txt", "no question, only the paths b.md, *.txt", "'Who signed it?' b.md '*.txt'"),
        ("-", "there is no question, only the path -", "ngt ask 'Who signed it?' -"),
    ],
)
def test_missing_and_unquoted_questions_are_errors(words: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        question_and_paths(words.split(), has_documents=False)
    assert message in str(raised.value)
    assert hint in raised.value.hint


def test_a_document_is_not_a_question() -> None:
    with pytest.raises(UsageError, match=r"there is no question, only the path b\.md"):
        question_and_paths(["b.md"], has_documents=True)


def test_paths_after_the_question_and_docs_are_both_read() -> None:
    done = ngt("ask", "-d", "b.md", "When is it high?", "notes", "--dry-run", "--json")
    assert done.returncode == 0
    assert b'"b.md"' in done.stdout
    names = [document["name"] for document in json.loads(done.stdout)["documents"]]
    assert names == ["b.md", "a.txt"]


def test_a_path_that_does_not_exist_is_named() -> None:
    done = ngt("ask", "When is it high?", "notes", "nots.pdf", "--dry-run")
    assert done.returncode == 3
    assert b"nots.pdf: no such file or folder" in done.stderr
