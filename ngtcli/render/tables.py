"""Tables in three forms: for a pipe, as CSV, and for terminals, where Rich draws them.

Independent of what is in them. On a terminal what does not fit is folded or left out, and said.
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


@dataclass(frozen=True, slots=True)
class Column:
    """A heading. Without room the column of the highest `rank` is omitted first, rank 0 never."""

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
        return [[c.title for c in self.columns], *self.rows]


@dataclass(frozen=True, slots=True)
class Forms:
    """One result in each form it has; a text is made when it is asked for.

    `plain` is for pipes and files, `terminal` takes the columns and whether to color. The others
    are "" of a result that has no such form.
    """

    result: Any
    plain: Callable[[], str]
    terminal: Callable[[int, bool], str]
    csv: Callable[[], str] = str

    def json(self) -> str:
        """The object that --json prints."""
        return dump_json(self.result)


def to_plain(tables: Sequence[Table]) -> str:
    """The tables for pipes: headings and tab-separated rows, none wrapped, all columns."""
    titles = [f"# {cell(table.title)}\n" if table.title else "" for table in tables]
    return "\n\n".join(t + to_tabs(table.lines) for t, table in zip(titles, tables, strict=True))


def to_csv(table: Table) -> str:
    """The headings and rows of a table as CSV, quoted where necessary."""
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
    """Tables for a terminal of `width` columns, then the lines in `small` print, then `lines`."""
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
    """`text` on one line, all its characters such that a terminal shows them."""
    return reveal(cell(text))


def fit(table: Table, width: int) -> tuple[Table, list[str]]:
    """The table with only the columns that fit into `width`, and the titles of those omitted.

    The highest ranks are omitted first. Columns of text are folded, to a third of the width, before
    a column is omitted.
    """
    widths, ranks = _widths(table, max(16, width // 3)), [c.rank for c in table.columns]
    kept, left_out = list(range(len(widths))), list[str]()
    while sum(widths[i] for i in kept) > width:
        last = max(kept, key=lambda i: (ranks[i], i))
        if not ranks[last]:
            break
        kept.remove(last)
        left_out.append(table.columns[last].title)

    rows = [[row[i] for i in kept] for row in table.rows]
    return replace(table, columns=[table.columns[i] for i in kept], rows=rows), left_out


def _widths(table: Table, most: int = 1_000_000) -> list[int]:
    """Each column's width in columns of a terminal, with two after it; headings break at spaces.

    A column of text takes `most` at most.
    """
    widths = []
    for i, column in enumerate(table.columns):
        texts = [*column.title.split(" "), *(shown(row[i]) for row in table.rows)]
        longest = max(map(cell_len, texts))
        widths.append(2 + (min(longest, most) if column.left else longest))
    return widths


def _block(table: Table, width: int) -> RenderableType:
    """A table with its title above, its note and the names of omitted columns below."""
    table, left_out = fit(table, width)
    parts: list[RenderableType] = []
    if table.title:
        parts.append(Text(shown(table.title), style=Style(bold=True)))
    parts.append(Padding(_rich(table), (1 if table.title else 0, 0, 1, 0)))
    note = f"Left out at this width: {', '.join(left_out)}; --json has all." if left_out else ""
    parts += [Text(shown(text) + "\n", style=DIM) for text in (table.note, note) if text]
    return Group(*parts)


def _rich(table: Table) -> RichTable:
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
