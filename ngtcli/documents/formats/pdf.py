"""PDF: the text of each page in PDFium's order, without repeated headers and footers."""

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

import pypdfium2 as pdfium

from ngtcli.documents.content import INSTALL, MAX_OCR_PAGES, Extracted, Source, Writer, pages_named
from ngtcli.documents.formats.pdf_layout import Joiner, join_pages, without_running_lines
from ngtcli.documents.formats.pdf_page import (
    UNKNOWN,
    Line,
    Rule,
    field_lines,
    lines_of,
    notes_of,
    placed,
    rules_of,
    share_of_pictures,
    turned,
)
from ngtcli.documents.text import Unreadable

_OCR = "Recognize its text first: --set ocr=auto with the extra ocr (pip install 'ngtcli[ocr]')."
_NONE = "No text was recognized in them either."
_LETTER, _BARE = r"[^\W\d_]", rf"[{UNKNOWN}\ue000-\uf8ff]"  # private use: known to one font alone
_MEANINGLESS = re.compile(rf"(?<={_LETTER}){_BARE}+(?={_LETTER})|{_BARE}{{3,}}")
_COVERED = 0.5  # share of a page that pictures cover where it may be a scan; guess
_LITTLE = 100  # characters: a page with fewer may be a scan with a stamp; guess
_ALIKE = (
    0.8  # share that two lines have in common which are the same one, recognized and as text; guess
)
_SHARE = 0.005  # of a page's characters that have no meaning, in words; guess


def parse(source: Source) -> Extracted:
    """The text of all pages. Raises Unreadable for encrypted, scanned and broken files."""
    document, secret = _open(source)
    document.init_forms()
    count = len(document)
    read = [_page(document, i) for i in range(count)]
    empty = [i for i, page in enumerate(read, 1) if not page.lines and not page.fields]
    covered = [i for i, page in enumerate(read, 1) if page.is_covered]
    of_ocr = {"off": [], "auto": sorted({*empty, *covered}), "force": range(1, count + 1)}
    recognized, advice = _recognized(document, of_ocr[source.ocr], source)
    for number, lines in recognized.items():
        page = read[number - 1]
        kept = page.lines if page.is_covered else []
        read[number - 1] = replace(page, lines=_with_stamps(lines, kept), rules=[])
    empty = [number for number in empty if number not in recognized]
    covered = [number for number in covered if number not in recognized]
    if len(empty) == count:
        named = "its page has" if count == 1 else f"its {count} pages have"
        raise Unreadable(f"{named} no text: a scan, or pictures", advice)
    pages, dropped = without_running_lines([page.lines for page in read])
    writer = Writer()
    joiner = Joiner(pages)
    blocks = [
        list(joiner.blocks(lines, page.rules)) for lines, page in zip(pages, read, strict=True)
    ]
    join_pages(blocks, joiner)
    for number, (found, page) in enumerate(zip(blocks, read, strict=True), 1):
        writer.mark(number)
        for block in found:
            if block.rows:
                writer.table(block.rows)
            elif block.is_heading:
                writer.heading(block.text, number)
            else:
                writer.add(block.text)
        writer.add("\n".join(page.fields))
    warnings = _warnings(empty, covered, pages)
    known = {"pages": count, "dropped": dropped, "recognized": tuple(recognized)}
    return writer.extracted("pdf", warnings, secret=secret, **known)


def _recognized(
    document: pdfium.PdfDocument, numbers: Sequence[int], source: Source
) -> tuple[dict[int, list[Line]], str]:
    """The lines of those pages in whose pictures there is text, and what to do if there is none."""
    found = dict[int, list[Line]]()
    for number in numbers[:MAX_OCR_PAGES]:
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


def _with_stamps(recognized: Sequence[Line], lines: Sequence[Line]) -> list[Line]:
    """What was recognized on a page, and the lines that are text upon it, in their own words."""
    out = list(recognized)
    said = ["".join(filter(str.isalnum, line.text.lower())) for line in out]
    for line in lines:
        words = "".join(filter(str.isalnum, line.text.lower()))
        same = [i for i, other in enumerate(said) if _is_alike(words, other)]
        if same:
            out[same[0]] = replace(out[same[0]], text=line.text)
        elif words not in "".join(said):
            out.append(line)
    return out


def _is_alike(one: str, other: str) -> bool:
    return SequenceMatcher(None, one, other, autojunk=False).ratio() >= _ALIKE


def _warnings(
    empty: Sequence[int], covered: Sequence[int], pages: Sequence[Sequence[Line]]
) -> tuple[str, ...]:
    """Lines on pages that may be scans, and one on fonts that do not tell their characters."""
    texts = ["\n".join(line.text for line in page) for page in pages]
    shares = [len("".join(_MEANINGLESS.findall(text))) / max(len(text), 1) for text in texts]
    unclear = [number for number, share in enumerate(shares, 1) if share > _SHARE]
    scans = f"no text on {pages_named(empty)}: a scan, or pictures"
    fonts = f"characters of a font have no meaning on {pages_named(unclear)}: OCR it"
    little = f"pictures cover {pages_named(covered)}, and what is in them is not read"
    told = (scans,) * bool(empty) + (little,) * bool(covered)
    return told + (fonts,) * bool(unclear)


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


@dataclass(frozen=True, slots=True)
class _Page:
    """What was found on a page; `is_covered`: pictures cover most of it, and it has little text."""

    lines: list[Line]
    fields: list[str]
    rules: list[Rule]
    is_covered: bool = False


def _page(document: pdfium.PdfDocument, index: int) -> _Page:
    """What is on a page; nothing for a page that is broken."""
    try:
        with closing(document[index]) as page:
            rules = rules_of(page)
            has_grid = len({rule.is_across for rule in rules}) == 2
            # In a grid cells may be apart by a rule and a narrow space.
            lines = lines_of(page, 0.0) if has_grid else lines_of(page)
            turn = lines[0].turn if lines else 0
            notes = notes_of(page, turn)
            lines = placed(lines, notes.typed)
            fields = [*field_lines(document, page), *notes.notes]
            size = sum(len(line.text) for line in lines)
            is_covered = 0 < size < _LITTLE and share_of_pictures(page) > _COVERED
    except pdfium.PdfiumError:
        return _Page([], [], [])
    return _Page(lines, fields, turned(rules, turn), is_covered)
