"""Questions that the documents do not answer: how they are recognized, and how users are told."""

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
ONE_PASSAGE = Cutting(1000)  # each text of these tests is one passage
NONSENSE = ["zav", "qub", "mox", "tuv", "wiz"]  # words without inflections among each other


def make_index(*texts: str) -> Index:
    documents = [Document(f"{i}.txt", text) for i, text in enumerate(texts)]
    return index_of(documents, ONE_PASSAGE, use_cache=False)


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from(NONSENSE), min_size=1, max_size=6), min_size=1, max_size=5),
    st.lists(st.sampled_from(NONSENSE), min_size=1, max_size=5, unique=True),
)
def test_the_share_is_that_of_the_formula(passages: list[list[str]], question: list[str]) -> None:
    """A word weighs the more, the fewer passages have it."""
    weights = {}
    for word in question:
        containing = sum(word in passage for passage in passages)
        weights[word] = math.log(1 + (len(passages) + 20 - containing + 0.5) / (containing + 0.5))
    covered = [sum(weights[word] for word in question if word in passage) for passage in passages]

    index = make_index(*(" ".join(passage) for passage in passages))
    result = coverage(index, " ".join(question))

    assert result is not None
    assert result.share == pytest.approx(max(covered) / sum(weights.values()))
    assert result.enough == (result.share >= 0.32)


def test_inflected_words_are_found() -> None:
    index = make_index("They dug the harbour, and the builders stopped digging in winter.")
    for question in ("Who built the harbours?", "When did it stop?", "Who digs in the winters?"):
        result = coverage(index, question)
        assert result is not None
        assert result.enough, question


def test_coverage_is_too_low_if_no_passage_has_the_name_in_a_question() -> None:
    texts = ["The capital of the company rose."] * 3 + ["The cost of the bridge is known."]
    result = coverage(make_index(*texts), STRANGE)
    assert result is not None
    assert not result.enough
    assert result.missing == ("France",)


def test_the_words_of_a_file_name_count() -> None:
    document = Document("invoice-HB1041.txt", "Total: 300 pounds.")
    index = index_of([document], ONE_PASSAGE, use_cache=False)
    result = coverage(index, "What is the total of HB1041?")
    assert result is not None
    assert result.missing == ()


@pytest.mark.parametrize(
    "question", ["Who is it?", "潮は何時に満ちますか", "What is the document about?"]
)
def test_questions_without_words_that_can_be_compared_are_not_judged(question: str) -> None:
    assert coverage(make_index("The tide is high at noon."), question) is None


def test_there_is_no_coverage_without_passages() -> None:
    assert coverage(make_index(), "When is the tide high?") is None


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
    """A model may know other words for those of the question, so that coverage does not decide."""
    from ngtcli.models.checkpoint import BUILTIN_PATH

    other_model = tmp_path / "other"  # the built-in model by another name
    other_model.symlink_to(BUILTIN_PATH)
    done = ngt("ask", "-d", EXAMPLES, STRANGE, "--json", "-m", str(other_model))
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    assert answer["finish_reason"] == "stop"
    assert answer["coverage"]["enough"] is False
    warning = "the documents may not have the answer: the nearest passage lacks “France"
    assert warning in done.stderr.decode()


def test_an_unanswered_question_does_not_fail_a_batch() -> None:
    line = {"question": STRANGE, "context": "The tide is high at noon."}
    done = ngt("batch", "-", stdin=json.dumps(line).encode())
    assert json.loads(done.stdout)["finish_reason"] == "not_in_documents"
    assert done.returncode == 0


def test_a_table_reports_an_unanswered_question_in_the_row_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "tide.txt").write_text("The tide is high at noon.\n")
    done = ngt("ask", "--each", str(tmp_path / "tide.txt"), STRANGE)
    assert b"Not in the documents: " in done.stdout
    assert done.returncode == 0
