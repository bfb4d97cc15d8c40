"""Tables in four forms: for a pipe (and CSV), Markdown, HTML and terminals, which Rich draws.

Independent of what is in them. On a terminal what does not fit is folded or left out, and said.
"""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
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

_BETWEEN = 3  # columns of the terminal between two tables side by side; guessed
# Colours of 256, pale to strong green, legible with black letters; guessed.
_RAMP = (255, 194, 157, 120, 83)


@dataclass(frozen=True, slots=True)
class Column:
    """A heading. Without room the column of the highest `rank` is omitted first, rank 0 never."""

    title: str
    rank: int = 0
    left: bool = False


class Shaded(str):
    """A cell with a background, which repeats what it says.

    `heat` is 0.0 for the worst value of a table, 1.0 for the best; `bar` the length of a bar behind
    the text, 1.0 for the whole cell.
    """

    heat: float | None
    bar: float | None

    def __new__(cls, text: str, heat: float | None = None, bar: float | None = None) -> "Shaded":
        made = super().__new__(cls, text)
        made.heat, made.bar = heat, bar
        return made


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

    `plain` is for pipes and files, `terminal` takes the columns and whether to colour. The others
    are "" of a result that has no such form.
    """

    result: Any
    plain: Callable[[], str]
    terminal: Callable[[int, bool], str]
    markdown: Callable[[], str] = str
    csv: Callable[[], str] = str
    page: Callable[[], str] = str

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


def to_markdown(tables: Sequence[Table]) -> str:
    """The tables in GitHub's Markdown, each under its title."""
    return "\n\n".join(map(_markdown, tables))


def _markdown(table: Table) -> str:
    head, *rows = (f"| {' | '.join(map(markdown_text, line))} |" for line in table.lines)
    rule = "|".join("---" if c.left else "---:" for c in table.columns)
    title = [f"### {markdown_text(table.title)}", ""] if table.title else []
    note = ["", table.note] if table.note else []
    return "\n".join([*title, head, f"|{rule}|", *rows, *note])


def markdown_text(text: str) -> str:
    """`text` on one line, shown by Markdown as it stands."""
    text = escape(cell(text), quote=False)
    for mark in "\\`*_[]|":
        text = text.replace(mark, "\\" + mark)
    return text


def to_terminal(
    tables: Sequence[Table],
    width: int,
    colour: bool = True,
    *,
    in_pairs: bool = False,
    small: Sequence[str] = (),
    lines: Sequence[str] = (),
) -> str:
    """Tables for a terminal of `width` columns, then the lines in `small` print, then `lines`.

    With `in_pairs` two tables stand in a row where all have room for it. Colour repeats what the
    cells say.
    """
    console = Console(
        width=width,
        force_terminal=colour,
        color_system="256" if colour else None,
        highlight=False,
        legacy_windows=False,
    )
    with console.capture() as captured:
        for block in _blocks(tables, width, in_pairs):
            console.print(block)
        for line in small:
            console.print(Text(shown(line), style=DIM))
        for line in lines:
            console.print(Text(shown(line)))
    return "\n".join(line.rstrip() for line in captured.get().split("\n")).rstrip("\n")


def shown(text: str) -> str:
    """`text` on one line, all its characters such that a terminal shows them."""
    return reveal(cell(text))


def full_width(table: Table) -> int:
    """The columns of a terminal that a table takes with nothing folded or left out."""
    return max(sum(_widths(table)), cell_len(shown(table.title)))


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


def _blocks(tables: Sequence[Table], width: int, in_pairs: bool) -> list[RenderableType]:
    blocks = [_block(table, width) for table in tables]
    widest = max(map(full_width, tables), default=0)
    if not in_pairs or 2 * widest + _BETWEEN > width:
        return blocks
    pairs = RichTable.grid(padding=(0, _BETWEEN))
    for i in range(0, len(blocks), 2):
        pairs.add_row(*blocks[i : i + 2])
    return [pairs]


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
        rich.add_row(*map(_cell, row))
    return rich


def _cell(text: str) -> Text:
    if not isinstance(text, Shaded) or text.heat is None:
        return Text(shown(text))
    level = min(int(text.heat * len(_RAMP)), len(_RAMP) - 1)
    return Text(shown(text), Style(color="color(16)", bgcolor=f"color({_RAMP[level]})"))
