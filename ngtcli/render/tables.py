"""Tables of text for a pipe, CSV, Markdown and HTML. Independent of what is in them."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from ngtcli.render.terminal import cell


@dataclass(frozen=True, slots=True)
class Column:
    """A heading. Without room the column of the highest `rank` is omitted first, rank 0 never."""

    title: str
    rank: int = 0
    left: bool = False


class Heated(str):
    """A cell with a background: `heat` is 0.0 for the worst value of a table, 1.0 for the best."""

    heat: float

    def __new__(cls, text: str, heat: float) -> "Heated":
        made = super().__new__(cls, text)
        made.heat = heat
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

    `plain` is for pipes and files, `terminal` takes the columns and whether to colour, `asked` has
    a form by the flag that asks for it.
    """

    plain: Callable[[], str]
    terminal: Callable[[int, bool], str]
    asked: Mapping[str, Callable[[], str]]
    page: Callable[[], str] = field(default=lambda: "")


def to_plain(tables: Sequence[Table]) -> str:
    """The tables for pipes: headings and tab-separated rows, none wrapped, all columns."""
    titles = [f"# {cell(table.title)}\n" if table.title else "" for table in tables]
    return "\n\n".join(t + to_tabs(table.lines) for t, table in zip(titles, tables, strict=True))


def to_tabs(rows: Iterable[Sequence[str]]) -> str:
    """Rows as lines, their cells separated by tabs."""
    return "\n".join("\t".join(map(cell, row)) for row in rows)


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


def to_html(table: Table) -> str:
    """An HTML table with its title as caption, and with header cells for screen readers."""
    sides = [' class="left"' if column.left else "" for column in table.columns]
    head, body = "", []
    for column, side in zip(table.columns, sides, strict=True):
        heading = escape(cell(column.title)).replace(" ", "<br>")
        head += f'<th scope="col"{side}>{heading}</th>'
    for row in table.rows:
        cells = f'<th scope="row"{sides[0]}>{escape(cell(row[0]))}</th>'
        for side, text in zip(sides[1:], row[1:], strict=True):
            warm = f' style="--heat:{round(100 * text.heat)}"' if isinstance(text, Heated) else ""
            cells += f"<td{side}{warm}>{escape(cell(text))}</td>"
        body.append(f"<tr>{cells}</tr>")
    caption = f"<caption>{escape(cell(table.title))}</caption>" if table.title else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    rows = "\n".join(body)
    return (
        f'<div class="wide"><table>{caption}\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>{note}"
    )
