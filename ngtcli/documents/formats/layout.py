"""Reading order of a page: characters to pieces of lines, pieces to columns, columns to lines.

A column ends at a gutter, a vertical strip that few pieces cross. Where pieces on both sides of it
fill their columns they are running text, read column by column; pieces that cross it (titles, wide
tables) part the page into bands. Where they do not fill them they are cells, read row by row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

# All in heights of a character unless said otherwise; set by looking at pages, not swept.
_CELL = 1.1  # gap that ends a piece
_GUTTER = 0.8  # least width of a gutter
_SAME = 0.5  # most that two baselines of one line differ
_CROSSING = 0.12  # share of the pieces that may cross a gutter
_ROWS = 4  # least pieces on either side of a gutter
_FILLED = 0.55  # median share of a column's width that its pieces fill in running text
_STEP = 2.0  # points between two places where a gutter is looked for
_HYPHENS = {"\x02": "\u00ad", "\ufffe": "\u00ad"}  # how PDFium writes a hyphen that ends a line


class Glyph(NamedTuple):  # there are many: a dataclass takes three times as long to make
    """A character and its box in points, y growing downward."""

    text: str
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Line:
    """A line or a piece of one. `column` is the box's left and right end of its column."""

    text: str
    left: float
    top: float
    right: float
    bottom: float
    column: tuple[float, float] = (0.0, 0.0)
    cells: int = 1

    @property
    def height(self) -> float:
        return self.bottom - self.top


def lines_of(glyphs: Sequence[Glyph]) -> list[Line]:
    """The lines of a page in reading order."""
    return _ordered(_pieces(glyphs), 3)


def _pieces(glyphs: Sequence[Glyph]) -> list[Line]:
    """Runs of characters on one line without a wide gap, in the order of the file."""
    pieces: list[Line] = []
    run: list[Glyph] = []  # the visible characters
    words: list[str] = []  # the same with spaces
    for glyph in glyphs:
        if glyph.text.isspace():  # PDFium makes spaces up, which have no box
            words.append(" ")
            continue
        if run and not _continues(run[-1], glyph):
            _close(run, words, pieces)
        run.append(glyph)
        words.append(_HYPHENS.get(glyph.text, glyph.text))
    _close(run, words, pieces)
    return pieces


def _continues(last: Glyph, glyph: Glyph) -> bool:
    height = max(last.bottom - last.top, 1.0)
    gap = glyph.left - last.right
    return abs(glyph.bottom - last.bottom) <= _SAME * height and -height < gap < _CELL * height


def _close(run: list[Glyph], words: list[str], pieces: list[Line]) -> None:
    """Add the piece of these characters, and forget them."""
    text = " ".join("".join(words).replace("\0", "").split())
    if run and text:
        top, bottom = median([g.top for g in run]), median([g.bottom for g in run])
        left, right = min(g.left for g in run), max(g.right for g in run)
        pieces.append(Line(text, left, top, right, max(bottom, top + 1.0), (left, right)))
    run.clear()
    words.clear()


def _ordered(pieces: list[Line], depth: int) -> list[Line]:
    """`pieces` as lines in reading order; columns in columns up to `depth`."""
    if not pieces:
        return []
    gutter = _gutter(pieces) if depth else None
    if gutter is None:
        return _rows(pieces)
    out: list[Line] = []
    left: list[Line] = []
    right: list[Line] = []
    for whole, row in _bands(pieces, gutter):
        if whole:
            out += _ordered(left, depth - 1) + _ordered(right, depth - 1) + _rows(row)
            left, right = [], []
        else:
            left += [p for p in row if p.right <= gutter]
            right += [p for p in row if p.right > gutter]
    return out + _ordered(left, depth - 1) + _ordered(right, depth - 1)


def _bands(pieces: Sequence[Line], gutter: float) -> list[tuple[bool, list[Line]]]:
    """The rows of a page with columns, and whether each goes across them all.

    A title does, and so do two rows or more of a table, which are given as one.
    """
    rows = _by_height(pieces)
    widths = [_width([p for p in pieces if p.right <= gutter]),
              _width([p for p in pieces if p.left >= gutter])]  # fmt: skip
    cells = [_is_cells(row, gutter, widths) for row in rows]
    bands: list[tuple[bool, list[Line]]] = []
    table = False
    for i, row in enumerate(rows):
        alone = not any(cells[max(0, i - 1) : i] + cells[i + 1 : i + 2])
        if cells[i] and not alone:
            if table:
                bands[-1][1].extend(row)
            else:
                bands.append((True, list(row)))
            table = True
            continue
        table = False
        crossing = any(p.left < gutter < p.right for p in row)
        bands.append((crossing, row))
    return bands


def _is_cells(row: Sequence[Line], gutter: float, widths: Sequence[float]) -> bool:
    """Whether a row is made of pieces that fill no column."""
    narrow = all(p.right - p.left < _FILLED * widths[p.left >= gutter] for p in row)
    return len(row) > 1 and narrow


def _width(pieces: Sequence[Line]) -> float:
    return max((p.right for p in pieces), default=0.0) - min((p.left for p in pieces), default=0.0)


def _gutter(pieces: Sequence[Line]) -> float | None:
    """The x of the best gutter between columns of running text; None if there is none."""
    if len(pieces) < 2 * _ROWS:
        return None
    height = median(p.height for p in pieces)
    start, end = min(p.left for p in pieces), max(p.right for p in pieces)
    best, found = 0.0, None
    run: list[float] = []
    steps = int(min((end - start) / _STEP, 5000))
    for i in range(steps + 1):
        x = start + i * _STEP
        crossing = sum(p.left < x < p.right for p in pieces)
        if i < steps and crossing <= _CROSSING * len(pieces):
            run.append(x)
            continue
        if run and run[-1] - run[0] >= _GUTTER * height - _STEP:
            middle = (run[0] + run[-1]) / 2
            if (fill := _fill(pieces, middle, run[-1] - run[0])) > best:
                best, found = fill, middle
        run = []
    return found


def _fill(pieces: Sequence[Line], x: float, width: float) -> float:
    """How well pieces on both sides of `x` fill their columns; 0 if they are no running text."""
    shares = []
    for side in ([p for p in pieces if p.right <= x], [p for p in pieces if p.left >= x]):
        if len(side) < _ROWS:
            return 0.0
        share = median(p.right - p.left for p in side) / max(_width(side), 1.0)
        words = median(p.text.count(" ") for p in side)
        if share < _FILLED or words < 2:
            return 0.0
        shares.append(share)
    return min(shares) + width / 1e4  # of two alike the wider


def _rows(pieces: Sequence[Line]) -> list[Line]:
    """One line for all pieces on the same height, from left to right."""
    column = (min(p.left for p in pieces), max(p.right for p in pieces)) if pieces else (0.0, 0.0)
    rows = _by_height(pieces)
    parted = [len(row) > 1 for row in rows]
    table = [
        here and any(parted[max(0, i - 1) : i] + parted[i + 1 : i + 2])
        for i, here in enumerate(parted)
    ]
    return [_joined(row, column, cells) for row, cells in zip(rows, table, strict=True)]


def _by_height(pieces: Sequence[Line]) -> list[list[Line]]:
    """Pieces that stand on one line together, from top to bottom."""
    rows: list[list[Line]] = []
    for piece in sorted(pieces, key=lambda p: (p.bottom, p.left)):
        if rows and _is_beside(rows[-1][0], piece):
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return rows


def _is_beside(first: Line, piece: Line) -> bool:
    return abs(first.bottom - piece.bottom) <= _SAME * max(first.height, piece.height)


def _joined(row: list[Line], column: tuple[float, float], table: bool) -> Line:
    row.sort(key=lambda p: p.left)
    text = (" | " if table else " ").join(p.text for p in row)
    return Line(
        text, row[0].left, min(p.top for p in row), max(p.right for p in row),
        max(p.bottom for p in row), column, len(row) if table else 1,
    )  # fmt: skip
