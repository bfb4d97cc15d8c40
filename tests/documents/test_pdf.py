"""PDFs: turned pages and lines, headings, running heads, annotations, passwords."""

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
from tests import document_files as made

SIDE = 800  # points of the pages that are drawn here


def read(data: bytes) -> Extracted:
    return parse("pdf", ParserInput(data=data, suffix=".pdf", max_bytes=10_000_000))


def lines_of(lines: list[str]) -> Callable[[Canvas], None]:
    """Draw lines of text, one below another."""

    def draw(canvas: Canvas) -> None:
        for i, line in enumerate(lines):
            canvas.drawString(50, 750 - 13 * i, line)

    return draw


def drawn(draw: Callable[[Canvas], None], pages: int = 1) -> Extracted:
    """Parse a PDF of pages on which `draw` draws."""
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(SIDE, SIDE), invariant=1)
    for _ in range(pages):
        canvas.setFont("Helvetica", 10)
        draw(canvas)
        canvas.showPage()
    canvas.save()
    return read(out.getvalue())


def test_pages_and_headings_of_a_pdf_and_how_many_lines_were_left_out() -> None:
    found = read(made.FILES["columns.pdf"]())
    titles = [made.TITLES[number % len(made.TITLES)] for number in (1, 2, 3, 4)]
    sections = found.about.sections
    assert [s.page for s in sections] == [1, 1, 2, 3, 4]  # the header is before a title
    assert all(found.text.startswith(t, s.start) for t, s in zip(titles, sections[1:], strict=True))
    assert found.about.pages == 4
    assert found.about.dropped == 3 + 4


TEXT = ["The harbour of Varn was opened in the year 1932 by the", "fishermen of the village."]
ROWS = [("Ferry", "Leaves", "Price"), ("Aurora", "08:15", "12.50"), ("Borealis", "17:40", "14.00")]


@pytest.mark.parametrize("saved", [0, 90, 180, 270])
@pytest.mark.parametrize("turned", [0, 90, 180, 270])
def test_turned_pages_are_read_as_upright_ones(saved: int, turned: int) -> None:
    def draw(canvas: Canvas) -> None:
        canvas.setPageRotation(saved)
        canvas.translate(SIDE / 2, SIDE / 2)
        canvas.rotate(turned)
        canvas.translate(-SIDE / 2, -SIDE / 2)
        canvas.drawString(50, 750, "Annals of the Coast")
        for i, line in enumerate(TEXT):
            canvas.drawString(50, 700 - 12 * i, line)
        for i, row in enumerate(ROWS):
            for x, cell in zip((50, 250, 450), row, strict=True):
                canvas.drawString(x, 600 - 16 * i, cell)
        canvas.drawString(50, 30, f"Page {canvas.getPageNumber()}")

    found = drawn(draw, pages=4)
    table = "\n".join(" | ".join(row) for row in ROWS)
    once = "\n\n".join([" ".join(TEXT), table])
    assert found.text == "\n\n".join(["Annals of the Coast", *[once] * 4])
    assert found.about.dropped == 3 + 4


@pytest.mark.parametrize("turned", [90, 180, 270])
def test_turned_lines_on_an_upright_page_follow_its_text(turned: int) -> None:
    upright = "An upright line that has more letters than all of the lines that are turned."

    def draw(canvas: Canvas) -> None:
        canvas.drawString(50, 750, upright)
        canvas.translate(SIDE / 2, SIDE / 2)
        canvas.rotate(turned)
        for i, row in enumerate(ROWS):
            for x, cell in zip((-200, 0, 200), row, strict=True):
                canvas.drawString(x, -16 * i, cell)

    table = "\n".join(" ".join(row) for row in ROWS)
    assert drawn(draw).text == f"{upright}\n\n{table}"


def running_lines(*pages: list[str], first: int = 10) -> tuple[list[list[str]], int]:
    """What is kept of pages of lines, and how many are not.

    Lines stand far apart, those that begin with a dot below another; the first is `first` high.
    """
    drawn = []
    for lines in pages:
        drawn.append([Line(text, 50, 0, 300, first) for text in lines[:1]])
        for text in lines[1:]:
            top = drawn[-1][-1].bottom + (1 if text.startswith(".") else 50)
            drawn[-1].append(Line(text, 50, top, 300, top + 10))
    kept, dropped = without_running_lines(drawn)
    return [[line.text for line in page] for page in kept], dropped


@pytest.mark.parametrize("pages", [1, 2, 3, 9])
def test_the_only_line_of_a_page_is_not_a_running_head(pages: int) -> None:
    for alone in ("Sold out", "Exercise {}", "{}"):
        given = [[alone.format(i)] for i in range(1, pages + 1)]
        assert running_lines(*given) == (given, 0)


def test_a_deck_of_slides_with_few_lines_far_apart_keeps_no_slide_numbers() -> None:
    text = [["The quay", "is old"], ["The ferry", "is late"], ["Varn", "is cold"], ["Ice", "is in"]]
    for most in (1, 2):
        slides = [["Tales of Varn", *lines[:most]] for lines in text]
        kept, dropped = running_lines(*([*s, str(i)] for i, s in enumerate(slides, 1)))
        assert kept == [slides[0], *(slide[1:] for slide in slides[1:])]
        assert dropped == 3 + 4
        sums = [[*s, f"Total: {n}"] for s, n in zip(slides, (310, 77, 5, 12), strict=True)]
        assert running_lines(*sums) == ([sums[0], *(s[1:] for s in sums[1:])], 3)


def test_numbers_that_count_the_pages_are_a_running_line_and_other_numbers_are_not() -> None:
    text = ["The quay", "The ferry", "The museum", "The ice house", "The pier"]
    book = ["41", "42", "43", "44", "46"]
    manual = ["2-7", "2-8", "2-9", "2-10", "3-1"]
    for foot in (book, manual):
        kept, dropped = running_lines(*([t, ".", f] for t, f in zip(text, foot, strict=True)))
        assert [page[:2] for page in kept] == [[t, "."] for t in text], foot
        assert dropped == 4  # nothing tells that 46 follows 44
    sums = ["Total: 310", "Total: 77", "Total: 5", "Total: 12", "Total: 77"]
    given = [[t, ".", f] for t, f in zip(text, sums, strict=True)]
    assert running_lines(*given) == (given, 0)


def test_headings_that_count_up_are_kept_on_every_page() -> None:
    given = [[f"Article {i}", "What it says is long", "." * i] for i in range(1, 5)]
    assert running_lines(*given, first=18) == (given, 0)
    assert running_lines(*given)[1] == 4


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
    given = [[line.format(i), f"Text of {town}", "."] for i, town in enumerate(TOWNS, 1)]
    assert running_lines(*given) == ([page[1:] for page in given], 5)


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
    given = [[line.format(i), f"Text of {town}", "."] for i, town in enumerate(TOWNS, first)]
    assert running_lines(*given) == (given, 0)


def test_numbers_and_signs_that_look_alike_are_distinguished() -> None:
    for heads in (("# 5", "5 6", "7 8"), ("1234567890", "5 # 6", "#5 6"), ("\0 5", "5 6", "5")):
        given = [[head, f"Text of {town}", "."] for head, town in zip(heads, TOWNS, strict=False)]
        assert running_lines(*given) == (given, 0)


def test_the_work_for_running_heads_is_linear_in_pages() -> None:
    def calls(pages: int) -> int:
        """Count the function calls for pages that each have a header and a number."""
        given = [["Tales of Varn", f"Text {i % 7}", ".", str(i)] for i in range(pages)]
        profile = cProfile.Profile()
        profile.runcall(running_lines, *given)
        return sum(entry.callcount for entry in profile.getstats())

    assert calls(400) < 2.2 * calls(200)


def test_a_blank_page_is_no_scan() -> None:
    """A word processor writes one before a text that begins on a right-hand page."""
    read_pages = read(made.paged_pdf(["", "The tide came in."]))
    assert read_pages.text == "The tide came in."
    assert read_pages.about.warnings == ()
    with pytest.raises(Unreadable, match="no text: its 2 pages are blank"):
        read(made.paged_pdf(["", ""]))


def test_a_page_of_only_a_head_and_pages_without_text_are_unchanged() -> None:
    pages = [["Varn", f"Text of {town}", "."] for town in ("Lund", "Berg", "Hov", "Aker")]
    kept, dropped = running_lines(*pages[:2], ["Varn"], [], *pages[2:])
    assert dropped == 4
    assert kept[2:4] == [[], []]
    assert kept[0] == pages[0]
    assert kept[4:] == [page[1:] for page in pages[2:]]
    only = [[], [], ["Varn", "Text of Lund.", "1"], []]
    assert running_lines(*only) == (only, 0)


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
    found = drawn(lines_of(lines))
    assert found.text == (
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

    found = drawn(draw, pages=2)
    assert found.text == ("The harbour was opened by the fishermen\n\nof the village in spring.")
    assert [s.page for s in found.about.sections] == [1, 2]


def test_lines_that_begin_with_a_label_are_not_joined() -> None:
    lines = ["Customer: Jonas Reyes", "Invoice no.: 1005", "Due: 3 March 2025", "Total: 12.50"]
    found = drawn(lines_of(lines))
    assert found.text == "\n".join(lines)


def test_a_label_in_running_text_begins_no_line() -> None:
    lines = [
        "The harbour was opened by the fishermen for one simple reason, which they gave",
        "Later: the railway had come, and the village had grown quiet since then.",
    ]
    found = drawn(lines_of(lines))
    assert found.text == " ".join(lines)


def test_short_pieces_below_one_another_are_not_one_number() -> None:
    def draw(canvas: Canvas) -> None:
        for row, number in enumerate(("40", "3", "7")):
            canvas.drawString(50, 750 - 20 * row, number)

    assert drawn(draw).text.split() == ["40", "3", "7"]


def annotated(
    kind: str,
    contents: str,
    rect: tuple[int, ...],
    flags: int = 4,
    by: str = "",
    said: str = "Rent:",
) -> str:
    """Parse a page with an annotation beside a line of text."""
    from reportlab.pdfbase.pdfdoc import PDFArray, PDFDictionary, PDFName, PDFString

    def draw(canvas: Canvas) -> None:
        canvas.drawString(50, 750, said)
        canvas.drawString(50, 700, "Signed by the tenant.")
        entries = {
            "Type": PDFName("Annot"),
            "Subtype": PDFName(kind),
            "F": flags,
            "Contents": PDFString(contents),
            "Rect": PDFArray(rect),
        }
        canvas._addAnnotation(PDFDictionary(entries | ({"T": PDFString(by)} if by else {})))

    return drawn(draw).text


def test_text_typed_onto_a_page_is_in_its_place_and_notes_follow() -> None:
    right = (90, 748, 200, 762)
    below = (50, 600, 200, 620)
    text = "Rent: 950 euro\n\nSigned by the tenant."
    assert annotated("FreeText", "950 euro", right) == text
    assert annotated("FreeText", "Paid.", below).split("\n\n")[-1] == "Paid."
    over = (75, 748, 110, 762)
    filled = annotated("FreeText", "950", over, said="Rent: ________ euro, from ____ on")
    assert filled.startswith("Rent: 950 euro, from ____ on")
    note = "Rent:\n\nSigned by the tenant.\n\n[comment by Ada: Too high.]"
    assert annotated("Text", "Too high.", right, by="Ada") == note
    assert annotated("Highlight", "Why?", right).endswith("[comment: Why?]")
    hidden = "Rent:\n\nSigned by the tenant."
    assert annotated("FreeText", "950 euro", right, flags=2) == hidden
    assert annotated("Link", "950 euro", right) == hidden
