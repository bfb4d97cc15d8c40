"""Documents cut into passages: nothing is lost, and each is where it says."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngtcli.documents.content import About, Section
from ngtcli.documents.load import Document, load
from ngtcli.documents.passages import Cutting, passages, place

TEXTS = st.text(st.sampled_from(list("ab.!潮位 \n\t|é")), max_size=400)


def cut(text: str, tokens: int) -> list[str]:
    """The texts of the passages of a document."""
    return [
        text[passage.start : passage.end]
        for passage in passages(Document("a", text), Cutting(tokens))
    ]


@given(TEXTS, st.integers(1, 40), st.integers(0, 10), st.sets(st.integers(0, 400)))
def test_passages_leave_out_nothing_but_white_space(
    text: str, tokens: int, overlap: int, section_starts: set[int]
) -> None:
    sections = tuple(
        Section(start, 0, f"h{start}") for start in sorted(section_starts) if start < len(text)
    )
    document = Document("a", text, About(sections=sections))

    cut_passages = passages(document, Cutting(tokens, min(overlap, tokens - 1)))

    covered: set[int] = set()
    for passage in cut_passages:
        assert 0 <= passage.start < passage.end <= len(text)
        passage_text = text[passage.start : passage.end]
        assert passage_text == passage_text.strip()
        covered |= set(range(passage.start, passage.end))
    left_out = set(range(len(text))) - covered
    assert all(text[i].isspace() for i in left_out)

    for passage, next_passage in pairwise(cut_passages):
        assert passage.end < next_passage.end
        if not overlap:
            assert passage.end <= next_passage.start


@given(st.text(st.sampled_from(list("ab. \n")), max_size=400), st.integers(1, 40))
def test_passages_of_plain_letters_stay_within_the_size(text: str, tokens: int) -> None:
    for passage in cut(text, tokens):
        letters = "".join(passage.split())  # without the white space between paragraphs
        assert len(letters) <= 4 * tokens


def test_a_long_paragraph_is_cut_after_sentences() -> None:
    text = "The tide came in. " * 40
    assert all(passage.endswith("in.") for passage in cut(text, 20))


def test_each_character_of_a_script_without_spaces_counts_as_a_token() -> None:
    assert [len(passage) for passage in cut("潮" * 100, 20)] == [20] * 5


TABLE_ROWS = [f"harbour {i} | {i * 7} ships" for i in range(40)]


def test_small_tables_are_one_passage() -> None:
    table = "\n".join(TABLE_ROWS[:10])
    assert cut(f"Before.\n\n{table}\n\nAfter.", 40)[1] == table


def test_large_tables_are_cut_between_rows() -> None:
    lines = [line for passage in cut("\n".join(TABLE_ROWS), 20) for line in passage.split("\n")]
    assert lines == TABLE_ROWS


def test_a_heading_begins_a_passage_and_names_it() -> None:
    text = "Tides\n\nHigh at noon, low at six.\n\nShips\n\nThree came in at dawn."
    ships = text.index("Ships")
    sections = (Section(0, 1, "Tides"), Section(ships, 2, "Ships"))
    document = Document("a", text, About(sections=sections))

    starts = [passage.start for passage in passages(document, Cutting(20))]

    assert starts == [0, ships]
    assert tuple(place(document, start) for start in starts) == sections
    without_text = Document("a", "", document.about)
    assert tuple(place(without_text, start) for start in starts) == sections


@pytest.mark.parametrize(("name", "headings"), [("a.md", ["Tides", "Ships"]), ("a.txt", [""])])
def test_headings_of_markdown_name_passages(tmp_path: Path, name: str, headings: list[str]) -> None:
    text = "# Tides\n\nHigh at noon, low at six.\n\n## Ships ##\n\nThree came in at dawn."
    (tmp_path / name).write_text(text)
    (document,) = load([str(tmp_path / name)]).documents
    cut_passages = passages(document, Cutting(20))
    assert [place(document, passage.start).heading for passage in cut_passages] == headings


def test_passages_repeat_the_end_of_those_before() -> None:
    text = "\n\n".join(f"{i} the tide came in." for i in range(30))
    cut_passages = passages(Document("a", text), Cutting(24, 6))
    for passage, next_passage in pairwise(cut_passages):
        assert next_passage.start < passage.end <= next_passage.start + 24
    assert cut_passages[-1].end == len(text)


def test_an_enormous_line_is_cut() -> None:
    """Work that grew with the square of its length would not end in time."""
    assert len(cut("word " * 400_000, 200)) > 2000
