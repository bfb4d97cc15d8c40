"""The sources of an answer, as text, as JSON and on a terminal."""

import json
from pathlib import Path

import pytest
from helpers import ngt

from ngtcli.documents.content import About, Section
from ngtcli.documents.load import Document
from ngtcli.render.sources import listed, marked, sources_of

PAGES = About("pdf", 2, sections=(Section(0, 1, "Start"), Section(20, 2, "Start")))


def test_a_stretch_names_its_page() -> None:
    text = "Nothing of interest.The ferry leaves at noon today."
    sources = sources_of("The ferry leaves at noon", [Document("log.pdf", text, PAGES)])
    (source,) = sources.found
    assert (source.page, source.place) == (2, "log.pdf, page 2")
    assert sources.verbatim == 1.0


def test_a_document_without_pages_names_the_heading() -> None:
    about = About("docx", sections=(Section(3, 0, "Tides"),))
    sources = sources_of("the sea is calm", [Document("a.docx", "Oh, the sea is calm.", about)])
    assert sources.found[0].place == "a.docx, Tides"


def test_text_before_the_first_heading_has_none() -> None:
    about = About("docx", sections=(Section(30, 0, "Tides"),))
    sources = sources_of("the sea is calm", [Document("a.docx", "Oh, the sea is calm.", about)])
    assert sources.found[0].place == "a.docx"


def test_the_same_place_has_one_mark() -> None:
    text = "one two three four"
    sources = sources_of("one two three four; one two three four", [Document("a.txt", text)])
    assert marked("one two three four; one two three four", sources).count("[1]") == 2
    assert len(listed(sources)) == 1


def test_a_long_quotation_is_cut_in_the_list() -> None:
    text = " ".join(f"word{i}" for i in range(100))
    ((_, line),) = listed(sources_of(text, [Document("a.txt", text)]))
    assert len(line) < 160
    assert "word0 " in line
    assert "word99”" in line


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.txt"
    path.write_text("The ferry leaves the northern quay at noon. It carries forty passengers.")
    return path


def test_cite_marks_the_answer_and_lists_the_places(note: Path) -> None:
    done = ngt("summarize", str(note), "--cite")
    answer, line = done.stdout.decode().strip().split("\n\n")
    assert "[1]" in answer
    assert line.startswith("[1] note.txt: “")


def test_cite_goes_to_the_file_too(note: Path, tmp_path: Path) -> None:
    out = tmp_path / "answer.txt"
    done = ngt("summarize", str(note), "--cite", "-o", str(out))
    assert done.stdout == b""
    assert "\n\n[1] note.txt" in out.read_text()


def test_every_span_of_the_json_stands_where_it_says(note: Path) -> None:
    body = json.loads(ngt("summarize", str(note), "--json").stdout)
    text = note.read_text()
    spans = body["sources"]["spans"]
    assert spans
    for span in spans:
        said = body["text"][span["start"] : span["end"]]
        assert said.split() == text[span["source_start"] : span["source_end"]].split()
    assert body["sources"]["verbatim_share"] > 0.5


@pytest.mark.parametrize("form", ["--json", "--dry-run", "--json-tokens"])
def test_cite_beside_a_form_without_marks_is_refused(note: Path, form: str) -> None:
    done = ngt("summarize", str(note), "--cite", form)
    assert done.returncode == 2
    assert "--cite" in done.stderr.decode()
