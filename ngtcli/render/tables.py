"""Tables in three forms: for a pipe, as CSV, and for terminals, where Rich draws them.

On a terminal, columns that do not fit are folded or left out, and a line names those left out.
"""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text

from ngtcli.render.terminal import DIM, cell, reveal, to_tabs
from ngtcli.system.json_form import dump_json

_MIN_TEXT_WIDTH = 16  # cells of a column of text, before columns are left out (guess)
_COLUMN_SPACE = 2  # cells after a column


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its heading.
        rank: On a narrow terminal the column of the highest rank is left out first, rank 0 never.
        left: Whether it is text, aligned to the left, which may be folded.
    """

    title: str
    rank: int = 0
    left: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns; `note` explains the columns."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    note: str = ""

    @property
    def lines(self) -> list[Sequence[str]]:
        """The headings, then the rows."""
        return [[column.title for column in self.columns], *self.rows]


@dataclass(frozen=True, slots=True)
class Forms:
    """One result in each of its forms; a text is made when it is asked for.

    Attributes:
        result: What --json prints.
        plain: Returns the text for pipes and files.
        terminal: Returns the text for a terminal of a number of columns, with or without color.
        csv: Returns the text of a CSV file; "" for a result without one.
    """

    result: Any
    plain: Callable[[], str]
    terminal: Callable[[int, bool], str]
    csv: Callable[[], str] = str

    def json(self) -> str:
        """Return the object that --json prints."""
        return dump_json(self.result)


def to_plain(tables: Sequence[Table]) -> str:
    """Return tables for pipes: headings and tab-separated rows, none wrapped, all columns."""
    texts: list[str] = []
    for table in tables:
        title = f"# {cell(table.title)}\n" if table.title else ""
        texts.append(title + to_tabs(table.lines))
    return "\n\n".join(texts)


def to_csv(table: Table) -> str:
    """Return the headings and rows of a table as CSV, quoted where necessary."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(map(cell, row) for row in table.lines)
    return out.getvalue().rstrip("\n")


def to_terminal(
    tables: Sequence[Table],
    width: int,
    color: bool = True,
    *,
    small: Sequence[str] = (),
    lines: Sequence[str] = (),
) -> str:
    """Return tables for a terminal.

    Args:
        tables: The tables, below each other.
        width: Columns of the terminal.
        color: Whether styles are used.
        small: Lines below the tables, dim.
        lines: Lines below those.
    """
    console = Console(
        width=width,
        force_terminal=color,
        color_system="256" if color else None,
        highlight=False,
        legacy_windows=False,
    )
    with console.capture() as captured:
        for table in tables:
            console.print(_block(table, width))
        for line in small:
            console.print(Text(shown(line), style=DIM))
        for line in lines:
            console.print(Text(shown(line)))
    return "\n".join(line.rstrip() for line in captured.get().split("\n")).rstrip("\n")


def shown(text: str) -> str:
    """Return a text on one line, with invisible characters made visible."""
    return reveal(cell(text))


def fit(table: Table, width: int) -> tuple[Table, list[str]]:
    """Leave out the columns that do not fit.

    The highest ranks are left out first. Columns of text are folded, to a third of the width,
    before a column is left out.

    Returns:
        The table with the columns that fit into `width`, and the titles of the others.
    """
    widths = _widths(table, max(_MIN_TEXT_WIDTH, width // 3))
    remaining = list(range(len(widths)))
    left_out: list[str] = []
    while sum(widths[number] for number in remaining) > width:
        last = max(remaining, key=lambda number: (table.columns[number].rank, number))
        if table.columns[last].rank == 0:
            break
        remaining.remove(last)
        left_out.append(table.columns[last].title)

    columns = [table.columns[number] for number in remaining]
    rows = [[row[number] for number in remaining] for row in table.rows]
    return replace(table, columns=columns, rows=rows), left_out


def _widths(table: Table, max_text: int) -> list[int]:
    """Return the width of each column in cells, with the space after it.

    Headings break at spaces. A column of text is at most `max_text` wide.
    """
    widths: list[int] = []
    for number, column in enumerate(table.columns):
        texts = column.title.split(" ")
        texts += [shown(row[number]) for row in table.rows]
        width = max(map(cell_len, texts))
        if column.left:
            width = min(width, max_text)
        widths.append(width + _COLUMN_SPACE)
    return widths


def _block(table: Table, width: int) -> RenderableType:
    """Return a table with its title above, its note and the titles of omitted columns below."""
    table, left_out = fit(table, width)
    parts: list[RenderableType] = []
    if table.title:
        parts.append(Text(shown(table.title), style=Style(bold=True)))
    parts.append(Padding(_rich(table), (1 if table.title else 0, 0, 1, 0)))
    if table.note:
        parts.append(Text(f"{shown(table.note)}\n", style=DIM))
    if left_out:
        note = f"Left out at this width: {', '.join(left_out)}; --json has all."
        parts.append(Text(f"{shown(note)}\n", style=DIM))
    return Group(*parts)


def _rich(table: Table) -> RichTable:
    """Return a table as Rich draws it."""
    rich = RichTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns:
        rich.add_column(
            Text(shown(column.title).replace(" ", "\n")),
            justify="left" if column.left else "right",
            overflow="fold",
            no_wrap=not column.left,
        )
    for row in table.rows:
        rich.add_row(*(Text(shown(text)) for text in row))
    return rich
