"""What PDFium says of a page: its lines, where each stands, and what is filled into a form."""

import ctypes
import math
import re
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
_MOST_SEGMENTS = 40_000  # of the paths of a page that is looked at for rules; guess
_BOX = 5  # most segments of a line or a box
_THIN = 3.0  # points: a box that is thinner is a rule; as pdfplumber
_DEPTH = 3  # forms in forms whose pictures are looked at; guess
_WITH_TEXT = {
    getattr(raw, f"FPDF_ANNOT_{name}")
    for name in "TEXT FREETEXT HIGHLIGHT UNDERLINE SQUIGGLY STRIKEOUT CARET STAMP SQUARE CIRCLE"
    " LINE POLYGON POLYLINE INK".split()
}
_BLANK = re.compile(r"_{2,}|[.…]{4,}")  # to be filled in
_WIDE = 0.6  # least white space in a line that is told of, in line heights; guess
_SHORT = 24  # characters of a line whose pieces may not stand level, at most; guess
_SAMPLES = 5  # characters of a line whose boxes are asked for; guess
_LEVEL = 0.5  # least share of a piece's height at which it stands level with another; guess
_GAP = 0.3  # most that pieces of one line overlap, in line heights; guess
_ALEFS, _LAM = "\u0622\u0623\u0625\u0627", "\u0644"
_SPACES = "\t\n\v\f\r"
_CLEAN = {code: UNKNOWN for code in (*range(1, 32), *range(127, 160)) if chr(code) not in _SPACES}
_CLEAN |= {0: "", ord(SOFT_HYPHEN): "-"}  # within a line it is drawn
_UNSEEN = frozenset(chr(i) for i in range(0x3001) if chr(i).isspace() and i not in _CLEAN) | {"\0"}
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
    gaps: tuple["Gap", ...] = ()

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top


@dataclass(frozen=True, slots=True)
class Gap:
    """White space in a line, as between columns: how many words stand before it, and its sides."""

    word: int
    left: float
    right: float


@dataclass(frozen=True, slots=True)
class Rule:
    """A straight line that is drawn across or down a page, in points as of a `Line`."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def is_across(self) -> bool:
        return self.right - self.left >= self.bottom - self.top


def lines_of(page: pdfium.PdfPage, least_gap: float = _WIDE) -> list[Line]:
    """The lines of a page: for each direction in which it has text, those in PDFium's order.

    The page is turned for each of them, since PDFium puts in order what is upright alone. Lines
    have their gaps from `least_gap` line heights on.
    """
    characters = _Characters(page)
    out: list[Line] = []
    for turn, _ in Counter(characters.turns.values()).most_common():
        if page.get_rotation() != (rotation := -turn % 4 * 90):
            page.set_rotation(rotation)
            characters = _Characters(page)
        for line in characters.lines(turn, least_gap):
            if out and _goes_on(last := out[-1], line):
                main, text = max(last, line, key=lambda a: len(a.text)), f"{last.text} {line.text}"
                gaps = (*last.gaps, *_moved(line.gaps, len(last.text.split(" "))))
                out[-1] = replace(main, text=text, left=last.left, right=line.right, gaps=gaps)
            else:
                out.append(line)
    return out


def _moved(gaps: Sequence[Gap], words: int) -> list[Gap]:
    """Gaps of a line before which so many words are put."""
    return [replace(gap, word=gap.word + words) for gap in gaps]


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
        self._rectangle = raw.FS_RECTF()
        handle = self._page.raw
        codes = [raw.FPDFText_GetUnicode(handle, i) for i in range(self._page.count_chars())]
        self._text = [chr(code) if code < 0x110000 else UNKNOWN for code in codes]
        for i, (first, second) in enumerate(zip(self._text, self._text[1:], strict=False)):
            # PDFium takes this ligature apart backwards.
            if second == _LAM and first in _ALEFS and self._box(i) == self._box(i + 1):
                self._text[i : i + 2] = second, first
        angles = (
            (i, raw.FPDFText_GetCharAngle(handle, i))
            for i, character in enumerate(self._text)
            if character not in _UNSEEN
        )
        self.turns = {i: round(a / (math.pi / 2)) % 4 if a else 0 for i, a in angles}

    def lines(self, turn: int, least_gap: float) -> Iterator[Line]:
        """The pieces of lines whose characters are turned so; others end a piece."""
        start = 0
        for i, character in enumerate([*self._text, "\n"]):
            parted = character == _HYPHEN and raw.FPDFText_IsHyphen(self._page.raw, i) == 1
            if parted or character in "\r\n" or self.turns.get(i, turn) != turn:
                shown = [k for k in range(start, i) if k in self.turns]
                for first, end in self._level(shown, turn):
                    within = [k for k in shown if first <= k < end]
                    text = self._words(first, end) + SOFT_HYPHEN * (parted and end > shown[-1])
                    line = self._placed(text, within, turn)
                    gaps = self._gaps(first, end, turn, least_gap * line.height)
                    yield replace(line, gaps=gaps) if gaps else line
                start = i + 1

    def _level(self, shown: Sequence[int], turn: int) -> Iterator[tuple[int, int]]:
        """The parts of a line that stand level: PDFium puts short pieces below one another in one,
        so that 40 and 3 in a column become 403.
        """
        if not shown:
            return
        first = shown[0]
        # Japanese may run downwards.
        if len(shown) <= _SHORT and all(self._text[k].isascii() for k in shown):
            boxes = [self._turned(k, turn) for k in shown]
            for (_, top, _, bottom), (_, above, _, below), k in zip(
                boxes, boxes[1:], shown[1:], strict=False
            ):
                if above >= bottom or below <= top:
                    yield first, k
                    first = k
        yield first, shown[-1] + 1

    def _gaps(self, start: int, end: int, turn: int, least: float) -> tuple[Gap, ...]:
        """The white space between the words of a line that is at least so wide."""
        found = []
        words = 0
        last = -1  # the visible character before
        for i in range(start, end):
            if i not in self.turns:
                continue
            if last >= 0 and i > last + 1 and any(map(str.isspace, self._text[last + 1 : i])):
                words += 1
                left, right = self._turned(last, turn)[2], self._turned(i, turn)[0]
                if right - left >= least:
                    found.append(Gap(words, left, right))
            last = i
        return tuple(found)

    def _turned(self, index: int, turn: int) -> tuple[float, float, float, float]:
        """(left, top, right, bottom) of a character for a reader who has turned as it is."""
        left, bottom, right, top = self._box(index)
        for _ in range(turn):
            left, bottom, right, top = -top, left, -bottom, right
        return left, -top, right, -bottom

    def _words(self, start: int, end: int) -> str:
        """These characters as words; what has no meaning becomes UNKNOWN."""
        units = "".join(self._text[start:end]).encode("utf-16-le", "surrogatepass")
        return " ".join(units.decode("utf-16-le", "replace").translate(_CLEAN).split())

    def _box(self, index: int) -> tuple[float, float, float, float]:
        """(left, bottom, right, top) on the page, y growing upward."""
        found = raw.FPDFText_GetLooseCharBox(self._page.raw, index, self._rectangle)
        if not found:
            raise pdfium.PdfiumError("a character has no box")
        box = self._rectangle
        return box.left, box.bottom, box.right, box.top

    def _placed(self, text: str, shown: Sequence[int], turn: int) -> Line:
        """The line of these visible characters, for a reader who has turned as they are."""
        samples = [*shown[:: max(1, len(shown) // _SAMPLES)], shown[-1]]
        boxes = [self._turned(i, turn) for i in samples]
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


def rules_of(page: pdfium.PdfPage) -> list[Rule]:
    """The straight lines and the sides of boxes that are drawn on a page, as on an upright one.

    None of a page on which more than a bound are drawn.
    """
    found: list[Rule] = []
    for i in range(raw.FPDFPage_CountObjects(page)):
        shape = raw.FPDFPage_GetObject(page, i)  # without a wrapper: pages have thousands
        if raw.FPDFPageObj_GetType(shape) != raw.FPDF_PAGEOBJ_PATH:
            continue
        count = raw.FPDFPath_CountSegments(shape)
        if len(found) + count > _MOST_SEGMENTS:
            return []
        if count <= _BOX:
            found += _sides(shape, is_box=count >= _BOX - 1)
        else:
            found += _straight(shape, count)
    return [Rule(r.left, -r.bottom, r.right, -r.top) for r in found]


def turned(rules: Sequence[Rule], turn: int) -> list[Rule]:
    """The rules as a reader sees them who has turned as the text is."""
    return [_as_read(Rule(r.left, -r.bottom, r.right, -r.top), turn) for r in rules]


def _sides(shape: Any, is_box: bool) -> Iterator[Rule]:
    """The sides of a box on the page; of a thin one, and of a line, its middle."""
    sides = [ctypes.c_float() for _ in range(4)]
    if not raw.FPDFPageObj_GetBounds(shape, *sides):
        return
    left, bottom, right, top = (side.value for side in sides)
    if top - bottom <= _THIN and right - left > _THIN:
        middle = (top + bottom) / 2
        yield Rule(left, middle, right, middle)
    elif right - left <= _THIN and top - bottom > _THIN:
        middle = (left + right) / 2
        yield Rule(middle, bottom, middle, top)
    elif is_box and right - left > _THIN:
        yield Rule(left, bottom, right, bottom)
        yield Rule(left, top, right, top)
        yield Rule(left, bottom, left, top)
        yield Rule(right, bottom, right, top)


def _straight(shape: Any, count: int) -> Iterator[Rule]:
    """The parts of a path that go across or down the page."""
    matrix = raw.FS_MATRIX()
    raw.FPDFPageObj_GetMatrix(shape, matrix)
    x, y = ctypes.c_float(), ctypes.c_float()
    last = begin = (0.0, 0.0)
    for i in range(count):
        segment = raw.FPDFPath_GetPathSegment(shape, i)
        raw.FPDFPathSegment_GetPoint(segment, x, y)
        here = (
            matrix.a * x.value + matrix.c * y.value + matrix.e,
            matrix.b * x.value + matrix.d * y.value + matrix.f,
        )
        kind = raw.FPDFPathSegment_GetType(segment)
        if kind == raw.FPDF_SEGMENT_MOVETO:
            begin = here
        elif kind == raw.FPDF_SEGMENT_LINETO:
            yield from _rule(last, here)
        if raw.FPDFPathSegment_GetClose(segment):
            yield from _rule(here, begin)
        last = here


def _rule(one: tuple[float, float], other: tuple[float, float]) -> Iterator[Rule]:
    left, right = sorted((one[0], other[0]))
    bottom, top = sorted((one[1], other[1]))
    is_straight = min(right - left, top - bottom) <= 1 < max(right - left, top - bottom)
    if is_straight:
        yield Rule(left, bottom, right, top)


def _as_read(rule: Rule, turn: int) -> Rule:
    """A rule on the page, y growing upward, for a reader who has turned as its text is."""
    left, bottom, right, top = rule.left, rule.top, rule.right, rule.bottom
    for _ in range(turn):
        left, bottom, right, top = -top, left, -bottom, right
    return Rule(left, -top, right, -bottom)


@dataclass(frozen=True, slots=True)
class Notes:
    """What is written upon a page: lines that stand on it, and notes that a reader opens."""

    typed: tuple[Line, ...]
    notes: tuple[str, ...]


def notes_of(page: pdfium.PdfPage, turn: int) -> Notes:
    """The annotations of a page that have text; hidden ones, and those of forms, are left out."""
    typed, notes = list[Line](), list[str]()
    for i in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, i)
        if not annotation:
            continue
        kind = raw.FPDFAnnot_GetSubtype(annotation)
        is_hidden = raw.FPDFAnnot_GetFlags(annotation) & (raw.FPDF_ANNOT_FLAG_HIDDEN | 32)
        if kind in _WITH_TEXT and not is_hidden:
            text, author = (_annotated(annotation, key) for key in (b"Contents", b"T"))
            if text and kind == raw.FPDF_ANNOT_FREETEXT:
                box = raw.FS_RECTF()
                raw.FPDFAnnot_GetRect(annotation, box)
                place = _as_read(Rule(box.left, box.bottom, box.right, box.top), turn)
                typed.append(Line(text, place.left, place.top, place.right, place.bottom, turn))
            elif text:
                notes.append(f"[comment by {author}: {text}]" if author else f"[comment: {text}]")
        raw.FPDFPage_CloseAnnot(annotation)
    return Notes(tuple(typed), tuple(dict.fromkeys(notes)))


def _annotated(annotation: Any, key: bytes) -> str:
    def get(_: Any, annotation: Any, buffer: Any, size: int) -> int:
        return int(raw.FPDFAnnot_GetStringValue(annotation, key, buffer, size))

    return _string(get, None, annotation)


def placed(lines: Sequence[Line], typed: Sequence[Line]) -> list[Line]:
    """The lines of a page with those that were typed upon it: each in the line with which it
    stands level, or else behind the one that stands above it.
    """
    out = list(lines)
    for one in typed:
        middle = (one.top + one.bottom) / 2
        level = [i for i, line in enumerate(out) if line.top <= middle <= line.bottom]
        above = [i for i, line in enumerate(out) if line.bottom <= middle]
        if level:
            at = min(level, key=lambda i: abs(out[i].right - one.left))
            out[at] = _filled(out[at], one)
        else:
            at = max(above, key=lambda i: out[i].bottom) + 1 if above else 0
            out.insert(at, one)
    return out


def _filled(line: Line, typed: Line) -> Line:
    """A line with what was typed upon it: in the place of a blank, before it or behind it."""
    if typed.right <= line.left:
        return replace(line, text=f"{typed.text} {line.text}", left=typed.left, gaps=())
    share = ((typed.left + typed.right) / 2 - line.left) / max(line.right - line.left, 1.0)
    blanks = list(_BLANK.finditer(line.text))
    if share < 1 and blanks:
        at = share * len(line.text)
        blank = min(blanks, key=lambda match: abs((match.start() + match.end()) / 2 - at))
        text = f"{line.text[: blank.start()]} {typed.text} {line.text[blank.end() :]}"
        return replace(line, text=" ".join(text.split()), gaps=())
    right = max(line.right, typed.right)
    return replace(line, text=f"{line.text} {typed.text}", right=right, gaps=())


def share_of_pictures(page: pdfium.PdfPage) -> float:
    """The share of a page that its pictures cover, those upon one another counted each."""
    width, height = page.get_size()
    covered = 0.0
    for picture in page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=_DEPTH):
        left, bottom, right, top = picture.get_bounds()
        area = abs(right - left) * abs(top - bottom)
        form = picture.container
        while form is not None:  # its bounds are those within the form
            matrix = form.get_matrix()
            area *= abs(matrix.a * matrix.d - matrix.b * matrix.c)
            form = form.container
        covered += area
    return float(min(covered / max(width * height, 1.0), 1.0))
