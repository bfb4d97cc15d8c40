"""What a command's report looks like: --json prints it, a view shows it to people."""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from typing import Any

from ngtcli.cli.output import print_line, print_table
from ngtcli.system.json_form import dump_json, to_json

Shown = str | tuple[Sequence[str], Iterable[Sequence[object]]]  # lines, or headings and rows
View = Callable[[Any], Shown | Iterable[Shown]]


def table(columns: str, cells: Callable[[Any], Sequence[object]]) -> View:
    """A view of a list: under these headings, separated by commas, a row for each one."""
    return lambda rows: (columns.split(","), [cells(row) for row in rows])


def facts(value: object) -> Shown:
    """A view of a dataclass: its keys and their values, a list's in rows."""
    pairs = to_json(value).items()
    rows = [(k, one) for k, v in pairs for one in (v if isinstance(v, list) else [v])]
    return ["what", "value"], rows


def show(given: Any, json: bool, view: View) -> None:
    """Print a report; a generator yields it, is sent whether people were shown it, and goes on."""
    report = next(given) if isinstance(given, Generator) else given
    if json:
        print_line(dump_json(report))
    else:
        found = view(report)
        whole: Iterable[Any] = [found] if isinstance(found, str | tuple) else found
        for shown in whole:
            print_line(shown) if isinstance(shown, str) else print_table(shown[0], [*shown[1]])
    if isinstance(given, Generator):
        with suppress(StopIteration):
            given.send(not json)
