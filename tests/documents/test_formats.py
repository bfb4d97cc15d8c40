"""Each format: its text, sections and warnings, and the errors of broken files."""

import gzip
import io
import zipfile
from pathlib import Path

import pytest

from ngtcli.config import SettingError, Settings
from ngtcli.documents import parsers
from ngtcli.documents.content import Extracted, ParserInput, Section, Writer, markdown
from ngtcli.documents.formats import HEAD, SUFFIXES, format_of, suffix_of
from ngtcli.documents.load import load
from ngtcli.documents.text import Unreadable
from ngtcli.documents.worker import parse
from ngtcli.errors import InputError
from tests import document_files

for package in ("pypdfium2", "trafilatura", "lxml", "pylatexenc"):
    pytest.importorskip(package)
pytestmark = pytest.mark.usefixtures("kept_workers")

WITH_TEXT = sorted(path.name.removesuffix(".txt") for path in document_files.FOLDER.glob("*.*.txt"))
LEFT_OUT = {
    "locked.pdf": "encrypted",
    "scan.pdf": "its 2 pages have no text: a scan, or pictures",
}
# The headings and the warnings of each file that has some. Other files must have none.
ABOUT: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "orchard.docx": (["The orchard", "Harvest"], ()),
    "strict.docx": (["The orchard", "Harvest"], ()),
    "forms.docm": (["Tides"], ()),
    "lighthouse.pptx": (["slide 1: The lighthouse", "slide 3"], ("hidden slides left out: 1",)),
    "ferries.pptx": (["slide 1", "slide 2"], ()),
    "prices.xlsx": (["Prices"], ("hidden sheets left out: 1",)),
    "strict.xlsx": (["Prices"], ("hidden sheets left out: 1",)),
    "bees.odt": (["Bees"], ()),
    "prices.ods": (["Prices", "Drawn", "Same"], ("hidden sheets or slides left out: 1",)),
    "talk.odp": (["slide 1: One", "slide 2: Two"], ()),
    "bus.html": (["The night bus", "Stops"], ()),
    "packed.html.gz": (["The night bus", "Stops"], ()),
    "router.html": (
        ["Resetting the router", "First steps", "Terms"],
        ("left out, since not in the main text: 82 words",),
    ),
    "short.html": (["Invoice 1001", "Terms"], ()),
    "noscript.html": (["The pier"], ()),
    "template.html": (["The pier"], ()),
    "book.epub": (["Chapter one", "Chapter two"], ()),
    "missing.epub": ([], ("chapters that are missing, broken or not HTML: 1",)),
    "letter.eml": (["Tide tables"], ("attachments are not read: t.pdf",)),
    "table.eml": (["Tides"], ()),
    "utf16.eml": (["Grüße"], ()),
    "bees.xml": (["Sleep & rest", "References"], ()),
    "bees.tex": (["On bees", "Sleep", "More"], ()),
    "columns.pdf": ([document_files.TITLES[i] for i in (1, 2, 0)], ()),
    "no-meaning.pdf": ([], ("characters of a font have no meaning on pages 2-3: OCR it",)),
}


def read(data: bytes, suffix: str, max_bytes: int = 10_000_000, field: str = "") -> Extracted:
    """Parse a file in this process."""
    form = format_of(suffix, data[:HEAD])
    assert form is not None
    return parse(form.name, ParserInput(data=data, suffix=suffix, max_bytes=max_bytes, field=field))


@pytest.mark.parametrize("name", WITH_TEXT)
def test_a_file_gives_the_text_stored_beside_it(name: str) -> None:
    extracted = read((document_files.FOLDER / name).read_bytes(), suffix_of(name))
    assert extracted.text == document_files.expected_text(name)

    sections = [section for section in extracted.about.sections if section.heading]
    headings = list(dict.fromkeys(section.heading for section in sections))
    expected_headings, expected_warnings = ABOUT.get(name, ([], ()))
    assert headings == expected_headings
    assert extracted.about.warnings == expected_warnings
    for section in sections:
        at_start = extracted.text.startswith(section.heading, section.start)
        assert at_start or section.page or extracted.about.format in ("pptx", "odp", "eml")


def test_a_folder_is_read_in_workers_with_unreadable_files_reported() -> None:
    loaded = load([str(document_files.FOLDER)], settings=Settings.of(ocr="off"))
    texts = {d.name: d.text for d in loaded.documents if d.name in WITH_TEXT}
    assert texts == {name: document_files.expected_text(name) for name in WITH_TEXT}
    assert {Path(s.name).name: s.reason for s in loaded.skipped} == LEFT_OUT
    assert {suffix_of(name) for name in WITH_TEXT} <= SUFFIXES


MAIL = b"From: a@x.example\nSubject: S\n"
PART = b"\n--q\nContent-Type: text/"
STUB = b"plain\n\nPlease use another program."
PAGE = b"html\n\n<p>" + b"The whole letter, in many words. " * 4 + b"</p>"
INNER = b"\n--q\nContent-Type: message/rfc822\n\nFrom: b@x.example\nSubject: T\n\nInner."
FLOWED = b"Content-Type: text/plain; format=flowed"
HEAD_SEEN = "From: a@x.example\nSubject: S"
LETTER = ("The whole letter, in many words. " * 4).strip()
TEXTS = {
    # Tables: a separator declared by Excel's `sep=` line, escapes, a single column, others.
    "sep.csv": (b"sep=;\r\na;b\r\n1,5;2\r\n", "a | b\n1,5 | 2"),
    "sep-tab.csv": (b"SEP=\t\na\tb\n", "a | b"),
    "escaped.csv": (
        b'a,b\n"He said \\"go, now\\", so",2\n"x",3\n',
        'a | b\nHe said "go, now", so | 2\nx | 3',
    ),
    "path.csv": (b'a,b\n"C:\\dir\\",2\n"x ""y""",3\n', 'a | b\nC:\\dir\\ | 2\nx "y" | 3'),
    "column.csv": (b"note\nyes, of course\nno\na, b, c\n", "note\nyes, of course\nno\na, b, c"),
    "column2.csv": (b"note\nfirst, one\nthen, two\n", "note\nfirst, one\nthen, two"),
    "title.csv": (b"Report\na,b\n1,2\n3,4\n", "Report\na | b\n1 | 2\n3 | 4"),
    "decimal.csv": (b"a;b\n1,5;2,5\n3,5;4,5\n", "a | b\n1,5 | 2,5\n3,5 | 4,5"),
    "single.csv": (b"name\nAda\nBen\n", "name\nAda\nBen"),
    "windows.csv": ("Größe;Maß\nklein;für\n".encode("cp1252"), "Größe | Maß\nklein | für"),
    # JSON: several values in a file.
    "lines.json": (b'{"a": 1}\n{"a": 2}\n', '{"a": 1}\n{"a": 2}\n'),
    "many.json": (b'{"a":\n1}{"a": 2}', '{"a":\n1}{"a": 2}'),
    "pretty.jsonl": (b'{"a":\n1}\n{"a": 2}', '{"a":\n1}\n{"a": 2}'),
    # XML: names that a DTD has, exponents, and reference marks.
    "greek.xml": (
        b"<!DOCTYPE p SYSTEM 'p.dtd'><p>&agr; 5 &mgr;g &Ohgr; &eacute;</p>",
        "α 5 μg Ω é",
    ),
    "unknown.xml": (b"<p>A &foo.bar; and &x-1;</p>", "A &foo.bar; and &x-1;"),
    "own.xml": (b"<!DOCTYPE p [<!ENTITY mgr 'mine'>]><p>&mgr; &agr;</p>", "mine α"),
    "cdata.xml": (b"<p><![CDATA[&mgr; <b>]]> &mgr;</p>", "&mgr; <b> μ"),
    "raised.xml": (
        b"<p>10<sup>6</sup> and 4<sup>th</sup>, CO<sub>2</sub></p>",
        "10^6 and 4th, CO2",
    ),
    "mark.xml": (
        b"<p>1,234.50<xref ref-type='bibr'>1</xref>, x<sup><xref ref-type='fn'>2</xref>"
        b"</sup> [<xref ref-type='bibr'>3</xref>] <xref ref-type='fig'>Fig. 1</xref></p>",
        "1,234.50 [1], x [2] [3] Fig. 1",
    ),
    # Mails: several texts, forwarded ones, stubs, flowed lines, boxes.
    "two.eml": (
        MAIL
        + b"Content-Type: multipart/mixed; boundary=q\n"
        + PART
        + b"plain\n\nOne.\n"
        + b"\n--q\nContent-Type: image/png\n\nx\n"
        + PART
        + b"plain\n\nTwo.\n--q--",
        f"{HEAD_SEEN}\n\nOne.\n\nTwo.",
    ),
    "forwarded.eml": (
        MAIL
        + b"Content-Type: multipart/mixed; boundary=q\n"
        + PART
        + b"plain\n\nSee.\n"
        + INNER
        + b"\n--q--",
        f"{HEAD_SEEN}\n\nSee.\n\nFrom: b@x.example\nSubject: T\n\nInner.",
    ),
    "stub.eml": (
        MAIL
        + b"Content-Type: multipart/alternative; boundary=q\n"
        + PART
        + STUB
        + PART
        + PAGE
        + b"\n--q--",
        f"{HEAD_SEEN}\n\n{LETTER}",
    ),
    "no-stub.eml": (
        MAIL
        + b"Content-Type: multipart/alternative; boundary=q\n"
        + PART
        + b"plain\n\nHello there."
        + PART
        + b"html\n\n<p>Hello <b>there</b>.</p>\n--q--",
        f"{HEAD_SEEN}\n\nHello there.",
    ),
    "no-headers.eml": (
        MAIL
        + b"Content-Type: multipart/alternative; boundary=q\n"
        + b"\n--q\n\nHello there.\n--q\nContent-Type: text/calendar\n\nBEGIN\n--q--",
        f"{HEAD_SEEN}\n\nHello there.",
    ),
    "flowed.eml": (
        MAIL + FLOWED + b"\n\nThe boat \nsails \nat noon.\n> a \n> b\n>> c\n",
        f"{HEAD_SEEN}\n\nThe boat sails at noon.\n> a b\n>> c",
    ),
    "delsp.eml": (
        MAIL + FLOWED + b"; delsp=yes\n\nThe bo \nat.\n-- \nAda\n",
        f"{HEAD_SEEN}\n\nThe boat.\n-- \nAda",
    ),
    "wide.eml": ((MAIL + b"\nGreetings").decode().encode("utf-16-le"), f"{HEAD_SEEN}\n\nGreetings"),
    "wide-be.eml": ((MAIL + b"\nHi").decode().encode("utf-16-be"), f"{HEAD_SEEN}\n\nHi"),
    "8bit.eml": (MAIL + b"\nGr\xfc\xdfe aus K\xf6ln", f"{HEAD_SEEN}\n\nGrüße aus Köln"),
    "box.mbox": (
        b"From a Mon Mar  2 10:00:00 2026\n" + MAIL + b"\nOne.\n>From here.\n\nFrom b\n"
        b"From: b@x.example\n\nTwo.\n",
        f"{HEAD_SEEN}\n\nOne.\nFrom here.\n\nFrom: b@x.example\n\nTwo.",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_records_markup_and_mails_are_read_as_they_are_seen(name: str) -> None:
    data, text = TEXTS[name]
    assert read(data, suffix_of(name)).text == text


@pytest.mark.parametrize(
    "name",
    [
        "Letter to Dr. Smith",
        "Minutes 3.5.2024",
        "a.log",
        "b.srt",
        "c.vtt",
        "d.yaml",
        "e.yml",
        "f.org",
        "g.adoc",
        "h.1",
    ],
)
def test_texts_of_many_names_are_read_in_folders(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes("Grüße aus dem Süden".encode("cp1252"))
    (tmp_path / "ngt.yaml").write_text("n: 3")
    loaded = load([str(tmp_path)])
    assert [d.text for d in loaded.documents] == ["Grüße aus dem Süden"]
    assert loaded.documents[0].about.warnings == (
        "not UTF-8; read as windows-1252, a guess: --set encoding=NAME reads it otherwise",
    )
    assert [Path(s.name).name for s in loaded.skipped] == ["ngt.yaml"]


def test_an_encoding_that_is_set_is_used_for_text_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Žluťoučký kůň".encode("cp1250"))
    (tmp_path / "b.csv").write_bytes("Žluťoučký;kůň\n".encode("cp1250"))
    (tmp_path / "c.txt").write_text("Grüße", "utf-8")
    (tmp_path / "d.html").write_bytes("<p>Žluťoučký kůň".encode("cp1250"))
    loaded = load([str(tmp_path)], settings=Settings.of(encoding="cp1250"))
    texts = {d.name: d.text for d in loaded.documents}
    assert texts == {
        "a.txt": "Žluťoučký kůň",
        "b.csv": "Žluťoučký | kůň",
        "c.txt": "Grüße",
        "d.html": "Žluťoučký kůň",
    }
    assert not any(d.about.warnings for d in loaded.documents)
    with pytest.raises(SettingError, match="unknown encoding 'nonsense'"):
        Settings.of(encoding="nonsense")


@pytest.mark.parametrize(
    ("name", "field", "text"),
    [
        ("texts.jsonl", "body", "First text.\n\nSecond text."),
        ("people.csv", "name", "Berg, Ada\n\nCarl"),
        ("lines.csv", "note", 'first line\nsecond line\n\na "quoted" word'),
        ("data.json", "a", "1\n\n2"),
    ],
)
def test_one_field_of_records_and_tables(name: str, field: str, text: str) -> None:
    data = (document_files.FOLDER / name).read_bytes()
    suffix = suffix_of(name)
    assert read(data, suffix, field=field).text == text
    with pytest.raises(Unreadable, match=r"no (text in a field|column) 'x'"):
        read(data, suffix, field="x")


def test_the_first_bytes_count_more_than_the_name(tmp_path: Path) -> None:
    kinds = {
        "a.txt": "columns.pdf",
        "b.pdf": "orchard.docx",
        "c.txt": "book.epub",
        "d.docx": "prices.xlsx",
        "e.pptx": "strict.docx",
        "f.xlsx": "ferries.pptx",
        "g.epub": "bees.odt",
        "h.odt": "book.epub",
        "i.txt": "greeting.rtf",
    }
    for name, kind in kinds.items():
        (tmp_path / name).write_bytes((document_files.FOLDER / kind).read_bytes())
    texts = {document.name: document.text for document in load([str(tmp_path)]).documents}
    assert texts == {name: document_files.expected_text(kind) for name, kind in kinds.items()}

    (piped,) = load(["-"], io.BytesIO(document_files.docx())).documents
    assert piped.text == document_files.DOCX_TEXT


def rows(count: int, cell: str) -> bytes:
    """An OpenDocument table with so many equal rows."""
    cells = f"<table:table-cell><text:p>{cell}</text:p></table:table-cell>" * 2
    row = f"<table:table-row table:number-rows-repeated='{count}'>{cells}</table:table-row>"
    return document_files.odt(f"<table:table>{row}</table:table>")


def test_all_of_many_equal_rows_are_read_or_the_file_is_refused() -> None:
    assert read(rows(1500, "tide"), ".ods").text.split("\n") == ["tide | tide"] * 1500
    with pytest.raises(Unreadable, match="too much text"):
        read(rows(1_000_000, "tide " * 100), ".ods", max_bytes=10_000_000)


def test_a_page_of_only_a_menu_is_read() -> None:
    assert read(b"<nav><a href='/'>Home</a></nav>", ".html").text == "Home"


LINKS = "<footer>" + "".join(f"<a href='/{i}'>Link {i}</a> " for i in range(9)) + "</footer>"


@pytest.mark.parametrize("links", ["", LINKS])
def test_no_block_of_a_long_page_is_lost_and_menus_are_left_out(links: str) -> None:
    blocks = [
        f"Paragraph {i}. {'Press the button until the light is red. ' * 3}".strip()
        for i in range(500)
    ]
    page = f"<nav>{'<p>Menu</p>' * 7}</nav><article>{''.join(f'<p>{b}' for b in blocks)}</article>"
    text = read((page + links).encode(), ".html").text
    assert text.split("\n\n")[:500] == blocks
    assert "Menu" not in text


ARABIC = "كان هناك رجل حكيم في قرية من القرى يعرف كل شيء عن الحياة. "
GERMAN = "Schöne Grüße aus dem Süden. "
RUSSIAN = "В деревне жил мудрый человек, который знал о жизни всё. "


@pytest.mark.parametrize(
    ("declared", "encoding", "text", "warning"),
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
def test_pages_are_decoded_by_the_encoding_that_fits_with_a_warning(
    declared: str, encoding: str, text: str, warning: str
) -> None:
    page = f"<!doctype html><html><head><meta charset={declared}></head><body><p>{text * 5}</p>"
    extracted = read(page.encode(encoding), ".html")
    assert extracted.text == (text * 5).strip()
    assert extracted.about.warnings == ((warning,) if warning else ())


def test_a_damaged_page_in_utf8_stays_utf8() -> None:
    page = "<!doctype html><meta charset=utf-8><p>Grüße aus dem Süden".encode() + b"\xff."
    extracted = read(page, ".html")
    assert extracted.text == "Grüße aus dem Süden\ufffd."
    assert extracted.about.warnings == ("declared utf-8, but characters that are not: 1",)


BROKEN = {
    "a.pdf": (b"no pdf at all", "not a PDF"),
    "b.docx": (document_files.docx()[:500], "broken docx (BadZipFile: File is not a zip file)"),
    "c.json": (b'{"a": ', "line 1"),
    "d.jsonl": (b'{"a": 1}\n{"b"\n', "invalid JSON in line 2"),
    "e.epub": (b"PK\3\4", "broken epub (BadZipFile: File is not a zip file)"),
    "f.gz": (gzip.compress(b"text")[:-6], "broken gz (EOFError: Compressed file ended before"),
    "g.eml": (b"\n\nnothing", "not an e-mail"),
    "m.mbox": (b"no mail", "not a mailbox"),
    "h.odt": (document_files.zipped({}), "no item named 'META-INF/manifest.xml'"),
    "i.rtf": (rb"{\rtf1\ansi{\*\hidden words}}", "no text in it"),
    "j.xml": (b"<a>words", "broken xml (XMLSyntaxError: "),
    "l.xml": (b"<a b='words'/>", "no text in it"),
    "k.xml": (
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "a.pdf">]><a>&x;</a>',
        "broken xml (XMLSyntaxError: ",
    ),
}


def test_broken_files_are_skipped_with_their_errors(tmp_path: Path) -> None:
    for name, (data, _) in BROKEN.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "z.txt").write_text("fine")
    loaded = load([str(tmp_path)])
    assert [document.name for document in loaded.documents] == ["z.txt"]
    reasons = {Path(file.name).name: file.reason for file in loaded.skipped}
    assert set(reasons) == set(BROKEN)
    for name, (_, reason) in BROKEN.items():
        assert reason in reasons[name]


def test_entities_that_a_file_defines_are_read_and_bounded() -> None:
    assert read(b'<!DOCTYPE a [<!ENTITY x "tide">]><a>&x;s</a>', ".xml").text == "tides"
    twice = "".join(f"<!ENTITY x{i} '{f'&x{i - 1};' * 10}'>" for i in range(1, 12))
    page = f"<!DOCTYPE a [<!ENTITY x0 'tide'>{twice}]><a>&x11;</a>"
    with pytest.raises(SyntaxError, match="amplification"):
        read(page.encode(), ".xml")


def test_other_archives_have_a_hint(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(document_files.zipped({"x.txt": "x"}))
    with pytest.raises(InputError, match="a zip archive") as caught:
        load([str(tmp_path / "a.bin")])
    assert caught.value.hint == "Unpack it."


def test_a_missing_package_has_an_error_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngtcli.documents.read.Parsers", parsers.Parsers)  # new workers
    monkeypatch.setattr(
        parsers, "_CODE", f"import sys; sys.modules['lxml'] = None\n{parsers._CODE}"
    )
    (tmp_path / "orchard.docx").write_bytes(document_files.docx())
    with pytest.raises(InputError, match="a Word document, which needs the package lxml") as caught:
        load([str(tmp_path / "orchard.docx")])
    assert caught.value.hint == "Install it: pip install 'ngtcli[docs]'"
    (tmp_path / "a.csv").write_text("a,b\n")
    left = {Path(s.name).name: s.needs for s in load([str(tmp_path)]).skipped if s.needs}
    assert list(left) == ["orchard.docx"]


@pytest.mark.parametrize(
    ("suffix", "head", "name"),
    [
        (".txt", b"%PDF-1.7", "pdf"),
        (".md", b"\n<!DOCTYPE HTML><p>", "html"),
        (".csv", b"a,b", "csv"),
        (".docx", b"PK\3\4", "docx"),
        (".txt", b"PK\3\4", "zip"),
        (".txt.gz", b"\x1f\x8b", "gz"),
        (".eml", b"<html>", "eml"),
        (".jats", b"<?xml version='1.0'?>", "xml"),
        (".txt", b"<?xml version='1.0'?>", None),
        ("", b"", None),
        (".log", b"text", None),
    ],
)
def test_formats_by_suffix_and_first_bytes(suffix: str, head: bytes, name: str | None) -> None:
    format_ = format_of(suffix, head)
    assert (format_.name if format_ else None) == name


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


def test_bytes_after_packed_text_are_ignored_as_by_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one ") + gzip.compress(b"two") + b"junk")
    assert load([str(path)]).documents[0].text == "one two"
    path.write_bytes(gzip.compress(b"one")[:-1])
    with pytest.raises(InputError, match="broken"):
        load([str(path)])


HEADED = {
    "# A\n\n```sh\n# install it\n```\n## B ##": ["A", "B"],
    "~~~\n# a\n```\n# b\n~~~\nC\n=": ["C"],
    "````\n```\n# no\n````\n# D": ["D"],
    "- item\n  ```\n  # no\n  ```\n\nTwo words\nand more\n---\n": ["Two words and more"],
    "---\ntitle: x\n---\n\nE\n---\n": ["E"],
    "a | b\n--- | ---\n1 | 2\n\n* * *\n\n- a\n- b\n---\n\n> q\n---": [],
    "    # code\n\n<!-- # no\n# no -->\n   # F": ["F"],
    "#no\n####### no\n\nG\n\n---": [],
}


@pytest.mark.parametrize(("text", "headings"), HEADED.items())
def test_headings_of_markdown_are_those_that_are_shown(text: str, headings: list[str]) -> None:
    sections = markdown(text).about.sections
    assert [section.heading for section in sections] == headings
    for section in sections:
        first_word = section.heading.split()[0]
        assert text.startswith(first_word, section.start) or text[section.start] in "# "


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(b"idref='two'", b"idref='three'", id="not in the manifest"),
        pytest.param(
            b"1%20a.xhtml' media-type='application/xhtml+xml",
            b"1%20a.xhtml' media-type='image/svg+xml",
            id="a picture",
        ),
    ],
)
def test_a_chapter_of_a_book_that_is_not_read_is_reported(
    before: bytes, after: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "book.epub"
    with (
        zipfile.ZipFile(document_files.FOLDER / "book.epub") as book,
        zipfile.ZipFile(path, "w") as changed,
    ):
        for name in book.namelist():
            changed.writestr(name, book.read(name).replace(before, after))
    (document,) = load([str(path)]).documents
    assert list(document.about.warnings) == ["chapters that are missing, broken or not HTML: 1"]
