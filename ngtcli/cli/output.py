"""What commands put out: a line, a list as a table, or a result in a file."""

import os
import sys
from pathlib import Path
from typing import Any

from ngtcli.cli.streams import terminal_width
from ngtcli.errors import NgtError, UsageError, shortened
from ngtcli.render.terminal import reveal, visible
from ngtcli.system.storage import write_atomically

_ELSEWHERE = "Choose another file."


def check_output_file(path: Path | None) -> None:
    """Raise UsageError where no file can be written at `path`, before anything is computed."""
    if path is None:
        return
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # too long, links in a circle
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise UsageError(f"{shortened(str(path))}: {reason}", "Name another file.") from None
    if path.is_dir():
        raise UsageError(f"{path}: a folder", "Name a file in it.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: no such folder", "Make the folder first.")


def write_result(text: str, path: Path | None, hint: str = _ELSEWHERE) -> None:
    """Write a result, without its last newline, whole to `path`; to stdout where that is None.

    Where the file cannot be written, the result goes to stdout, rather there than lost, and
    NgtError is raised with `hint`.
    """
    if path is None:
        print_line(text)
        return
    try:
        write_page(text + "\n", path, hint)
    except NgtError:
        print_line(text)
        raise


def write_page(text: str, path: Path, hint: str = _ELSEWHERE) -> None:
    """Write `text` whole to `path`, and nowhere else. Raises NgtError with `hint`."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise NgtError(f"{path}: {(error.strerror or str(error)).lower()}", hint) from None


def print_line(text: str) -> None:
    """One line (or object) of output; never through Rich, which wraps and reads markup."""
    shown = reveal(text) if sys.stdout.isatty() else text
    sys.stdout.write(shown + "\n")
    sys.stdout.flush()


def print_table(columns: list[str], rows: list[list[Any]]) -> None:
    """A table on a terminal, tab-separated values elsewhere."""
    if not sys.stdout.isatty():
        for row in rows:
            print_line("\t".join(visible(str(cell)).replace("\n", " ") for cell in row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(reveal(visible(str(cell)))) for cell in row))
    Console(width=terminal_width(sys.stdout)).print(table)
