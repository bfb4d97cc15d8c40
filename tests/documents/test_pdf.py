"""PDFs: turned pages and lines, headings, running heads, words at line ends, annotations."""

import cProfile
import io
from collections.abc import Callable

import pytest
from reportlab.pdfgen.canvas import Canvas

from ngtcli.documents.content import Extracted, ParserInput
from ngtcli.documents.formats.pdf_layout import without_running_lines
from ngtcli.documents.formats.pdf_page import Line
from ngtcli.documents.text import Unreadable
from ngtcli.documents.worker import parse
from tests import document_files

SIDE = 800  # points of the pages that are drawn here


def read(data: bytes) -> Extracted:
    return parse("pdf", ParserInput(data=data, suffix=".pdf", max_bytes=10_000_000))


def parse_lines(lines: list[str]) -> Extracted:
    """Parse a page with lines of text, one below another."""

    def draw(canvas: Canvas) -> None:
        for i, line in enumerate(lines):
            canvas.drawString(50, 750 - 13 * i, line)

    return parse_drawing(draw)


def parse_drawing(draw: Callable[[Canvas], None], pages: int = 1) -> Extracted:
    """Parse a PDF with pages on which `draw` draws."""
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(SIDE, SIDE), invariant=1)
    for _ in range(pages):
        canvas.setFont("Helvetica", 10)
        draw(canvas)
        canvas.showPage()
    canvas.save()
    return read(out.getvalue())


def test_a_pdf_has_pages_headings_and_a_count_of_running_lines() -> None:
    extracted = read(document_files.FILES["columns.pdf"]())
    assert extracted.about.pages == 4
    assert extracted.about.dropped == 3 + 4

    header, *titles = extracted.about.sections
    assert header.page == 1
    for page, section in enumerate(titles, 1):
        title = document_files.TITLES[page % len(document_files.TITLES)]
        assert section.page == page
        assert extracted.text.startswith(title, section.start)
    assert len(titles) == 4


TEXT = ["The harbour of Varn was opened in the year 1932 by the", "fishermen of the village."]
ROWS = [("Ferry", "Leaves", "Price"), ("Aurora", "08:15", "12.50"), ("Borealis", "17:40", "14.00")]


def rotate(canvas: Canvas, degrees: int) -> None:
    """Rotate what is drawn next around the middle of the page, which becomes the origin."""
    canvas.translate(SIDE / 2, SIDE / 2)
    canvas.rotate(degrees)


@pytest.mark.parametrize("page_rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("text_rotation", [0, 90, 180, 270])
def test_turned_pages_are_read_as_upright_ones(page_rotation: int, text_rotation: int) -> None:
    def draw(canvas: Canvas) -> None:
        canvas.setPageRotation(page_rotation)
        rotate(canvas, text_rotation)
        canvas.translate(-SIDE / 2, -SIDE / 2)
        canvas.drawString(50, 750, "Annals of the Coast")
        for i, line in enumerate(TEXT):
            canvas.drawString(50, 700 - 12 * i, line)
        for i, row in enumerate(ROWS):
            for x, cell in zip((50, 250, 450), row, strict=True):
                canvas.drawString(x, 600 - 16 * i, cell)
        canvas.drawString(50, 30, f"Page {canvas.getPageNumber()}")

    extracted = parse_drawing(draw, pages=4)
    table = "\n".join(" | ".join(row) for row in ROWS)
    page = "\n\n".join([" ".join(TEXT), table])
    assert extracted.text == "\n\n".join(["Annals of the Coast", page, page, page, page])
    assert extracted.about.dropped == 3 + 4


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_turned_lines_on_an_upright_page_follow_its_text(degrees: int) -> None:
    upright = "An upright line that has more letters than all of the lines that are turned."

    def draw(canvas: Canvas) -> None:
        canvas.drawString(50, 750, upright)
        rotate(canvas, degrees)
        for i, row in enumerate(ROWS):
            for x, cell in zip((-200, 0, 200), row, strict=True):
                canvas.drawString(x, -16 * i, cell)

    table = "\n".join(" ".join(row) for row in ROWS)
    assert parse_drawing(draw).text == f"{upright}\n\n{table}"


def drop_running_lines(
    pages: list[list[str]], first_height: int = 10
) -> tuple[list[list[str]], int]:
    """Return pages without running heads, and the number of lines that were dropped.

    Lines stand far apart, but a line that begins with a dot stands right below the one before.
    """
    drawn_pages = []
    for texts in pages:
        lines: list[Line] = []
        for text in texts:
            if not lines:
                lines.append(Line(text, 50, 0, 300, first_height))
                continue
            gap = 1 if text.startswith(".") else 50
            top = lines[-1].bottom + gap
            lines.append(Line(text, 50, top, 300, top + 10))
        drawn_pages.append(lines)
    kept, dropped = without_running_lines(drawn_pages)
    return [[line.text for line in page] for page in kept], dropped


@pytest.mark.parametrize("page_count", [1, 2, 3, 9])
@pytest.mark.parametrize("line", ["Sold out", "Exercise {}", "{}"])
def test_the_only_line_of_a_page_is_not_a_running_head(page_count: int, line: str) -> None:
    pages = [[line.format(number)] for number in range(1, page_count + 1)]
    assert drop_running_lines(pages) == (pages, 0)


SLIDES = [["The quay", "is old"], ["The ferry", "is late"], ["Varn", "is cold"], ["Ice", "is in"]]


@pytest.mark.parametrize("lines_per_slide", [1, 2])
def test_slides_with_few_lines_lose_running_heads_and_numbers(lines_per_slide: int) -> None:
    slides = [["Tales of Varn", *lines[:lines_per_slide]] for lines in SLIDES]
    numbered = [[*slide, str(number)] for number, slide in enumerate(slides, 1)]
    kept, dropped = drop_running_lines(numbered)
    assert kept == [slides[0], *(slide[1:] for slide in slides[1:])]
    assert dropped == 3 + 4


@pytest.mark.parametrize("lines_per_slide", [1, 2])
def test_slides_with_few_lines_keep_numbers_that_do_not_count_them(lines_per_slide: int) -> None:
    slides = [
        ["Tales of Varn", *lines[:lines_per_slide], f"Total: {total}"]
        for lines, total in zip(SLIDES, (310, 77, 5, 12), strict=True)
    ]
    kept, dropped = drop_running_lines(slides)
    assert kept == [slides[0], *(slide[1:] for slide in slides[1:])]
    assert dropped == 3


SUBJECTS = ["The quay", "The ferry", "The museum", "The ice house", "The pier"]


@pytest.mark.parametrize(
    "numbers",
    [
        ["41", "42", "43", "44", "46"],
        ["2-7", "2-8", "2-9", "2-10", "3-1"],
    ],
    ids=["book", "manual"],
)
def test_numbers_that_count_the_pages_are_a_running_line(numbers: list[str]) -> None:
    pages = [[subject, ".", number] for subject, number in zip(SUBJECTS, numbers, strict=True)]
    kept, dropped = drop_running_lines(pages)
    assert [page[:2] for page in kept] == [[subject, "."] for subject in SUBJECTS]
    assert dropped == 4  # The last number does not follow the one before.


def test_numbers_that_do_not_count_the_pages_are_text() -> None:
    totals = (310, 77, 5, 12, 77)
    pages = [
        [subject, ".", f"Total: {total}"] for subject, total in zip(SUBJECTS, totals, strict=True)
    ]
    assert drop_running_lines(pages) == (pages, 0)


def test_headings_that_count_up_are_kept_on_every_page() -> None:
    pages = [[f"Article {i}", "What it says is long", "." * i] for i in range(1, 5)]
    assert drop_running_lines(pages, first_height=18) == (pages, 0)
    _, dropped = drop_running_lines(pages)
    assert dropped == 4


TOWNS = ("Lund", "Berg", "Hov", "Aker", "Moss")


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "- {} -",
        "2-{}",
        "Page {}",
        "Page {} of 90",
        "{} von 90",
        "{} | P a g e",
        "Seite {}/9",
        "Tales of Varn {}",
        "Invoice 1001 - page {}",
        "Chapter 2, p. {}",
        "Annual report 2019 | {}",
        "第{}页",
        "p. {} of 90",
        "s. {}",
    ],
)
def test_lines_that_count_the_pages_are_left_out(line: str) -> None:
    pages = [[line.format(i), f"Text of {town}", "."] for i, town in enumerate(TOWNS, 1)]
    assert drop_running_lines(pages) == ([page[1:] for page in pages], 5)


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("Invoice {}", 1001),
        ("Annual report {}", 2019),
        ("Tide table for day {} May", 5),
        ("Invoice {} - page 1", 1001),
        ("{} May 2019", 9),
        ("Tide table {}.5.2019", 1),
        ("Grounds {}", 41),
        ("S-{}", 1001),
        ("Certificate P-{}", 1001),
        ("Lloyd's {}", 1001),
        ("2024-01-0{}", 1),
        ("{}.1.2024", 5),
    ],
)
def test_lines_that_count_something_else_are_text(line: str, first: int) -> None:
    pages = [[line.format(i), f"Text of {town}", "."] for i, town in enumerate(TOWNS, first)]
    assert drop_running_lines(pages) == (pages, 0)


@pytest.mark.parametrize(
    "heads", [("# 5", "5 6", "7 8"), ("1234567890", "5 # 6", "#5 6"), ("\0 5", "5 6", "5")]
)
def test_numbers_and_signs_that_look_alike_are_distinguished(heads: tuple[str, ...]) -> None:
    pages = [[head, f"Text of {town}", "."] for head, town in zip(heads, TOWNS, strict=False)]
    assert drop_running_lines(pages) == (pages, 0)


def test_the_work_for_running_heads_is_linear_in_pages() -> None:
    def count_calls(page_count: int) -> int:
        """Count the function calls for pages that each have a header and a number."""
        pages = [["Tales of Varn", f"Text {i % 7}", ".", str(i)] for i in range(page_count)]
        profile = cProfile.Profile()
        profile.runcall(drop_running_lines, pages)
        return sum(entry.callcount for entry in profile.getstats())

    assert count_calls(400) < 2.2 * count_calls(200)


def test_a_blank_page_is_no_scan() -> None:
    """A word processor writes one before a text that begins on a right-hand page."""
    read_pages = read(document_files.paged_pdf(["", "The tide came in."]))
    assert read_pages.text == "The tide came in."
    assert read_pages.about.warnings == ()
    with pytest.raises(Unreadable, match="no text: its 2 pages are blank"):
        read(document_files.paged_pdf(["", ""]))


def test_running_heads_continue_after_pages_without_text() -> None:
    lund, berg, hov, aker = [["Varn", f"Text of {town}", "."] for town in TOWNS[:4]]
    kept, dropped = drop_running_lines([lund, berg, ["Varn"], [], hov, aker])
    assert kept == [lund, berg[1:], [], [], hov[1:], aker[1:]]
    assert dropped == 4


def test_a_single_page_with_text_has_no_running_lines() -> None:
    pages = [[], [], ["Varn", "Text of Lund.", "1"], []]
    assert drop_running_lines(pages) == (pages, 0)


def test_hyphens_at_line_ends_belong_to_words_or_not() -> None:
    lines = [
        "The well-",
        "known light-",
        "house keeper is twenty-",
        "one; his mother-in-",
        "law wrote a let-",
        "ter from 1999-",
        "2004 about rail-",
        "way lines, high-",
        "quality and COVID-",
        "19, 1914\u2013",
        "1918, a 5-",
        "year plan, estab-",
        "lished.",
    ]
    assert parse_lines(lines).text == (
        "The well-known lighthouse keeper is twenty-one; his mother-in-law wrote a letter from"
        " 1999-2004 about railway lines, high-quality and COVID-19, 1914\u20131918, a 5-year plan,"
        " established."
    )


def test_a_word_that_goes_on_on_the_next_page_is_one() -> None:
    def draw(canvas: Canvas) -> None:
        if canvas.getPageNumber() == 1:
            canvas.drawString(50, 750, "The harbour was opened by the fisher-")
        else:
            canvas.drawString(50, 750, "men of the village in spring.")

    extracted = parse_drawing(draw, pages=2)
    assert extracted.text == "The harbour was opened by the fishermen\n\nof the village in spring."
    assert [section.page for section in extracted.about.sections] == [1, 2]


def test_lines_that_begin_with_a_label_are_not_joined() -> None:
    lines = ["Customer: Jonas Reyes", "Invoice no.: 1005", "Due: 3 March 2025", "Total: 12.50"]
    assert parse_lines(lines).text == "\n".join(lines)


def test_a_label_in_running_text_begins_no_line() -> None:
    lines = [
        "The harbour was opened by the fishermen for one simple reason, which they gave",
        "Later: the railway had come, and the village had grown quiet since then.",
    ]
    assert parse_lines(lines).text == " ".join(lines)


def test_short_pieces_below_one_another_are_not_one_number() -> None:
    def draw(canvas: Canvas) -> None:
        for row, number in enumerate(("40", "3", "7")):
            canvas.drawString(50, 750 - 20 * row, number)

    assert parse_drawing(draw).text.split() == ["40", "3", "7"]


PRINTED = 4  # flags of annotations
HIDDEN = 2
# Places of annotations: left, bottom, right, top
RIGHT_OF_RENT = (90, 748, 200, 762)
BELOW = (50, 600, 200, 620)
ON_THE_BLANK = (75, 748, 110, 762)


def parse_annotated(
    kind: str,
    contents: str,
    place: tuple[int, ...] = RIGHT_OF_RENT,
    flags: int = PRINTED,
    author: str = "",
    line: str = "Rent:",
) -> str:
    """Parse a page with an annotation and two lines of text."""
    from reportlab.pdfbase.pdfdoc import PDFArray, PDFDictionary, PDFName, PDFString

    def draw(canvas: Canvas) -> None:
        canvas.drawString(50, 750, line)
        canvas.drawString(50, 700, "Signed by the tenant.")
        entries = {
            "Type": PDFName("Annot"),
            "Subtype": PDFName(kind),
            "F": flags,
            "Contents": PDFString(contents),
            "Rect": PDFArray(place),
        }
        if author:
            entries["T"] = PDFString(author)
        canvas._addAnnotation(PDFDictionary(entries))

    return parse_drawing(draw).text


def test_text_typed_onto_a_page_is_in_its_place() -> None:
    text = parse_annotated("FreeText", "950 euro", RIGHT_OF_RENT)
    assert text == "Rent: 950 euro\n\nSigned by the tenant."
    assert parse_annotated("FreeText", "Paid.", BELOW).endswith("\n\nPaid.")


def test_text_typed_onto_a_blank_replaces_it() -> None:
    blanks = "Rent: ________ euro, from ____ on"
    text = parse_annotated("FreeText", "950", ON_THE_BLANK, line=blanks)
    assert text.startswith("Rent: 950 euro, from ____ on")


def test_comments_follow_the_text() -> None:
    text = parse_annotated("Text", "Too high.", author="Ada")
    assert text == "Rent:\n\nSigned by the tenant.\n\n[comment by Ada: Too high.]"
    assert parse_annotated("Highlight", "Why?").endswith("[comment: Why?]")


def test_hidden_annotations_and_links_are_not_read() -> None:
    without_annotation = "Rent:\n\nSigned by the tenant."
    assert parse_annotated("FreeText", "950 euro", flags=HIDDEN) == without_annotation
    assert parse_annotated("Link", "950 euro") == without_annotation
