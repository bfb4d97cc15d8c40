"""Exact match, F1 and ROUGE-L against values worked out by hand."""

import pytest

from tests.tools.measuring.scores import Quality, exact_match, f1, normalise, rouge_l


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Oysters, of a town.", "oysters of town"),
        ("An apple; THE end", "apple end"),
        ("theatre a-b", "theatre ab"),
        ("", ""),
        ("Über 61,000 tons", "über 61000 tons"),
        ("the", ""),
    ],
)
def test_texts_are_normalised_as_squad_does(text: str, normal: str) -> None:
    assert normalise(text) == normal


def test_exact_match_takes_the_best_reference() -> None:
    assert exact_match("The hospital.", ["a council", "hospital"]) == 1.0
    assert exact_match("in the hospital", ["hospital"]) == 0.0
    assert exact_match("anything", []) == 0.0


def test_f1_counts_words() -> None:
    # All 3 words of the reference are among the 4 of the answer: precision 3/4, recall 1.
    assert f1("between 1871 and 1878", ["1871 and 1878"]) == pytest.approx(6 / 7)
    # A repeated word counts as often as both have it: precision 1/3, recall 1.
    assert f1("lamp lamp lamp", ["lamp"]) == pytest.approx(0.5)
    # The best reference counts.
    assert f1("lamp", ["a bus", "the lamp"]) == 1.0
    assert f1("bus", ["lamp"]) == 0.0
    assert f1("", ["lamp"]) == 0.0
    # Both are empty without their articles.
    assert f1("the", ["a"]) == 1.0


def test_rouge_l_is_the_f_measure_of_the_longest_common_subsequence() -> None:
    pytest.importorskip("rouge_score")
    score = rouge_l()
    assert score is not None
    # The longest common subsequence is "saved town": precision 2/3, recall 2/4.
    assert score("slate saved town", ["oysters saved the town"]) == pytest.approx(4 / 7)
    assert score("slate saved town", ["x", "slate saved town"]) == 1.0


def test_exact_match_and_f1_count_only_answers_to_questions() -> None:
    scores = Quality().scores(
        [
            ("Oskar Lind", ("Oskar Lind",), True),
            ("a lamp", ("a bus",), True),
            ("A summary.", ("A summary.",), False),
        ]
    )
    assert scores.judged == 3
    assert scores.exact_match == 0.5
    assert scores.f1 == 0.5
    assert Quality().scores([("x", ("x",), False)]).exact_match is None


def test_without_rouge_score_a_note_says_that_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.tools.measuring.scores.find_spec", lambda _: None)

    quality = Quality()

    assert "rouge-score" in quality.note
    assert quality.scores([("x", ("x",), True)]).rouge_l is None
