"""What is read of each format, and what is said of files that cannot be read."""

import gzip
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ngtcli.config import Settings
from ngtcli.documents.content import About, Extracted, Section, Source, Writer
from ngtcli.documents.formats import format_of
from ngtcli.documents.load import Document, Loaded, load
from ngtcli.errors import InputError
from ngtcli.system.json_form import from_json
from tests import document_files as made

pytest.importorskip("pypdfium2")
pytest.importorskip("trafilatura")
pytest.importorskip("docx")
pytest.importorskip("reportlab")
pytestmark = pytest.mark.usefixtures("kept_workers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each format."""
    path = tmp_path_factory.mktemp("files")
    for name, make in made.FILES.items():
        (path / name).write_bytes(make())
    return path


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Loaded:
    with pytest.MonkeyPatch.context() as patched:  # a fixture of a module has the user's cache else
        patched.setenv("NGT_HOME", str(folder.parent / "ngt-home"))
        return load([str(folder)])


def headings(document: Document | Extracted) -> list[str]:
    """The headings of a document, and that each stands where its section begins."""
    named = [s for s in document.about.sections if s.heading]
    for section in named:
        assert document.text.startswith(section.heading, section.start) or section.page
    return list(dict.fromkeys(s.heading for s in named))


TEXTS = {
    "orchard.docx": made.DOCX_TEXT,
    "book.epub": "Chapter one\n\nIt began.\n\nChapter two\n\nThe end.",
    "bees.odt": "Bees\n\nBees  sleep.[^1]\n\n- one\n- two\n\na | b\n\n[^1]: At night.",
    "people.csv": "name | town\nBerg, Ada | Varn\nCarl | Lund",
    "people.tsv": "name | town\nAda | Varn\nCarl | Lund",
    "data.json": '{"a": [1, 2]}',
    "texts.jsonl": made.JSONL,
    "packed.txt.gz": "Packed text.",
}
HEADINGS = {
    "orchard.docx": ["The orchard", "Harvest"],
    "book.epub": ["Chapter one", "Chapter two"],
    "bees.odt": ["Bees"],
    "bus.html": ["The night bus", "Stops"],
}


def test_every_format_is_read_word_for_word_and_what_cannot_be_is_told(loaded: Loaded) -> None:
    by_name = {d.name: d for d in loaded.documents}
    assert {name: by_name[name].text for name in TEXTS} == TEXTS
    assert {name: headings(by_name[name]) for name in HEADINGS} == HEADINGS
    text = by_name["bus.html"].text
    assert text.startswith("The night bus\n\nThe night bus N7 runs") and "Home" not in text
    assert "- Station\n- Old market\n\nStop | Time\nStation | 00:10\n\nDogs" in text
    assert by_name["packed.html.gz"].text == text
    letter = by_name["letter.eml"]
    assert letter.text.endswith("Subject: Tide tables\n\nHigh tide is at nine.")
    assert letter.about.warnings == ("attachments are not read: t.pdf",)
    assert {Path(s.name).name: s.reason for s in loaded.skipped} == {
        "locked.pdf": "encrypted",
        "scan.pdf": "its 2 pages have no text: a scan, or pictures",
    }


def test_lists_of_two_chapters_stand_apart(tmp_path: Path) -> None:
    pages = ("<ul><li>x</li><li>y</li></ul>", "<ul><li>z</li></ul>")
    path = tmp_path / "lists.epub"
    path.write_bytes(made.epub(*pages))
    assert load([str(path)]).documents[0].text == "- x\n- y\n\n- z"


@pytest.mark.parametrize(
    ("name", "field", "text"),
    [
        ("texts.jsonl", "body", "First text.\n\nSecond text."),
        ("people.csv", "name", "Berg, Ada\n\nCarl"),
        ("data.json", "a", "1\n\n2"),
    ],
)
def test_one_field_of_records_and_tables(folder: Path, name: str, field: str, text: str) -> None:
    assert load([str(folder / name)], settings=Settings(field=field)).documents[0].text == text
    with pytest.raises(InputError, match=r"no (text in a field|column) 'x'"):
        load([str(folder / name)], settings=Settings(field="x"))


def test_what_bytes_say_counts_more_than_the_name(tmp_path: Path) -> None:
    kinds = {"a.txt": "pdf", "b.pdf": "docx", "c.txt": "epub", "d.docx": "xlsx", "e.pptx": "docx",
             "f.xlsx": "pptx", "g.epub": "odt", "h.odt": "epub"}  # fmt: skip
    for name, kind in kinds.items():
        (tmp_path / name).write_bytes(getattr(made, kind)())
    found = {d.name: d.about.format for d in load([str(tmp_path)]).documents}
    assert found == kinds
    piped = load(["-"], io.BytesIO(made.docx())).documents[0]
    assert piped.text == made.DOCX_TEXT


def html_page(data: bytes) -> Extracted:
    """What is read of a page, in this process."""
    from ngtcli.documents.formats.html import parse

    return parse(Source(data=data, suffix=".html", most=10_000_000))


def html_text(page: str) -> str:
    return html_page(f"<!doctype html><meta charset=utf-8>{page}".encode()).text


MENU = "<nav>" + "".join(f"<a href='/{i}'>Menu {i}</a> " for i in range(9)) + "</nav>"
LONG = "Press the button for ten seconds until the light is red, then wait for the second light. "
ARTICLE = f"""<!doctype html><html><head><title>Help</title></head><body>{MENU}
<header><h1>Resetting the router</h1></header><template>hidden template</template>
<script>let no = "script text";</script><div id=main><article><h2>First steps</h2>
<p>{LONG * 3}See <a href='/x'>the manual</a>. Then go on.</p><h2>Terms</h2><ul><li>One light</li>
<li>{LONG}</li></ul><p>{LONG * 3}</p><table><tr><th>Light</th><th>Means</th></tr>
<tr><td>red</td><td>wait</td></tr></table></article></div>
<aside><h3>Related</h3>{MENU}</aside><footer>{MENU} All rights reserved by the makers.</footer>"""


def test_a_page_with_menus_keeps_headings_and_paragraphs_and_tells_what_is_left_out() -> None:
    document = html_page(ARTICLE.encode())
    assert document.text == (
        f"Resetting the router\n\nFirst steps\n\n{LONG * 3}See the manual. Then go on.\n\nTerms\n\n"
        f"- One light\n- {LONG.strip()}\n\n{LONG.strip() + (' ' + LONG.strip()) * 2}\n\n"
        "Light | Means\nred | wait"
    )
    assert headings(document) == ["Resetting the router", "First steps", "Terms"]
    (told,) = document.about.warnings
    assert told == "left out as no part of the main text: 61 words"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<h1>Invoice 1001</h1><p>Total: 500 EUR</p><h1>Terms</h1><p>In 14 days.</p>",
         "Invoice 1001\n\nTotal: 500 EUR\n\nTerms\n\nIn 14 days."),
        ("<p>Press <a href='/a'>here</a>.<aside>Never unplug.</aside><footer>30 euros</footer>",
         "Press here.\n\nNever unplug.\n\n30 euros"),
        ("<nav><a href='/'>Home</a></nav><h1>Router</h1><p>Wait.", "Router\n\nWait."),
        ("<nav><a href='/'>Home</a></nav>", "Home"),
        ("<article>One</article>Two<p>Three", "One\n\nTwo\n\nThree"),
        ("<div>Short.</div><div>Words.</div>", "Short.\n\nWords."),
        ("<template>no</template><p>⠓⠑⠇⠇⠕</p><style>p {}</style>", "⠓⠑⠇⠇⠕"),
        ("<p>a\x01b</p><p>c</p>", "a b\n\nc"),
        ("<html><body><p>One</p></body></html><p>Two</p><html><body>Three</body></html>",
         "One\n\nTwo\n\nThree"),
    ],
)  # fmt: skip
def test_a_short_page_is_read_whole_block_by_block(page: str, text: str) -> None:
    found = html_page(f"<!doctype html><meta charset=utf-8>{page}".encode())
    assert found.text == text and found.about.warnings == ()


LINKS = "<footer>" + "".join(f"<a href='/{i}'>Link {i}</a> " for i in range(9)) + "</footer>"


def test_comments_below_a_page_are_no_part_of_its_text() -> None:
    comments = f"<div id=comments><ul><li>A reader says: {LONG}</li></ul></div>"
    text = html_text(f"<article><p>{LONG * 3}</p><p>{LONG * 2}</p>{comments}</article>{LINKS}")
    assert text.startswith(LONG) and "reader" not in text


def test_white_space_at_the_start_of_blocks_is_not_text() -> None:
    page = (
        f"<h2>\n Head</h2><p>\n   Text {LONG}\n</p><ul><li>\n item {LONG}</li></ul>"
        f"<table><tr><td>\n a {LONG}</td><td> b</td></table><pre>\n  code {LONG}</pre>"
    )
    told = LONG.strip()
    text = f"Head\n\nText {told}\n\n- item {told}\n\na {told} | b\n\n  code {told}"
    assert html_text(page) == text
    assert html_text(f"<article>{page}</article>{LINKS}").startswith(text)


@pytest.mark.parametrize("count", [9, 7000])
@pytest.mark.parametrize("links", ["", LINKS])
def test_no_block_of_a_long_page_is_lost_and_menus_are_left_out(count: int, links: str) -> None:
    blocks = [f"Paragraph {i}. {LONG}".strip() for i in range(count)]
    page = f"<nav>{'<p>Menu</p>' * 7}</nav><article>{''.join(f'<p>{b}' for b in blocks)}</article>"
    text = html_text(page + links)
    assert text.split("\n\n")[:count] == blocks and "Menu" not in text


def test_a_page_that_uses_every_mark_is_read() -> None:
    from ngtcli.documents.formats.html import _SIGNS

    page = f"<nav><p>Menu</nav><p>{''.join(_SIGNS)}</p><p>{LONG}</p>"
    for links in ("", LINKS):
        assert html_text(page + links).startswith(f"{''.join(_SIGNS)}\n\n{LONG.strip()}")


ARABIC = "كان هناك رجل حكيم في قرية من القرى يعرف كل شيء عن الحياة. "
GERMAN = "Schöne Grüße aus dem Süden. "
RUSSIAN = "В деревне жил мудрый человек, который знал о жизни всё. "


@pytest.mark.parametrize(
    ("declared", "encoding", "text", "told"),
    [
        ("utf-8", "utf-8", GERMAN, ""),
        ("utf-16", "utf-16", GERMAN, ""),
        ("iso-8859-1", "iso-8859-1", GERMAN, ""),
        ("windows-1251", "cp1251", RUSSIAN, ""),
        ("iso-8859-1", "cp1252", "Grüße „aus dem Süden“. ", ""),
        ("shift_jis", "cp932", "むかし村に賢い男が住んでいました。", ""),
        ("utf-8", "cp1256", ARABIC, "declared utf-8, read as windows-1256"),
        ("iso-8859-1", "cp1256", ARABIC, "declared iso-8859-1, read as windows-1256"),
        ("utf-8", "cp1251", RUSSIAN, "declared utf-8, read as windows-1251"),
        ("nonsense", "cp1252", GERMAN, "declared nonsense, read as windows-1252"),
    ],
)
def test_pages_are_read_in_the_encoding_that_fits_and_a_wrong_one_is_told(
    declared: str, encoding: str, text: str, told: str
) -> None:
    page = f"<!doctype html><html><head><meta charset={declared}></head><body><p>{text * 5}</p>"
    found = html_page(page.encode(encoding))
    assert found.text == (text * 5).strip() and found.about.warnings == (told,) * bool(told)


def test_a_damaged_page_in_utf8_stays_utf8() -> None:
    found = html_page(
        "<!doctype html><meta charset=utf-8><p>Grüße aus dem Süden".encode() + b"\xff."
    )
    assert found.text == "Grüße aus dem Süden\ufffd."
    assert found.about.warnings == ("declared utf-8, but characters that are not: 1",)


def test_chapters_with_entities_of_their_own_and_missing_ones(tmp_path: Path) -> None:
    page = (
        '<?xml version="1.0"?><!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "x.dtd" [\n'
        "<!ENTITY deg '&#176;'>\n]>\n<html><body><p>Text.</p></body></html>"
    )
    book = {
        "META-INF/container.xml": "<c><rootfile full-path='p.opf'/></c>",
        "p.opf": "<p><item id='a' href='a.xhtml' media-type='application/xhtml+xml'/>"
        "<item id='b' href='b.xhtml' media-type='application/xhtml+xml'/>"
        "<itemref idref='a'/><itemref idref='b'/></p>",
        "a.xhtml": page,
    }
    (tmp_path / "a.epub").write_bytes(made.zipped(book))
    document = load([str(tmp_path / "a.epub")]).documents[0]
    assert document.text == "Text."
    assert document.about.warnings == ("1 chapter is missing or broken",)


BROKEN = {
    "a.pdf": (b"no pdf at all", "not a PDF"),
    "b.docx": (made.docx()[:500], "broken zip"),
    "c.json": (b'{"a": ', "line 1"),
    "d.jsonl": (b'{"a": 1}\n{"b"\n', "broken JSON, line 2"),
    "e.epub": (b"PK\3\4", "a broken zip archive"),
    "f.gz": (gzip.compress(b"text")[:-6], "ends too early"),
    "g.eml": (b"\n\nnothing", "not an e-mail"),
    "h.odt": (made.zipped({}), "manifest.xml is"),
}


def test_broken_files_are_told_from_good_ones(tmp_path: Path) -> None:
    for name, (data, _) in BROKEN.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "z.txt").write_text("fine")
    loaded = load([str(tmp_path)])
    told = {Path(s.name).name: s.reason for s in loaded.skipped}
    assert [d.name for d in loaded.documents] == ["z.txt"] and set(told) == set(BROKEN)
    assert all(words in told[name] for name, (_, words) in BROKEN.items())


def test_archives_of_other_kinds_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(made.zipped({"x.txt": "x"}))
    with pytest.raises(InputError, match="a zip archive") as caught:
        load([str(tmp_path / "a.bin")])
    assert caught.value.hint == "Unpack it."


def test_a_missing_package_is_one_line_that_names_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "docx" else find(n))
    with pytest.raises(InputError, match="a Word document, which needs the package docx") as caught:
        load([str(folder / "orchard.docx")])
    assert caught.value.hint == "Install it: pip install 'ngtcli[docs]'"
    left = {Path(s.name).name: s.needs for s in load([str(folder)]).skipped if s.needs}
    assert list(left) == ["orchard.docx"]


@pytest.mark.parametrize(
    ("suffix", "head", "name"),
    [(".txt", b"%PDF-1.7", "pdf"), (".md", b"\n<!DOCTYPE HTML><p>", "html"),
     (".csv", b"a,b", "csv"), (".docx", b"PK\3\4", "docx"), (".txt", b"PK\3\4", "zip"),
     (".txt.gz", b"\x1f\x8b", "gz"),
     (".eml", b"<html>", "eml"), ("", b"", None), (".log", b"text", None)],
)  # fmt: skip
def test_formats_by_suffix_and_first_bytes(suffix: str, head: bytes, name: str | None) -> None:
    found = format_of(suffix, head)
    assert (found.name if found else None) == name


def test_a_description_survives_json_and_a_forged_one_is_refused() -> None:
    about = About("pdf", 3, 2, (Section(0, 1), Section(5, 2, "Two")), ("w",), True)
    plain = json.loads(json.dumps(asdict(about)))
    assert About.from_json(plain, 10) == about
    for name, value in (("pages", -1), ("pages", True), ("format", 3), ("warnings", [1]),
                        ("sections", [{"start": 99, "page": 1, "heading": ""}]),
                        ("sections", [plain["sections"][1], plain["sections"][0]])):  # fmt: skip
        with pytest.raises(ValueError):
            About.from_json({**plain, name: value}, 10)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (tuple[int, int], [1]),
        (tuple[int, int], [1, 2, 3]),
        (tuple[()], [1]),
        (tuple[int, ...], [1, True]),
        (int, True),
    ],
)
def test_json_of_another_form_is_refused(hint: Any, value: Any) -> None:
    with pytest.raises(ValueError, match="Expected"):
        from_json(hint, value)


def test_sections_begin_where_their_text_does() -> None:
    writer = Writer()
    writer.mark(1)
    writer.heading("One")
    writer.add("a\n")
    writer.mark(2)
    writer.add("b")
    writer.mark(3)
    assert writer.text() == "One\n\na\n\nb"
    assert writer.sections() == (Section(0, 0, "One"), Section(8, 2, "One"))
