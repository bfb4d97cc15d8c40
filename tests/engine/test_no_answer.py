"""Answers that are none: loops and repeated instructions are failures, for one and for many."""

import json
from pathlib import Path

import pytest

from ngtcli.engine.no_answer import no_answer, repeats_instructions
from tests.support.helpers import ngt

TEMPLATE = (
    "{documents}\n\n"
    "Answer the question from the text above. If the text does not tell, say so.\n"
    "Question: {question}"
)
QUESTION = "When is the tide high?"
OPTIONS = "Which is so?\n- The tide is high at noon.\n- The tide is low at noon."
LOOP = {"context": "The tide is high at noon.", "question": "When?"}


@pytest.mark.parametrize(
    "answer",
    [
        "If the text does not tell, say so.",
        "If the text does not tell, say so. If the text does not tell, say so. If the text",
        "When is the tide high?",
        "Answer the question from the text above.\nIf the text does not tell, say so!",
    ],
)
def test_sentences_of_the_instructions_are_no_answer(answer: str) -> None:
    assert repeats_instructions(answer, TEMPLATE, QUESTION)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "Noon.",
        "The text does not tell.",
        "The tide is high at noon.",
        "If the text does not tell, say so. The tide is high at noon.",
        "When is the tide high? At noon, as the text says.",
        "If the text",
    ],
)
def test_an_answer_may_have_words_of_the_instructions(answer: str) -> None:
    assert not repeats_instructions(answer, TEMPLATE, QUESTION)


def test_an_option_that_the_question_lists_is_an_answer() -> None:
    assert not repeats_instructions("The tide is high at noon.", TEMPLATE, OPTIONS)
    assert repeats_instructions(OPTIONS, TEMPLATE, OPTIONS)


def test_the_sentence_of_a_very_short_document_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "tide.txt").write_text("The tide is high.\n")
    done = ngt("ask", "-d", str(tmp_path / "tide.txt"), "What is high?")
    assert done.stdout.strip() == b"The tide is high."
    assert done.returncode == 0


@pytest.mark.parametrize("reason", ["stop", "length", "context", "interrupted", ""])
def test_other_finish_reasons_are_answers(reason: str) -> None:
    assert no_answer(reason) is None


def test_a_loop_ends_a_command_with_exit_code_1() -> None:
    done = ngt("ask", LOOP["question"], stdin=LOOP["context"].encode())
    assert done.returncode == 1
    assert b"the model repeated itself: what it wrote is no answer" in done.stderr
    assert done.stdout, "what was made is shown all the same"
    as_json = ngt("ask", LOOP["question"], "--json", stdin=LOOP["context"].encode())
    assert as_json.returncode == 1
    assert json.loads(as_json.stdout)["finish_reason"] == "repetition"


def test_a_loop_is_a_failed_line_of_a_batch(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps(LOOP) + "\n")
    done = ngt("batch", str(lines), "-o", str(tmp_path / "out.jsonl"))
    assert done.returncode == 7
    assert b"line 1: the model repeated itself" in done.stderr
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert row["finish_reason"] == "repetition"
    assert row["text"]
