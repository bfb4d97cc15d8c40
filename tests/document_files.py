"""Small files of every format, made here, and what they say."""

import datetime
import gzip
import io
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from email.message import EmailMessage
from pathlib import Path
from typing import Any

LEFT = [
    "The harbour of Varn was opened in the year 1932 by the",
    "fishermen of the village, who had built its first quay in",
    "three summers. It is deep enough for the ferries that con-",
    "nect the islands with the mainland in every season. The",
    "lighthouse on the western pier is well-known to sailors,",
    "since its lamp was the first of the coast to be electric.",
    "Storms closed the harbour for eleven days in the winter of",
    "1951, the longest time that it was ever shut.",
]
RIGHT = [
    "A second basin was added in 1968 for the yachts of summer",
    "guests, and a third one is planned. The harbour master is",
    "elected for four years by the owners of the boats that lie",
    "there all year. Her office stands beside the old ice house,",
    "which is now a museum of the herring trade. The museum is",
    "open from May to September and shows nets, barrels and a",
    "boat that was found in the mud of the basin when it was",
    "made deeper.",
]
TITLES = [f"{what} of the harbour and its two basins" for what in ("On the past", "Tales", "Rules")]
TABLE = [("Ferry", "Leaves", "Price"), ("Aurora", "08:15", "12.50"), ("Borealis", "17:40", "14.00")]


def pdf(pages: int = 4, password: str = "", text: bool = True) -> bytes:
    """Pages with a header, a title, two columns, a table, and a page number; or with no text."""
    from reportlab.lib.pagesizes import A4
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out, pagesize=A4, encrypt=password or None, invariant=1)
    for number in range(1, pages + 1):
        if text:
            _page(canvas, number, pages)
        else:
            canvas.rect(100, 100, 300, 500, fill=1)
        canvas.showPage()
    canvas.save()
    return out.getvalue()


def _page(canvas: Any, number: int, pages: int) -> None:
    canvas.setFont("Helvetica", 8)
    canvas.drawString(50, 815, "Annals of the Coast, volume 7")
    canvas.drawCentredString(297, 25, f"Page {number} of {pages}")
    canvas.setFont("Helvetica-Bold", 18)
    canvas.drawString(50, 780, TITLES[number % len(TITLES)])
    canvas.setFont("Times-Roman", 10)
    for x, column in ((50, LEFT), (320, RIGHT)):
        for i, line in enumerate(column):
            canvas.drawString(x, 740 - 12 * i, line)
    for i, row in enumerate(TABLE):
        for cell, x in zip(row, (50, 200, 350), strict=True):
            canvas.drawString(x, 600 - 16 * i, cell)


def paged_pdf(pages: Sequence[str]) -> bytes:
    """A text a page, in lines from edge to edge, without headers; ASCII characters alone."""
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.utils import simpleSplit
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out, pagesize=A4, invariant=1)
    for text in pages:
        canvas.setFont("Helvetica", 10)
        shown = text.encode("ascii", "replace").decode()
        for i, line in enumerate(simpleSplit(shown, "Helvetica", 10, 480)):
            canvas.drawString(55, 780 - 13 * i, line)
        canvas.showPage()
    canvas.save()
    return out.getvalue()


def saved(document: Any) -> bytes:
    """The file of a document, deck or workbook."""
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def docx() -> bytes:
    """Headings, a list, a table, a footnote."""
    import docx as word
    from docx.opc.constants import RELATIONSHIP_TYPE
    from docx.opc.packuri import PackURI
    from docx.opc.part import Part
    from docx.oxml import parse_xml
    from docx.oxml.ns import nsdecls

    document = word.Document()
    document.add_heading("The orchard", 1)
    noted = document.add_paragraph("The orchard has 40 trees.")
    noted.add_run()._r.append(parse_xml(f'<w:footnoteReference {nsdecls("w")} w:id="2"/>'))
    for item in ("apples", "pears"):
        document.add_paragraph(item, style="List Bullet")
    document.add_heading("Harvest", 2)
    table = document.add_table(rows=0, cols=2)
    for row in (("Year", "Crates"), ("2024", "310")):
        for cell, words in zip(table.add_row().cells, row, strict=True):
            cell.text = words
    notes = (
        f'<w:footnotes {nsdecls("w")}><w:footnote w:id="-1" w:type="separator"><w:p/></w:footnote>'
        '<w:footnote w:id="2"><w:p><w:r><w:t>Counted in May.</w:t></w:r></w:p></w:footnote>'
        "</w:footnotes>"
    )
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.footnotes+xml"
    part = Part(PackURI("/word/footnotes.xml"), kind, notes.encode(), document.part.package)
    document.part.relate_to(part, RELATIONSHIP_TYPE.FOOTNOTES)
    return saved(document)


DOCX_TEXT = """The orchard

The orchard has 40 trees.[^2]

- apples
- pears

Harvest

Year | Crates
2024 | 310

[^2]: Counted in May."""

HTML = """<!DOCTYPE html><html><head><title>Night bus</title><script>let x = 1;</script></head>
<body><nav><ul><li><a href="/">Home</a></li><li><a href="/a">About</a></li></ul></nav>
<article><h1>The night bus</h1>
<p>The night bus N7 runs from the station to the harbour every <b>forty</b> minutes, and costs two
crowns more than the day bus, which it replaces from midnight on.</p>
<h2>Stops</h2><ul><li>Station</li><li>Old market</li></ul>
<table><tr><th>Stop</th><th>Time</th></tr><tr><td>Station</td><td>00:10</td></tr></table>
<p>Dogs travel free of charge in the last row of seats, as long as their owners hold a ticket.</p>
</article><footer>All rights reserved by the bus company.</footer></body></html>"""

CSV = 'name,town\n"Berg, Ada",Varn\nCarl,Lund\n'
JSONL = '{"title": "One", "body": "First text."}\n{"title": "Two", "body": "Second text."}\n'


def zipped(members: Mapping[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def epub(
    first: str = "<h1>Chapter one</h1><p>It began.</p>",
    second: str = "<h1>Chapter two</h1><p>The end.</p>",
) -> bytes:
    """Two chapters, in another order in the archive than in the spine."""
    page = "<html xmlns='http://www.w3.org/1999/xhtml'><body>{}</body></html>"
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": "<container xmlns='urn:oasis:names:tc:opendocument:xmlns:"
            "container'><rootfiles><rootfile full-path='b/p.opf'/></rootfiles></container>",
            "b/p.opf": "<package xmlns='http://www.idpf.org/2007/opf'><manifest>"
            "<item id='two' href='t/2.xhtml' media-type='application/xhtml+xml'/>"
            "<item id='one' href='t/1%20a.xhtml' media-type='application/xhtml+xml'/></manifest>"
            "<spine><itemref idref='one'/><itemref idref='two'/></spine></package>",
            "b/t/2.xhtml": page.format(second),
            "b/t/1 a.xhtml": page.format(first),
        }
    )


def odt_content(kind: str, body: str, styles: str = "") -> str:
    """The content of an OpenDocument file."""
    names = " ".join(
        f'xmlns:{n}="urn:oasis:names:tc:opendocument:xmlns:{n.replace("draw", "drawing")}:1.0"'
        for n in ("office", "text", "table", "draw", "style", "presentation", "chart")
    )
    return (
        f'<office:document-content xmlns:xlink="http://www.w3.org/1999/xlink" {names}>{styles}'
        f"<office:body><office:{kind}>{body}</office:{kind}></office:body>"
        "</office:document-content>"
    )


def odt(content: str = "") -> bytes:
    """A heading, a paragraph with a note, a list, a table; or another body."""
    content = content or (
        "<text:h>Bees</text:h><text:p>Bees<text:s text:c='2'/>sleep.<text:note>"
        "<text:note-citation>1</text:note-citation>"
        "<text:note-body><text:p>At night.</text:p></text:note-body>"
        "</text:note></text:p><text:list><text:list-item><text:p>one</text:p></text:list-item>"
        "<text:list-item><text:p>two</text:p></text:list-item></text:list><table:table>"
        "<table:table-row><table:table-cell><text:p>a</text:p></table:table-cell>"
        "<table:table-cell><text:p>b</text:p></table:table-cell></table:table-row></table:table>"
    )
    return zipped(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "META-INF/manifest.xml": "<manifest/>",
            "content.xml": odt_content("text", content),
        }
    )


def mail() -> bytes:
    """A text, the same in HTML, and an attachment."""
    message = EmailMessage()
    message["From"], message["To"] = "Ada <ada@example.org>", "Bo <bo@example.org>"
    message["Date"], message["Subject"] = "Mon, 02 Mar 2026 10:00:00 +0000", "Tide tables"
    message.set_content("High tide is at nine.\n")
    message.add_alternative("<p>High tide is at <b>nine</b>.</p>", subtype="html")
    message.add_attachment(b"%PDF-1.4", maintype="application", subtype="pdf", filename="t.pdf")
    return message.as_bytes()


def pptx() -> bytes:
    """A title, text, a table and notes; a hidden slide."""
    import pptx as powerpoint

    deck = powerpoint.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[1])
    slide.shapes.title.text = "The lighthouse"
    slide.placeholders[1].text = "Its lamp is red.\nIt turns."
    table = slide.shapes.add_table(2, 2, 0, 0, 100, 100).table
    for place, words in (((0, 0), "Lamp"), ((0, 1), "Price"), ((1, 0), "Red"), ((1, 1), "12")):
        table.cell(*place).text = words
    slide.notes_slide.notes_text_frame.text = "Say it slowly."
    hidden = deck.slides.add_slide(deck.slide_layouts[5])
    hidden.shapes.title.text = "Not shown"
    hidden._element.set("show", "0")
    last = deck.slides.add_slide(deck.slide_layouts[6])
    last.shapes.add_textbox(0, 0, 100, 100).text_frame.text = "The end."
    return saved(deck)


def xlsx() -> bytes:
    """A sheet with text, numbers, a date and a gap; a hidden sheet, and one that is empty."""
    import openpyxl

    book = openpyxl.Workbook()
    sheet: Any = book.active
    sheet.title = "Prices"
    for row in (
        ["Lamp", "Price", "From"],
        ["Red", 12.5, datetime.datetime(2024, 5, 1)],
        [],
        [None, 0.1 + 0.2, True],
    ):
        sheet.append(row)
    hidden: Any = book.create_sheet("Notes")
    hidden.append(["Not shown"])
    hidden.sheet_state = "hidden"
    book.create_sheet("Empty")
    return saved(book)


RTF = rb"""{\rtf1\ansi\ansicpg1252\deff0{\fonttbl{\f0 Times;}}{\info{\title No text}}
Gr\'fc\'dfe from \b Varn\b0\par Ada \u-10179?\u-8704?{\footnote Not read.}\par
\trowd\cellx1\cellx2 a\cell b\cell\row}"""

FILES: dict[str, Callable[[], bytes]] = {
    "columns.pdf": pdf,
    "locked.pdf": lambda: pdf(1, password="tide"),
    "scan.pdf": lambda: pdf(2, text=False),
    "orchard.docx": docx,
    "bus.html": HTML.encode,
    "book.epub": epub,
    "bees.odt": odt,
    "people.csv": CSV.encode,
    "people.tsv": CSV.replace('"Berg, Ada"', "Ada").replace(",", "\t").encode,
    "texts.jsonl": JSONL.encode,
    "data.json": lambda: b'{"a": [1, 2]}',
    "letter.eml": mail,
    "lighthouse.pptx": pptx,
    "prices.xlsx": xlsx,
    "greeting.rtf": lambda: RTF,
    "packed.txt.gz": lambda: gzip.compress(b"Packed text.", mtime=0),
    "packed.html.gz": lambda: gzip.compress(HTML.encode(), mtime=0),
}

_NOTE = "The ferry leaves the northern quay at noon. It carries forty passengers."
_KEPT = ("ropes", "lamps", "buoys", "nets", "bells", "maps", "oars")
_ODD_NAMES = ("100% of it.txt", "a #1 note.txt", "two\nlines.txt", "\x1b[31mred.txt")


def _day(i: int) -> str:
    """A page of a log, in words of its own."""
    wares = ", ".join(f"{i * k % 97} {ware}" for k, ware in enumerate(_KEPT, 3))
    return (
        f"On day {i} the keeper counted {wares}. The wind came from {i * 37 % 360} degrees and"
        f" {i % 5 + 2} ships waited outside the bar. {_NOTE} Nobody was late on day {i}, but for"
        f" the pilot of ship {i * 11 % 53}, who had lost his {_KEPT[i % 7]} in the night."
    )


def fill(folder: Path) -> None:
    """Make a folder of everything that people keep: small files of every format, a scanned and an
    encrypted PDF, an empty file, binaries, a link in a circle, a pipe without a writer, odd names.
    """
    folder.mkdir(parents=True)
    for name, make in FILES.items():
        (folder / name).write_bytes(make())
    (folder / "long.pdf").write_bytes(paged_pdf([_day(i) for i in range(1, 41)]))
    (folder / "broken.pdf").write_bytes(FILES["columns.pdf"]()[:700])
    (folder / "empty.txt").touch()
    (folder / "blank.md").write_text("\n \n")
    (folder / "program").write_bytes(bytes(range(256)) * 16)
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    (folder / "old.txt").write_text("Größe, naïve, café", encoding="latin-1")
    odd = folder / "odd names"
    odd.mkdir()
    for name in _ODD_NAMES:
        (odd / name).write_text(_NOTE)
    (odd / "bus.html").write_text(HTML)
    (odd / "circle").symlink_to(folder, target_is_directory=True)
    (odd / "itself").symlink_to("itself")
    os.mkfifo(folder / "pipe.txt")
