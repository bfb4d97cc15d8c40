"""What Excel shows of workbooks is read, and nothing that it hides."""
# ruff: noqa: E501 - a part of a file reads best in a line

import io
from typing import Any

import pytest

pytest.importorskip("openpyxl")
pytest.importorskip("lxml")

import openpyxl
from openpyxl.chart import BarChart
from openpyxl.comments import Comment
from openpyxl.utils.datetime import CALENDAR_MAC_1904

from ngtcli.documents.content import Extracted, ParserInput
from ngtcli.documents.formats.xlsx import parse
from tests.document_files import unzipped, zipped
from tests.office_files import relations, xml

MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'


def read(data: bytes) -> Extracted:
    return parse(ParserInput(data=data, suffix=".xlsx", max_bytes=10_000_000))


def saved(book: Any) -> bytes:
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def book_of(*rows: list[Any], title: str = "S") -> Any:
    book = openpyxl.Workbook()
    book.active.title = title
    for row in rows:
        book.active.append(row)
    return book


def sheet_xml(
    inside: str, parts: dict[str, str | bytes] | None = None, targets: Any = None
) -> bytes:
    """A workbook whose only sheet has this inside."""
    members = unzipped(saved(book_of([1])))
    members["xl/worksheets/sheet1.xml"] = f"<worksheet {MAIN}>{inside}</worksheet>".encode()
    if targets:
        members["xl/worksheets/_rels/sheet1.xml.rels"] = relations(targets).encode()
    return zipped({**members, **{f"xl/{name}": part for name, part in (parts or {}).items()}})


ROWS = ["Item", "Cost", "Sold"], ["Rope", 3, 4], ["Tar", 8, 2]


def test_hidden_rows_and_columns_are_left_out_and_counted() -> None:
    book = book_of(*ROWS)
    book.active.column_dimensions["B"].hidden = True
    book.active.row_dimensions[2].hidden = True
    extracted = read(saved(book))
    assert extracted.text == "S\n\nItem | Sold\nTar | 2"
    assert extracted.about.warnings == ("hidden rows and columns left out: 1 row, 1 column",)


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        ('<cols><col min="2" max="3" hidden="1"/></cols>', "S\n\na | d"),
        ('<cols><col min="1" max="1" hidden="true"/></cols>', "S\n\nb | c | d"),
        ('<cols><col min="2" max="2" width="0" customWidth="1"/></cols>', "S\n\na | c | d"),
        ('<cols><col min="3" max="16384" hidden="1"/></cols>', "S\n\na | b"),
        ('<cols><col min="2" max="2" hidden="0"/></cols>', "S\n\na | b | c | d"),
        ('<sheetFormatPr zeroHeight="1"/>', ""),
    ],
)
def test_columns_without_width_are_hidden(inside: str, text: str) -> None:
    cells = "".join(f'<c r="{c.upper()}1" t="inlineStr"><is><t>{c}</t></is></c>' for c in "abcd")
    data = sheet_xml(f'{inside}<sheetData><row r="1">{cells}</row></sheetData>').replace(
        b"Sheet", b"S"
    )
    shown = read(data).text
    assert shown == text.replace("S\n", "S\n", 1)


@pytest.mark.parametrize(
    "row", ['hidden="1"', 'ht="0" customHeight="1"', 'hidden="true" outlineLevel="1"']
)
def test_rows_without_height_are_hidden(row: str) -> None:
    data = sheet_xml(
        f"<sheetData><row {row}><c><v>1</v></c></row><row><c><v>2</v></c></row></sheetData>"
    )
    assert read(data).text == "S\n\n2"


def test_hidden_sheets_are_left_out_and_counted() -> None:
    book = book_of(["a"])
    book.create_sheet("Hidden").append(["gone"])
    book["Hidden"].sheet_state = "veryHidden"
    extracted = read(saved(book))
    assert extracted.text == "S\n\na"
    assert extracted.about.warnings == ("hidden sheets left out: 1",)


@pytest.mark.parametrize(
    ("value", "code", "text"),
    [
        (0.075, "0.0%", "7.5%"),
        (1067, "00000", "01067"),
        (1.2604166667, "[h]:mm", "30:15"),
        (1250, '#,##0 "EUR"', "1,250 EUR"),
        (True, "General", "TRUE"),
        ("x", '"is "@', "is x"),
        (12, ";;;", ""),
        (0.5, "# ?/?", "1/2"),
        (1e21, "General", "1E+21"),
        (-0.0, "General", "0"),
        (46096, "mmm yyyy", "Mar 2026"),
        ("#N/A", "General", "#N/A"),
        ("a\nb  c", "General", "a b c"),
    ],
)
def test_values_are_read_as_excel_shows_them(value: Any, code: str, text: str) -> None:
    book = book_of(["value", value, "end"])
    book.active["B1"].number_format = code
    assert read(saved(book)).text == f"S\n\nvalue | {text} | end"


def test_formulas_without_a_value_are_shown_and_counted() -> None:
    extracted = read(saved(book_of(["a", 1], ["total", "=SUM(B1:B1)"])))
    assert extracted.text == "S\n\na | 1\ntotal | =SUM(B1:B1)"
    assert extracted.about.warnings == ("formulas without a value: 1",)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("<f>1+1</f><v>2</v>", "2"),
        ("<f>1+1</f><v/>", "=1+1"),
        ("<f>1+1</f>", "=1+1"),
        ('<f t="shared" si="0"/>', ""),
    ],
)
def test_a_formula_is_read_as_its_value(cell: str, text: str) -> None:
    data = sheet_xml(
        f"<sheetData><row><c><v>1</v></c><c>{cell}</c><c><v>3</v></c></row></sheetData>"
    )
    assert read(data).text == f"S\n\n1 | {text} | 3"


def test_formulas_that_result_in_empty_text_are_empty() -> None:
    data = sheet_xml(
        '<sheetData><row><c><v>1</v></c><c t="str"><f>""</f><v></v></c></row></sheetData>'
    )
    assert read(data).text == "S\n\n1"
    assert read(data).about.warnings == ()


def test_comments_are_read_with_their_cells() -> None:
    book = book_of(*ROWS)
    book.active["C2"].comment = Comment("Ines:\nOnly the\nblue rope.", "Ines")
    book.active["A2"].comment = Comment("New.", "")
    book.active["B3"].comment = Comment("gone", "Ines")
    book.active.column_dimensions["B"].hidden = True
    assert read(saved(book)).text == (
        "S\n\nItem | Sold\nRope | 4\nTar | 2\n\n[comment A2: New.]\n\n[comment C2, Ines: Only the blue rope.]"
    )


def test_threaded_comments_replace_their_notes() -> None:
    space = "http://schemas.microsoft.com/office/spreadsheetml/2018/threadedcomments"
    old = f'<comments {MAIN}><authors><author>tc={{1}}</author></authors><commentList><comment ref="A1" authorId="0"><text><t>[Threaded comment] Which year?</t></text></comment></commentList></comments>'
    threads = f'<ThreadedComments xmlns="{space}"><threadedComment ref="A1" personId="p"><text>Which year?</text></threadedComment><threadedComment ref="A1" personId="q"><text>2024</text></threadedComment></ThreadedComments>'
    data = sheet_xml(
        "<sheetData><row><c><v>1</v></c></row></sheetData>",
        {"comments1.xml": old, "threadedComments/t1.xml": threads},
        {
            "c": ("comments", "../comments1.xml"),
            "t": ("threadedComment", "../threadedComments/t1.xml"),
        },
    )
    assert read(data).text == "S\n\n1\n\n[comment A1: Which year?]\n\n[comment A1: 2024]"


def anchored(row: int, inside: str) -> str:
    return f"<xdr:twoCellAnchor><xdr:from><xdr:col>1</xdr:col><xdr:row>{row}</xdr:row></xdr:from>{inside}</xdr:twoCellAnchor>"


def box(text: str, more: str = "") -> str:
    paragraphs = "".join(f"<a:p><a:r><a:t>{line}</a:t></a:r></a:p>" for line in text.split("\n"))
    return f'<xdr:sp><xdr:nvSpPr><xdr:cNvPr id="1" {more}/></xdr:nvSpPr><xdr:txBody>{paragraphs}</xdr:txBody></xdr:sp>'


@pytest.mark.parametrize(
    ("anchors", "text"),
    [
        (
            anchored(9, box("below")) + anchored(2, box("above\nin two lines")),
            "above\nin two lines\n\nbelow",
        ),
        (anchored(1, f"<xdr:grpSp>{box('one')}{box('two')}</xdr:grpSp>"), "one\n\ntwo"),
        (anchored(1, box("gone", 'hidden="1"')) + anchored(2, box("seen")), "seen"),
        (
            anchored(
                1,
                '<mc:AlternateContent><mc:Choice Requires="a14">'
                + box("seen")
                + "</mc:Choice><mc:Fallback>"
                + box("seen")
                + "</mc:Fallback></mc:AlternateContent>",
            ),
            "seen",
        ),
        (
            anchored(1, '<xdr:graphicFrame><c:chart r:id="k1"/></xdr:graphicFrame>'),
            "Ferries\n | Boats\nMay | 4",
        ),
        (
            anchored(1, '<xdr:graphicFrame><dgm:relIds r:dm="d1"/></xdr:graphicFrame>'),
            "Sow\nin spring\nReap",
        ),
        (
            anchored(1, '<xdr:graphicFrame><cx:chart r:id="e1"/></xdr:graphicFrame>'),
            "Steps\nMay | 4\nJune | 7",
        ),
    ],
)
@pytest.mark.parametrize("cells", ["<row><c><v>1</v></c></row>", ""])
def test_drawings_on_a_sheet_are_read(anchors: str, text: str, cells: str) -> None:
    from tests.documents.test_docx import SMART_ART

    chart = xml(
        "c:chartSpace",
        "<c:chart><c:title><c:tx><c:rich><a:p><a:r><a:t>Ferries</a:t></a:r></a:p></c:rich></c:tx></c:title><c:ser>"
        "<c:tx><c:v>Boats</c:v></c:tx><c:cat><c:strCache><c:pt idx='0'><c:v>May</c:v></c:pt></c:strCache></c:cat>"
        "<c:val><c:numCache><c:pt idx='0'><c:v>4</c:v></c:pt></c:numCache></c:val></c:ser></c:chart>",
    )
    later = xml(
        "cx:chartSpace",
        "<cx:chartData><cx:data id='0'><cx:strDim><cx:lvl><cx:pt idx='0'>May</cx:pt><cx:pt idx='1'>June</cx:pt>"
        "</cx:lvl></cx:strDim><cx:numDim><cx:lvl><cx:pt idx='0'>4</cx:pt><cx:pt idx='1'>7</cx:pt></cx:lvl></cx:numDim>"
        "</cx:data></cx:chartData><cx:chart><cx:title><cx:tx><cx:txData><cx:v>Steps</cx:v></cx:txData></cx:tx></cx:title></cx:chart>",
    )
    data = sheet_xml(
        f"<sheetData>{cells}</sheetData>",
        {
            "drawings/drawing1.xml": xml("xdr:wsDr", anchors),
            "drawings/_rels/drawing1.xml.rels": relations(
                {
                    "k1": ("chart", "../charts/c.xml"),
                    "d1": ("diagramData", "../diagrams/d.xml"),
                    "e1": ("chartEx", "../charts/e.xml"),
                }
            ),
            "charts/c.xml": chart,
            "charts/e.xml": later,
            "diagrams/d.xml": SMART_ART,
        },
        {"w1": ("drawing", "../drawings/drawing1.xml")},
    )
    assert read(data).text == "S\n\n" + ("1\n\n" if cells else "") + text


def test_chart_sheets_are_read() -> None:
    book = book_of(["Month", "Boats"], ["May", 4], ["June", 7])
    chart = BarChart()
    chart.title = "Ferries"
    book.create_chartsheet("Chart").add_chart(chart)
    extracted = read(saved(book))
    assert extracted.text.startswith("S\n\nMonth | Boats\nMay | 4\nJune | 7\n\nChart\n\nFerries")


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ('<c r="C1"><v>3</v></c><c><v>4</v></c>', " |  | 3 | 4"),
        ("<c><v>1</v></c><c><v>2</v></c>", "1 | 2"),
        ('<c r="B1"><v>2</v></c><c r="A1"><v>1</v></c>', "1 | 2"),
        ('<c r="ZZZZ1"><v>1</v></c>', "1"),
        ('<c t="b"><v>0</v></c><c t="e"><v>#DIV/0!</v></c>', "FALSE | #DIV/0!"),
        (
            '<c t="d"><v>2024-05-01T00:00:00</v></c><c t="d"><v>2024-05-01T09:30:00</v></c>',
            "2024-05-01 | 2024-05-01 09:30:00",
        ),
        ('<c t="s"><v>99</v></c><c><v>x</v></c>', " | x"),
        (
            '<c t="inlineStr"><is><r><t>10</t></r><r><rPr><vertAlign val="superscript"/></rPr><t>6</t></r><r><t> kn</t></r></is></c>',
            "10^6 kn",
        ),
        (
            '<c t="inlineStr"><is><r><t>東</t></r><rPh sb="0" eb="1"><t>ヒガシ</t></rPh></is></c>',
            "東",
        ),
    ],
)
def test_cells_are_in_their_columns(cells: str, text: str) -> None:
    data = sheet_xml(f"<sheetData><row>{cells}</row></sheetData>")
    assert read(data).text == f"S\n\n{text}"


def test_dates_count_from_1904_if_the_workbook_says_so() -> None:
    book = book_of([0])
    book.epoch = CALENDAR_MAC_1904
    book.active["A1"].number_format = "d mmm yyyy"
    assert read(saved(book)).text == "S\n\n1 Jan 1904"


def test_values_are_those_that_openpyxl_reads() -> None:
    rows = [[f"name {i}", i, i / 8, None, i % 2 == 0, f"a & <b> {i}"] for i in range(300)]
    data = saved(book_of(*rows))
    lines = read(data).text.split("\n")[2:]
    sheet = openpyxl.load_workbook(io.BytesIO(data), read_only=True).active
    wanted = []
    for row in sheet.iter_rows(values_only=True):
        cells = [{True: "TRUE", False: "FALSE"}.get(v) if isinstance(v, bool) else v for v in row]
        wanted.append(
            " | ".join(
                "" if v is None else f"{v:.15g}" if isinstance(v, float) else str(v) for v in cells
            )
        )
    assert lines == wanted


def test_entities_of_a_sheet_are_bounded() -> None:
    bombs = "".join(f"<!ENTITY x{i} '{f'&x{i - 1};' * 10}'>" for i in range(1, 12))
    data = sheet_xml(
        "<sheetData><row><c t='inlineStr'><is><t>a&x11;</t></is></c></row></sheetData>"
    )
    members = unzipped(data)
    name = "xl/worksheets/sheet1.xml"
    members[name] = f"<!DOCTYPE w [<!ENTITY x0 'tide'>{bombs}]>".encode() + members[name]
    with pytest.raises(SyntaxError, match="amplification"):
        read(zipped(members))


@pytest.mark.parametrize("target", ["#Sheet1!A1", "NULL", "../drawings/none.xml"])
def test_dangling_relations_are_ignored(target: str) -> None:
    data = sheet_xml(
        "<sheetData><row><c><v>1</v></c></row></sheetData>", targets={"d": ("drawing", target)}
    )
    assert read(data).text == "S\n\n1"


@pytest.mark.parametrize("number", ["99999999999", "9" * 5000])
def test_absurd_numbers_affect_only_what_they_count(number: str) -> None:
    """Python converts no text of more than 4,300 digits to an integer."""
    cells = f'<c r="A1" s="{number}"><v>7</v></c><c r="B1" t="s"><v>{number}</v></c>'
    row = f'<sheetData><row r="{number}">{cells}<c r="C1"><v>8</v></c></row></sheetData>'
    comment = f'<comment ref="A1" authorId="{number}"><text><t>Seven</t></text></comment>'
    comments = f"<comments {MAIN}><authors/><commentList>{comment}</commentList></comments>"
    targets = {"c": ("comments", "../comments1.xml")}
    data = sheet_xml(row, {"comments1.xml": comments}, targets)
    shown = read(data).text
    assert "7 |  | 8" in shown
    assert "Seven" in shown
