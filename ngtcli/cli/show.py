"""What a command's report looks like: --json prints it, a view shows it to people."""

import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from typing import Any

from ngtcli.cli.output import print_line, print_table
from ngtcli.system.json_form import dump_json, to_json

Shown = str | tuple[Sequence[str], Iterable[Sequence[object]]]  # lines; or headings, and rows
View = Callable[[Any], Shown | Iterable[Shown]]


def table(columns: str, cells: Callable[[Any], Sequence[object]]) -> View:
    """Return a view of a list, with a row for each item.

    Args:
        columns: The headings, with commas between them.
        cells: What a row shows of an item.
    """
    return lambda rows: (columns.split(","), [cells(row) for row in rows])


def facts(value: object) -> Shown:
    """View a dataclass: its keys with their values; each item of a list has a row."""
    rows: list[tuple[str, object]] = []
    for key, item in to_json(value).items():
        if isinstance(item, list):
            rows += [(key, inner) for inner in item]
        else:
            rows.append((key, item))
    return ["what", "value"], rows


def comment(text: str) -> str:
    """Return a line below a table, which in a pipe is marked as no row of it."""
    return text if sys.stdout.isatty() else f"# {text}"


def show(returned: Any, as_json: bool, view: View) -> None:
    """Print what a command returned.

    Args:
        returned: A report; or a generator that yields one, is sent whether people were shown it,
            and continues.
        as_json: Whether to print the report as JSON.
        view: What people see of the report otherwise.
    """
    is_generator = isinstance(returned, Generator)
    report = next(returned) if is_generator else returned
    if as_json:
        print_line(dump_json(report))
    else:
        _print_view(view(report))
    if is_generator:
        with suppress(StopIteration):
            returned.send(not as_json)


def _print_view(viewed: Shown | Iterable[Shown]) -> None:
    parts: Iterable[Any] = [viewed] if isinstance(viewed, str | tuple) else viewed
    for part in parts:
        if isinstance(part, str):
            print_line(part)
        else:
            headings, rows = part
            print_table(headings, [*rows])
