"""Tables on the pages of a PDF: rows and cells from rules, or from columns that are aligned.

PDFium gives text line by line and knows no tables. Here the rules of a page are put together to
grids, and the pieces of lines that stand in a grid become its cells. Without rules, lines that have
wide gaps at the same places are the rows of a table, or, where they read on from row to row, the
lines of columns of text, which are then read one after the other.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ngtcli.documents.formats.pdf_page import UNKNOWN, Line, Rule

_NEAR = 3.0  # points by which rules that belong together may miss one another; as pdfplumber
_MOST_RULES = 600  # of a page that is looked at for grids: more are a drawing; guess
_MOST_CELLS = 5_000  # of a grid; guess
_LONG = 200  # characters of a cell by the median: longer ones are boxes of text; guess
_GAP = 0.7  # least white space between columns without rules, in line heights; guess
_TOUCHING = 0.2  # white space in line heights that parts no columns: a number under its heading
_LEADING = 1.6  # most white space between rows of a table without rules, in line heights; guess
_FEWEST = 3  # rows of a table without rules; guess
_FILLED = 0.5  # least share of its cells that have text; guess
_PROSE = 15  # characters of most lines of a column of text; guess
_GOES_ON = 0.4  # share of them that begin with a small letter; guess
_FULL = 0.7  # share of the widest line that most lines of a column of text have; guess
_LEVEL = 0.5  # share of a height by which pieces of one row overlap; guess
_TALL = 2.2  # lines that a row of a grid has at least where it is several rows; guess


# What stands before the items of a list.
_MARK = re.compile(rf"[•‣▪●○◦■□–—*{UNKNOWN}\ue000-\uf8ff-]|\(?\d{{1,3}}[.)]|\(?[a-z][.)]")


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a table, each of as many cells."""

    rows: tuple[tuple[str, ...], ...]


Item = Line | Table
Join = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a line that stands in one column; `order` is that of its line on the page."""

    line: Line
    order: int

    @property
    def middle(self) -> float:
        return (self.line.top + self.line.bottom) / 2


def with_tables(lines: Sequence[Line], rules: Sequence[Rule], join: Join) -> list[Item]:
    """The lines of a page with tables in the place of those that are in them.

    `join` puts two lines of a cell together.
    """
    items: dict[int, list[Item]] = {i: [line] for i, line in enumerate(lines)}
    upright = [i for i, line in enumerate(lines) if line.turn == lines[0].turn]
    if len(upright) < 2:
        return list(lines)
    rest = {i: [_Piece(lines[i], i)] for i in upright}
    for grid in _grids(rules):
        _read_grid(grid, rest, items, join)
    _read_aligned(rest, items, join)
    return [item for i in range(len(lines)) for item in items[i]]


# Grids of rules.


@dataclass(slots=True)
class _Grid:
    """Places of rules from left to right and from top to bottom, and the rules themselves."""

    xs: list[float]
    ys: list[float]
    across: list[Rule]
    down: list[Rule]

    def is_ruled_below(self, row: int, column: int) -> bool:
        """Whether there is a rule between a cell and the one below it."""
        y, x = self.ys[row + 1], (self.xs[column] + self.xs[column + 1]) / 2
        return any(abs(r.top - y) <= _NEAR and r.left <= x <= r.right for r in self.across)

    def is_ruled_behind(self, row: int, column: int) -> bool:
        """Whether there is a rule between a cell and the one to its right."""
        x, y = self.xs[column + 1], (self.ys[row] + self.ys[row + 1]) / 2
        return any(abs(r.left - x) <= _NEAR and r.top <= y <= r.bottom for r in self.down)

    def owners(self) -> dict[tuple[int, int], tuple[int, int]]:
        """For each (row, column) the first one of the cell that it is a part of."""
        owner: dict[tuple[int, int], tuple[int, int]] = {}
        for row in range(len(self.ys) - 1):
            for column in range(len(self.xs) - 1):
                found = row, column
                if column and not self.is_ruled_behind(row, column - 1):
                    found = owner[row, column - 1]
                elif row and not self.is_ruled_below(row - 1, column):
                    found = owner[row - 1, column]
                owner[row, column] = found
        return owner


def _grids(rules: Sequence[Rule]) -> Iterator[_Grid]:
    """The grids of at least two rows and columns that rules form, from the top of the page."""
    across = _merged([rule for rule in rules if rule.is_across])
    down = [_turned(rule) for rule in _merged([_turned(r) for r in rules if not r.is_across])]
    if not across or not down or len(across) + len(down) > _MOST_RULES:
        return
    group = list(range(len(across)))  # of each rule across, the first one that it touches
    touching: list[list[int]] = []
    for rule in down:
        met = [i for i, other in enumerate(across) if _meet(other, rule)]
        touching.append(met)
        roots = {_root(group, i) for i in met}
        for root in roots:
            group[root] = min(roots)
    grids: dict[int, _Grid] = {}
    for i, rule in enumerate(across):
        grids.setdefault(_root(group, i), _Grid([], [], [], [])).across.append(rule)
    for rule, met in zip(down, touching, strict=True):
        if met:
            grids[_root(group, met[0])].down.append(rule)
    for grid in sorted(grids.values(), key=lambda grid: min(r.top for r in grid.across)):
        grid.xs = _distinct(rule.left for rule in grid.down)
        grid.ys = _distinct(rule.top for rule in grid.across)
        cells = (len(grid.xs) - 1) * (len(grid.ys) - 1)
        if len(grid.xs) > 2 and len(grid.ys) > 1 and cells <= _MOST_CELLS:
            yield grid


def _turned(rule: Rule) -> Rule:
    """The rule with its axes exchanged."""
    return Rule(rule.top, rule.left, rule.bottom, rule.right)


def _merged(rules: Sequence[Rule]) -> list[Rule]:
    """Rules across, those that go on in one another as one."""
    merged: list[Rule] = []
    for rule in sorted(rules, key=lambda rule: (round(rule.top / 2), rule.left)):
        last = merged[-1] if merged else None
        if last and abs(last.top - rule.top) <= _NEAR and rule.left <= last.right + _NEAR:
            merged[-1] = replace(last, right=max(last.right, rule.right))
        else:
            merged.append(rule)
    return merged


def _meet(across: Rule, down: Rule) -> bool:
    return (
        across.left - _NEAR <= down.left <= across.right + _NEAR
        and down.top - _NEAR <= across.top <= down.bottom + _NEAR
    )


def _root(group: list[int], i: int) -> int:
    while group[i] != i:
        group[i] = group[group[i]]
        i = group[i]
    return i


def _distinct(places: Iterable[float]) -> list[float]:
    """The places in order, those that are near one another once."""
    found: list[float] = []
    for place in sorted(places):
        if not found or place - found[-1] > _NEAR:
            found.append(place)
    return found


def _read_grid(
    grid: _Grid, rest: dict[int, list[_Piece]], items: dict[int, list[Item]], join: Join
) -> None:
    """Take the pieces that stand in a grid as its cells, if they are those of a table."""
    inside = list[_Piece]()
    outside: dict[int, list[_Piece]] = {}
    for i, pieces in rest.items():
        for piece in pieces:
            if not grid.ys[0] - _NEAR < piece.middle < grid.ys[-1] + _NEAR:
                continue
            parts = _split(piece, lambda a, b: any(a - 1 <= x <= b + 1 for x in grid.xs))
            ours = [part for part in parts if _stands_in(part, grid)]
            if ours:
                inside += ours
                outside[i] = [part for part in parts if part not in ours]
    _leave_out_overlay(inside, outside, grid)
    rows = _grid_rows(grid, inside, join)
    texts = [cell for row in rows for cell in row if cell]
    used = [c for c in range(len(grid.xs) - 1) if any(row[c] for row in rows)]
    if len(rows) < 2 or len(used) < 2 or median(map(len, texts)) > _LONG:
        return
    rows = [[row[c] for c in used] for row in rows]
    _replace(inside, outside, Table(tuple(map(tuple, rows))), rest, items)


def _leave_out_overlay(inside: list[_Piece], outside: dict[int, list[_Piece]], grid: _Grid) -> None:
    """Leave out what the page has before a table and shows in the middle of it."""
    inside.sort(key=lambda piece: piece.order)
    rows = [bisect_right(grid.ys, piece.middle) for piece in inside]
    if len(rows) > _FEWEST and rows[0] > max(rows[1:_FEWEST]) + 1:
        first = inside.pop(0)
        outside[first.order].append(first)


def _stands_in(piece: _Piece, grid: _Grid) -> bool:
    middle = (piece.line.left + piece.line.right) / 2
    return grid.xs[0] - _NEAR < middle < grid.xs[-1] + _NEAR


def _grid_rows(grid: _Grid, pieces: Sequence[_Piece], join: Join) -> list[list[str]]:
    """The rows of a grid that have text. A row of several lines of cells is as many rows."""
    owner = grid.owners()
    cells: dict[tuple[int, int], list[_Piece]] = defaultdict(list)
    for piece in pieces:
        row = min(max(bisect_right(grid.ys, piece.middle) - 1, 0), len(grid.ys) - 2)
        middle = (piece.line.left + piece.line.right) / 2
        column = min(max(bisect_right(grid.xs, middle) - 1, 0), len(grid.xs) - 2)
        cells[owner[row, column]].append(piece)
    rows = []
    columns = range(len(grid.xs) - 1)
    for row in range(len(grid.ys) - 1):
        parts = [cells.get((row, column), []) for column in columns]
        for level in _levels(parts):
            texts = [_text(one, join) for one in level]
            if any(texts):
                rows.append(texts)
    return rows


def _levels(cells: Sequence[Sequence[_Piece]]) -> list[Sequence[Sequence[_Piece]]]:
    """The rows in a row of a grid that has no rules between them: as a rule one."""
    rows = _rows_of([piece for cell in cells for piece in cell])
    filled = [cell for cell in cells if cell]
    if len(rows) < 2 or len(filled) < 2:
        return [cells]
    if _are_numbers_below(rows, filled):
        return _by_place(cells, len(rows))
    if len(rows) < 3:
        return [cells]
    first = set(map(id, filled[0]))
    begun = sum(any(id(piece) in first for piece in row) for row in rows)
    several = sum(len(row) > 1 for row in rows)
    if begun < 0.8 * len(rows) or several < 0.8 * len(rows):
        return [cells]
    members = [set(map(id, row)) for row in rows]
    return [[[p for p in cell if id(p) in member] for cell in cells] for member in members]


def _are_numbers_below(
    rows: Sequence[Sequence[_Piece]], filled: Sequence[Sequence[_Piece]]
) -> bool:
    """Whether each cell has a line for each of the rows, and most are numbers."""
    texts = [piece.line.text for cell in filled for piece in cell]
    numbers = sum(any(map(str.isdigit, text)) and len(text) < _PROSE for text in texts)
    return all(len(cell) == len(rows) for cell in filled) and numbers > 0.5 * len(texts)


def _by_place(cells: Sequence[Sequence[_Piece]], count: int) -> list[Sequence[Sequence[_Piece]]]:
    """The lines of cells as rows."""
    ordered = [sorted(cell, key=lambda piece: piece.middle) for cell in cells]
    return [[cell[i : i + 1] for cell in ordered] for i in range(count)]


# Columns without rules.


def _read_aligned(rest: dict[int, list[_Piece]], items: dict[int, list[Item]], join: Join) -> None:
    """Take lines with gaps at the same places as rows, or as columns of text."""
    pieces = [
        part
        for all_pieces in rest.values()
        for piece in all_pieces
        for part in _split(piece, lambda a, b: b - a > _GAP * piece.line.height)  # noqa: B023
    ]
    rows = _in_sequence(pieces)
    at = 0
    while at < len(rows):
        run, columns = _run(rows, at)
        if len(run) < _FEWEST or len(columns) < 2:
            at += 1
            continue
        at += len(run)
        inside = [piece for row in run for piece in row]
        by_column = _by_column(inside, columns)
        outside: dict[int, list[_Piece]] = {piece.order: [] for piece in inside}
        if _is_prose(by_column):
            ordered = [piece for column in by_column for piece in column]
            _reorder(ordered, rest, items)
        elif _is_table(run, by_column):
            texts = [[_text(one, join) for one in _by_column(row, columns)] for row in run]
            _replace(inside, outside, Table(tuple(map(tuple, texts))), rest, items)


def _run(
    rows: Sequence[Sequence[_Piece]], start: int
) -> tuple[list[Sequence[_Piece]], list[tuple[float, float]]]:
    """The rows from `start` on that have the same columns, and where these stand."""
    run: list[Sequence[_Piece]] = []
    columns: list[tuple[float, float]] = []
    for row in rows[start:]:
        if run:
            above = run[-1]
            height = max(piece.line.height for piece in above)
            space = min(p.line.top for p in row) - max(p.line.bottom for p in above)
            if not -height < space <= _LEADING * height:
                break
        if len(row) < 2 and not run:
            break
        spans = [(piece.line.left, piece.line.right) for piece in row]
        near = _TOUCHING * min(piece.line.height for piece in row)
        merged = _intervals([*columns, *spans], near)
        if run and len(merged) < max(2, len(columns)):
            break
        if len(row) < 2 and len(merged) > len(columns):
            break
        run.append(row)
        columns = merged
    while run and len(run[-1]) < 2:  # it may be the text behind the table
        run.pop()
    return run, columns


def _intervals(spans: Iterable[tuple[float, float]], near: float) -> list[tuple[float, float]]:
    """Spans from left to right, those that overlap or are so near as one."""
    merged: list[tuple[float, float]] = []
    for left, right in sorted(spans):
        if merged and left < merged[-1][1] + near:
            merged[-1] = merged[-1][0], max(merged[-1][1], right)
        else:
            merged.append((left, right))
    return merged


def _by_column(
    pieces: Iterable[_Piece], columns: Sequence[tuple[float, float]]
) -> list[list[_Piece]]:
    lefts = [left for left, _ in columns]
    found: list[list[_Piece]] = [[] for _ in columns]
    for piece in pieces:
        found[max(bisect_right(lefts, piece.line.left + 0.01) - 1, 0)].append(piece)
    return found


def _is_prose(columns: Sequence[Sequence[_Piece]]) -> bool:
    """Whether at least two of the columns read on from line to line."""
    return sum(map(_reads_on, columns)) >= 2


def _reads_on(column: Sequence[_Piece]) -> bool:
    texts = [piece.line.text for piece in column]
    if len(texts) < _FEWEST or median(map(len, texts)) < _PROSE:
        return False
    widths = [piece.line.right - piece.line.left for piece in column]
    small = sum(text[:1].islower() for text in texts[1:])
    return median(widths) > _FULL * max(widths) and small >= _GOES_ON * (len(texts) - 1)


def _is_table(run: Sequence[Sequence[_Piece]], columns: Sequence[Sequence[_Piece]]) -> bool:
    """Whether enough of the cells are filled."""
    if any(all(_MARK.fullmatch(p.line.text) for p in column) for column in columns):
        return False  # a list
    filled = sum(map(len, run))
    return filled >= _FILLED * len(run) * len(columns) and min(map(len, columns)) >= 2


# Pieces.


def _split(piece: _Piece, is_apart: Callable[[float, float], bool]) -> list[_Piece]:
    """The parts of a line between those of its gaps that are between columns."""
    line = piece.line
    chosen = [gap for gap in line.gaps if is_apart(gap.left, gap.right)]
    if not chosen:
        return [piece]
    words = line.text.split(" ")
    starts = [0, *(gap.word for gap in chosen)]
    ends = [*(gap.word for gap in chosen), len(words)]
    lefts = [line.left, *(gap.right for gap in chosen)]
    rights = [*(gap.left for gap in chosen), line.right]
    parts = []
    for start, end, left, right in zip(starts, ends, lefts, rights, strict=True):
        if start < end:
            gaps = tuple(
                replace(gap, word=gap.word - start) for gap in line.gaps if start < gap.word < end
            )
            text = " ".join(words[start:end])
            part = replace(line, text=text, left=left, right=max(left, right), gaps=gaps)
            parts.append(_Piece(part, piece.order))
    return parts


def _in_sequence(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """The pieces that follow one another from left to right on a level, in the page's order.

    So text beside a table, which the page has before or behind it, is no part of its rows.
    """
    rows: list[list[_Piece]] = []
    for piece in pieces:
        last = rows[-1][-1] if rows else None
        if last and last.line.right <= piece.line.left + 1 and _is_level(last, piece):
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return rows


def _is_level(one: _Piece, other: _Piece) -> bool:
    overlap = min(one.line.bottom, other.line.bottom) - max(one.line.top, other.line.top)
    return overlap > _LEVEL * min(one.line.height, other.line.height)


def _rows_of(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """The pieces that stand level, from top to bottom, each row from left to right."""
    rows: list[list[_Piece]] = []
    for piece in sorted(pieces, key=lambda piece: piece.middle):
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
    return text.rstrip("\u00ad")


def _replace(
    inside: Sequence[_Piece],
    outside: dict[int, list[_Piece]],
    table: Table,
    rest: dict[int, list[_Piece]],
    items: dict[int, list[Item]],
) -> None:
    """Put a table in the place of the first of its pieces; what is left of lines stays."""
    by_line: dict[int, list[_Piece]] = defaultdict(list)
    for piece in inside:
        by_line[piece.order].append(piece)
    first = min(by_line)
    for i, ours in by_line.items():
        left = outside.get(i) or [p for p in rest.get(i, []) if not _is_part(p, ours)]
        items[i] = [item for item in items[i] if isinstance(item, Table)]
        items[i] += [piece.line for piece in left]
        rest[i] = left
        if not left:
            del rest[i]
    items[first] = [table, *items[first]]


def _is_part(piece: _Piece, inside: Sequence[_Piece]) -> bool:
    """Whether parts of this piece are among those of a table."""
    return any(
        piece.line.left - 0.01 <= one.line.left and one.line.right <= piece.line.right + 0.01
        for one in inside
    )


def _reorder(
    ordered: Sequence[_Piece], rest: dict[int, list[_Piece]], items: dict[int, list[Item]]
) -> None:
    """Put the lines of columns one column after the other, where the first of them stood."""
    first = min(piece.order for piece in ordered)
    for i in {piece.order for piece in ordered}:
        items[i] = [item for item in items[i] if isinstance(item, Table)]
        rest.pop(i, None)
    items[first] = [*items[first], *(piece.line for piece in ordered)]
