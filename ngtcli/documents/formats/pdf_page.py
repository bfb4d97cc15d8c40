"""The content of a PDF's page as PDFium gives it: lines and their places, rules, fields, notes."""

import ctypes
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from ngtcli.documents.content import comment_line

SOFT_HYPHEN = "\u00ad"  # how a line ends whose last word may continue in the next
UNKNOWN = "\ufffd"  # stands for a character without meaning
_LINE_END_HYPHEN = "\2"  # PDFium's code for a hyphen at the end of a line

# All but the two with another source are guesses.
_MAX_SEGMENTS = 40_000  # segments of paths: no rules are looked for on a page with more
_BOX_SEGMENTS = 5  # a line or a box has at most so many
_THIN_POINTS = 3.0  # a box that is thinner is a rule; as pdfplumber
_MAX_FORM_DEPTH = 3  # forms within forms whose pictures are counted
_MIN_GAP = 0.6  # white space in a line that is recorded, in line heights
_MAX_SHORT_LINE = 24  # characters of a line whose pieces may be below one another
_BOX_SAMPLES = 5  # characters of a line whose boxes are looked up
_MIN_OVERLAP = 0.5  # share of the smaller height by which pieces that stand level overlap
_MAX_OVERLAP = 0.3  # by which pieces of one line overlap across the page, in line heights

_ANNOTATION_HIDDEN = raw.FPDF_ANNOT_FLAG_HIDDEN | raw.FPDF_ANNOT_FLAG_NOVIEW
_ANNOTATIONS_WITH_TEXT = {
    getattr(raw, f"FPDF_ANNOT_{name}")
    for name in (
        "TEXT FREETEXT HIGHLIGHT UNDERLINE SQUIGGLY STRIKEOUT CARET STAMP SQUARE CIRCLE"
        " LINE POLYGON POLYLINE INK"
    ).split()
}
_BLANK_TO_FILL = re.compile(r"_{2,}|[.…]{4,}")
_LAM = "\u0644"
_ALEFS = "\u0622\u0623\u0625\u0627"
_SPACES = "\t\n\v\f\r"
# Control characters have no meaning; a soft hyphen within a line is drawn.
_CLEAN = {code: UNKNOWN for code in (*range(1, 32), *range(127, 160)) if chr(code) not in _SPACES}
_CLEAN |= {0: "", ord(SOFT_HYPHEN): "-"}
_INVISIBLE = {chr(code) for code in range(0x3001) if chr(code).isspace() and code not in _CLEAN}
_INVISIBLE.add("\0")


@dataclass(frozen=True, slots=True)
class Line:
    """A line and its box in points as its reader sees it, y growing downward.

    Attributes:
        turn: The quarter turns by which it is rotated on the page, clockwise.
        gaps: The wide gaps between its words, from left to right.
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
    """White space in a line, as between columns, with its sides in points."""

    word: int  # how many words of the line are before it
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


class _Box(NamedTuple):
    """The box of a character, in points, y growing downward."""

    left: float
    top: float
    right: float
    bottom: float


def lines_of(page: pdfium.PdfPage, min_gap: float = _MIN_GAP) -> list[Line]:
    """Read the lines of a page: for each direction of its text, in PDFium's order.

    Args:
        page: The page, which may be rotated by this.
        min_gap: How wide a gap is that is recorded, in line heights.
    """
    characters = _Characters(page)
    lines: list[Line] = []
    for turn, _ in Counter(characters.turns.values()).most_common():
        rotation = -turn % 4 * 90
        if page.get_rotation() != rotation:
            page.set_rotation(rotation)
            characters = _Characters(page)
        for line in characters.lines(turn, min_gap):
            if lines and _is_continued(lines[-1], line):
                lines[-1] = _join_pieces(lines[-1], line)
            else:
                lines.append(line)
    return lines


def _is_continued(last: Line, line: Line) -> bool:
    """Whether `line` is a piece of the line `last`: right after it, at most half a line off.

    PDFium ends a line where characters are raised or lowered.
    """
    height = max(last.height, line.height)
    overlap = min(last.bottom, line.bottom) - max(last.top, line.top)
    is_level = overlap > _MIN_OVERLAP * min(last.height, line.height) and line.turn == last.turn
    return is_level and -_MAX_OVERLAP * height < line.left - last.right < height


def _join_pieces(first: Line, second: Line) -> Line:
    """Join two pieces of a line; the longer one decides how high the line is."""
    longer = max(first, second, key=lambda line: len(line.text))
    words = len(first.text.split(" "))
    moved_gaps = [replace(gap, word=gap.word + words) for gap in second.gaps]
    return replace(
        longer,
        text=f"{first.text} {second.text}",
        left=first.left,
        right=second.right,
        gaps=(*first.gaps, *moved_gaps),
    )


class _Characters:
    """The characters of a page in PDFium's order.

    Attributes:
        turns: The quarter turns by which each visible character is rotated, clockwise, by its
            index.
    """

    def __init__(self, page: pdfium.PdfPage) -> None:
        self._page = page.get_textpage()  # closed with the page
        self._rectangle = raw.FS_RECTF()
        handle = self._page.raw
        codes = [raw.FPDFText_GetUnicode(handle, i) for i in range(self._page.count_chars())]
        self._text = [chr(code) if code < 0x110000 else UNKNOWN for code in codes]
        self._mend_ligatures()
        self.turns: dict[int, int] = {}
        for i, character in enumerate(self._text):
            if character not in _INVISIBLE:
                angle = raw.FPDFText_GetCharAngle(handle, i)
                self.turns[i] = round(angle / (math.pi / 2)) % 4 if angle else 0

    def _mend_ligatures(self) -> None:
        """Exchange lam and alef where PDFium took their ligature apart backwards."""
        for i, (first, second) in enumerate(zip(self._text, self._text[1:], strict=False)):
            if second == _LAM and first in _ALEFS and self._page_box(i) == self._page_box(i + 1):
                self._text[i : i + 2] = second, first

    def lines(self, turn: int, min_gap: float) -> Iterator[Line]:
        """Yield the pieces of lines whose characters are rotated by `turn`; others end a piece."""
        start = 0
        for i, character in enumerate([*self._text, "\n"]):
            is_hyphenated = (
                character == _LINE_END_HYPHEN and raw.FPDFText_IsHyphen(self._page.raw, i) == 1
            )
            is_end = is_hyphenated or character in "\r\n" or self.turns.get(i, turn) != turn
            if is_end:
                visible = [k for k in range(start, i) if k in self.turns]
                for first, end in self._split_levels(visible, turn):
                    hyphen = SOFT_HYPHEN if is_hyphenated and end > visible[-1] else ""
                    text = self._words(first, end) + hyphen
                    line = self._line(text, [k for k in visible if first <= k < end], turn)
                    gaps = self._gaps(first, end, turn, min_gap * line.height)
                    yield replace(line, gaps=gaps) if gaps else line
                start = i + 1

    def _split_levels(self, visible: Sequence[int], turn: int) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each part of a line that stands level.

        PDFium puts short pieces that are below one another into one line, so that 40 and 3 in a
        column would become 403.
        """
        if not visible:
            return
        start = visible[0]
        # Japanese, for example, may run downwards.
        is_ascii = all(self._text[k].isascii() for k in visible)
        if is_ascii and len(visible) <= _MAX_SHORT_LINE:
            previous = self._box(start, turn)
            for k in visible[1:]:
                box = self._box(k, turn)
                if box.top >= previous.bottom or box.bottom <= previous.top:
                    yield start, k
                    start = k
                previous = box
        yield start, visible[-1] + 1

    def _gaps(self, start: int, end: int, turn: int, min_width: float) -> tuple[Gap, ...]:
        """The gaps between the words of a line that have at least this width in points."""
        gaps = []
        words = 0
        previous = -1  # the visible character before
        for i in range(start, end):
            if i not in self.turns:
                continue
            between = self._text[previous + 1 : i]
            if previous >= 0 and any(map(str.isspace, between)):
                words += 1
                left = self._box(previous, turn).right
                right = self._box(i, turn).left
                if right - left >= min_width:
                    gaps.append(Gap(words, left, right))
            previous = i
        return tuple(gaps)

    def _words(self, start: int, end: int) -> str:
        """These characters as words; those without meaning become UNKNOWN."""
        units = "".join(self._text[start:end]).encode("utf-16-le", "surrogatepass")
        return " ".join(units.decode("utf-16-le", "replace").translate(_CLEAN).split())

    def _box(self, index: int, turn: int) -> _Box:
        """The box of a character for a reader who has turned as it is."""
        left, bottom, right, top = self._page_box(index)
        for _ in range(turn):
            left, bottom, right, top = -top, left, -bottom, right
        return _Box(left, -top, right, -bottom)

    def _page_box(self, index: int) -> tuple[float, float, float, float]:
        """(left, bottom, right, top) of a character on the page, y growing upward."""
        if not raw.FPDFText_GetLooseCharBox(self._page.raw, index, self._rectangle):
            raise pdfium.PdfiumError("a character has no box")
        box = self._rectangle
        return box.left, box.bottom, box.right, box.top

    def _line(self, text: str, visible: Sequence[int], turn: int) -> Line:
        """The line of these visible characters, for a reader who has turned as they are."""
        samples = [*visible[:: max(1, len(visible) // _BOX_SAMPLES)], visible[-1]]
        boxes = [self._box(i, turn) for i in samples]
        top = median(box.top for box in boxes)
        bottom = median(box.bottom for box in boxes)
        return Line(
            text,
            left=min(box.left for box in boxes),
            top=top,
            right=max(box.right for box in boxes),
            bottom=max(bottom, top + 1.0),
            turn=turn,
        )


def field_lines(document: pdfium.PdfDocument, page: pdfium.PdfPage) -> list[str]:
    """List "Name: value" for each field that is filled or ticked, in the order of the file."""
    if not document.formenv:
        return []
    form = document.formenv.raw
    lines: list[str] = []
    for i in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, i)
        if not annotation:
            continue
        value = _read_string(raw.FPDFAnnot_GetFormFieldValue, form, annotation)
        if value not in ("", "Off"):
            shown_name = _read_string(raw.FPDFAnnot_GetFormFieldAlternateName, form, annotation)
            name = shown_name or _read_string(raw.FPDFAnnot_GetFormFieldName, form, annotation)
            lines.append(f"{name}: {value}")
        raw.FPDFPage_CloseAnnot(annotation)
    return list(dict.fromkeys(lines))


def _read_string(get: Callable[..., int], *arguments: Any) -> str:
    """Call a function of PDFium that writes UTF-16 to a buffer; squeeze its white space."""
    size = get(*arguments, None, 0)
    buffer = ctypes.create_string_buffer(size)
    get(*arguments, ctypes.cast(buffer, ctypes.POINTER(raw.FPDF_WCHAR)), size)
    return " ".join(buffer.raw.decode("utf-16-le", "replace").replace("\0", "").split())


def rules_of(page: pdfium.PdfPage) -> list[Rule]:
    """List the straight lines and the sides of boxes that a page shows, as on an upright one.

    A page with very many segments has none: it shows a drawing.
    """
    rules: list[Rule] = []
    for i in range(raw.FPDFPage_CountObjects(page)):
        shape = raw.FPDFPage_GetObject(page, i)  # without a wrapper: pages have thousands
        if raw.FPDFPageObj_GetType(shape) != raw.FPDF_PAGEOBJ_PATH:
            continue
        count = raw.FPDFPath_CountSegments(shape)
        if len(rules) + count > _MAX_SEGMENTS:
            return []
        if count <= _BOX_SEGMENTS:
            rules += _sides(shape, is_box=count >= _BOX_SEGMENTS - 1)
        else:
            rules += _straight_segments(shape, count)
    return [_flipped(rule) for rule in rules]


def turned(rules: Sequence[Rule], turn: int) -> list[Rule]:
    """The rules as a reader sees them who has turned as the text is."""
    return [_as_read(_flipped(rule), turn) for rule in rules]


def _flipped(rule: Rule) -> Rule:
    """The rule with y growing the other way."""
    return Rule(rule.left, -rule.bottom, rule.right, -rule.top)


def _sides(shape: Any, is_box: bool) -> Iterator[Rule]:
    """Yield the sides of a box on the page; of a thin one, and of a line, its middle."""
    sides = [ctypes.c_float() for _ in range(4)]
    if not raw.FPDFPageObj_GetBounds(shape, *sides):
        return
    left, bottom, right, top = (side.value for side in sides)
    if top - bottom <= _THIN_POINTS and right - left > _THIN_POINTS:
        middle = (top + bottom) / 2
        yield Rule(left, middle, right, middle)
    elif right - left <= _THIN_POINTS and top - bottom > _THIN_POINTS:
        middle = (left + right) / 2
        yield Rule(middle, bottom, middle, top)
    elif is_box and right - left > _THIN_POINTS:
        yield Rule(left, bottom, right, bottom)
        yield Rule(left, top, right, top)
        yield Rule(left, bottom, left, top)
        yield Rule(right, bottom, right, top)


def _straight_segments(shape: Any, count: int) -> Iterator[Rule]:
    """Yield those of the segments of a path that go across or down the page."""
    matrix = raw.FS_MATRIX()
    raw.FPDFPageObj_GetMatrix(shape, matrix)
    x = ctypes.c_float()
    y = ctypes.c_float()
    point = start = (0.0, 0.0)
    for i in range(count):
        segment = raw.FPDFPath_GetPathSegment(shape, i)
        raw.FPDFPathSegment_GetPoint(segment, x, y)
        previous = point
        point = (
            matrix.a * x.value + matrix.c * y.value + matrix.e,
            matrix.b * x.value + matrix.d * y.value + matrix.f,
        )
        kind = raw.FPDFPathSegment_GetType(segment)
        if kind == raw.FPDF_SEGMENT_MOVETO:
            start = point
        elif kind == raw.FPDF_SEGMENT_LINETO:
            yield from _straight_segment(previous, point)
        if raw.FPDFPathSegment_GetClose(segment):
            yield from _straight_segment(point, start)


def _straight_segment(start: tuple[float, float], end: tuple[float, float]) -> Iterator[Rule]:
    left, right = sorted((start[0], end[0]))
    bottom, top = sorted((start[1], end[1]))
    width = right - left
    height = top - bottom
    if min(width, height) <= 1 < max(width, height):
        yield Rule(left, bottom, right, top)


def _as_read(rule: Rule, turn: int) -> Rule:
    """A rule on the page, y growing upward, for a reader who has turned as its text is."""
    left, bottom, right, top = rule.left, rule.top, rule.right, rule.bottom
    for _ in range(turn):
        left, bottom, right, top = -top, left, -bottom, right
    return Rule(left, -top, right, -bottom)


@dataclass(frozen=True, slots=True)
class Notes:
    """The annotations of a page: text that was typed upon it, and comments that a reader opens."""

    typed: tuple[Line, ...]
    comments: tuple[str, ...]


def notes_of(page: pdfium.PdfPage, turn: int) -> Notes:
    """Read the annotations of a page that have text, except hidden ones and those of forms."""
    typed = list[Line]()
    comments = list[str]()
    for i in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, i)
        if not annotation:
            continue
        kind = raw.FPDFAnnot_GetSubtype(annotation)
        is_hidden = raw.FPDFAnnot_GetFlags(annotation) & _ANNOTATION_HIDDEN
        if kind in _ANNOTATIONS_WITH_TEXT and not is_hidden:
            text = _read_string(raw.FPDFAnnot_GetStringValue, annotation, b"Contents")
            if text and kind == raw.FPDF_ANNOT_FREETEXT:
                typed.append(_typed_line(annotation, text, turn))
            elif text:
                author = _read_string(raw.FPDFAnnot_GetStringValue, annotation, b"T")
                comments.append(comment_line(text, author))
        raw.FPDFPage_CloseAnnot(annotation)
    return Notes(tuple(typed), tuple(dict.fromkeys(comments)))


def _typed_line(annotation: Any, text: str, turn: int) -> Line:
    rectangle = raw.FS_RECTF()
    raw.FPDFAnnot_GetRect(annotation, rectangle)
    box = Rule(rectangle.left, rectangle.bottom, rectangle.right, rectangle.top)
    box = _as_read(box, turn)
    return Line(text, box.left, box.top, box.right, box.bottom, turn)


def with_typed_lines(lines: Sequence[Line], typed: Sequence[Line]) -> list[Line]:
    """Put lines that were typed upon a page among its own lines.

    Each goes into the line with which it stands level, or else after the one above it.
    """
    merged = list(lines)
    for typed_line in typed:
        middle = (typed_line.top + typed_line.bottom) / 2
        level = [i for i, line in enumerate(merged) if line.top <= middle <= line.bottom]
        above = [i for i, line in enumerate(merged) if line.bottom <= middle]
        if level:
            nearest = min(level, key=lambda i: abs(merged[i].right - typed_line.left))
            merged[nearest] = _fill_in(merged[nearest], typed_line)
        elif above:
            lowest = max(above, key=lambda i: merged[i].bottom)
            merged.insert(lowest + 1, typed_line)
        else:
            merged.insert(0, typed_line)
    return merged


def _fill_in(line: Line, typed: Line) -> Line:
    """Add what was typed upon a line: in the place of a blank, before the line or after it."""
    if typed.right <= line.left:
        return replace(line, text=f"{typed.text} {line.text}", left=typed.left, gaps=())
    share = ((typed.left + typed.right) / 2 - line.left) / max(line.width, 1.0)
    blanks = list(_BLANK_TO_FILL.finditer(line.text))
    if share < 1 and blanks:
        offset = share * len(line.text)
        nearest = min(blanks, key=lambda blank: abs((blank.start() + blank.end()) / 2 - offset))
        text = f"{line.text[: nearest.start()]} {typed.text} {line.text[nearest.end() :]}"
        return replace(line, text=" ".join(text.split()), gaps=())
    right = max(line.right, typed.right)
    return replace(line, text=f"{line.text} {typed.text}", right=right, gaps=())


def share_of_pictures(page: pdfium.PdfPage) -> float:
    """The share of a page that its pictures cover, 0 to 1; each of overlapping ones counts."""
    width, height = page.get_size()
    covered = 0.0
    for picture in page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=_MAX_FORM_DEPTH):
        left, bottom, right, top = picture.get_bounds()
        area = abs(right - left) * abs(top - bottom)
        form = picture.container
        while form is not None:  # the bounds are in units of the form
            matrix = form.get_matrix()
            area *= abs(matrix.a * matrix.d - matrix.b * matrix.c)
            form = form.container
        covered += area
    return float(min(covered / max(width * height, 1.0), 1.0))
