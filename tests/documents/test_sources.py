"""Sources of an answer: equal to those of brute force; shown as text, JSON and on a terminal."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from ngtcli.documents.content import About, Section
from ngtcli.documents.load import Document
from ngtcli.documents.quotes import find
from ngtcli.documents.quotes.find import spans
from ngtcli.documents.quotes.folding import Folded, folded
from ngtcli.documents.quotes.sources import SourceFinder, Sources, copied_fact, sources_of
from ngtcli.documents.quotes.span import Span
from ngtcli.render.answer_view import listed, terminal_list, with_marks
from ngtcli.render.sinks import Run
from tests.support.helpers import in_terminal, ngt
from tests.support.naive_spans import brute_force


@pytest.mark.parametrize(
    ("section", "place"),
    [
        (Section(20, 2, "Start"), "a.pdf, page 2"),
        (Section(3, 0, "Tides"), "a.pdf, Tides"),
        (Section(30, 0, "Tides"), "a.pdf"),  # a heading that comes later
    ],
)
def test_a_stretch_names_its_page_or_the_heading_above_it(section: Section, place: str) -> None:
    about = About("pdf", 2, sections=(section,))
    text = "Nothing of interest. The ferry leaves at noon today."
    sources = sources_of("The ferry leaves at noon", [Document("a.pdf", text, about)])
    assert sources.spans[0].place == place
    assert sources.verbatim_share == 1.0


def shown(runs: list[Run], sources: Sources) -> str:
    return "".join(text for text, _ in with_marks(runs, sources))


def test_the_same_place_has_one_mark() -> None:
    text = "one two three four"
    sources = sources_of(f"{text}; {text}", [Document("a.txt", text)])
    assert shown([(f"{text}; {text}", "")], sources) == f"{text} [1]; {text} [1]"
    assert len(sources.places()) == 1


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.sampled_from(["a", "b ", " c", " d e f g", ", ", "\n"]), max_size=12))
def test_marks_change_neither_words_nor_their_colors(parts: list[str]) -> None:
    runs = [(part, "" if i % 2 else "prompt") for i, part in enumerate(parts)]
    answer = "".join(parts)
    found = with_marks(runs, sources_of(answer, [Document("a", "a b c d e f g")]))
    kept = [run for run in found if not re.fullmatch(r" \[\d+\]", run[0])]
    drafted = [(c, style) for text, style in runs for c in text][: len(answer.rstrip())]
    assert [(c, style) for text, style in kept for c in text] == drafted


@pytest.mark.parametrize(
    ("answer", "fact"),
    [
        ("one two three four", "100% quoted from 1 document"),
        ("one two three four!", "93% quoted from 1 document"),
        (f"{'one two three four ' * 99}!", "99% quoted from 1 document"),
        (f"one two three four {'x' * 9000}", "1% quoted from 1 document"),
        ("one two three four; a b c d", "95% quoted from 2 documents"),
        ("something else", "nothing quoted"),
    ],
)
def test_the_reported_share_is_not_rounded_up_to_all(answer: str, fact: str) -> None:
    documents = [Document("a", "one two three four"), Document("b", "a b c d")]
    sources = sources_of(answer, documents)
    assert copied_fact(sources) == fact
    of_passages = fact.replace("nothing quoted", "nothing quoted from the passages read")
    assert copied_fact(sources, is_selection=True) == of_passages


GLUED = [
    Document("a", "Invoice date: 28 April 2025. Client: Westfield Homes Ltd."),
    Document("b", "The roof of the bus depot can carry 420 panels. It is new."),
]


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ("The roof of the bus depot can carry 420 panels.", 1.0),
        ("Client: Westfield Homes Ltd. The roof of the bus depot can carry 420 panels.", 1.0),
        ("Invoice date: 28 April 2025 Two of the bus depot can carry 420 panels.", 12 / 57),
        ("Invoice date: 28 April 2025 bus depot can carry 420 panels", 12 / 49),
        ("The roof of the bus depot really can carry 420 panels.", 39 / 45),  # of one place
    ],
)
def test_a_clause_that_is_glued_of_two_places_is_not_word_for_word(
    answer: str, share: float
) -> None:
    assert sources_of(answer, GLUED).verbatim_share == pytest.approx(share, abs=0.02)


ALIKE = [
    (
        "the office files are in his office",
        "the of\ufb01ce \ufb01les are in his of\ufb01ce",
    ),  # ligatures
    ("it's the keeper's own 'word' today", "it’s the keeper’s own ‘word’ today"),
    ('he said "the ship has left" then', "he said “the ship has left” then"),
    (
        "un café à la plage très chaud",
        "un cafe\u0301 a\u0300 la plage tre\u0300s chaud",
    ),  # NFC, NFD
    ("long - and well-known - words here", "long — and well\u2010known – words here"),
    ("the cooperative sold all its boats", "the co\u00adop\u00aderative sold all its boats"),
    ("it costs 5 euro in all cases", "it costs 5\u00a0euro in all\u202fcases"),
    ("wait... and then it was over", "wait… and then it was over"),
    ("ＡＢＣ one two three four", "ABC one two three four"),
    ("no width in these four words", "no wi\u200bdth in the\ufeffse four words"),
]


@pytest.mark.parametrize(("plain", "typeset"), ALIKE)
@pytest.mark.parametrize("is_plain", [True, False])
def test_characters_that_are_written_in_several_ways_are_one(
    plain: str, typeset: str, is_plain: bool
) -> None:
    answer, text = (plain, typeset) if is_plain else (typeset, plain)
    before = "“Some” words \ufb01rst: "
    behind = " … and last."
    assert spans(f"So: {answer}!", [f"{before}{text}{behind}"]) == [
        Span(4, 4 + len(answer), 0, len(before), len(before) + len(text))
    ]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("le cafe est ferme maintenant ici", "le café est fermé maintenant ici"),
        ("about 106 cells of them each", "about 10⁶ cells of them each"),
        ("The Ship Left Port At Noon", "the ship left port at noon"),
    ],
)
def test_characters_that_change_the_meaning_are_not_folded(answer: str, text: str) -> None:
    assert all(span.end - span.start < len(answer) for span in spans(answer, [text]))


def test_a_long_document_is_cut_without_losing_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_BLOCK_SIZE", 7)
    text = "one two three four five six seven eight nine ten"
    assert spans("say: " + text, ["zero " + text])[0].end == 5 + len(text)
    assert spans("two three four five", [text]) == [Span(0, 19, 0, 4, 23)]


def test_documents_are_cut_once_for_an_answer_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [
        Document("tide.txt", "The tide is high at noon. The quay was built in 1871 of slate."),
        Document("ships.txt", "Nine ships came in the autumn of the year."),
    ]
    answer = "Nine ships came in the autumn. Nobody knows. The quay was built in 1871 of slate."
    folded_texts = []

    def fold(text: str) -> Folded:
        folded_texts.append(text)
        return folded(text)

    monkeypatch.setattr(find, "folded", fold)
    finder = SourceFinder(documents)
    prefixes = [answer[:end] for end in range(len(answer) + 1)]
    growing = [finder.find(prefix) for prefix in prefixes]

    assert [folded_texts.count(document.text) for document in documents] == [1, 1]
    assert growing == [sources_of(prefix, documents) for prefix in prefixes]
    assert len(growing[-1].spans) == 2


def test_a_long_quotation_is_cut_in_the_list() -> None:
    text = " ".join(f"word{i}" for i in range(100))
    (source,) = sources_of(text, [Document("a.txt", text)]).places()
    line = listed(source)
    assert len(line) < 160
    assert "word0 " in line
    assert "word99”" in line


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.txt"
    path.write_text("The ferry leaves the northern quay at noon. It carries forty passengers.")
    return path


def test_cite_marks_the_answer_and_lists_the_places_in_a_file_too(
    note: Path, tmp_path: Path
) -> None:
    done = ngt("summarize", str(note), "--cite")
    answer, line = done.stdout.decode().strip().split("\n\n")
    assert "[1]" in answer
    assert line.startswith("[1] note.txt: “")
    out = tmp_path / "answer.txt"
    assert ngt("summarize", str(note), "--cite", "-o", str(out)).stdout == b""
    assert out.read_text().strip() == f"{answer}\n\n{line}"


# --- on a terminal, and as a picture of one ---

LINK = re.compile("\x1b]8;[^;]*;([^\x1b]*)\x1b\\\\")


def test_places_link_to_the_file_at_its_page(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    about = About("pdf", 2, sections=(Section(0, 2),))
    path = tmp_path / "100% of it; \x1b[31m.pdf"
    document = Document("100% of it.pdf", "one two three four", about, str(path))
    lines = terminal_list(sources_of("one two three four", [document]).places(), 60, True)
    uri, end = LINK.findall(lines)
    assert uri == path.as_uri() + "#page=2"
    assert re.fullmatch(r"[!-~]+", uri)
    assert "%25" in uri
    assert ";" not in uri
    assert end == ""


def test_no_text_of_a_document_becomes_a_link() -> None:
    text = "click \x1b]8;;https://evil.example\x1b\\ here now please"
    sources = sources_of(text, [Document("\x1b]8;;https://evil\x07.txt", text)])
    styled = terminal_list(sources.places(), 80, True)
    assert sources.spans
    assert LINK.findall(styled) == []  # it is no file
    assert "\x1b]8" not in styled
    assert "\x07" not in styled
    assert "\x1b" not in terminal_list(sources.places(), 80, False)


@pytest.mark.parametrize(
    "name", ["a.txt", "a/rather/long/name.txt", "名" * 40, "a\n[2] b: “c”\t d"]
)
@pytest.mark.parametrize("width", [20, 60, 80])
def test_each_place_takes_one_line_on_any_terminal(name: str, width: int) -> None:
    text = " ".join("字母" * 30) + " word" * 30
    sources = sources_of(text, [Document(name, text)])
    (line,) = terminal_list(sources.places(), width, False).splitlines()
    assert cell_len(line) < width
    assert "\t" not in line
    assert line.endswith((" …”", "…", " d", "a.txt"))
    assert len(listed(sources.spans[0]).splitlines()) == 1


def test_a_quotation_that_fits_is_whole() -> None:
    sources = sources_of("one two three four", [Document("a.txt", "one two three four")])
    assert terminal_list(sources.places(), 40, False) == "[1] a.txt: “one two three four”\n"
    assert terminal_list(sources.places(), 31, False) == "[1] a.txt: “one two three …”\n"


@pytest.mark.parametrize("term", ["dumb", "linux", ""])
def test_a_terminal_without_links_gets_none(monkeypatch, term: str) -> None:
    monkeypatch.setenv("TERM", term)
    document = Document("a.txt", "one two three four", path="/a.txt")
    assert "\x1b]" not in terminal_list(sources_of(document.text, [document]).places(), 60, True)


def test_cite_on_a_terminal_colours_drafts_and_links_places(note: Path) -> None:
    out, _ = in_terminal("summarize", str(note), "--cite", NO_COLOR="")
    assert note.as_uri() in LINK.findall(out)
    assert "\x1b[4;36m" in out  # a draft from the document
    plain, _ = in_terminal("summarize", str(note), "--cite", "--color", "never")
    assert "[1] note.txt" in plain
    assert "\x1b]8" not in plain
    assert "\x1b[4" not in plain


# --- stretches of an answer that are in documents, against brute force ---

odd_texts = st.lists(
    st.sampled_from([*"abc,.1é中'\n", "a'b", "1.5", "e\u0301", " ", " ", " "]), max_size=50
).map("".join)


TWICE = (
    "one two three four."  # the nearest, and the one in the document of the span before, is named
)


@settings(deadline=None)
@given(odd_texts, st.lists(odd_texts, max_size=3))
@example(f"start of it all and {TWICE}", [f"{TWICE} some words start of it all here {TWICE}"])
@example(f"start of it all and {TWICE}", [f"{TWICE} {'a ' * 50} start of it all", TWICE])
def test_spans_are_those_of_brute_force(answer: str, documents: list[str]) -> None:
    assert spans(answer, documents) == brute_force(answer, documents)


@pytest.mark.parametrize(
    ("answer", "documents", "found"),
    [
        ("", [""], []),
        ("...", ["..."], []),
        ("one two three", ["one two three"], []),  # too short
        ("one two three four", ["one two", "three four"], []),  # not across documents
        ("The  ship\nleft port", ["the ship left port"], []),  # letters may not differ
        ("The  ship\nleft port", ["The ship left port"], [Span(0, 19, 0, 0, 18)]),
        ("now you can and will", ["now you can't and will"], []),  # a word whole or not at all
        ("他说船在中午离港了。", ["昨天船在中午离港，没有回来。"], [Span(2, 8, 0, 2, 8)]),
    ],
)
def test_what_counts_as_copied(answer: str, documents: list[str], found: list[Span]) -> None:
    assert spans(answer, documents) == found


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


def test_a_row_of_a_long_table_is_found_whole() -> None:
    rows = [f"name{i} | 0 | 0 | 0 | 0 | end{i}" for i in range(9000)]
    assert spans(rows[-1], ["\n".join(rows)])[0].end == len(rows[-1])


def test_a_document_of_one_repeated_word_takes_little_time() -> None:
    (span,) = spans("a " * 500, ["a " * 100_000])
    assert span.end - span.start == 999
