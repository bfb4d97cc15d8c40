"""The files of `tests/files`, the texts of some, and functions that make others."""

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent / "files"  # real files, each with its expected text beside it
TITLES = [
    f"{start} of the harbour and its two basins" for start in ("On the past", "Tales", "Rules")
]


def expected_text(name: str) -> str:
    """The text that is read from a file of `FOLDER`, which lies beside it."""
    return (FOLDER / f"{name}.txt").read_text("utf-8").removesuffix("\n")


_NAMES = (  # a file of each format, and two that cannot be read
    "columns.pdf locked.pdf scan.pdf orchard.docx bus.html book.epub bees.odt people.csv people.tsv"
    " texts.jsonl data.json letter.eml lighthouse.pptx prices.xlsx greeting.rtf packed.txt.gz"
    " packed.html.gz bees.xml bees.tex"
).split()
FILES: dict[str, Callable[[], bytes]] = {name: (FOLDER / name).read_bytes for name in _NAMES}
HTML = FILES["bus.html"]().decode()
DOCX_TEXT = expected_text("orchard.docx")


def docx() -> bytes:
    """Headings, a list, a table, a footnote; its text is DOCX_TEXT."""
    return FILES["orchard.docx"]()


def xlsx() -> bytes:
    """A sheet with text, numbers, a date and a gap; a hidden sheet, and one that is empty."""
    return FILES["prices.xlsx"]()


def odt(content: str = "") -> bytes:
    """A heading, a paragraph with a note, a list, a table; or another body."""
    members = unzipped(FILES["bees.odt"]())
    start = b"<office:text>"
    end = b"</office:text>"
    before, _, rest = members["content.xml"].partition(start)
    body, _, after = rest.rpartition(end)
    if content:
        body = content.encode()
    return zipped({**members, "content.xml": before + start + body + end + after})


def unzipped(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(members: Mapping[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def pdf(pages: int = 1, password: str = "") -> bytes:
    """Pages with a line of text each."""
    return paged_pdf(["The harbour was opened by the fishermen of the village."] * pages, password)


def paged_pdf(pages: Sequence[str], password: str = "") -> bytes:
    """A text a page, in lines from edge to edge, without headers; ASCII characters alone."""
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.utils import simpleSplit
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out, pagesize=A4, encrypt=password or None, invariant=1)
    for text in pages:
        canvas.setFont("Helvetica", 10)
        shown = text.encode("ascii", "replace").decode()
        for i, line in enumerate(simpleSplit(shown, "Helvetica", 10, 480)):
            canvas.drawString(55, 780 - 13 * i, line)
        canvas.showPage()
    canvas.save()
    return out.getvalue()
