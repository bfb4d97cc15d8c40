"""Questions that the documents do not answer: how much of one a passage has, and what is said."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.documents.load import Document
from ngtcli.documents.passages import Cutting
from ngtcli.retrieval.coverage import coverage
from ngtcli.retrieval.index import Index, index_of
from tests.support.helpers import ngt

EXAMPLES = str(Path(__file__).parents[2] / "ngtcli" / "examples")
STRANGE = "What is the capital of France?"
SMALL = Cutting(1000)
NONSENSE = ["zav", "qub", "mox", "tuv", "wiz"]  # words without inflections among each other


def indexed(*texts: str) -> Index:
    documents = [Document(f"{i}.txt", text) for i, text in enumerate(texts)]
    return index_of(documents, SMALL, use_cache=False)


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from(NONSENSE), min_size=1, max_size=6), min_size=1, max_size=5),
    st.lists(st.sampled_from(NONSENSE), min_size=1, max_size=5, unique=True),
)
def test_the_share_is_that_of_the_formula(texts: list[list[str]], asked: list[str]) -> None:
    """Each text is one passage, and a word weighs by the passages that have it."""
    weights = {}
    for word in asked:
        having = sum(word in text for text in texts)
        weights[word] = math.log(1 + (len(texts) + 20 - having + 0.5) / (having + 0.5))
    best = max(sum(weights[word] for word in asked if word in text) for text in texts)
    found = coverage(indexed(*(" ".join(text) for text in texts)), " ".join(asked))
    assert found is not None
    assert found.share == pytest.approx(best / sum(weights.values()))
    assert found.enough == (found.share >= 0.32)


def test_inflected_words_are_found() -> None:
    text = indexed("They dug the harbour, and the builders stopped digging in winter.")
    for question in ("Who built the harbours?", "When did it stop?", "Who digs in the winters?"):
        found = coverage(text, question)
        assert found is not None
        assert found.enough, question


def test_a_name_that_no_passage_has_decides() -> None:
    text = indexed(*["The capital of the company rose."] * 3, "The cost of the bridge is known.")
    found = coverage(text, STRANGE)
    assert found is not None
    assert not found.enough
    assert found.missing == ("France",)


def test_the_words_of_a_file_name_count() -> None:
    documents = [Document("invoice-HB1041.txt", "Total: 300 pounds.")]
    found = coverage(index_of(documents, SMALL, use_cache=False), "What is the total of HB1041?")
    assert found is not None
    assert found.missing == ()


@pytest.mark.parametrize(
    "question", ["Who is it?", "潮は何時に満ちますか", "What is the document about?"]
)
def test_questions_without_words_that_can_be_compared_are_not_judged(question: str) -> None:
    assert coverage(indexed("The tide is high at noon."), question) is None


def test_no_passage_says_nothing() -> None:
    assert coverage(indexed(), "When is the tide high?") is None


def test_a_question_without_an_answer_gets_no_quotation() -> None:
    done = ngt("ask", "-d", EXAMPLES, STRANGE, "--cite")
    assert done.stdout.decode() == "Not in the documents: the nearest passage lacks “France”.\n"
    assert b"the documents do not have the answer" in done.stderr
    assert done.returncode == 1


def test_json_says_that_documents_have_too_little_of_a_question() -> None:
    done = ngt("ask", "-d", EXAMPLES, STRANGE, "--json")
    answer = json.loads(done.stdout)
    assert answer["finish_reason"] == "not_in_documents"
    assert answer["coverage"]["enough"] is False
    assert answer["coverage"]["missing"] == ["France"]
    assert answer["sources"]["spans"] == []
    assert answer["statistics"]["new_tokens"] == 0


def test_a_question_with_an_answer_is_answered() -> None:
    done = ngt("ask", "-d", EXAMPLES, "Who noticed the young oysters?", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert answer["coverage"]["enough"] is True
    assert "Edith Marlow" in answer["text"]


def test_another_model_is_asked_and_a_warning_says_what_is_missing(tmp_path: Path) -> None:
    """It may know other words for what is asked: the built-in one under another name."""
    from ngtcli.models.checkpoint import BUILTIN_PATH

    other = tmp_path / "other"
    other.symlink_to(BUILTIN_PATH)
    done = ngt("ask", "-d", EXAMPLES, STRANGE, "--json", "-m", str(other))
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert answer["finish_reason"] == "stop"
    assert answer["coverage"]["enough"] is False
    warned = b"the documents may not have the answer: the nearest passage lacks \xe2\x80\x9cFrance"
    assert warned in done.stderr


def test_a_batch_says_so_and_does_not_fail(tmp_path: Path) -> None:
    line = {"question": STRANGE, "context": "The tide is high at noon."}
    done = ngt("batch", "-", stdin=json.dumps(line).encode())
    assert json.loads(done.stdout)["finish_reason"] == "not_in_documents"
    assert done.returncode == 0


def test_a_table_has_the_sentence_in_the_row_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "tide.txt").write_text("The tide is high at noon.\n")
    done = ngt("ask", "--each", str(tmp_path / "tide.txt"), STRANGE)
    assert b"Not in the documents: " in done.stdout
    assert done.returncode == 0
