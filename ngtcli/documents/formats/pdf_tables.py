"""Tables on the pages of a PDF: rows and cells from rules, or from columns that are aligned.

PDFium gives text line by line and knows no tables. Here the rules of a page are combined into
grids, and the pieces of lines inside a grid become its cells. Without rules, lines that have wide
gaps at the same places are the rows of a table; or, if each column reads on from line to line, they
are columns of text, which are then read one after the other.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

from ngtcli.documents.formats.pdf_page import SOFT_HYPHEN, UNKNOWN, Line, Rule

# All but the first are guesses. Lengths are in line heights unless another unit is named.
_NEAR_POINTS = 3.0  # points by which rules that belong together may miss one another; as pdfplumber
_MAX_RULES = 600  # a page with more rules has a drawing
_MAX_GRID_CELLS = 5_000
_MAX_CELL_TEXT = 200  # characters, by the median of a grid: longer texts are boxes of text
_COLUMN_GAP = 0.7  # white space between columns without rules
_TOUCHING_GAP = 0.2  # white space that separates no columns: a number under its heading
_MAX_ROW_GAP = 1.6  # white space between rows of a table without rules
_MIN_ROWS = 3  # rows of a table without rules
_MIN_FILLED = 0.5  # share of the cells of a table without rules that have text
_MIN_PROSE_LINE = 15  # characters, by the median of a column of text
_LOWER_CASE_SHARE = 0.4  # share of the lines of a column of text that begin in lower case
_FULL_LINE = 0.7  # median width of the lines of a column of text, by its widest line
_MIN_OVERLAP = 0.5  # share of the smaller height by which pieces of one row overlap
_MULTILINE_SHARE = 0.8  # share of the lines in a row of a grid that make each of them a row


# The mark of an item of a list.
_LIST_MARK = re.compile(rf"[•‣▪●○◦■□–—*{UNKNOWN}\ue000-\uf8ff-]|\(?\d{{1,3}}[.)]|\(?[a-z][.)]")


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a table, each of as many cells."""

    rows: tuple[tuple[str, ...], ...]


Item = Line | Table
Join = Callable[[str, str], str]
Cell = tuple[int, int]  # row and column


class Span(NamedTuple):
    """A range across the page, in points."""

    left: float
    right: float


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a line that is in one column."""

    line: Line
    line_index: int  # of its line on the page

    @property
    def center_x(self) -> float:
        return (self.line.left + self.line.right) / 2

    @property
    def center_y(self) -> float:
        return (self.line.top + self.line.bottom) / 2


def with_tables(lines: Sequence[Line], rules: Sequence[Rule], join: Join) -> list[Item]:
    """Replace the lines of a page that form tables by these tables.

    Args:
        lines: The lines of the page, in reading order.
        rules: The lines that are drawn on it.
        join: Puts two lines of a cell together.
    """
    upright = [i for i, line in enumerate(lines) if line.turn == lines[0].turn]
    if len(upright) < 2:
        return list(lines)
    layout = _Layout(lines, upright)
    for grid in _grids(rules):
        _read_grid(grid, layout, join)
    _read_aligned(layout, join)
    return layout.items()


class _Layout:
    """The lines of a page while tables are taken out of them.

    Attributes:
        pieces: What no table has yet of each line, by the line's index.
    """

    def __init__(self, lines: Sequence[Line], upright: Iterable[int]) -> None:
        self.pieces = {i: [_Piece(lines[i], i)] for i in upright}
        self._items: list[list[Item]] = [[line] for line in lines]  # in the place of each line

    def items(self) -> list[Item]:
        """The remaining lines, and the tables, in order."""
        return [item for items in self._items for item in items]

    def place_table(
        self, table: Table, inside: Sequence[_Piece], outside: dict[int, list[_Piece]]
    ) -> None:
        """Put a table in the place of the first of its pieces.

        Args:
            table: The table.
            inside: The pieces of lines that became its cells.
            outside: The pieces of the same lines that stay as they are, by the line's index.
        """
        by_line: dict[int, list[_Piece]] = defaultdict(list)
        for piece in inside:
            by_line[piece.line_index].append(piece)
        for i, taken in by_line.items():
            remaining = outside.get(i)
            if not remaining:
                pieces = self.pieces.get(i, [])
                remaining = [piece for piece in pieces if not _contains_any(piece, taken)]
            self._remove_lines(i)
            self._items[i] += [piece.line for piece in remaining]
            if remaining:
                self.pieces[i] = remaining
            else:
                del self.pieces[i]
        self._items[min(by_line)].insert(0, table)

    def place_columns(self, ordered: Sequence[_Piece]) -> None:
        """Put the pieces of columns of text in this order where the first of them stood."""
        indices = {piece.line_index for piece in ordered}
        for i in indices:
            self._remove_lines(i)
            self.pieces.pop(i, None)
        self._items[min(indices)] += [piece.line for piece in ordered]

    def _remove_lines(self, index: int) -> None:
        self._items[index] = [item for item in self._items[index] if isinstance(item, Table)]


def _contains_any(piece: _Piece, parts: Sequence[_Piece]) -> bool:
    """Whether any of these parts of a line belongs to this piece of it."""
    left = piece.line.left - 0.01
    right = piece.line.right + 0.01
    return any(left <= part.line.left and part.line.right <= right for part in parts)


# Grids of rules.


@dataclass(slots=True)
class _Grid:
    """Rules that touch one another, and their distinct places in points."""

    across: list[Rule] = field(default_factory=list)
    down: list[Rule] = field(default_factory=list)
    xs: list[float] = field(default_factory=list)  # from left to right
    ys: list[float] = field(default_factory=list)  # from top to bottom

    def is_ruled_below(self, row: int, column: int) -> bool:
        """Whether there is a rule between a cell and the one below it."""
        y = self.ys[row + 1]
        x = (self.xs[column] + self.xs[column + 1]) / 2
        return any(
            abs(rule.top - y) <= _NEAR_POINTS and rule.left <= x <= rule.right
            for rule in self.across
        )

    def is_ruled_right(self, row: int, column: int) -> bool:
        """Whether there is a rule between a cell and the one to its right."""
        x = self.xs[column + 1]
        y = (self.ys[row] + self.ys[row + 1]) / 2
        return any(
            abs(rule.left - x) <= _NEAR_POINTS and rule.top <= y <= rule.bottom
            for rule in self.down
        )

    def merged_cells(self) -> dict[Cell, Cell]:
        """For each place in the grid, the first place of the merged cell that it belongs to."""
        first_place: dict[Cell, Cell] = {}
        for row in range(len(self.ys) - 1):
            for column in range(len(self.xs) - 1):
                if column and not self.is_ruled_right(row, column - 1):
                    first_place[row, column] = first_place[row, column - 1]
                elif row and not self.is_ruled_below(row - 1, column):
                    first_place[row, column] = first_place[row - 1, column]
                else:
                    first_place[row, column] = row, column
        return first_place

    def cell_of(self, piece: _Piece) -> Cell:
        """The place in the grid where a piece stands; the nearest one if it stands outside."""
        row = bisect_right(self.ys, piece.center_y) - 1
        column = bisect_right(self.xs, piece.center_x) - 1
        return (
            min(max(row, 0), len(self.ys) - 2),
            min(max(column, 0), len(self.xs) - 2),
        )


def _grids(rules: Sequence[Rule]) -> Iterator[_Grid]:
    """Yield the grids of two columns or more that rules form, from the top of the page."""
    across = _merge([rule for rule in rules if rule.is_across])
    down = [
        _transposed(rule) for rule in _merge([_transposed(r) for r in rules if not r.is_across])
    ]
    if not across or not down or len(across) + len(down) > _MAX_RULES:
        return
    for grid in sorted(_connected(across, down), key=lambda grid: min(r.top for r in grid.across)):
        grid.xs = _distinct(rule.left for rule in grid.down)
        grid.ys = _distinct(rule.top for rule in grid.across)
        cells = (len(grid.xs) - 1) * (len(grid.ys) - 1)
        if len(grid.xs) > 2 and len(grid.ys) > 1 and cells <= _MAX_GRID_CELLS:
            yield grid


def _connected(across: Sequence[Rule], down: Sequence[Rule]) -> list[_Grid]:
    """Group rules that touch one another, directly or by others, by union-find."""
    parents = list(range(len(across)))
    touched_by_rule: list[list[int]] = []  # indices in `across`, for each rule down
    for rule in down:
        touched = [i for i, other in enumerate(across) if _touches(other, rule)]
        touched_by_rule.append(touched)
        roots = {_find_root(parents, i) for i in touched}
        for root in roots:
            parents[root] = min(roots)

    grids: dict[int, _Grid] = {}
    for i, rule in enumerate(across):
        grids.setdefault(_find_root(parents, i), _Grid()).across.append(rule)
    for rule, touched in zip(down, touched_by_rule, strict=True):
        if touched:
            grids[_find_root(parents, touched[0])].down.append(rule)
    return list(grids.values())


def _find_root(parents: list[int], i: int) -> int:
    while parents[i] != i:
        parents[i] = parents[parents[i]]
        i = parents[i]
    return i


def _transposed(rule: Rule) -> Rule:
    """The rule with its axes exchanged."""
    return Rule(rule.top, rule.left, rule.bottom, rule.right)


def _merge(rules: Sequence[Rule]) -> list[Rule]:
    """Merge rules across the page that continue one another."""
    merged: list[Rule] = []
    for rule in sorted(rules, key=lambda rule: (round(rule.top / 2), rule.left)):
        last = merged[-1] if merged else None
        is_continued = (
            last is not None
            and abs(last.top - rule.top) <= _NEAR_POINTS
            and rule.left <= last.right + _NEAR_POINTS
        )
        if last is not None and is_continued:
            merged[-1] = replace(last, right=max(last.right, rule.right))
        else:
            merged.append(rule)
    return merged


def _touches(across: Rule, down: Rule) -> bool:
    return (
        across.left - _NEAR_POINTS <= down.left <= across.right + _NEAR_POINTS
        and down.top - _NEAR_POINTS <= across.top <= down.bottom + _NEAR_POINTS
    )


def _distinct(places: Iterable[float]) -> list[float]:
    """The places in order, without those that are near the one before them."""
    distinct: list[float] = []
    for place in sorted(places):
        if not distinct or place - distinct[-1] > _NEAR_POINTS:
            distinct.append(place)
    return distinct


def _read_grid(grid: _Grid, layout: _Layout, join: Join) -> None:
    """Make a table of the pieces that are in a grid, if they look like one."""

    def is_at_rule(left: float, right: float) -> bool:
        return any(left - 1 <= x <= right + 1 for x in grid.xs)

    inside = list[_Piece]()
    outside: dict[int, list[_Piece]] = {}
    top = grid.ys[0] - _NEAR_POINTS
    bottom = grid.ys[-1] + _NEAR_POINTS
    for i, pieces in layout.pieces.items():
        for piece in pieces:
            if not top < piece.center_y < bottom:
                continue
            parts = _split(piece, is_at_rule)
            parts_inside = [part for part in parts if _is_within_sides(part, grid)]
            if parts_inside:
                inside += parts_inside
                outside[i] = [part for part in parts if part not in parts_inside]
    _leave_out_overlay(inside, outside, grid)

    rows = _grid_rows(grid, inside, join)
    texts = [cell for row in rows for cell in row if cell]
    used_columns = [c for c in range(len(grid.xs) - 1) if any(row[c] for row in rows)]
    is_table = (
        len(rows) >= 2 and len(used_columns) >= 2 and median(map(len, texts)) <= _MAX_CELL_TEXT
    )
    if is_table:
        table = Table(tuple(tuple(row[column] for column in used_columns) for row in rows))
        layout.place_table(table, inside, outside)


def _is_within_sides(piece: _Piece, grid: _Grid) -> bool:
    return grid.xs[0] - _NEAR_POINTS < piece.center_x < grid.xs[-1] + _NEAR_POINTS


def _leave_out_overlay(inside: list[_Piece], outside: dict[int, list[_Piece]], grid: _Grid) -> None:
    """Move a first piece outside that the page shows in the middle of the table, as a watermark."""
    inside.sort(key=lambda piece: piece.line_index)
    rows = [bisect_right(grid.ys, piece.center_y) for piece in inside]
    if len(rows) > _MIN_ROWS and rows[0] > max(rows[1:_MIN_ROWS]) + 1:
        overlay = inside.pop(0)
        outside[overlay.line_index].append(overlay)


def _grid_rows(grid: _Grid, pieces: Sequence[_Piece], join: Join) -> list[list[str]]:
    """The texts of the rows of a grid that have text.

    A row whose cells hold several lines of a table becomes as many rows.
    """
    first_place = grid.merged_cells()
    pieces_by_cell: dict[Cell, list[_Piece]] = defaultdict(list)
    for piece in pieces:
        pieces_by_cell[first_place[grid.cell_of(piece)]].append(piece)
    texts_by_row = []
    for row in range(len(grid.ys) - 1):
        cells = [pieces_by_cell.get((row, column), []) for column in range(len(grid.xs) - 1)]
        for table_row in _table_rows(cells):
            texts = [_text(cell, join) for cell in table_row]
            if any(texts):
                texts_by_row.append(texts)
    return texts_by_row


def _table_rows(cells: Sequence[Sequence[_Piece]]) -> list[Sequence[Sequence[_Piece]]]:
    """Divide a row of a grid into the rows of the table that it holds; usually there is one.

    It holds several if its cells are columns of numbers, or if most of its lines begin in the first
    column and continue in others.
    """
    lines = _rows_of([piece for cell in cells for piece in cell])
    filled = [cell for cell in cells if cell]
    if len(lines) < 2 or len(filled) < 2:
        return [cells]
    if _are_columns_of_numbers(lines, filled):
        ordered = [sorted(cell, key=lambda piece: piece.center_y) for cell in cells]
        return [[cell[i : i + 1] for cell in ordered] for i in range(len(lines))]
    if len(lines) < 3:
        return [cells]

    first_column = set(map(id, filled[0]))  # ids, since equal pieces may be in two columns
    from_first_column = sum(any(id(piece) in first_column for piece in line) for line in lines)
    of_several_cells = sum(len(line) > 1 for line in lines)
    if min(from_first_column, of_several_cells) < _MULTILINE_SHARE * len(lines):
        return [cells]
    rows: list[Sequence[Sequence[_Piece]]] = []
    for line in lines:
        members = set(map(id, line))
        rows.append([[piece for piece in cell if id(piece) in members] for cell in cells])
    return rows


def _are_columns_of_numbers(
    lines: Sequence[Sequence[_Piece]], filled: Sequence[Sequence[_Piece]]
) -> bool:
    """Whether each cell has as many pieces as there are lines, and most are numbers."""
    texts = [piece.line.text for cell in filled for piece in cell]
    numbers = sum(any(map(str.isdigit, text)) and len(text) < _MIN_PROSE_LINE for text in texts)
    return all(len(cell) == len(lines) for cell in filled) and numbers > 0.5 * len(texts)


# Columns without rules.


def _read_aligned(layout: _Layout, join: Join) -> None:
    """Make tables, or columns of text, of lines with gaps at the same places."""
    parts = list[_Piece]()
    for pieces in layout.pieces.values():
        for piece in pieces:
            parts += _split_at_wide_gaps(piece)
    rows = _in_sequence(parts)
    start = 0
    while start < len(rows):
        run, columns = _aligned_run(rows, start)
        if len(run) < _MIN_ROWS or len(columns) < 2:
            start += 1
            continue
        start += len(run)
        pieces = [piece for row in run for piece in row]
        pieces_by_column = _by_column(pieces, columns)
        if _is_prose(pieces_by_column):
            layout.place_columns([piece for column in pieces_by_column for piece in column])
        elif _is_table(run, pieces_by_column):
            texts = (tuple(_text(cell, join) for cell in _by_column(row, columns)) for row in run)
            layout.place_table(Table(tuple(texts)), pieces, {})


def _split_at_wide_gaps(piece: _Piece) -> list[_Piece]:
    min_gap = _COLUMN_GAP * piece.line.height
    return _split(piece, lambda left, right: right - left > min_gap)


def _aligned_run(
    rows: Sequence[Sequence[_Piece]], start: int
) -> tuple[list[Sequence[_Piece]], list[Span]]:
    """Return the rows from `start` on that have the same columns, and these columns."""
    run: list[Sequence[_Piece]] = []
    columns: list[Span] = []
    for row in rows[start:]:
        if run and not _is_below(row, run[-1]):
            break
        if len(row) < 2 and not run:
            break
        spans = [Span(piece.line.left, piece.line.right) for piece in row]
        near = _TOUCHING_GAP * min(piece.line.height for piece in row)
        merged = _merge_spans([*columns, *spans], near)
        if run and len(merged) < max(2, len(columns)):
            break
        if len(row) < 2 and len(merged) > len(columns):
            break
        run.append(row)
        columns = merged
    while run and len(run[-1]) < 2:  # it may be the text below the table
        run.pop()
    return run, columns


def _is_below(row: Sequence[_Piece], above: Sequence[_Piece]) -> bool:
    """Whether a row stands so near below another that both may be of one table."""
    height = max(piece.line.height for piece in above)
    top = min(piece.line.top for piece in row)
    gap = top - max(piece.line.bottom for piece in above)
    return -height < gap <= _MAX_ROW_GAP * height


def _merge_spans(spans: Iterable[Span], near: float) -> list[Span]:
    """Merge spans that overlap or are less than `near` apart; return them from left to right."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.left < merged[-1].right + near:
            merged[-1] = Span(merged[-1].left, max(merged[-1].right, span.right))
        else:
            merged.append(span)
    return merged


def _by_column(pieces: Iterable[_Piece], columns: Sequence[Span]) -> list[list[_Piece]]:
    lefts = [column.left for column in columns]
    by_column: list[list[_Piece]] = [[] for _ in columns]
    for piece in pieces:
        column = bisect_right(lefts, piece.line.left + 0.01) - 1
        by_column[max(column, 0)].append(piece)
    return by_column


def _is_prose(columns: Sequence[Sequence[_Piece]]) -> bool:
    """Whether at least two of the columns read on from line to line."""
    return sum(map(_reads_on, columns)) >= 2


def _reads_on(column: Sequence[_Piece]) -> bool:
    texts = [piece.line.text for piece in column]
    if len(texts) < _MIN_ROWS or median(map(len, texts)) < _MIN_PROSE_LINE:
        return False
    widths = [piece.line.width for piece in column]
    in_lower_case = sum(text[:1].islower() for text in texts[1:])
    is_full = median(widths) > _FULL_LINE * max(widths)
    return is_full and in_lower_case >= _LOWER_CASE_SHARE * (len(texts) - 1)


def _is_table(run: Sequence[Sequence[_Piece]], columns: Sequence[Sequence[_Piece]]) -> bool:
    """Whether enough of the cells are filled, and it is no list, which has a column of marks."""
    if any(all(_LIST_MARK.fullmatch(piece.line.text) for piece in column) for column in columns):
        return False
    filled = sum(map(len, run))
    return filled >= _MIN_FILLED * len(run) * len(columns) and min(map(len, columns)) >= 2


# Pieces.


def _split(piece: _Piece, is_between_columns: Callable[[float, float], bool]) -> list[_Piece]:
    """Split a piece at those of its gaps that are between columns, given their sides."""
    line = piece.line
    column_gaps = [gap for gap in line.gaps if is_between_columns(gap.left, gap.right)]
    if not column_gaps:
        return [piece]
    words = line.text.split(" ")
    starts = [0, *(gap.word for gap in column_gaps)]
    ends = [*(gap.word for gap in column_gaps), len(words)]
    lefts = [line.left, *(gap.right for gap in column_gaps)]
    rights = [*(gap.left for gap in column_gaps), line.right]
    parts = []
    for start, end, left, right in zip(starts, ends, lefts, rights, strict=True):
        if start >= end:
            continue
        gaps = [replace(gap, word=gap.word - start) for gap in line.gaps if start < gap.word < end]
        part = replace(
            line,
            text=" ".join(words[start:end]),
            left=left,
            right=max(left, right),
            gaps=tuple(gaps),
        )
        parts.append(_Piece(part, piece.line_index))
    return parts


def _in_sequence(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """Group pieces that follow one another from left to right on a level, in the page's order.

    Text beside a table is before or after it in that order, so it is not part of its rows.
    """
    rows: list[list[_Piece]] = []
    for piece in pieces:
        last = rows[-1][-1] if rows else None
        if last and last.line.right <= piece.line.left + 1 and _is_level(last, piece):
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return rows


def _is_level(first: _Piece, second: _Piece) -> bool:
    overlap = min(first.line.bottom, second.line.bottom) - max(first.line.top, second.line.top)
    return overlap > _MIN_OVERLAP * min(first.line.height, second.line.height)


def _rows_of(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """Group pieces that stand level into rows, from top to bottom, each from left to right."""
    rows: list[list[_Piece]] = []
    for piece in sorted(pieces, key=lambda piece: piece.center_y):
        if rows and _is_level(rows[-1][0], piece):
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return [sorted(row, key=lambda piece: piece.line.left) for row in rows]


def _text(pieces: Sequence[_Piece], join: Join) -> str:
    """The text of a cell."""
    text = ""
    for row in _rows_of(pieces):
        line = " ".join(piece.line.text for piece in row)
        text = join(text, line) if text else line
    return text.rstrip(SOFT_HYPHEN)
