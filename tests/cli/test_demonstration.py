"""Every command names the built-in model as a demonstration and says what it cannot do."""

import json
from pathlib import Path
from typing import Any

import pytest

from ngtcli.engine.events import NO_SOURCES
from ngtcli.models.recommended import RECOMMENDED, demonstration_limit, demonstration_note
from ngtcli.render.answer_page import answer_page, table_page
from tests.support.helpers import HARBOUR, in_terminal, ngt

LETTERS = str(Path(HARBOUR).parent / "letters")
DEMONSTRATION = "The built-in model is a demonstration, made only to quote sentences"


@pytest.mark.parametrize(
    ("task", "documents", "has_schema", "limit"),
    [
        ("ask", 1, False, ""),
        ("ask", 30, False, ""),
        ("ask", 0, False, "answer without documents"),
        ("ask", 1, True, "fill in a schema"),
        ("summarize", 1, False, ""),
        ("summarize", 2, False, "summarize several documents"),
        ("generate", 1, False, "follow a free prompt"),
        ("chat", 1, False, "hold a conversation"),
    ],
)
def test_the_demonstration_has_these_limits(
    task: str, documents: int, has_schema: bool, limit: str
) -> None:
    assert demonstration_limit(task, documents, has_schema) == limit


def test_the_note_has_the_command_that_gets_a_model() -> None:
    note = demonstration_note("builtin", "hold a conversation")
    assert note.startswith(f"{DEMONSTRATION} and cannot hold a conversation.")
    assert RECOMMENDED[0].command in note
    assert demonstration_note("Qwen/Qwen3-8B", "hold a conversation") == ""


def warnings_in(stderr: bytes) -> list[str]:
    """The lines that name the demonstration."""
    return [line for line in stderr.decode().splitlines() if DEMONSTRATION in line]


@pytest.mark.parametrize(
    "arguments",
    [
        ("summarize", HARBOUR, "--max-tokens", "4"),
        ("summarize", "--per-file", LETTERS, "--max-tokens", "4"),
        ("ask", "-d", HARBOUR, "Who noticed the young oysters?", "--json"),
        ("ask", "-d", HARBOUR, "Who noticed the young oysters?", "-o", "answer.txt"),
    ],
)
def test_one_line_on_stderr_names_the_demonstration(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    done = ngt(*arguments, cwd=tmp_path)
    assert len(warnings_in(done.stderr)) == 1
    assert DEMONSTRATION.encode() not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        (("summarize", LETTERS, "--max-tokens", "4"), "summarize several documents"),
        (("generate", "Write a limerick.", "--max-tokens", "4"), "follow a free prompt"),
        (
            ("ask", "-d", HARBOUR, "Who?", "--schema", "who", "--max-tokens", "64"),
            "fill in a schema",
        ),
        (("chat", "-d", HARBOUR), "hold a conversation"),
    ],
)
def test_a_warning_says_what_the_demonstration_cannot_do(
    arguments: tuple[str, ...], limit: str
) -> None:
    stdin = b"Who built it?\n" if arguments[0] == "chat" else b""
    done = ngt(*arguments, stdin=stdin)
    (line,) = warnings_in(done.stderr)
    assert f"and cannot {limit}." in line


def test_the_warning_stands_before_the_answer() -> None:
    shown, code = in_terminal("summarize", LETTERS, "--max-tokens", "4", columns=200)
    assert code == 0
    assert shown.index("cannot summarize several documents") < shown.index("4 tokens in")


@pytest.mark.parametrize(
    "arguments",
    [
        ("ask", "--each", LETTERS, "When is payment due?", "-o", "t.csv"),
        ("extract", LETTERS, "--schema", "due date", "-o", "t.csv"),
    ],
)
def test_the_last_line_of_a_table_names_the_demonstration(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    done = ngt(*arguments, cwd=tmp_path)
    assert done.returncode == 0
    assert len(warnings_in(done.stderr)) == 1
    assert DEMONSTRATION in done.stderr.decode().splitlines()[-1]


def test_a_batch_warns_once_what_the_demonstration_cannot_do() -> None:
    question = {"question": "When is the tide high?", "context": "The tide is high at noon."}
    summary = {"documents": ["The tide is high at noon.", "The quay was built in 1932."]}

    def warning_of_batch(*lines: dict[str, Any]) -> str:
        stdin = "\n".join(json.dumps(line) for line in lines).encode()
        (warning,) = warnings_in(ngt("batch", "-", stdin=stdin).stderr)
        return warning

    assert "and cannot" not in warning_of_batch(question)
    warning = warning_of_batch(question, summary, summary)
    assert "and cannot summarize several documents." in warning


def test_the_warning_is_wrapped_between_words_at_a_terminal() -> None:
    shown, code = in_terminal("summarize", HARBOUR, "--max-tokens", "4", columns=60, NO_COLOR="1")
    assert code == 0
    assert "demonstration, made only" in shown
    lines = [line for line in shown.replace("\r", "").split("\n") if "\x1b" not in line]
    assert max(map(len, lines)) <= 60


def test_pages_name_the_demonstration() -> None:
    about = "a demonstration, made only to quote sentences"
    assert about in answer_page("T", "", [], NO_SOURCES, [], [], model="builtin")
    assert about in table_page("T", "", ["due"], [], [], "builtin")
    page = answer_page("T", "", [], NO_SOURCES, [], [], model="Qwen/Qwen3-8B")
    assert "Qwen/Qwen3-8B" in page
    assert about not in page
