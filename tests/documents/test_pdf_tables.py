"""Tables and columns of PDFs: with rules, without, drawn in any order, beside other text."""

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

from ngtcli.documents.content import Extracted, Source
from ngtcli.documents.formats.pdf_page import Gap, Line, Rule
from ngtcli.documents.formats.pdf_tables import Table as Found
from ngtcli.documents.formats.pdf_tables import with_tables
from ngtcli.documents.worker import parse

Style = Sequence[tuple[object, ...]]
ROWS = [
    ["Ship", "May", "June", "July"],
    ["Gale", "40", "", "12"],
    ["Tern", "", "7", "9"],
    ["Plover", "3", "5", ""],
]
BEFORE, AFTER = "These ships came.", "No other ship came."
SEEN = "\n".join(" | ".join(row) for row in ROWS).rstrip()


def read(data: bytes) -> Extracted:
    return parse("pdf", Source(data=data, suffix=".pdf", max_bytes=10_000_000))


def drawn(draw: Callable[[Canvas], None]) -> str:
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=A4, invariant=1)
    canvas.setFont("Helvetica", 10)
    draw(canvas)
    canvas.save()
    return read(out.getvalue()).text


def laid_out(style: Style, rows: Sequence[Sequence[object]] = ROWS) -> str:
    """Parse a page with a table between two paragraphs."""
    out = io.BytesIO()
    normal = getSampleStyleSheet()["Normal"]
    document = SimpleDocTemplate(out, pagesize=A4, invariant=1)
    table = Table(rows, colWidths=[100] * len(rows[0]), style=TableStyle(style))
    document.build([Paragraph(BEFORE, normal), table, Paragraph(AFTER, normal)])
    return read(out.getvalue()).text


WHOLE = (0, 0), (-1, -1)
STYLES: dict[str, Style] = {
    "grid": [("GRID", *WHOLE, 0.5, colors.black)],
    "lines below": [("LINEBELOW", *WHOLE, 0.5, colors.black)],
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
        ("BOX", *WHOLE, 0.5, colors.black),
        ("INNERGRID", *WHOLE, 0.25, colors.grey),
    ],
    "right": [("ALIGN", (1, 0), (-1, -1), "RIGHT"), ("GRID", *WHOLE, 0.5, colors.black)],
    "centred": [("ALIGN", *WHOLE, "CENTER")],
}


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_rows_and_cells_of_a_table_are_kept(style: Style) -> None:
    assert laid_out(style) == f"{BEFORE}\n\n{SEEN}\n\n{AFTER}"


def test_cells_of_several_lines_stay_together() -> None:
    normal = getSampleStyleSheet()["Normal"]
    long = Paragraph("a ship with a long description that needs several lines", normal)
    rows: list[list[object]] = [["Gale", long, "40"], ["Tern", "short", "12"]]
    seen = "Gale | a ship with a long description that needs several lines | 40\nTern | short | 12"
    assert laid_out(STYLES["grid"], rows) == f"{BEFORE}\n\n{seen}\n\n{AFTER}"


def test_a_row_with_one_cell_is_a_row_where_others_follow() -> None:
    rows: list[list[object]] = [
        ["Ship", "May", "June"],
        ["Gale", "40", "12"],
        ["Tern", "", ""],
        ["Plover", "3", "5"],
    ]
    seen = "Ship | May | June\nGale | 40 | 12\nTern |  |\nPlover | 3 | 5"
    assert laid_out(STYLES["no lines"], rows) == f"{BEFORE}\n\n{seen}\n\n{AFTER}"


def test_merged_cells_are_read_once() -> None:
    rows: list[list[object]] = [["Month", "Tons", ""], ["", "Gale", "Tern"], ["May", "40", "7"]]
    style = [*STYLES["grid"], ("SPAN", (1, 0), (2, 0)), ("SPAN", (0, 0), (0, 1))]
    seen = "Month | Tons |\n | Gale | Tern\nMay | 40 | 7"
    assert laid_out(style, rows) == f"{BEFORE}\n\n{seen}\n\n{AFTER}"


def test_a_grid_that_is_drawn_column_by_column_is_read_by_rows() -> None:
    def draw(canvas: Canvas) -> None:
        for column in range(4):
            for row, cells in enumerate(ROWS):
                canvas.rect(60 + 100 * column, 700 - 20 * row, 100, 20)
                canvas.drawString(64 + 100 * column, 705 - 20 * row, cells[column])

    assert drawn(draw) == SEEN


LEFT = [
    "The harbour was dug",
    "between the two wars",
    "by men from the north",
    "who came in spring.",
]
RIGHT = [
    "Later the railway came",
    "and the quays grew quiet.",
    "Today a museum stands",
    "where the cranes were.",
]


def columns(canvas: Canvas, by_row: bool) -> None:
    order = [(r, c) for r in range(4) for c in range(2)] if by_row else None
    for row, column in order or [(r, c) for c in range(2) for r in range(4)]:
        canvas.drawString(60 + 180 * column, 700 - 13 * row, (LEFT, RIGHT)[column][row])


@pytest.mark.parametrize("by_row", [True, False])
def test_columns_of_text_are_read_one_after_the_other(by_row: bool) -> None:
    text = drawn(lambda canvas: columns(canvas, by_row))
    assert text == f"{' '.join(LEFT)}\n\n{' '.join(RIGHT)}"


def test_text_beside_a_table_is_no_part_of_it() -> None:
    def draw(canvas: Canvas) -> None:
        for row, line in enumerate(LEFT):
            canvas.drawString(60, 700 - 13 * row, line)
        for row, cells in enumerate(ROWS):
            for column, cell in enumerate(cells):
                canvas.drawString(300 + 60 * column, 700 - 13 * row, cell)

    assert drawn(draw) == f"{' '.join(LEFT)}\n\n{SEEN}"


def test_lists_frames_and_addresses_are_no_tables() -> None:
    def a_list(canvas: Canvas) -> None:
        for row, words in enumerate(("first of them", "the second", "and a third")):
            canvas.drawString(60, 700 - 13 * row, f"{row + 1}.")
            canvas.drawString(90, 700 - 13 * row, words)

    def frame(canvas: Canvas) -> None:
        canvas.rect(50, 640, 200, 80)
        for row, line in enumerate(LEFT):
            canvas.drawString(60, 700 - 13 * row, line)

    def addresses(canvas: Canvas) -> None:
        for column, lines in enumerate(
            (["Ada Berg", "Quay 1", "Varn"], ["Ben Holm", "Pier 2", "Ost"])
        ):
            for row, line in enumerate(lines):
                canvas.drawString(60 + 200 * column, 700 - 13 * row, line)

    assert " | " not in drawn(a_list) + drawn(frame) + drawn(addresses)
    assert drawn(addresses).index("Varn") < drawn(addresses).index("Ben Holm")


@pytest.mark.skipif(not which("chromium"), reason="Chromium is not installed")
@pytest.mark.parametrize("css", ["td,th{border:1px solid}", "td,th{padding:4px 20px}"])
def test_a_table_that_chromium_prints_is_kept(tmp_path: Path, css: str) -> None:
    rows = "".join("<tr>" + "".join(f"<td>{cell}" for cell in row) for row in ROWS)
    page = f"<style>{css}</style><p>{BEFORE}<table>{rows}</table><p>{AFTER}"
    (tmp_path / "a.html").write_text(page)
    where = f"--print-to-pdf={tmp_path / 'a.pdf'}"
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
    command = ["chromium", *quiet, where, str(tmp_path / "a.html")]
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    assert read((tmp_path / "a.pdf").read_bytes()).text == f"{BEFORE}\n\n{SEEN}\n\n{AFTER}"


@st.composite
def a_line(draw: st.DrawFn) -> Line:
    """A line of up to five words, with or without gaps between them, somewhere on a page."""
    left, top = 20.0 * draw(st.integers(0, 12)), 6.0 * draw(st.integers(0, 12))
    count = draw(st.integers(1, 5))
    words = [draw(st.sampled_from(["7", "12", "words", "Ship", "and", "•"])) for _ in range(count)]
    gaps = [draw(st.integers(0, 30)) for _ in words[1:]]
    found, at = [], left
    for i, gap in enumerate(gaps, 1):
        at += 5.0 * len(words[i - 1])
        if gap > 6:
            found.append(Gap(i, at, at + gap))
        at += gap
    right = at + 5.0 * len(words[-1])
    return Line(" ".join(words), left, top, right, top + 10, gaps=tuple(found))


places = st.integers(0, 12).map(lambda place: 20.0 * place)
across = st.builds(lambda y, x, width: Rule(x, y / 3, x + width, y / 3), places, places, places)
down = st.builds(lambda x, y, height: Rule(x, y / 3, x, (y + height) / 3), places, places, places)


@given(st.lists(a_line(), max_size=14), st.lists(across | down, max_size=14))
def test_no_word_is_lost_or_read_twice(lines: list[Line], rules: list[Rule]) -> None:
    items = with_tables(lines, rules, lambda before, after: f"{before} {after}")
    texts: list[str] = []
    for item in items:
        texts += (
            [cell for row in item.rows for cell in row] if isinstance(item, Found) else [item.text]
        )
    words = sorted(" ".join(texts).split())
    assert words == sorted(" ".join(line.text for line in lines).split())


grid = st.integers(1, 4).flatmap(
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


@given(grid)
def test_each_cell_of_a_whole_grid_is_its_own(rows: list[list[str]]) -> None:
    width, height = len(rows[0]), len(rows)
    xs, ys = [100.0 * i for i in range(width + 1)], [20.0 * i for i in range(height + 1)]
    rules = [Rule(0, y, xs[-1], y) for y in ys] + [Rule(x, 0, x, ys[-1]) for x in xs]
    lines = [
        Line(text, 100 * c + 5, 20 * r + 4, 100 * c + 5 + 5 * len(text), 20 * r + 14)
        for r, row in enumerate(rows)
        for c, text in enumerate(row)
        if text
    ]
    items = with_tables(lines, rules, lambda before, after: f"{before} {after}")
    tables = [item for item in items if isinstance(item, Found)]
    used = [c for c in range(width) if any(row[c] for row in rows)]
    filled = [row for row in rows if any(row)]
    if len(used) > 1 and len(filled) > 1:
        assert [list(row) for row in tables[0].rows] == [[row[c] for c in used] for row in filled]
    else:
        assert not tables
