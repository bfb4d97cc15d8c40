"""PDF: the text of each page in PDFium's order, without repeated headers and footers."""

import re
from collections.abc import Sequence
from contextlib import closing

import pypdfium2 as pdfium

from ngtcli.documents.content import INSTALL, MOST_PAGES, Extracted, Source, Writer, pages_named
from ngtcli.documents.formats.pdf_layout import Joiner, without_running_lines
from ngtcli.documents.formats.pdf_page import UNKNOWN, Line, field_lines, lines_of
from ngtcli.documents.text import Unreadable

_OCR = "Recognize its text first: --set ocr=auto with the extra ocr (pip install 'ngtcli[ocr]')."
_NONE = "No text was recognized in them either."
_LETTER, _BARE = r"[^\W\d_]", rf"[{UNKNOWN}\ue000-\uf8ff]"  # private use: known to one font alone
_MEANINGLESS = re.compile(rf"(?<={_LETTER}){_BARE}+(?={_LETTER})|{_BARE}{{3,}}")
_SHARE = 0.005  # of a page's characters that have no meaning, in words; guess


def parse(source: Source) -> Extracted:
    """The text of all pages. Raises Unreadable for encrypted, scanned and broken files."""
    document, secret = _open(source)
    document.init_forms()
    count = len(document)
    read = [_page(document, i) for i in range(count)]
    empty = [i for i, (lines, fields) in enumerate(read, 1) if not lines and not fields]
    of_ocr = {"off": [], "auto": empty, "force": range(1, count + 1)}[source.ocr]
    recognized, advice = _recognized(document, of_ocr, source)
    read = [(recognized.get(i) or lines, fields) for i, (lines, fields) in enumerate(read, 1)]
    empty = [number for number in empty if number not in recognized]
    if len(empty) == count:
        named = "its page has" if count == 1 else f"its {count} pages have"
        raise Unreadable(f"{named} no text: a scan, or pictures", advice)
    pages, dropped = without_running_lines([lines for lines, _ in read])
    writer = Writer()
    joiner = Joiner(pages)
    for number, (lines, (_, fields)) in enumerate(zip(pages, read, strict=True), 1):
        writer.mark(number)
        for text, is_heading in joiner.blocks(lines):
            if is_heading:
                writer.heading(text, number)
            else:
                writer.add(text)
        writer.add("\n".join(fields))
    warnings = _warnings(empty, pages)
    known = {"pages": count, "dropped": dropped, "recognized": tuple(recognized)}
    return writer.extracted("pdf", warnings, secret=secret, **known)


def _recognized(
    document: pdfium.PdfDocument, numbers: Sequence[int], source: Source
) -> tuple[dict[int, list[Line]], str]:
    """The lines of those pages in whose pictures there is text, and what to do if there is none."""
    found = dict[int, list[Line]]()
    for number in numbers[:MOST_PAGES]:
        with closing(document[number - 1]) as page:
            if next(page.get_objects(max_depth=1), None) is None:  # it is blank
                continue
            source.on_page()
            try:
                from ngtcli.documents.formats.ocr import recognized  # here: it takes a second

                if lines := recognized(page, source.ocr_language):
                    found[number] = lines
            except ImportError as error:
                if source.ocr == "auto" and not source.ocr_language:
                    return {}, _OCR
                what = f"no text is recognized here without the package {error.name}"
                extra = "tesseract" if source.ocr_language else "ocr"
                raise Unreadable(what, INSTALL.format(extra), lasting=False) from None
            except Exception as error:  # as for memory
                if len(numbers) == len(document) or isinstance(error, Unreadable):
                    raise
    return found, _OCR if source.ocr == "off" else _NONE


def _warnings(empty: Sequence[int], pages: Sequence[Sequence[Line]]) -> tuple[str, ...]:
    """A line on pages without text, and one on fonts that do not tell their characters."""
    texts = ["\n".join(line.text for line in page) for page in pages]
    shares = [len("".join(_MEANINGLESS.findall(text))) / max(len(text), 1) for text in texts]
    unclear = [number for number, share in enumerate(shares, 1) if share > _SHARE]
    scans = f"no text on {pages_named(empty)}: a scan, or pictures"
    fonts = f"characters of a font have no meaning on {pages_named(unclear)}: OCR it"
    return (scans,) * bool(empty) + (fonts,) * bool(unclear)


def _open(source: Source) -> tuple[pdfium.PdfDocument, bool]:
    """The document, and whether it needed the password."""
    for password in (None, source.password or None):
        try:
            document = pdfium.PdfDocument(source.data, password=password)
            len(document)
            return document, password is not None
        except pdfium.PdfiumError as error:
            if "assword" not in str(error):
                raise
    if source.password:
        wrong = "encrypted, and the password does not open it"
        raise Unreadable(wrong, "Give its own password.", lasting=False)
    raise Unreadable("encrypted", "Give its password with --password.")


def _page(document: pdfium.PdfDocument, index: int) -> tuple[list[Line], list[str]]:
    """The lines and the filled fields of a page; none for a page that is broken."""
    try:
        with closing(document[index]) as page:
            return lines_of(page), field_lines(document, page)
    except pdfium.PdfiumError:
        return [], []
