"""What is read of office files beyond their plain paragraphs, and what is said of the rest."""

import datetime
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from ngtcli.documents.content import Extracted, Source
from ngtcli.documents.find import Skipped
from ngtcli.documents.formats.archives import parse_zip
from ngtcli.documents.formats.office import as_signs
from ngtcli.documents.load import Document, load
from ngtcli.documents.text import Unreadable
from ngtcli.errors import InputError
from tests import document_files as made

pytest.importorskip("docx")
pytest.importorskip("pptx")
pytest.importorskip("openpyxl")
pytest.importorskip("striprtf")
pytestmark = pytest.mark.usefixtures("kept_workers")

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
NAMES = (
    f'xmlns:w="{WORD}" xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" '
    'xmlns:dgm="http://schemas.openxmlformats.org/drawingml/2006/diagram" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" '
    'xmlns:v="urn:schemas-microsoft-com:vml"'
)


def words(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def control(inside: str) -> str:
    return f"<w:sdt><w:sdtPr/><w:sdtContent>{inside}</w:sdtContent></w:sdt>"


def box(text: str) -> str:
    return f"<w:txbxContent>{words(text)}</w:txbxContent>"


def word(body: str, parts: dict[str, str] | None = None, kind: str = "") -> bytes:
    """A Word document with this body; `parts` are (relationship's kind) -> XML, ids p0, p1, …"""
    import docx
    from docx.opc.packuri import PackURI
    from docx.opc.part import Part
    from docx.oxml import parse_xml

    document = docx.Document()
    part = document.part
    for number, (name, xml) in enumerate((parts or {}).items()):
        place = PackURI(f"/word/part{number}.xml")
        other = Part(place, "application/xml", xml.encode(), part.package)
        base = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"
        part.rels.add_relationship(base + name, other, f"p{number}")
    for block in parse_xml(f"<w:body {NAMES}>{body}</w:body>"):
        document.element.body.insert(len(document.element.body) - 1, block)
    if kind:
        part._content_type = kind
    return made.saved(document)


def read(data: bytes, most: int = 10_000_000) -> Extracted:
    """An archive's text, read in this process."""
    return parse_zip(Source(data=data, suffix="", most=most))


CHART = (
    f"<c:chartSpace {NAMES}><c:chart><c:title><c:tx><c:rich><a:p><a:r><a:t>Ferries</a:t></a:r>"
    "</a:p></c:rich></c:tx></c:title><c:plotArea><c:ser><c:tx><c:v>Boats</c:v></c:tx>"
    "<c:cat><c:pt idx='0'><c:v>May</c:v></c:pt><c:pt idx='1'><c:v>June</c:v></c:pt></c:cat>"
    "<c:val><c:pt idx='0'><c:v>4.4000000000000004</c:v></c:pt><c:pt idx='1'><c:v>7</c:v></c:pt>"
    "</c:val></c:ser></c:plotArea></c:chart></c:chartSpace>"
)
DIAGRAM = (
    f"<dgm:dataModel {NAMES}><dgm:ptLst><dgm:pt><dgm:t><a:p><a:r><a:t>Load</a:t></a:r></a:p>"
    "</dgm:t></dgm:pt><dgm:pt type='pres'/><dgm:pt><dgm:t><a:p><a:r><a:t>Sail</a:t></a:r></a:p>"
    "</dgm:t></dgm:pt></dgm:ptLst></dgm:dataModel>"
)

CELL = f"<w:tc>{words('a')}</w:tc>"
CONTROLS = (
    words("first") + control(words("cover") + control(words("nested")))
    + "<w:p><w:r><w:t>in </w:t></w:r>{}</w:p>".format(control("<w:r><w:t>line</w:t></w:r>"))
    + f"<w:tbl><w:tr>{CELL}{control('<w:tc>' + control(words('b')) + '</w:tc>')}</w:tr>"
    + f"{control(f'<w:tr>{CELL}<w:tc>{words(chr(99))}</w:tc></w:tr>')}</w:tbl>"
)  # fmt: skip
BOTH = (  # a text box as two generations of Word have it
    "<mc:AlternateContent><mc:Choice Requires='wps'><w:drawing>{0}</w:drawing></mc:Choice>"
    "<mc:Fallback><w:pict><v:shape><v:textbox>{0}</v:textbox></v:shape></w:pict></mc:Fallback>"
    "</mc:AlternateContent>"
).format(box("boxed"))
DRAWN = (
    "<w:p><w:r><w:t>See </w:t><w:drawing><c:chart r:id='p0'/></w:drawing></w:r></w:p>"
    "<w:p><w:r><w:drawing><dgm:relIds r:dm='p1'/></w:drawing></w:r></w:p>"
    "<w:p><w:r><w:drawing><c:chart r:id='p2'/><c:chart r:id='none'/></w:drawing></w:r></w:p>"
)


def run(text: str, tag: str = "m") -> str:
    return f"<{tag}:r><{tag}:t>{text}</{tag}:t></{tag}:r>"


def equation(inside: str) -> str:
    return f"<w:p><m:oMath>{inside}</m:oMath></w:p>"


POWER = f"<m:sSup><m:e>{run('r')}</m:e><m:sup>{run('2')}</m:sup></m:sSup>"
FRACTION = f"<m:f><m:num>{run('a+b')}</m:num><m:den>{run('2a')}</m:den></m:f>"
ROOT = f"<m:rad><m:deg/><m:e><m:d><m:e>{run('x+1')}</m:e></m:d></m:e></m:rad>"
SUM = (
    f"<m:nary><m:naryPr><m:chr m:val='∑'/></m:naryPr><m:sub>{run('i')}</m:sub><m:sup/>"
    f"<m:e>{run('x')}</m:e></m:nary>"
)
NUMBERED = "<w:pPr><w:pStyle w:val='{}'/><w:numPr/></w:pPr>"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (CONTROLS, "first\n\ncover\n\nnested\n\nin line\n\na | b\na | c"),
        (f"<w:p><w:r><w:t>before </w:t>{BOTH}<w:t>after</w:t></w:r></w:p>",
         "before after\n\nboxed"),
        (f"<w:p><w:r><w:pict><v:textbox>{box('old')}</v:textbox></w:pict></w:r></w:p>", "old"),
        (f"<w:p><w:r>{BOTH.replace(box('boxed'), '', 1)}</w:r></w:p>", "boxed"),
        (f"<w:tbl><w:tr><w:tc><w:p><w:r>{BOTH}</w:r></w:p></w:tc></w:tr></w:tbl>", "boxed"),
        (DRAWN, "See\n\nFerries\n | Boats\nMay | 4.4\nJune | 7\n\nLoad\nSail"),
        ("".join(f"<w:p>{NUMBERED.format(style)}{run(text, 'w')}</w:p>"
                 for style, text in (("Heading1", "Tides"), ("", "one"), ("", "two"))),
         "Tides\n\n- one\n- two"),
        (equation(run("A=π") + POWER), "A=πr^2"),
        (equation(FRACTION), "(a+b)/(2a)"),
        (equation(ROOT), "√(x+1)"),
        (equation(SUM), "∑_i x"),
        # At four times the work for each level this would not end.
        (equation("<m:d><m:e>" * 60 + run("x") + "</m:e></m:d>" * 60), "(" * 60 + "x" + ")" * 60),
    ],
    ids=["controls", "box", "old box", "empty box", "box in a cell", "drawn", "numbered heading",
         "power", "fraction", "root", "sum", "deep"],
)  # fmt: skip
def test_what_stands_in_word_files_is_read_once_in_its_place(body: str, text: str) -> None:
    parts = {"chart": CHART, "diagramData": DIAGRAM, "broken": "<c"} if body is DRAWN else None
    assert read(word(body, parts)).text == text


def test_headers_and_footers_are_read_once_and_page_numbers_are_not() -> None:
    import docx

    document = docx.Document()
    document.add_paragraph("The text.")
    document.sections[0].header.paragraphs[0].text = "Varn Harbour Office"
    document.sections[0].footer.paragraphs[0].text = "Confidential"
    for header in ("Varn Harbour Office", "2"):
        section = document.add_section()
        section.header.is_linked_to_previous = False
        section.header.paragraphs[0].text = header
    assert read(made.saved(document)).text == "Varn Harbour Office\n\nThe text.\n\nConfidential"


def test_characters_of_symbol_fonts_become_signs_or_are_told() -> None:
    fonts = "<w:rPr><w:rFonts w:ascii='{}' w:hAnsi='{}'/></w:rPr>"
    body = (
        "<w:p><w:r><w:sym w:font='Wingdings' w:char='F0FC'/><w:t> done, </w:t></w:r>"
        f"<w:r>{fonts.replace('{}', 'Symbol')}<w:t>\uf061\uf020\uf0ae</w:t></w:r></w:p>"
    )
    found = read(word(body))
    assert found.text == "✓ done, α →" and not found.about.warnings
    other = f"<w:p><w:r>{fonts.replace('{}', 'Webdings')}<w:t>\uf061\uf062 \uf0ae</w:t></w:r></w:p>"
    found = read(word(words("text") + other))
    warning = "characters of symbol fonts whose meaning is not known: 3"
    assert found.about.warnings == (warning,)
    assert as_signs("\uf044", "Symbol") == "Δ" and as_signs("plain", "Symbol") == "plain"


def test_word_files_with_macros_and_templates_are_read() -> None:
    kind = "application/vnd.ms-word.document.macroEnabled.main+xml"
    assert read(word(words("text"), kind=kind)).text == "text"


def loaded(path: Path, name: str, data: bytes) -> Document:
    (path / name).write_bytes(data)
    return load([str(path / name)]).documents[0]


def test_slides_word_for_word_with_their_notes() -> None:
    document = read(made.pptx())
    assert document.text == (
        "The lighthouse\n\nIts lamp is red.\nIt turns.\n\nLamp | Price\nRed | 12\n\n"
        "Notes: Say it slowly.\n\nThe end."
    )
    named = [(s.start, s.heading) for s in document.about.sections]
    assert named == [(0, "slide 1: The lighthouse"), (document.text.index("The end"), "slide 3")]
    assert document.about.warnings == ("hidden slides left out: 1",)
    assert document.about.format == "pptx"


def test_footers_of_slides_are_read_once_and_their_numbers_are_not() -> None:
    import pptx
    from pptx.oxml import parse_xml

    deck = pptx.Presentation()
    shape = (
        '<p:sp xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
        f"{NAMES}><p:nvSpPr><p:nvPr>{{}}</p:nvPr></p:nvSpPr><p:txBody><a:p><a:r>"
        "<a:t>{}</a:t></a:r></a:p></p:txBody></p:sp>"
    )
    for number in ("1", "2"):
        tree = deck.slides.add_slide(deck.slide_layouts[6]).shapes._spTree
        tree.append(parse_xml(shape.format("<p:ph type='ftr'/>", "Varn Ferries")))
        tree.append(parse_xml(shape.format("<p:ph type='sldNum'/>", number)))
        tree.append(parse_xml(shape.format("", f"Text {number}")))
    assert read(made.saved(deck)).text == "Varn Ferries\n\nText 1\n\nText 2"


def test_charts_groups_and_breaks_of_slides_are_read() -> None:
    import pptx
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE

    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[6])
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "in a\vgroup"
    data = CategoryChartData()
    data.categories = ["May", "June"]
    data.add_series("Boats", (4.4, 7))
    slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, 0, 0, 9, 9, data)
    assert read(made.saved(deck)).text == "in a\ngroup\n\n | Boats\nMay | 4.4\nJune | 7"


def test_sheets_word_for_word() -> None:
    document = read(made.xlsx())
    table = "Lamp | Price | From\nRed | 12.5 | 2024-05-01\n | 0.3 | TRUE"
    assert document.text == f"Prices\n\n{table}"
    assert [s.heading for s in document.about.sections] == ["Prices"]
    assert document.about.warnings == ("hidden sheets left out: 1",)


def with_sheet(old: bytes, new: bytes) -> bytes:
    """A workbook with something else in the XML of its first sheet."""
    with zipfile.ZipFile(BytesIO(made.xlsx())) as book:
        members = {name: book.read(name) for name in book.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    assert old in members[sheet]
    return made.zipped({**members, sheet: members[sheet].replace(old, new)})


def test_a_sheet_that_tells_a_wrong_size_is_read_whole() -> None:
    wrong = with_sheet(b'<dimension ref="A1:C4"', b'<dimension ref="A1:A1"')
    assert read(wrong).text.endswith("2024-05-01\n | 0.3 | TRUE")


def test_more_text_than_may_be_read_of_a_workbook_is_refused() -> None:
    wide = b"<row><c r='XFD1'><v>1</v></c></row>" * 100  # 16384 columns
    data = with_sheet(b"</sheetData>", wide + b"</sheetData>")
    with pytest.raises(Unreadable, match="too much text"):
        read(data, most=1_000_000)
    assert len(read(data).text) > 1_000_000


def test_rtf_word_for_word(tmp_path: Path) -> None:
    document = loaded(tmp_path, "greeting.rtf", made.RTF)
    assert document.text == "Grüße from Varn\n\nAda 😀\n\na | b"
    assert document.about.warnings == ("not read: footnotes",)
    assert loaded(tmp_path, "letter.txt", made.RTF).about.format == "rtf"


SHEET = (
    "<table:table table:name='Prices'><table:table-row><table:table-cell><text:p>Ferry</text:p>"
    "</table:table-cell><table:table-cell table:number-columns-repeated='2'/><table:table-cell>"
    "<text:p>Price</text:p></table:table-cell><table:table-cell "
    "table:number-columns-repeated='16000'/></table:table-row><table:table-row "
    "table:number-rows-repeated='1048000'><table:table-cell/></table:table-row></table:table>"
)
HIDDEN = (
    "<office:automatic-styles><style:style style:name='h'><style:table-properties "
    "table:display='false'/></style:style></office:automatic-styles>"
)


def open_document(kind: str, body: str, styles: str = "", chart: str = "") -> bytes:
    """An OpenDocument file with this body; `chart` is the body of a chart in it."""
    return made.zipped(
        {
            "META-INF/manifest.xml": "<manifest/>",
            "content.xml": made.odt_content(kind, body, styles),
            "Object 1/content.xml": made.odt_content("chart", chart),
        }
    )


def frame(inside: str) -> str:
    return f"<draw:frame>{inside}</draw:frame>"


PAGE = (
    "<draw:page><draw:frame presentation:class='title'><draw:text-box><text:p>{}</text:p>"
    "</draw:text-box></draw:frame><presentation:notes><draw:frame><draw:text-box><text:p>"
    "Say it.</text:p></draw:text-box></draw:frame></presentation:notes></draw:page>"
)
OBJECT = frame("<draw:object xlink:href='./Object 1'/>")
BOX = frame("<draw:text-box><text:p>In a box</text:p></draw:text-box>")
START = "<table:table table:name='Prices'>"
CELL_OF_OBJECT = f"<table:table-row><table:table-cell>{OBJECT}</table:table-cell></table:table-row>"
ROW = "Ferry |  |  | Price"


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("spreadsheet", SHEET + SHEET.replace(START, f"{START[:-1]} table:style-name='h'>"),
         f"Prices\n\n{ROW}"),
        ("presentation", PAGE.format("One") + PAGE.format("Two"),
         "One\n\nSay it.\n\nTwo\n\nSay it."),
        ("text", f"<text:p>See{OBJECT}</text:p>", f"See\n\n{ROW}".replace("Ferry", "Boats")),
        ("text", OBJECT.replace("/>", f">{OBJECT}</draw:object>"), ROW.replace("Ferry", "Boats")),
        ("spreadsheet", SHEET.replace(START, f"{START}<table:shapes>{OBJECT}{BOX}</table:shapes>"),
         f"Prices\n\n{ROW}\n\nBoats |  |  | Price\n\nIn a box"),
        ("spreadsheet", f"{SHEET}<table:table table:name='Chart'>{CELL_OF_OBJECT}</table:table>"
         "<table:table table:name='No'/>",
         f"Prices\n\n{ROW}\n\nChart\n\nBoats |  |  | Price"),
    ],
    ids=["sheets", "slides", "chart in a text", "chart in a chart", "drawn on a sheet",
         "chart alone on a sheet"],
)  # fmt: skip
def test_what_stands_in_opendocument_files_is_read(kind: str, body: str, text: str) -> None:
    chart = SHEET.replace("Ferry", "Boats")
    found = read(open_document(kind, body, HIDDEN, chart))
    assert found.text == text
    left = "hidden sheets or slides left out: 1"
    assert found.about.warnings == (left,) * ("style-name='h'" in body)
    if kind == "presentation":
        assert [s.heading for s in found.about.sections] == ["slide 1: One", "slide 2: Two"]


def test_a_chart_that_stands_in_itself_is_read_a_number_of_times() -> None:
    inside = SHEET + OBJECT
    found = read(open_document("text", f"<text:p>See{OBJECT}</text:p>", "", inside))
    assert found.text.startswith(f"See\n\n{ROW}\n\n{ROW}")


def ole(*streams: str) -> bytes:
    """An OLE file as far as its names go."""
    return (
        b"\xd0\xcf\x11\xe0" + bytes(60) + b"".join(s.encode("utf-16-le") + b"\0\0" for s in streams)
    )


@pytest.mark.parametrize(
    ("name", "stream", "reason", "hint"),
    [
        ("a.doc", "WordDocument", "an old Word document (.doc), which is not read", "to docx FILE"),
        ("a.xls", "Workbook", "an old Excel workbook (.xls), which is not read", "to xlsx FILE"),
        ("a.ppt", "PowerPoint Document", "an old PowerPoint file (.ppt)", "to pptx FILE"),
        ("a.docx", "WordDocument", "an old Word document (.doc)", "to docx FILE"),
        ("a.docx", "EncryptedPackage", "an encrypted office document", "without a password"),
        ("a.pptx", "EncryptedPackage", "an encrypted office document", "without a password"),
        ("a.xlsx", "EncryptedPackage", "an encrypted office document", "without a password"),
        ("a.msg", "__properties", "an old office document", "Save it as text"),
    ],
)
def test_old_and_encrypted_office_files_say_what_to_do(
    tmp_path: Path, name: str, stream: str, reason: str, hint: str
) -> None:
    with pytest.raises(InputError, match=name) as caught:
        loaded(tmp_path, name, ole("Root Entry", stream))
    assert reason in str(caught.value) and hint in caught.value.hint


def test_old_office_files_in_a_folder_are_counted_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ngtcli.cli.notes import Notes
    from ngtcli.cli.reading import tell_skipped

    (tmp_path / "a.doc").write_bytes(ole("WordDocument"))
    with pytest.raises(InputError, match="only .doc 1") as caught:
        load([str(tmp_path)])
    assert "soffice --headless --convert-to docx FILE" in caught.value.hint
    (tmp_path / "b.txt").write_text("fine")
    tell_skipped(load([str(tmp_path)]).skipped, Notes())
    told = capsys.readouterr().err
    assert "left out 1 file of other kinds: .doc 1" in told
    assert "soffice --headless --convert-to docx FILE" in told
    tell_skipped([Skipped("a.jpg", "", ".jpg")], Notes())
    assert "soffice" not in capsys.readouterr().err


def test_dates_times_and_numbers_of_sheets_are_short() -> None:
    from ngtcli.documents.formats.xlsx import _shown

    values = (datetime.datetime(2024, 5, 1, 9, 30), datetime.time(9), 1e21, 12345678, -0.5, "a\nb")
    assert [_shown(v) for v in values] == [
        "2024-05-01 09:30:00",
        "09:00:00",
        "1e+21",
        "12345678",
        "-0.5",
        "a b",
    ]
