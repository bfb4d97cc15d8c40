"""Tables of text for a pipe, CSV, Markdown and HTML. Independent of what is in them."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from ngtcli.render.terminal import one_line


@dataclass(frozen=True, slots=True)
class Column:
    """A heading. Without room the column of the highest `rank` is omitted first, rank 0 never."""

    title: str
    rank: int = 0
    left: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns; `note` explains the columns.

    `heat` has a number for each cell, from 0.0 for the worst value to 1.0 for the best, or None
    for a cell without a background; it is empty for a table without colours.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    note: str = ""
    heat: Sequence[Sequence[float | None]] = ()

    def heat_of(self, row: int) -> Sequence[float | None]:
        """The heat of each cell of a row, by its index."""
        return self.heat[row] if self.heat else (None,) * len(self.columns)


@dataclass(frozen=True, slots=True)
class Forms:
    """One result in each form it has; a text is made when it is asked for.

    `plain` is for pipes and files, `terminal` takes the columns and whether to colour, `asked` has
    a form by the flag that asks for it.
    """

    plain: Callable[[], str]
    terminal: Callable[[int, bool], str]
    asked: Mapping[str, Callable[[], str]]
    page: Callable[[], str] = field(default=lambda: "")


def cell(text: str) -> str:
    """`text` on one line, without tabs, control characters made visible."""
    return one_line(text.replace("\t", " "))


def to_plain(tables: Sequence[Table]) -> str:
    """The tables for pipes: headings and tab-separated rows, none wrapped, all columns."""
    return "\n\n".join(
        "\n".join(
            [
                *([f"# {cell(table.title)}"] if table.title else []),
                to_tabs([[c.title for c in table.columns], *table.rows]),
            ]
        )
        for table in tables
    )


def to_tabs(rows: Iterable[Sequence[str]]) -> str:
    """Rows as lines, their cells separated by tabs."""
    return "\n".join("\t".join(cell(c) for c in row) for row in rows)


def to_csv(table: Table) -> str:
    """The headings and rows of a table as CSV, quoted where necessary."""
    out = io.StringIO()
    rows = [[c.title for c in table.columns], *table.rows]
    csv.writer(out, lineterminator="\n").writerows([cell(c) for c in row] for row in rows)
    return out.getvalue().rstrip("\n")


def to_markdown(tables: Sequence[Table]) -> str:
    """The tables in GitHub's Markdown, each under its title."""
    return "\n\n".join(_markdown(table) for table in tables)


def _markdown(table: Table) -> str:
    lines = [
        *([f"### {markdown_text(table.title)}", ""] if table.title else []),
        _markdown_row(c.title for c in table.columns),
        _markdown_rule(table.columns),
        *(_markdown_row(row) for row in table.rows),
    ]
    if table.note:
        lines += ["", table.note]
    return "\n".join(lines)


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(markdown_text(c) for c in cells) + " |"


def _markdown_rule(columns: Sequence[Column]) -> str:
    return "|" + "|".join("---" if c.left else "---:" for c in columns) + "|"


def markdown_text(text: str) -> str:
    """`text` on one line, shown by Markdown as it stands."""
    text = escape(cell(text), quote=False)
    for mark in "\\`*_[]|":
        text = text.replace(mark, "\\" + mark)
    return text


def to_html(table: Table) -> str:
    """An HTML table with its title as caption, and with header cells for screen readers."""
    head = "".join(f'<th scope="col"{_side(c)}>{_heading(c)}</th>' for c in table.columns)
    body = "\n".join(f"<tr>{_html_row(table, i)}</tr>" for i in range(len(table.rows)))
    caption = f"<caption>{escape(cell(table.title))}</caption>" if table.title else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="wide"><table>{caption}\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>{note}"
    )


def _heading(column: Column) -> str:
    return escape(cell(column.title)).replace(" ", "<br>")


def _html_row(table: Table, row: int) -> str:
    first, *rest = zip(table.columns, table.rows[row], table.heat_of(row), strict=True)
    cells = "".join(
        f"<td{_side(column)}{_warmth(heat)}>{escape(cell(text))}</td>"
        for column, text, heat in rest
    )
    return f'<th scope="row"{_side(first[0])}>{escape(cell(first[1]))}</th>{cells}'


def _warmth(heat: float | None) -> str:
    return "" if heat is None else f' style="--heat:{round(100 * heat)}"'


def _side(column: Column) -> str:
    return ' class="left"' if column.left else ""
