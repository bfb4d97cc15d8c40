"""Tables and columns of PDFs: with lines, without, drawn in any order, beside other text."""

import io
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import which

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Paragraph, SimpleDocTemplate, Table, TableStyle

from ngtcli.documents.content import Extracted, ParserInput
from ngtcli.documents.formats.pdf_page import Gap, Line, Rule
from ngtcli.documents.formats.pdf_tables import Table as ParsedTable
from ngtcli.documents.formats.pdf_tables import with_tables
from ngtcli.documents.worker import parse

Style = Sequence[tuple[object, ...]]
ROWS = [
    ["Ship", "May", "June", "July"],
    ["Gale", "40", "", "12"],
    ["Tern", "", "7", "9"],
    ["Plover", "3", "5", ""],
]
BEFORE = "These ships came."
AFTER = "No other ship came."
TABLE_TEXT = "\n".join(" | ".join(row) for row in ROWS).rstrip()


def read(data: bytes) -> Extracted:
    return parse("pdf", ParserInput(data=data, suffix=".pdf", max_bytes=10_000_000))


def parse_drawing(draw: Callable[[Canvas], None]) -> str:
    """Parse the page that a function draws."""
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=A4, invariant=1)
    canvas.setFont("Helvetica", 10)
    draw(canvas)
    canvas.save()
    return read(out.getvalue()).text


def parse_table(style: Style, rows: Sequence[Sequence[object]] = ROWS) -> str:
    """Parse a page with a table between two paragraphs."""
    out = io.BytesIO()
    normal = getSampleStyleSheet()["Normal"]
    document = SimpleDocTemplate(out, pagesize=A4, invariant=1)
    table = Table(rows, colWidths=[100] * len(rows[0]), style=TableStyle(style))
    document.build([Paragraph(BEFORE, normal), table, Paragraph(AFTER, normal)])
    return read(out.getvalue()).text


ALL_CELLS = ((0, 0), (-1, -1))
STYLES: dict[str, Style] = {
    "grid": [("GRID", *ALL_CELLS, 0.5, colors.black)],
    "lines below": [("LINEBELOW", *ALL_CELLS, 0.5, colors.black)],
    "lines above and below": [
        ("LINEABOVE", (0, 0), (-1, 0), 1, colors.black),
        ("LINEBELOW", (0, 0), (-1, 0), 0.5, colors.black),
        ("LINEBELOW", (0, -1), (-1, -1), 1, colors.black),
    ],
    "no lines": [],
    "backgrounds": [
        ("BACKGROUND", (0, 0), (-1, 0), colors.lightgrey),
        ("BACKGROUND", (0, 2), (-1, 2), colors.whitesmoke),
    ],
    "box and lines down": [
        ("BOX", *ALL_CELLS, 0.5, colors.black),
        ("INNERGRID", *ALL_CELLS, 0.25, colors.grey),
    ],
    "right": [("ALIGN", (1, 0), (-1, -1), "RIGHT"), ("GRID", *ALL_CELLS, 0.5, colors.black)],
    "centred": [("ALIGN", *ALL_CELLS, "CENTER")],
}


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_rows_and_cells_of_a_table_are_kept(style: Style) -> None:
    assert parse_table(style) == f"{BEFORE}\n\n{TABLE_TEXT}\n\n{AFTER}"


def test_cells_of_several_lines_stay_together() -> None:
    normal = getSampleStyleSheet()["Normal"]
    long = Paragraph("a ship with a long description that needs several lines", normal)
    rows: list[list[object]] = [["Gale", long, "40"], ["Tern", "short", "12"]]
    table = "Gale | a ship with a long description that needs several lines | 40\nTern | short | 12"
    assert parse_table(STYLES["grid"], rows) == f"{BEFORE}\n\n{table}\n\n{AFTER}"


def test_a_row_with_a_single_filled_cell_is_a_row() -> None:
    rows: list[list[object]] = [
        ["Ship", "May", "June"],
        ["Gale", "40", "12"],
        ["Tern", "", ""],
        ["Plover", "3", "5"],
    ]
    table = "Ship | May | June\nGale | 40 | 12\nTern |  |\nPlover | 3 | 5"
    assert parse_table(STYLES["no lines"], rows) == f"{BEFORE}\n\n{table}\n\n{AFTER}"


def test_merged_cells_are_read_once() -> None:
    rows: list[list[object]] = [["Month", "Tons", ""], ["", "Gale", "Tern"], ["May", "40", "7"]]
    style = [*STYLES["grid"], ("SPAN", (1, 0), (2, 0)), ("SPAN", (0, 0), (0, 1))]
    table = "Month | Tons |\n | Gale | Tern\nMay | 40 | 7"
    assert parse_table(style, rows) == f"{BEFORE}\n\n{table}\n\n{AFTER}"


def test_a_grid_that_is_drawn_column_by_column_is_read_by_rows() -> None:
    def draw(canvas: Canvas) -> None:
        for column in range(4):
            for row, cells in enumerate(ROWS):
                canvas.rect(60 + 100 * column, 700 - 20 * row, 100, 20)
                canvas.drawString(64 + 100 * column, 705 - 20 * row, cells[column])

    assert parse_drawing(draw) == TABLE_TEXT


LEFT_COLUMN = [
    "The harbour was dug",
    "between the two wars",
    "by men from the north",
    "who came in spring.",
]
RIGHT_COLUMN = [
    "Later the railway came",
    "and the quays grew quiet.",
    "Today a museum stands",
    "where the cranes were.",
]


def draw_lines(canvas: Canvas, lines: Sequence[str], x: float = 60) -> None:
    for row, line in enumerate(lines):
        canvas.drawString(x, 700 - 13 * row, line)


def draw_by_column(canvas: Canvas) -> None:
    draw_lines(canvas, LEFT_COLUMN)
    draw_lines(canvas, RIGHT_COLUMN, x=240)


def draw_by_row(canvas: Canvas) -> None:
    for row, (left, right) in enumerate(zip(LEFT_COLUMN, RIGHT_COLUMN, strict=True)):
        canvas.drawString(60, 700 - 13 * row, left)
        canvas.drawString(240, 700 - 13 * row, right)


@pytest.mark.parametrize("draw", [draw_by_row, draw_by_column])
def test_columns_of_text_are_read_one_after_the_other(draw: Callable[[Canvas], None]) -> None:
    assert parse_drawing(draw) == f"{' '.join(LEFT_COLUMN)}\n\n{' '.join(RIGHT_COLUMN)}"


def test_text_beside_a_table_is_no_part_of_it() -> None:
    def draw(canvas: Canvas) -> None:
        draw_lines(canvas, LEFT_COLUMN)
        for row, cells in enumerate(ROWS):
            for column, cell in enumerate(cells):
                canvas.drawString(300 + 60 * column, 700 - 13 * row, cell)

    assert parse_drawing(draw) == f"{' '.join(LEFT_COLUMN)}\n\n{TABLE_TEXT}"


def test_a_numbered_list_is_no_table() -> None:
    def draw(canvas: Canvas) -> None:
        draw_lines(canvas, ["1.", "2.", "3."])
        draw_lines(canvas, ["first of them", "the second", "and a third"], x=90)

    assert " | " not in parse_drawing(draw)


def test_a_frame_around_text_is_no_table() -> None:
    def draw(canvas: Canvas) -> None:
        canvas.rect(50, 640, 200, 80)
        draw_lines(canvas, LEFT_COLUMN)

    assert " | " not in parse_drawing(draw)


def test_addresses_beside_one_another_are_columns_and_no_table() -> None:
    def draw(canvas: Canvas) -> None:
        draw_lines(canvas, ["Ada Berg", "Quay 1", "Varn"])
        draw_lines(canvas, ["Ben Holm", "Pier 2", "Ost"], x=260)

    text = parse_drawing(draw)
    assert " | " not in text
    assert text.index("Varn") < text.index("Ben Holm")


@pytest.mark.skipif(not which("chromium"), reason="Chromium is not installed")
@pytest.mark.parametrize("css", ["td,th{border:1px solid}", "td,th{padding:4px 20px}"])
def test_a_table_that_chromium_prints_is_kept(tmp_path: Path, css: str) -> None:
    table = "".join("<tr>" + "".join(f"<td>{cell}" for cell in row) for row in ROWS)
    html = tmp_path / "a.html"
    html.write_text(f"<style>{css}</style><p>{BEFORE}<table>{table}</table><p>{AFTER}")
    pdf = tmp_path / "a.pdf"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
    command = ["chromium", *flags, f"--print-to-pdf={pdf}", str(html)]
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    assert read(pdf.read_bytes()).text == f"{BEFORE}\n\n{TABLE_TEXT}\n\n{AFTER}"


WORDS = st.sampled_from(["7", "12", "words", "Ship", "and", "•"])


@st.composite
def text_lines(draw: st.DrawFn) -> Line:
    """A line of up to five words, with or without gaps between them, somewhere on a page."""
    left = 20.0 * draw(st.integers(0, 12))
    top = 6.0 * draw(st.integers(0, 12))
    words = draw(st.lists(WORDS, min_size=1, max_size=5))
    gaps = []
    x = left + 5.0 * len(words[0])
    for i, word in enumerate(words[1:], 1):
        width = draw(st.integers(0, 30))
        if width > 6:
            gaps.append(Gap(i, x, x + width))
        x += width + 5.0 * len(word)
    return Line(" ".join(words), left, top, x, top + 10, gaps=tuple(gaps))


positions = st.integers(0, 12).map(lambda position: 20.0 * position)
horizontal_rules = st.builds(
    lambda y, x, width: Rule(x, y / 3, x + width, y / 3), positions, positions, positions
)
vertical_rules = st.builds(
    lambda x, y, height: Rule(x, y / 3, x, (y + height) / 3), positions, positions, positions
)


def join_with_space(before: str, after: str) -> str:
    return f"{before} {after}"


@given(
    st.lists(text_lines(), max_size=14),
    st.lists(horizontal_rules | vertical_rules, max_size=14),
)
def test_no_word_is_lost_or_read_twice(lines: list[Line], rules: list[Rule]) -> None:
    texts: list[str] = []
    for item in with_tables(lines, rules, join_with_space):
        if isinstance(item, ParsedTable):
            texts += [cell for row in item.rows for cell in row]
        else:
            texts.append(item.text)

    words = " ".join(texts).split()
    assert sorted(words) == sorted(" ".join(line.text for line in lines).split())


cell_texts = st.integers(1, 4).flatmap(
    lambda columns: st.lists(
        st.lists(
            st.sampled_from(["7", "12", "words", "more words", ""]),
            min_size=columns,
            max_size=columns,
        ),
        min_size=2,
        max_size=5,
    )
)


@given(cell_texts)
def test_each_cell_of_a_grid_is_kept_and_empty_rows_and_columns_are_not(
    rows: list[list[str]],
) -> None:
    column_count = len(rows[0])
    width = 100.0 * column_count
    height = 20.0 * len(rows)
    horizontal = [Rule(0, 20.0 * i, width, 20.0 * i) for i in range(len(rows) + 1)]
    vertical = [Rule(100.0 * i, 0, 100.0 * i, height) for i in range(column_count + 1)]
    lines = []
    for i, row in enumerate(rows):
        for j, text in enumerate(row):
            if text:
                left = 100 * j + 5
                lines.append(Line(text, left, 20 * i + 4, left + 5 * len(text), 20 * i + 14))

    items = with_tables(lines, horizontal + vertical, join_with_space)

    tables = [item for item in items if isinstance(item, ParsedTable)]
    filled_rows = [row for row in rows if any(row)]
    filled_columns = [j for j in range(column_count) if any(row[j] for row in rows)]
    if len(filled_rows) > 1 and len(filled_columns) > 1:
        expected = [[row[j] for j in filled_columns] for row in filled_rows]
        assert [list(row) for row in tables[0].rows] == expected
    else:
        assert not tables
