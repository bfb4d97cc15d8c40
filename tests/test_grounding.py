"""Stretches of an answer that stand in documents, against brute force."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.documents.load import load
from ngtcli.grounding.find import spans
from ngtcli.grounding.sources import Span, share_copied, sources_of
from tests.document_files import paged_pdf
from tests.spans_check import Check


def flat(text: str) -> str:
    return "".join(text.split())


def words_of(text: str) -> int:
    return len(re.findall(r"\w+", text))


small_texts = st.lists(st.sampled_from(["a", "b", "c", ",", "."]), max_size=30).map(" ".join)


@given(small_texts, st.lists(small_texts, max_size=3))
def test_spans_stand_where_they_say_and_do_not_overlap(answer: str, documents: list[str]) -> None:
    end = 0
    for span in spans(answer, documents):
        assert span.start >= end
        end = span.end
        said = answer[span.start : span.end]
        stands = documents[span.document][span.source_start : span.source_end]
        assert flat(said) == flat(stands)
        assert words_of(said) >= 4


odd_texts = st.lists(
    st.sampled_from([*"abc,.1é中'\n", "a'b", "1.5", "e\u0301", " ", " ", " "]), max_size=50
).map("".join)


@settings(deadline=None)
@given(odd_texts, st.lists(odd_texts, max_size=3))
def test_spans_are_those_of_brute_force(answer: str, documents: list[str]) -> None:
    assert Check(answer, documents).failures(spans(answer, documents)) == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ([], "missing: 'one two three four five'"),
        ([Span(0, 18, 0, 9, 27)], "not taken, though the longest"),
        ([Span(0, 23, 0, 9, 27)], "'one two three four five' is not 'one two three four'"),
        ([Span(0, 23, 1, 0, 23)], "a nearer place"),
        ([Span(0, 13, 0, 9, 22)], "fewer than 4 words"),
        ([Span(0, 23, 0, 9, 32), Span(0, 23, 0, 9, 32)], "spans overlap"),
    ],
)
def test_the_brute_force_check_finds_what_is_wrong(wrong: list[Span], told: str) -> None:
    answer, documents = "one two three four five", ["nothing, one two three four five"]
    documents.append(answer)
    assert Check(answer, documents).failures([Span(0, 23, 0, 9, 32)]) == []
    assert any(told in line for line in Check(answer, documents).failures(wrong))


def test_of_two_places_the_one_nearest_the_span_before_is_named() -> None:
    twice = "one two three four."
    document = f"{twice} filler filler start of it all here {twice}"
    first, second = spans(f"start of it all and {twice}", [document])
    assert document[first.source_start : first.source_end] == "start of it all"
    assert second.source_start > first.source_start


def test_white_space_may_differ_but_letters_may_not() -> None:
    assert spans("The  ship\nleft port", ["the ship left port"]) == []
    assert spans("The  ship\nleft port", ["The ship left port"]) == [Span(0, 19, 0, 0, 18)]


def test_characters_of_scripts_without_spaces_count_as_words() -> None:
    (span,) = spans("他说船在中午离港了。", ["昨天船在中午离港，没有回来。"])
    assert (span.start, span.end) == (2, 8)


@pytest.mark.parametrize(
    "text",
    [
        "I don't know",
        "at 08:15 o'clock",
        "it’s 3.14 then",
        "हिन्दी में लिखा",
        "e\u0301te\u0301 la\u0300 haut",
    ],
)
def test_apostrophes_points_in_numbers_and_combining_marks_part_no_word(text: str) -> None:
    assert spans(text, [text]) == []  # three words
    assert spans(f"{text} again", [f"{text} again"]) == [
        Span(0, len(text) + 6, 0, 0, len(text) + 6)
    ]


def test_a_word_is_copied_whole_or_not_at_all() -> None:
    assert spans("now you can and will", ["now you can't and will"]) == []


def test_a_place_in_the_document_of_the_span_before_comes_first() -> None:
    twice = "one two three four."
    first = f"{twice} {'filler ' * 50} start of it all"
    found = spans(f"start of it all and {twice}", [first, twice])
    assert [span.document for span in found] == [0, 0]


def test_a_row_of_a_long_table_is_found_whole() -> None:
    rows = [f"name{i} | 0 | 0 | 0 | 0 | end{i}" for i in range(9000)]
    assert spans(rows[-1], ["\n".join(rows)])[0].end == len(rows[-1])


def test_no_stretch_runs_from_one_document_into_the_next() -> None:
    assert spans("one two three four", ["one two", "three four"]) == []


@pytest.mark.parametrize("answer", ["", "   ", "...", "one two three"])
def test_short_answers_have_no_spans(answer: str) -> None:
    assert spans(answer, [answer, ""]) == []


def test_a_document_of_one_repeated_word_takes_little_time() -> None:
    (span,) = spans("a " * 500, ["a " * 100_000])
    assert span.end - span.start == 999


def test_fewer_than_four_words_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        spans("a", ["a"], 3)


def test_the_share_counts_characters_without_white_space() -> None:
    answer = "one two three four five"
    assert share_copied(answer, spans(answer, ["one two three four"])) == pytest.approx(15 / 19)


def test_a_source_in_a_pdf_has_its_page(tmp_path: Path) -> None:
    pytest.importorskip("reportlab")
    pages = [f"On page {i} the keeper of lamp {i} counted {i * 7} bells." for i in range(1, 5)]
    path = tmp_path / "log.pdf"
    path.write_bytes(paged_pdf([f"{page} {'And slept well. ' * 9}" for page in pages]))
    (source,) = sources_of(pages[2], load([str(path)]).documents).found
    assert source.page == 3
