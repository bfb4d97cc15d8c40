"""PDF: the text of each page in PDFium's order, without repeated headers and footers."""

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

import pypdfium2 as pdfium

from ngtcli.documents.content import (
    INSTALL,
    MAX_OCR_PAGES,
    Extracted,
    ParserInput,
    Writer,
    pages_named,
)
from ngtcli.documents.formats.pdf_layout import Joiner, join_pages, without_running_lines
from ngtcli.documents.formats.pdf_page import (
    UNKNOWN,
    Line,
    Rule,
    field_lines,
    lines_of,
    notes_of,
    rules_of,
    share_of_pictures,
    turned,
    with_typed_lines,
)
from ngtcli.documents.text import Unreadable

_OCR_HINT = (
    "Recognize its text first: --set ocr=auto with the extra ocr (pip install 'ngtcli[ocr]')."
)
_OCR_FOUND_NOTHING = "No text was recognized in them either."
_LETTER = r"[^\W\d_]"
# Characters that could not be decoded, and private-use ones, which only their own font knows.
_MEANINGLESS_CHARACTER = rf"[{UNKNOWN}\ue000-\uf8ff]"
_MEANINGLESS = re.compile(
    rf"(?<={_LETTER}){_MEANINGLESS_CHARACTER}+(?={_LETTER})|{_MEANINGLESS_CHARACTER}{{3,}}"
)
_COVERED_SHARE = 0.5  # share of a page that pictures cover if it may be a scan (guess)
_MAX_STAMP = 100  # characters: a scanned page may have fewer, as those of a stamp (guess)
_MIN_SIMILARITY = 0.8  # of a line of text and the same line as OCR reads it, 0 to 1 (guess)
_MEANINGLESS_SHARE = 0.005  # share of a page's characters that is worth a warning (guess)


def parse(source: ParserInput) -> Extracted:
    """Read the text of all pages. Raises Unreadable for encrypted, scanned and broken files."""
    document, is_secret = _open(source)
    document.init_forms()
    count = len(document)
    pages = [_read_page(document, index) for index in range(count)]
    without_text = [n for n, page in enumerate(pages, 1) if not page.lines and not page.fields]
    blank = [n for n in without_text if pages[n - 1].is_blank]
    empty = [n for n in without_text if n not in blank]
    covered = [n for n, page in enumerate(pages, 1) if page.is_covered]

    pages_for_ocr: dict[str, Sequence[int]] = {
        "off": [],
        "auto": sorted({*empty, *covered}),
        "force": range(1, count + 1),
    }
    recognized, advice = _recognize(document, pages_for_ocr[source.ocr], source)
    for number, lines in recognized.items():
        page = pages[number - 1]
        text_lines = page.lines if page.is_covered else []
        pages[number - 1] = replace(page, lines=_with_stamps(lines, text_lines), rules=[])
    empty = [number for number in empty if number not in recognized]
    covered = [number for number in covered if number not in recognized]
    if len(blank) == count:
        subject = "its page is" if count == 1 else f"its {count} pages are"
        raise Unreadable(f"no text: {subject} blank", "Give a file with text.")
    if len(empty) + len(blank) == count:
        subject = "its page has" if count == 1 else f"its {count} pages have"
        raise Unreadable(f"{subject} no text: a scan, or pictures", advice)

    lines_by_page, dropped = without_running_lines([page.lines for page in pages])
    joiner = Joiner(lines_by_page)
    blocks_by_page = [
        list(joiner.blocks(lines, page.rules))
        for lines, page in zip(lines_by_page, pages, strict=True)
    ]
    join_pages(blocks_by_page, joiner)

    writer = Writer()
    for number, (blocks, page) in enumerate(zip(blocks_by_page, pages, strict=True), 1):
        writer.mark(number)
        for block in blocks:
            if block.rows:
                writer.table(block.rows)
            elif block.is_heading:
                writer.heading(block.text, number)
            else:
                writer.add(block.text)
        writer.add("\n".join(page.fields))
    return writer.extracted(
        "pdf",
        _warnings(empty, covered, lines_by_page),
        secret=is_secret,
        pages=count,
        dropped=dropped,
        recognized=tuple(recognized),
    )


def _recognize(
    document: pdfium.PdfDocument, numbers: Sequence[int], source: ParserInput
) -> tuple[dict[int, list[Line]], str]:
    """Read pages by OCR.

    Args:
        document: The document.
        numbers: The numbers of the pages, from 1 on.
        source: How OCR is to be used.

    Returns:
        The lines of each page on which there are any; and a hint for the case that the document has
        no text at all.

    Raises:
        Unreadable: OCR is not installed, or failed though every page needs it.
    """
    lines_by_number = dict[int, list[Line]]()
    for number in numbers[:MAX_OCR_PAGES]:
        with closing(document[number - 1]) as page:
            if _is_blank(page):
                continue
            source.on_page()
            try:
                from ngtcli.documents.formats.ocr import recognize_lines  # lazy: it takes a second

                lines = recognize_lines(page, source.ocr_language)
                if lines:
                    lines_by_number[number] = lines
            except ImportError as error:
                if source.ocr == "auto" and not source.ocr_language:
                    return {}, _OCR_HINT
                extra = "tesseract" if source.ocr_language else "ocr"
                raise Unreadable(
                    f"no text is recognized here without the package {error.name}",
                    INSTALL.format(extra),
                    lasting=False,
                ) from None
            except Exception as error:  # too little memory, for example
                if len(numbers) == len(document) or isinstance(error, Unreadable):
                    raise
    return lines_by_number, _OCR_HINT if source.ocr == "off" else _OCR_FOUND_NOTHING


def _with_stamps(recognized: Sequence[Line], text_lines: Sequence[Line]) -> list[Line]:
    """Merge the lines that OCR read with the lines of text upon the scan, such as a stamp.

    If both have a line, the text is right.
    """
    lines = list(recognized)
    recognized_words = [_letters_of(line) for line in lines]
    for text_line in text_lines:
        words = _letters_of(text_line)
        same = [i for i, other in enumerate(recognized_words) if _is_alike(words, other)]
        if same:
            lines[same[0]] = replace(lines[same[0]], text=text_line.text)
        elif words not in "".join(recognized_words):
            lines.append(text_line)
    return lines


def _letters_of(line: Line) -> str:
    return "".join(filter(str.isalnum, line.text.lower()))


def _is_alike(first: str, second: str) -> bool:
    ratio = SequenceMatcher(None, first, second, autojunk=False).ratio()
    return ratio >= _MIN_SIMILARITY


def _warnings(
    empty: Sequence[int], covered: Sequence[int], pages: Sequence[Sequence[Line]]
) -> tuple[str, ...]:
    """Warn of pages that may be scans, and of fonts that do not tell their characters."""
    unreadable = []
    for number, page in enumerate(pages, 1):
        text = "\n".join(line.text for line in page)
        meaningless = sum(map(len, _MEANINGLESS.findall(text)))
        if meaningless / max(len(text), 1) > _MEANINGLESS_SHARE:
            unreadable.append(number)
    warnings = []
    if empty:
        warnings.append(f"no text on {pages_named(empty)}: a scan, or pictures")
    if covered:
        warnings.append(f"pictures cover {pages_named(covered)}, and what is in them is not read")
    if unreadable:
        pages_text = pages_named(unreadable)
        warnings.append(f"characters of a font have no meaning on {pages_text}: OCR it")
    return tuple(warnings)


def _open(source: ParserInput) -> tuple[pdfium.PdfDocument, bool]:
    """Open the document; return whether it needed the password. Raises Unreadable."""
    for password in (None, source.password or None):
        try:
            document = pdfium.PdfDocument(source.data, password=password)
            len(document)
            return document, password is not None
        except pdfium.PdfiumError as error:
            if "assword" not in str(error):
                raise
    if source.password:
        raise Unreadable(
            "encrypted, and the password does not open it",
            "Give its own password.",
            lasting=False,
        )
    raise Unreadable("encrypted", "Give its password with --password.")


@dataclass(frozen=True, slots=True)
class _Page:
    """The content of a page.

    Attributes:
        lines: Its lines of text.
        fields: Fields of forms, and notes.
        rules: The lines that are drawn on it.
        is_covered: Whether pictures cover most of it, and it has little text.
        is_blank: Whether nothing is drawn on it, not even a picture.
    """

    lines: list[Line]
    fields: list[str]
    rules: list[Rule]
    is_covered: bool = False
    is_blank: bool = False


def _is_blank(page: pdfium.PdfPage) -> bool:
    return next(page.get_objects(max_depth=1), None) is None


def _read_page(document: pdfium.PdfDocument, index: int) -> _Page:
    """Read a page; a broken one is empty."""
    try:
        with closing(document[index]) as page:
            rules = rules_of(page)
            has_grid = len({rule.is_across for rule in rules}) == 2
            # In a grid, a rule and a narrow space may be all that separates two cells.
            lines = lines_of(page, 0.0) if has_grid else lines_of(page)
            turn = lines[0].turn if lines else 0
            notes = notes_of(page, turn)
            lines = with_typed_lines(lines, notes.typed)
            fields = [*field_lines(document, page), *notes.comments]
            size = sum(len(line.text) for line in lines)
            is_covered = 0 < size < _MAX_STAMP and share_of_pictures(page) > _COVERED_SHARE
            is_blank = _is_blank(page)
    except pdfium.PdfiumError:
        return _Page([], [], [])
    return _Page(lines, fields, turned(rules, turn), is_covered, is_blank)
