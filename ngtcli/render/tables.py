"""Tables of text for a terminal, a pipe, Markdown and HTML. Independent of results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from ngtcli.render.terminal import visible

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod

MISSING = "–"


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


def cell(text: str) -> str:
    """`text` on one line, control characters made visible."""
    return visible(text.replace("\n", " ").replace("\t", " "))


def to_plain(tables: Sequence[Table]) -> str:
    """The tables for pipes: headings and tab-separated rows, none wrapped, all columns."""
    return "\n".join(
        "\n".join(
            [
                f"# {cell(table.title)}",
                "\t".join(cell(c.title) for c in table.columns),
                *("\t".join(cell(c) for c in row) for row in table.rows),
                "",
            ]
        )
        for table in tables
    ).rstrip("\n")


def to_markdown(tables: Sequence[Table]) -> str:
    """The tables in GitHub's Markdown, each under a heading."""
    return "\n\n".join(_markdown(table) for table in tables)


def _markdown(table: Table) -> str:
    lines = [
        f"### {_markdown_cell(table.title)}",
        "",
        _markdown_row(c.title for c in table.columns),
        _markdown_rule(table.columns),
        *(_markdown_row(row) for row in table.rows),
    ]
    if table.note:
        lines += ["", table.note]
    return "\n".join(lines)


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_markdown_cell(c) for c in cells) + " |"


def _markdown_rule(columns: Sequence[Column]) -> str:
    return "|" + "|".join("---" if c.left else "---:" for c in columns) + "|"


def _markdown_cell(text: str) -> str:
    text = escape(cell(text), quote=False)
    for mark in "\\`*_[]|":
        text = text.replace(mark, "\\" + mark)
    return text


def to_html(table: Table) -> str:
    """An HTML table with caption, and with header cells for screen readers."""
    head = "".join(f'<th scope="col"{_side(c)}>{_heading(c)}</th>' for c in table.columns)
    body = "\n".join(f"<tr>{_html_row(table, row)}</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="wide"><table><caption>{escape(cell(table.title))}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>{note}"
    )


def _heading(column: Column) -> str:
    return escape(column.title).replace(" ", "<br>")


def _html_row(table: Table, row: Sequence[str]) -> str:
    first, *rest = zip(table.columns, row, strict=True)
    cells = "".join(f"<td{_side(c)}>{escape(cell(text))}</td>" for c, text in rest)
    return f'<th scope="row"{_side(first[0])}>{escape(cell(first[1]))}</th>{cells}'


def _side(column: Column) -> str:
    return ' class="left"' if column.left else ""


def fit(table: Table, width: int, measure: Callable[[str], int] = len) -> tuple[Table, list[str]]:
    """The table with only the columns that fit into `width`, and the titles of those omitted.

    The highest ranks are omitted first. Columns of text are folded, to a third of the width, before
    a column is omitted. `measure` gives the width of a text in columns of a terminal.
    """
    left_out: list[str] = []
    while _width(table, max(16, width // 3), measure) > width:
        rank = max(c.rank for c in table.columns)
        if not rank:
            break
        at = max(i for i, c in enumerate(table.columns) if c.rank == rank)
        left_out.append(table.columns[at].title)
        table = replace(
            table,
            columns=[c for i, c in enumerate(table.columns) if i != at],
            rows=[[c for i, c in enumerate(row) if i != at] for row in table.rows],
        )
    return table, left_out


def _width(table: Table, most: int, measure: Callable[[str], int]) -> int:
    """The table's width in columns of a terminal, two after each; headings break at spaces."""
    columns = zip(*table.rows, strict=True) if table.rows else ((),) * len(table.columns)
    total = 0
    for heading, column in zip(table.columns, columns, strict=True):
        longest = max(measure(t) for t in (*heading.title.split(" "), *map(cell, column)))
        total += 2 + (min(longest, most) if heading.left else longest)
    return total


def to_terminal(
    tables: Sequence[Table], lines: Sequence[str], width: int, colour: bool = True
) -> str:
    """Tables for a terminal of `width` columns, then `lines`; notes name omitted columns."""
    from rich.console import Console
    from rich.text import Text

    console = Console(
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
    )
    with console.capture() as captured:
        for table in tables:
            _print(console, table)
        for line in lines:
            console.print(Text(cell(line), style="dim"))
    return captured.get().rstrip("\n")


def _print(console: "Console", table: Table) -> None:
    from rich import box
    from rich.cells import cell_len
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    table, left_out = fit(table, console.width, cell_len)
    rich = RichTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns:
        side: JustifyMethod = "left" if column.left else "right"
        rich.add_column(
            Text(column.title.replace(" ", "\n")),
            justify=side,
            overflow="fold",
            no_wrap=not column.left,
        )
    for row in table.rows:
        rich.add_row(*(Text(cell(c)) for c in row))
    console.print(Text(cell(table.title), style="bold"))
    console.print(Padding(rich, (1, 0)))
    note = f"Left out at this width: {', '.join(left_out)}; --json has all." if left_out else ""
    for text in filter(None, (table.note, note)):
        console.print(Text(text + "\n", style="dim"))
