"""Stretches of an answer that stand in documents, against brute force."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngtcli.grounding.find import spans
from ngtcli.grounding.span import Span, share_copied


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


def naive_longest(answer: list[str], documents: list[list[str]]) -> int:
    """Most words of a run of pieces that stands in one of the documents."""
    best = 0
    for i in range(len(answer)):
        for document in documents:
            for p in range(len(document)):
                n = 0
                while (
                    i + n < len(answer)
                    and p + n < len(document)
                    and answer[i + n] == document[p + n]
                ):
                    n += 1
                best = max(best, sum(piece.isalnum() for piece in answer[i : i + n]))
    return best


@given(small_texts, st.lists(small_texts, max_size=3))
def test_the_longest_common_stretch_is_among_the_spans(answer: str, documents: list[str]) -> None:
    longest = naive_longest(answer.split(), [d.split() for d in documents])
    found = [words_of(answer[s.start : s.end]) for s in spans(answer, documents)]
    assert max(found, default=0) == (longest if longest >= 4 else 0)


@given(small_texts, small_texts)
def test_nothing_is_left_that_stands_in_a_document(answer: str, document: str) -> None:
    """What lies between the spans has no four words in a row that a document has."""
    at, gaps = 0, []
    for span in spans(answer, [document]):
        gaps.append(answer[at : span.start])
        at = span.end
    for gap in [*gaps, answer[at:]]:
        assert naive_longest(gap.split(), [document.split()]) < 4


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
