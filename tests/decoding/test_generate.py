"""`ngt generate`: a free prompt from an argument, a file or a pipe, with documents or without."""

import json
from pathlib import Path

from tests.support.helpers import HARBOUR, ngt


def sent(*arguments: str, stdin: bytes = b"", cwd: Path | None = None) -> str:
    done = ngt("generate", *arguments, "--dry-run", stdin=stdin, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().rstrip("\n")


def test_a_prompt_comes_from_an_argument_a_file_or_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("\n Tell of boats.\r\n")
    for prompt in (
        sent("Tell of boats."),
        sent("@p.txt", cwd=tmp_path),
        sent("-", stdin=b"Tell of boats.\n"),
        sent(stdin=b"Tell of boats.\n"),
    ):
        assert prompt == "<|user|>Tell of boats.<|end|><|assistant|>"


def test_documents_stand_before_the_prompt() -> None:
    prompt = sent("Again.", "-d", "-", stdin=b"The tide is high.\n")
    assert prompt == "<|user|>The tide is high.\n\nAgain.<|end|><|assistant|>"


def test_an_answer_is_printed_as_that_of_a_question_is() -> None:
    done = ngt("generate", "Tell of boats.", "--json", "--max-tokens", "3")
    answer = json.loads(done.stdout)
    assert answer["task"] == "generate"
    assert answer["preset"] == "generate"
    assert answer["question"] == "Tell of boats."
    assert answer["documents"] == []
    cited = ngt("generate", "Who?", "-d", HARBOUR, "--cite", "--max-tokens", "12")
    assert b"[1] harbour.txt: " in cited.stdout


def test_a_pipe_is_not_blank_and_not_the_document_as_well() -> None:
    for words, stdin, code, message in (
        (["-"], b" \n", 3, b"prompt: empty"),
        (["-", "-d", "-"], b"x", 2, b"both the prompt and a document"),
    ):
        done = ngt("generate", *words, stdin=stdin)
        assert done.returncode == code
        assert done.stdout == b""
        assert message in done.stderr
        assert done.stderr.count(b"\n") == 2
