"""PDF: the text of each page in reading order, without repeated headers and footers.

PDFium tells characters and their boxes; `layout` finds lines and columns, `paragraphs` joins lines.
"""

import ctypes
from collections.abc import Iterator

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from ngtcli.documents.content import About, Extracted, Source, Writer, pages_named
from ngtcli.documents.formats.layout import Glyph, Line, lines_of
from ngtcli.documents.formats.paragraphs import Joiner, body_size
from ngtcli.documents.formats.running import without_running_lines
from ngtcli.documents.text import Unreadable

_OCR = "Recognize its text first, as with ocrmypdf scan.pdf text.pdf."
_AGAIN = "Save it again, as by printing it to a PDF."
_PASSWORD = 4  # PDFium's error code FPDF_ERR_PASSWORD


def parse(source: Source) -> Extracted:
    """The text of all pages. Raises Unreadable for encrypted, scanned and broken files."""
    document, secret = _open(source)
    count = len(document)
    pages = [_lines(document, i, source.most) for i in range(count)]
    empty = [i + 1 for i, lines in enumerate(pages) if not lines]
    if len(empty) == count:
        named = "its page has" if count == 1 else f"its {count} pages have"
        raise Unreadable(f"{named} no text: a scan, or pictures", _OCR)
    pages, dropped = without_running_lines(pages)
    warnings = [f"no text on {pages_named(empty)}: a scan, or pictures"] if empty else []
    writer = Writer()
    joiner = Joiner(pages)
    size = body_size(pages)
    for number, lines in enumerate(pages, 1):
        writer.mark(number)
        for block in joiner.blocks(lines):
            if block.is_heading(size):
                writer.heading(block.text, number)
            else:
                writer.add(block.text)
    about = About("pdf", count, dropped, writer.sections(), tuple(warnings), secret)
    return Extracted(writer.text(), about)


def _open(source: Source) -> tuple[pdfium.PdfDocument, bool]:
    """The document, and whether it needed the password."""
    for password in (None, source.password or None):
        try:
            document = pdfium.PdfDocument(source.data, password=password)
            len(document)
            return document, password is not None
        except pdfium.PdfiumError as error:
            code = getattr(error, "err_code", None)
            if code != _PASSWORD and "assword" not in str(error):
                raise Unreadable("a broken PDF", _AGAIN) from None
    if source.password:
        wrong = "encrypted, and the password does not open it"
        raise Unreadable(wrong, "Give its own password.", lasting=False)
    raise Unreadable("encrypted", "Give its password with --password.")


def _lines(document: pdfium.PdfDocument, index: int, most: int) -> list[Line]:
    """The lines of a page in reading order; none for a page that is broken."""
    try:
        page = document[index]
    except pdfium.PdfiumError:
        return []
    try:
        text = page.get_textpage()
        try:
            width, height = page.get_size()
            return lines_of(list(_glyphs(text, page.get_rotation(), width, height)))
        finally:
            text.close()
    except pdfium.PdfiumError:
        return []
    finally:
        page.close()


def _glyphs(
    text: pdfium.PdfTextPage, rotation: int, width: float, height: float
) -> Iterator[Glyph]:
    """The characters of a page as it is seen, y growing downward, in points."""
    box = raw.FS_RECTF()
    place = ctypes.byref(box)
    page = text.raw
    for i in range(raw.FPDFText_CountChars(page)):
        code = raw.FPDFText_GetUnicode(page, i)
        if raw.FPDFText_GetLooseCharBox(page, i, place):
            yield Glyph(
                chr(code) if code < 0x110000 else "\ufffd", *_turned(box, rotation, width, height)
            )


def _turned(
    box: raw.FS_RECTF, rotation: int, width: float, height: float
) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) on the page as it is shown; its size is `width` x `height`."""
    if rotation == 90:
        return box.bottom, box.left, box.top, box.right
    if rotation == 180:
        return width - box.right, box.bottom, width - box.left, box.top
    if rotation == 270:
        return width - box.top, height - box.right, width - box.bottom, height - box.left
    return box.left, height - box.top, box.right, height - box.bottom
