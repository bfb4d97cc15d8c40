"""What PDFium says of a page: its lines, where each stands, and what is filled into a form."""

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
_ALEFS, _LAM = "\u0622\u0623\u0625\u0627", "\u0644"
_SPACES = "\t\n\v\f\r"
_CLEAN = {code: UNKNOWN for code in (*range(1, 32), *range(127, 160)) if chr(code) not in _SPACES}
_CLEAN |= {0: "", ord(SOFT_HYPHEN): "-"}  # within a line it is drawn
_OF_FIELD = (
    raw.FPDFAnnot_GetFormFieldValue,
    raw.FPDFAnnot_GetFormFieldAlternateName,
    raw.FPDFAnnot_GetFormFieldName,
)


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
        for line in characters.lines(turn):
            if out and _goes_on(last := out[-1], line):
                main, text = max(last, line, key=lambda a: len(a.text)), f"{last.text} {line.text}"
                out[-1] = replace(main, text=text, left=last.left, right=line.right)
            else:
                out.append(line)
    return out


def _goes_on(last: Line, line: Line) -> bool:
    """Whether `line` is a piece of the line `last`, which PDFium ends where characters are raised
    or lowered: it stands right behind, at most half a line higher or lower.
    """
    height = max(last.height, line.height)
    overlap = min(last.bottom, line.bottom) - max(last.top, line.top)
    level = overlap > _LEVEL * min(last.height, line.height) and line.turn == last.turn
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
        for i, (first, second) in enumerate(zip(self._text, self._text[1:], strict=False)):
            # PDFium takes this ligature apart backwards.
            if second == _LAM and first in _ALEFS and self._box(i) == self._box(i + 1):
                self._text[i : i + 2] = second, first
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
                if shown := [k for k in range(start, i) if k in self.turns]:
                    text = self._words(start, i) + SOFT_HYPHEN * parted
                    yield self._placed(text, shown, turn)
                start = i + 1

    def _words(self, start: int, end: int) -> str:
        """These characters as words; what has no meaning becomes UNKNOWN."""
        units = "".join(self._text[start:end]).encode("utf-16-le", "surrogatepass")
        return " ".join(units.decode("utf-16-le", "replace").translate(_CLEAN).split())

    def _box(self, index: int) -> tuple[float, float, float, float]:
        """(left, bottom, right, top) on the page, y growing upward."""
        left, bottom, right, top = self._page.get_charbox(index, loose=True)
        return left, bottom, right, top

    def _placed(self, text: str, shown: Sequence[int], turn: int) -> Line:
        """The line of these visible characters, for a reader who has turned as they are."""
        boxes = []
        for i in [*shown[:: max(1, len(shown) // _SAMPLES)], shown[-1]]:
            left, bottom, right, top = self._box(i)
            for _ in range(turn):
                left, bottom, right, top = -top, left, -bottom, right
            boxes.append((left, -top, right, -bottom))
        lefts, tops, rights, bottoms = zip(*boxes, strict=True)
        foot = max(median(bottoms), median(tops) + 1.0)
        return Line(text, min(lefts), median(tops), max(rights), foot, turn)


def field_lines(document: pdfium.PdfDocument, page: pdfium.PdfPage) -> list[str]:
    """ "Name: value" for each field that is filled or ticked, in the order of the file."""
    lines: dict[str, None] = {}
    for i in range(raw.FPDFPage_GetAnnotCount(page) if document.formenv else 0):
        annotation = raw.FPDFPage_GetAnnot(page, i)
        if annotation:
            form = document.formenv.raw
            value, shown, name = (_string(get, form, annotation) for get in _OF_FIELD)
            if value not in ("", "Off"):
                lines[f"{shown or name}: {value}"] = None
            raw.FPDFPage_CloseAnnot(annotation)
    return list(lines)


def _string(get: Callable[..., int], form: Any, annotation: Any) -> str:
    """What a function of PDFium's gives as UTF-16, its white space squeezed."""
    size = get(form, annotation, None, 0)
    buffer = ctypes.create_string_buffer(size)
    get(form, annotation, ctypes.cast(buffer, ctypes.POINTER(raw.FPDF_WCHAR)), size)
    return " ".join(buffer.raw.decode("utf-16-le", "replace").replace("\0", "").split())
