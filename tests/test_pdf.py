"""What is read of PDFs: order, turned pages, headers, forms, scripts, fonts without meaning."""

import cProfile
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from reportlab.pdfgen.canvas import Canvas

from ngtcli.config import Settings
from ngtcli.documents.content import Extracted, Source
from ngtcli.documents.formats.pdf_layout import without_running_lines
from ngtcli.documents.formats.pdf_page import Line
from ngtcli.documents.load import load
from ngtcli.documents.worker import parse
from ngtcli.errors import InputError
from tests import document_files as made

SIDE = 800  # points of the pages that are drawn here


def read(data: bytes) -> Extracted:
    return parse("pdf", Source(data=data, suffix=".pdf", most=10_000_000))


def drawn(draw: Callable[[Canvas], None], pages: int = 1) -> Extracted:
    """What is read of pages on which `draw` has drawn."""
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(SIDE, SIDE), invariant=1)
    for _ in range(pages):
        canvas.setFont("Helvetica", 10)
        draw(canvas)
        canvas.showPage()
    canvas.save()
    return read(out.getvalue())


def coded(
    pages: Sequence[Sequence[str]],
    unicode: Mapping[str, str],
    place: Callable[[int], tuple[int, int]] = lambda i: (50, 700 - 14 * i),
) -> Extracted:
    """What is read of lines in a font whose characters stand for others, as `unicode` says.

    `place` is where a line of a page begins, in points.
    """
    cmap = "".join(
        f"1 beginbfchar <{ord(code):02x}> <{text.encode('utf-16-be').hex()}> endbfchar\n"
        for code, text in unicode.items()
    )
    space = "1 begincodespacerange <00> <ff> endcodespacerange\n"
    streams = [f"/CIDInit /ProcSet findresource begin begincmap\n{space}{cmap}endcmap end"]
    for lines in pages:
        shown = (
            "1 0 0 1 {} {} Tm <{}> Tj ".format(*place(i), line.encode("latin-1").hex())
            for i, line in enumerate(lines)
        )
        streams.append(f"BT /F 12 Tf {''.join(shown)} ET")
    parts = [f"<</Length {len(stream)}>>stream\n{stream}\nendstream" for stream in streams]
    first = 5  # the number of the first page's content
    kids = " ".join(f"{first + len(pages) + i} 0 R" for i in range(len(pages)))
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Count {len(pages)}/Kids[{kids}]/MediaBox[0 0 {SIDE} {SIDE}]"
        "/Resources<</Font<</F 3 0 R>>>>>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/ToUnicode 4 0 R>>",
        *parts,
        *(f"<</Type/Page/Parent 2 0 R/Contents {first + i} 0 R>>" for i in range(len(pages))),
    ]
    data, places = b"%PDF-1.7\n", []
    for number, text in enumerate(objects, 1):
        places.append(f"{len(data):010} 00000 n \n")
        data += f"{number} 0 obj\n{text}\nendobj\n".encode("latin-1")
    table = f"xref\n0 {len(places) + 1}\n0000000000 65535 f \n{''.join(places)}"
    tail = f"trailer<</Size {len(places) + 1}/Root 1 0 R>>\nstartxref\n{len(data)}\n%%EOF"
    return read(data + (table + tail).encode())


def visual(text: str, ligatures: Sequence[str] = ()) -> tuple[list[list[str]], dict[str, str]]:
    """Right-to-left text as its letters stand from left to right: arguments of `coded`.

    Each of `ligatures` is drawn as one letter.
    """
    signs: dict[str, str] = {}
    lines = []
    for line in text.splitlines():
        letters = list(line)
        for ligature in ligatures:
            while ligature in (joined := "".join(letters)):
                at = joined.index(ligature)
                letters[at : at + len(ligature)] = [chr(0xE000 + ligatures.index(ligature))]
        kept = [ligatures[ord(c) - 0xE000] if c >= "\ue000" else c for c in letters]
        for letter in kept:
            signs.setdefault(letter, chr(33 + len(signs)))
        lines.append("".join(signs[letter] for letter in reversed(kept)))
    return [lines], {sign: letter for letter, sign in signs.items()}


def test_a_pdf_is_read_by_columns_its_table_by_rows_and_its_header_once() -> None:
    found = read(made.pdf())
    left, right, table = (
        " ".join(made.LEFT).replace("con- nect", "connect"),
        " ".join(made.RIGHT),
        "\n".join(" ".join(row) for row in made.TABLE),
    )
    titles = [made.TITLES[number % len(made.TITLES)] for number in (1, 2, 3, 4)]
    pages = ["\n\n".join([title, left, right, table]) for title in titles]
    assert found.text == "\n\n".join(["Annals of the Coast, volume 7", *pages])
    sections = found.about.sections
    assert {s.heading for s in sections if s.heading} == set(made.TITLES)
    assert [s.page for s in sections] == [1, 1, 2, 3, 4]  # the header is before a title
    assert all(found.text.startswith(t, s.start) for t, s in zip(titles, sections[1:], strict=True))
    assert (found.about.pages, found.about.dropped) == (4, 3 + 4)
    assert read(made.pdf(2)).about.dropped == 0  # of two pages it cannot be told


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
    table = "\n".join(" ".join(row) for row in ROWS)
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


def lines(*columns: tuple[int, list[str]]) -> str:
    """What is read of lines that stand below each other from x = … on."""

    def draw(canvas: Canvas) -> None:
        for x, column in columns:
            for i, line in enumerate(column):
                canvas.drawString(x, 700 - 12 * i, line)

    return drawn(draw).text


def test_two_columns_are_not_read_across_where_their_lines_stand_level() -> None:
    figure = ["Figure 1", "basic patterns", "north", "south", "east", "west"]
    text = [f"We drew line {i} of the survey as a" for i in range(6)]
    assert lines((50, text), (420, figure)).split() == " ".join([*text, *figure]).split()


def test_raised_and_lowered_characters_stay_in_their_line() -> None:
    def draw(canvas: Canvas) -> None:
        text = canvas.beginText(50, 700)
        for size, rise, words in ((10, 0, "all 2"), (6, 4, "n"), (10, 0, " states of the arms")):
            text.setFont("Helvetica", size)
            text.setRise(rise)
            text.textOut(words)
        canvas.drawText(text)

    assert drawn(draw).text.replace(" ", "") == "all2nstatesofthearms"


def test_a_word_parted_at_a_line_end_is_joined_and_one_with_a_hyphen_keeps_it() -> None:
    parted = ["A ferry that con-", "nects us, a well-", "known lamp. The pier is well-known."]
    wanted = "A ferry that connects us, a well-known lamp. The pier is well-known."
    assert lines((50, parted)) == wanted


@pytest.mark.parametrize(
    ("lines", "unicode", "text"),
    [
        (["to co~operate in a har~", "bour"], {"~": "\xad"}, "to co-operate in a harbour"),
        (["where # is"], {"#": "\U0001d449"}, "where \U0001d449 is"),
        (
            ["# one ferry", "# two ferries"],
            {"#": "\uf0b7"},
            "\uf0b7 one ferry\n\n\uf0b7 two ferries",
        ),
    ],
    ids=["soft hyphens", "above U+FFFF", "signs of a list"],
)
def test_characters_of_a_font_with_meaning(
    lines: list[str], unicode: dict[str, str], text: str
) -> None:
    found = coded([lines], unicode)
    assert found.text == text and found.about.warnings == ()


@pytest.mark.parametrize("bare", ["\x01", "\x02", "\x85", "\ue042", "\uf0e4"])
def test_a_font_without_meaning_is_told_with_its_pages(bare: str) -> None:
    line = "Die K#ndigungsfrist der Stra#enreinigung"
    found = coded([["fine"], [line], [line]], {"#": bare})
    told = "characters of a font have no meaning on pages 2-3: OCR it"
    assert found.about.warnings == (told,)
    assert found.text.count(bare if bare > "\xff" else "\ufffd") == 4
    assert not any(c in found.text for c in "\x01\x02\x85")


@pytest.mark.parametrize(
    ("text", "ligatures"),
    [
        ("הרכוש ישלם אלף שקלים בכל חודש\nחוזה השכירות הוא לשנה אחת", []),
        ("تحسين الخدمات في المدينة\nيبدأ العمل في الصباح", []),
        ("این کتاب درباره شهر است\nگربه روی دیوار نشست", []),
        ("لا يعمل خلال الإجازة والأحد", ["لا", "لإ", "لأ"]),
    ],
    ids=["Hebrew", "Arabic", "Persian", "ligatures"],
)
def test_text_from_right_to_left_is_in_the_order_in_which_it_is_read(
    text: str, ligatures: list[str]
) -> None:
    assert coded(*visual(text, ligatures)).text == text.replace("\n", " ")


def test_vertical_japanese_is_read_column_by_column_from_the_right() -> None:
    columns = ["みんなのおのおの", "わたくしといふは", "そのとほりの心象"]
    signs = {c: chr(48 + i) for i, c in enumerate(dict.fromkeys("".join(columns)))}
    drawn = [signs[c] for column in columns for c in column]
    found = coded(
        [drawn],
        {sign: c for c, sign in signs.items()},
        lambda i: (700 - 20 * (i // 8), 700 - 12 * (i % 8)),
    )
    assert "".join(found.text.split()) == "".join(columns)


def form(canvas: Canvas) -> None:
    fields = canvas.acroForm
    canvas.drawString(50, 700, "Application form")
    fields.textfield(name="name", tooltip="Full name", value="Margaret Thistlewood", x=150, y=650)
    fields.textfield(name="born", value="12 May 1961", x=150, y=600)
    fields.textfield(name="empty", x=150, y=550)
    fields.checkbox(name="member", checked=True, x=150, y=500)
    fields.checkbox(name="guest", checked=False, x=150, y=450)
    fields.choice(name="town", value="Varn", options=["Lund", "Varn"], x=150, y=400)
    for value, y in (("ferry", 350), ("bus", 320)):
        fields.radio(name="way", value=value, selected=value == "bus", x=150, y=y)


def test_what_was_filled_into_a_form_follows_the_text_of_its_page() -> None:
    filled = ["Full name: Margaret Thistlewood", "born: 12 May 1961", "member: Yes", "town: Varn"]
    assert drawn(form).text == "Application form\n\n" + "\n".join([*filled, "way: bus"])


def test_a_page_with_filled_fields_alone_is_no_scan() -> None:
    found = drawn(lambda canvas: canvas.acroForm.textfield(name="name", value="Ann", x=9, y=9))
    assert found.text == "name: Ann" and found.about.warnings == ()


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
def test_a_line_alone_on_each_page_is_no_running_head(pages: int) -> None:
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
    manual = ["2-7", "2-8", "3-1", "3-2", "3-3"]
    roman = ["viii", "ix", "x", "xi", "xii"]
    for foot in (book, manual, roman):
        kept, dropped = running_lines(*([t, ".", f] for t, f in zip(text, foot, strict=True)))
        assert [page[:2] for page in kept] == [[t, "."] for t in text], foot
        assert dropped == (5 if foot != book else 4)  # nothing tells that 46 follows 44
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
        "{}", "- {} -", "2-{}", "Page {}", "Page {} of 90", "{} von 90", "{} | P a g e",
        "Seite {}/9", "Tales of Varn {}", "Invoice 1001 - page {}", "Chapter 2, p. {}",
        "Annual report 2019 | {}", "第{}页", "p. {} of 90", "s. {}",
    ],
)  # fmt: skip
def test_lines_that_count_the_pages_are_left_out(line: str) -> None:
    given = [[line.format(i), f"Text of {town}", "."] for i, town in enumerate(TOWNS, 1)]
    assert running_lines(*given) == ([page[1:] for page in given], 5)


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("Invoice {}", 1001), ("Annual report {}", 2019), ("Tide table for day {} May", 1),
        ("Invoice {} - page 1", 1), ("{} May 2019", 1), ("Tide table {}.5.2019", 1),
        ("Grounds {}", 41), ("S-{}", 1001), ("Certificate P-{}", 1001), ("Lloyd's {}", 1001),
        ("2024-01-0{}", 1), ("{}.1.2024", 5),
    ],
)  # fmt: skip
def test_lines_that_count_something_else_are_text(line: str, first: int) -> None:
    given = [[line.format(i), f"Text of {town}", "."] for i, town in enumerate(TOWNS, first)]
    assert running_lines(*given) == (given, 0)


def test_numbers_and_signs_that_look_like_one_another_are_told_apart() -> None:
    for heads in (("# 5", "5 6", "7 8"), ("1234567890", "5 # 6", "#5 6"), ("\0 5", "5 6", "5")):
        given = [[head, f"Text of {town}", "."] for head, town in zip(heads, TOWNS, strict=False)]
        assert running_lines(*given) == (given, 0)


def test_the_work_for_running_heads_grows_with_the_pages_alone() -> None:
    def calls(pages: int) -> int:
        """How many functions are called for so many pages, each with a head and a number."""
        given = [["Tales of Varn", f"Text {i % 7}", ".", str(i)] for i in range(pages)]
        profile = cProfile.Profile()
        profile.runcall(running_lines, *given)
        return sum(entry.callcount for entry in profile.getstats())

    assert calls(400) < 2.2 * calls(200)


def test_a_page_with_the_head_alone_and_pages_without_text_are_left_as_they_are() -> None:
    pages = [["Varn", f"Text of {town}", "."] for town in ("Lund", "Berg", "Hov", "Aker")]
    kept, dropped = running_lines(*pages[:2], ["Varn"], [], *pages[2:])
    assert dropped == 4 and kept[2:4] == [[], []] and kept[0] == pages[0]
    assert kept[4:] == [page[1:] for page in pages[2:]]
    only = [[], [], ["Varn", "Text of Lund.", "1"], []]
    assert running_lines(*only) == (only, 0)


@pytest.mark.usefixtures("kept_workers")
def test_a_password_opens_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "locked.pdf"
    path.write_bytes(made.FILES["locked.pdf"]())
    opened = load([str(path)], settings=Settings(password="tide"))
    assert "fishermen of the village" in opened.documents[0].text
    assert opened.documents[0].about.secret
    with pytest.raises(InputError, match="the password does not open it"):
        load([str(path)], settings=Settings(password="ebb"))
