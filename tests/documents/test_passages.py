"""Documents cut into passages: nothing is lost, and each is where it says."""

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ngtcli.documents.content import About, Section
from ngtcli.documents.load import Document, load
from ngtcli.documents.passages import Cutting, Passage, passages, place

TEXTS = st.text(st.sampled_from(list("ab.!潮位 \n\t|é")), max_size=400)


def cut(text: str, tokens: int, overlap: int = 0, **more: object) -> list[str]:
    document = Document("a", text, **more)  # type: ignore[arg-type]
    return [text[p.start : p.end] for p in passages(document, Cutting(tokens, overlap))]


@given(TEXTS, st.integers(1, 40), st.integers(0, 10), st.sets(st.integers(0, 400)))
def test_passages_have_all_of_the_text_and_no_more(
    text: str, tokens: int, overlap: int, starts: set[int]
) -> None:
    sections = tuple(Section(s, 0, f"h{s}") for s in sorted(starts) if s < len(text))
    document = Document("a", text, About(sections=sections))
    found = passages(document, Cutting(tokens, min(overlap, tokens - 1)))
    covered = set()
    for p in found:
        assert 0 <= p.start < p.end <= len(text)
        assert text[p.start : p.end].strip() == text[p.start : p.end]
        covered |= set(range(p.start, p.end))
    assert all(text[i].isspace() for i in set(range(len(text))) - covered)
    assert [p.end for p in found] == sorted({p.end for p in found})
    if not overlap:
        assert all(a.end <= b.start for a, b in pairwise(found))


@given(st.text(st.sampled_from(list("ab. \n")), max_size=400), st.integers(1, 40))
def test_passages_of_plain_letters_stay_within_the_size(text: str, tokens: int) -> None:
    blocks = 4 * tokens  # characters, without the white space between paragraphs
    for passage in cut(text, tokens):
        assert len("".join(passage.split())) <= blocks


def test_a_long_paragraph_is_cut_behind_sentences() -> None:
    text = "The tide came in. " * 40
    assert all(p.endswith("in.") for p in cut(text, 20))


def test_characters_without_spaces_between_words_count_as_tokens() -> None:
    assert [len(p) for p in cut("潮" * 100, 20)] == [20] * 5


def test_tables_are_kept_whole_up_to_a_size_and_then_cut_between_rows() -> None:
    rows = [f"harbour {i} | {i * 7} ships" for i in range(40)]
    small, large = "\n".join(rows[:10]), "\n".join(rows)
    assert cut(f"Before.\n\n{small}\n\nBehind.", 40)[1] == small
    assert [line for p in cut(large, 20) for line in p.split("\n")] == rows


def test_a_heading_begins_a_passage_and_names_it() -> None:
    text = "Tides\n\nHigh at noon, low at six.\n\nShips\n\nThree came in at dawn."
    sections = Section(0, 1, "Tides"), Section(at := text.index("Ships"), 2, "Ships")
    document = Document("a", text, About(sections=sections))
    found = passages(document, Cutting(20))
    assert [p.start for p in found] == [0, at]
    no_text = Document("a", "", document.about)
    assert tuple(place(no_text, p.start) for p in found) == sections


def test_headings_of_markdown_count(tmp_path: Path) -> None:
    text = "# Tides\n\nHigh at noon, low at six.\n\n## Ships ##\n\nThree came in at dawn."
    for name, wanted in (("a.md", ["Tides", "Ships"]), ("a.txt", [""])):
        (tmp_path / name).write_text(text)
        (document,) = load([str(tmp_path / name)]).documents
        found = passages(document, Cutting(20))
        assert [place(document, p.start).heading for p in found] == wanted


def test_passages_repeat_the_end_of_those_before() -> None:
    text = "\n\n".join(f"{i} the tide came in." for i in range(30))
    found = passages(Document("a", text), Cutting(24, 6))
    assert all(b.start < a.end <= b.start + 24 for a, b in pairwise(found))
    assert found[-1] == Passage(found[-1].start, len(text))


def test_one_enormous_line_is_cut_in_linear_time() -> None:
    assert len(cut("word " * 400_000, 200)) > 2000
