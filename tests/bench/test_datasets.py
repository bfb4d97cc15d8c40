"""Prompts to measure with: the format, the built-in ones, and what is wrong with a line."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ngtcli.bench.prompts import (
    Item,
    builtin_items,
    choose,
    example_texts,
    file_items,
    read_jsonl,
)
from ngtcli.config import Settings
from ngtcli.documents.load import Document
from ngtcli.errors import InputError, UsageError


def written(folder: Path, *lines: object) -> Path:
    path = folder / "prompts.jsonl"
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text(text + "\n")
    return path


def read_one(folder: Path, line: object) -> Item:
    (item,) = read_jsonl(written(folder, line))
    return item


def test_our_own_lines_name_documents_question_and_answers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Slate came by rail.")
    line = {
        "id": "q1",
        "task": "rag",
        "question": " How? ",
        "answers": ["by rail", "rail", "rail"],
        "documents": ["One.", {"name": "Two", "text": "2."}, {"file": "a.txt"}],
    }
    assert read_one(tmp_path, line) == Item(
        "q1",
        "rag",
        (
            Document("passage 1", "One."),
            Document("Two", "2."),
            Document("a.txt", "Slate came by rail."),
        ),
        "How?",
        ("by rail", "rail"),
    )


def passage(text: str, number: int = 1) -> Document:
    return Document(f"passage {number}", text)


@pytest.mark.parametrize(
    ("line", "item"),
    [
        (
            {"context": "A text.", "answers": "Short."},  # without a question: a summary
            Item("1", "summarize", (passage("A text."),), "", ("Short.",)),
        ),
        (
            {"id": 7, "task": "rag", "message": "Hello."},
            Item("7", "rag", (Document("message", "Hello."),), message=True),
        ),
        (
            {"question": "Who?", "passages": ["a", "b"], "answers": ["Ida", "Ida"]},
            Item("1", "ask", (passage("a"), passage("b", 2)), "Who?", ("Ida",)),
        ),
    ],
)
def test_a_line_is_read_by_the_kind_that_its_keys_tell(
    line: dict[str, Any], item: Item, tmp_path: Path
) -> None:
    assert read_one(tmp_path, line) == item


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ({"question": "Why?"}, "no documents"),
        ({"documents": []}, "documents is []"),
        ({"documents": [3]}, "documents[0] is 3"),
        ({"context": "  "}, "passage 1: empty"),
        ({"context": "a", "question": 4}, "question is 4"),
        ({"context": "a", "answers": [{"x": 1}]}, "answers[0] is"),
        ({"context": "a", "id": True}, "id is true"),
        ({"message": " "}, "message: empty"),
        ({"documents": [{"file": "../secret"}]}, "is in another folder"),
        ({"documents": [{"file": "nowhere"}]}, "cannot be read: no such file"),
        ({"documents": [{"file": "loop"}]}, "cannot be read"),
        ({"documents": [{"file": 7}]}, "documents[0].file is 7"),
        ({"documents": [{"file": "/dev/zero"}]}, "is in another folder"),
        ({"documents": [{"name": ["a"], "text": "b"}]}, 'documents[0].name is ["a"]'),
        ('{"context": "\\ud800"}', "half of a character"),
        ('{"context": "a", "question": "\\udcff?"}', "half of a character"),
        ('{"context": "a", "\\ud83d": 1}', "half of a character"),
        ('{"context": "a", "answers": ' + "[" * 300_000, "nested too deeply"),
        ('{"context": "a", "id": ' + "7" * 5000 + "}", "not JSON"),
    ],
)
def test_a_wrong_line_is_named_with_what_is_expected(tmp_path: Path, line, words) -> None:
    (tmp_path / "loop").symlink_to("loop")
    path = written(tmp_path, {"id": "fine", "context": "\U0001f99c"}, "", line)
    with pytest.raises(InputError) as error:
        read_jsonl(path)
    assert str(error.value).startswith(f"{path}:3: ")
    assert words in str(error.value)
    assert error.value.hint


def test_an_id_may_stand_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r":2: duplicate id 'a': line 1 also has it"):
        read_jsonl(written(tmp_path, {"id": "a", "context": "x"}, {"id": "a", "context": "y"}))


def test_a_missing_or_empty_file_is_an_input_error(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.jsonl", tmp_path, written(tmp_path, "")):
        with pytest.raises(InputError):
            read_jsonl(path)


def test_there_are_ten_summaries_and_ten_questions_built_in() -> None:
    items = builtin_items()
    assert [i.task for i in items] == ["summarize"] * 10 + ["ask"] * 10
    assert len({i.id for i in items}) == 20
    for item in items[10:]:
        text = item.documents[0].text.lower()
        assert any(answer.lower() in text for answer in item.answers), item.id


def test_limit_counts_each_task_and_tasks_choose() -> None:
    items = file_items([Document("a", "A."), Document("b", "B.")], [Document("c", "C.")])
    assert [i.task for i in choose(items, [], 1)] == ["summarize", "ask"]
    assert {i.task for i in choose(items, ["ask"], None)} == {"ask"}
    with pytest.raises(UsageError) as error:
        choose(items, ["rag"], None)
    assert error.value.hint == "Known: summarize, ask."


def test_prompts_come_through_a_pipe_and_in_utf_16(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b'{"context": "A text."}\n')
    os.close(writer)
    assert read_jsonl(Path(f"/dev/fd/{reader}"))[0].documents[0].text == "A text."
    os.close(reader)
    path = tmp_path / "a.jsonl"
    path.write_text('{"context": "Füße\u2028und mehr"}\n', encoding="utf-16")
    assert read_jsonl(path)[0].documents[0].text == "Füße\u2028und mehr"


def test_devices_and_files_past_the_bound_are_no_prompts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="/dev/zero: not a regular file"):
        read_jsonl(Path("/dev/zero"))
    (tmp_path / "a.txt").write_text("a" * 600_000)
    line = {"documents": [{"file": "a.txt"}]}
    assert len(read_jsonl(written(tmp_path, line), Settings().replace(max_mb=1))) == 1
    for lines in ([line, line], [{"context": "x" * 1_100_000}]):
        with pytest.raises(InputError, match="more than 1 MB") as error:
            read_jsonl(written(tmp_path, *lines), Settings().replace(max_mb=1))
        assert "--set max_mb" in error.value.hint


def test_the_examples_leave_nothing_out() -> None:
    assert len(example_texts().documents) == 4
    assert not example_texts().skipped
