"""What PDFium says of a page: its lines, where each stands, and what is filled into a form."""

import ctypes
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import pypdfium2 as pdfium
import pypdfium2.raw as raw

SOFT_HYPHEN = "\u00ad"  # how a line ends whose last word may go on in the next
UNKNOWN = "\ufffd"  # for a character without meaning
_HYPHEN = "\2"  # what PDFium gives for a hyphen at the end of a line
_SAMPLES = 5  # characters of a line whose boxes are asked for; guess
_LEVEL = 0.5  # least share of a piece's height at which it stands level with another; guess
_GAP = 0.3  # most that pieces of one line overlap, in line heights; guess
_ALEF_LAM = re.compile("[\u0622\u0623\u0625\u0627]\u0644")
_SPACES = "\t\n\v\f\r"
_CLEAN = {code: UNKNOWN for code in (*range(1, 32), *range(127, 160)) if chr(code) not in _SPACES}
_CLEAN |= {0: "", ord(SOFT_HYPHEN): "-"}  # within a line it is drawn
_Box = tuple[float, float, float, float]
_TYPED = (raw.FPDF_FORMFIELD_TEXTFIELD, raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX)
_TICKED = (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON)


@dataclass(frozen=True, slots=True)
class Line:
    """A line and its box in points as its reader sees it, y growing downward.

    `turn` is the quarters by which it is turned on the page, clockwise.
    """

    text: str
    left: float
    top: float
    right: float
    bottom: float
    turn: int = 0

    @property
    def height(self) -> float:
        return self.bottom - self.top


def lines_of(page: pdfium.PdfPage) -> list[Line]:
    """The lines of a page: for each direction in which it has text, those in PDFium's order.

    The page is turned for each of them, since PDFium puts in order what is upright alone.
    """
    characters = _Characters(page)
    out: list[Line] = []
    for turn, _ in Counter(characters.turns.values()).most_common():
        if page.get_rotation() != (rotation := -turn % 4 * 90):
            page.set_rotation(rotation)
            characters = _Characters(page)
        out += _put_together(characters.lines(turn))
    return out


def _put_together(pieces: Iterable[Line]) -> list[Line]:
    """Lines from their pieces: PDFium ends one where a raised or lowered character begins."""
    lines: list[Line] = []
    for line in pieces:
        if lines and _goes_on(last := lines[-1], line):
            main = max(last, line, key=lambda piece: len(piece.text))
            left, right = min(last.left, line.left), max(last.right, line.right)
            lines[-1] = replace(main, text=f"{last.text} {line.text}", left=left, right=right)
        else:
            lines.append(line)
    return lines


def _goes_on(last: Line, line: Line) -> bool:
    """Whether the piece `line` stands right behind `last`, at most half a line higher or lower."""
    height = max(last.height, line.height)
    overlap = min(last.bottom, line.bottom) - max(last.top, line.top)
    level = overlap > _LEVEL * min(last.height, line.height)
    return level and -_GAP * height < line.left - last.right < height


class _Characters:
    """The characters of a page in PDFium's order.

    `turns` has the quarters by which each visible one is turned, clockwise, by its index.
    """

    def __init__(self, page: pdfium.PdfPage) -> None:
        self._page = page.get_textpage()  # is closed with it
        handle = self._page.raw
        codes = [raw.FPDFText_GetUnicode(handle, i) for i in range(self._page.count_chars())]
        self._text = [chr(code) if code < 0x110000 else UNKNOWN for code in codes]
        self.turns = {
            i: round(raw.FPDFText_GetCharAngle(handle, i) / (math.pi / 2)) % 4
            for i, character in enumerate(self._text)
            if character.translate(_CLEAN).strip()
        }

    def lines(self, turn: int) -> Iterator[Line]:
        """The pieces of lines whose characters are turned so; others end a piece."""
        start = 0
        for i, character in enumerate([*self._text, "\n"]):
            parted = character == _HYPHEN and raw.FPDFText_IsHyphen(self._page.raw, i) == 1
            if parted or character in "\r\n" or self.turns.get(i, turn) != turn:
                text = self._words(range(start, i))
                if shown := [k for k in range(start, i) if k in self.turns]:
                    yield self._placed(text + SOFT_HYPHEN * parted, shown, turn)
                start = i + 1

    def _words(self, span: range) -> str:
        """These characters as words; what has no meaning becomes UNKNOWN."""
        units = "".join(self._text[span.start : span.stop])
        units = _ALEF_LAM.sub(
            lambda pair: pair[0][:: -1 if self._is_one_glyph(span.start + pair.start()) else 1],
            units,
        )
        text = units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return " ".join(text.translate(_CLEAN).split())

    def _is_one_glyph(self, index: int) -> bool:
        """Whether two characters are a ligature, which PDFium takes apart backwards."""
        with suppress(pdfium.PdfiumError):
            first, second = (self._page.get_charbox(i, loose=True) for i in (index, index + 1))
            return bool(first == second)
        return False

    def _placed(self, text: str, shown: Sequence[int], turn: int) -> Line:
        """The line of these visible characters."""
        upright: list[_Box] = []  # on the page: left, bottom, right, top, y growing upward
        for i in [*shown[:: max(1, len(shown) // _SAMPLES)], shown[-1]]:
            with suppress(pdfium.PdfiumError):
                upright.append(self._page.get_charbox(i, loose=True))
        upright = upright or [(0.0, 0.0, 0.0, 0.0)]
        boxes = [_turned(box, turn) for box in upright]
        left, right = min(box[0] for box in boxes), max(box[2] for box in boxes)
        top, bottom = median(box[1] for box in boxes), median(box[3] for box in boxes)
        return Line(text, left, top, right, max(bottom, top + 1.0), turn)


def _turned(box: _Box, turn: int) -> _Box:
    """(left, top, right, bottom) for a reader who has turned by so many quarters, clockwise."""
    left, bottom, right, top = box
    for _ in range(turn):
        left, bottom, right, top = -top, left, -bottom, right
    return left, -top, right, -bottom


def field_lines(document: pdfium.PdfDocument, page: pdfium.PdfPage) -> list[str]:
    """ "Name: value" for each field that is filled or ticked, in the order of the file."""
    if not document.formenv:
        return []
    lines = []
    for i in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, i)
        if annotation:
            lines.append(_line(document.formenv.raw, annotation))
            raw.FPDFPage_CloseAnnot(annotation)
    return list(dict.fromkeys(line for line in lines if line))


def _line(form: Any, annotation: Any) -> str:
    kind = raw.FPDFAnnot_GetFormFieldType(form, annotation)
    if kind in _TYPED:
        value = _string(raw.FPDFAnnot_GetFormFieldValue, form, annotation)
    elif kind in _TICKED and raw.FPDFAnnot_IsChecked(form, annotation):
        value = _string(raw.FPDFAnnot_GetFormFieldExportValue, form, annotation)
    else:
        return ""
    name = _string(raw.FPDFAnnot_GetFormFieldAlternateName, form, annotation)
    name = name or _string(raw.FPDFAnnot_GetFormFieldName, form, annotation)
    return f"{name}: {value}" if value else ""


def _string(get: Callable[..., int], form: Any, annotation: Any) -> str:
    """What a function of PDFium's gives as UTF-16, its white space squeezed."""
    size = get(form, annotation, None, 0)
    buffer = ctypes.create_string_buffer(size)
    get(form, annotation, ctypes.cast(buffer, ctypes.POINTER(raw.FPDF_WCHAR)), size)
    return " ".join(buffer.raw.decode("utf-16-le", "replace").replace("\0", "").split())
