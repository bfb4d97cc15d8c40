"""stdin, stdout and stderr as commands use them: progress, notes, errors, broken pipes."""

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, TextIO

from ngtcli.errors import ClosedPipeError, GrammarError, NgtError
from ngtcli.render.terminal import DIM, drafted_style, paint, visible, wants_color


def piped_stdin() -> BinaryIO | None:
    """Standard input where something is piped or redirected into it, else None."""
    try:
        return None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer
    except ValueError:  # closed
        return None


def terminal_width(stream: TextIO) -> int:
    """Columns of the terminal behind `stream`; 80 where there is none."""
    try:
        return int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        try:
            return os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):
            return 80


def stderr_width() -> int:
    """Columns of the terminal behind stderr; stdout may be a pipe at the same time."""
    return terminal_width(sys.stderr)


class Notes:
    """What goes to stderr. On a terminal one status line is shown and wiped again."""

    def __init__(self, verbose: bool = False) -> None:
        self.terminal = sys.stderr.isatty()
        self.verbose = verbose
        self._status = False

    def status(self, message: str) -> None:
        """A passing line: what is being done right now."""
        if self.terminal:
            self.clear()
            sys.stderr.write(visible(message)[: stderr_width() - 1])
            sys.stderr.flush()
            self._status = True
        elif self.verbose:
            self.say(message)

    def clear(self) -> None:
        """Wipe the status line."""
        if self._status:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._status = False

    def say(self, message: str, dim: bool = False) -> None:
        """A line that stays."""
        self.clear()
        text = visible(message)
        styled = paint(text, DIM) if dim and wants_color(sys.stderr, "auto") else text
        sys.stderr.write(styled + "\n")
        sys.stderr.flush()

    def remark(self, message: str) -> None:
        """A dim sentence, broken between words."""
        for line in textwrap.wrap(message, stderr_width() - 1):
            self.say(line, dim=True)

    def warn(self, message: str) -> None:
        self.say(f"ngt: {message}")

    def legend(self, origins: Sequence[str]) -> None:
        """What the colours of an answer mean: the names of what its drafts may come from."""
        painted, drafted = wants_color(sys.stderr, "auto"), origins or ["drafted"]
        self.clear()
        for line in lines_of([*drafted, "the model's own"], stderr_width() - len("Sources: ")):
            words = [paint(w, drafted_style(w)) if painted and w in drafted else w for w in line]
            sys.stderr.write(f"Sources: {' · '.join(words)}\n")

    def facts(self, parts: list[str]) -> None:
        """Short facts with dots between them, broken between facts at the terminal's width."""
        for line in lines_of(parts, stderr_width()):
            self.say(" · ".join(line), dim=True)


def lines_of(parts: Sequence[str], width: int) -> list[list[str]]:
    """Lines of parts that stay below `width` with " · " between them, as far as parts do.

    >>> lines_of(["one", "two", "three"], 10)
    [['one', 'two'], ['three']]
    """
    lines: list[list[str]] = [[]]
    for part in parts:
        if lines[-1] and len(" · ".join([*lines[-1], part])) >= width:
            lines.append([])
        lines[-1].append(part)
    return lines


def report_error(error: NgtError) -> None:
    """One line for what happened, one for what to do; between them the text that is wrong."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")  # a status line may stand there
    shown = pointed(error.text, error.place) if isinstance(error, GrammarError) else []
    for line in (f"ngt: {error}", *shown, error.hint):
        if line:
            sys.stderr.write(visible(line.replace("\n", " ")) + "\n")


def pointed(text: str, place: int, before: int = 40, after: int = 14) -> list[str]:
    """The part of `text` about `place`, and a line with a caret under that character.

    >>> pointed("n=8..x", 5)
    ['  n=8..x', '       ^']
    """
    from rich.cells import cell_len  # wide characters take two columns

    first = max(0, place - before)
    head = visible(text[first:place].replace("\n", " ").replace("\t", " "))
    rest = text[place : place + after].replace("\n", " ").replace("\t", " ")
    return [f"  {head}{rest}", " " * (2 + cell_len(head)) + "^"]


def print_line(text: str) -> None:
    """One line (or object) of output; never through Rich, which wraps and reads markup."""
    with closed_pipes_end_quietly():
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


@contextmanager
def closed_pipes_end_quietly() -> Iterator[None]:
    """Turn a broken pipe into ClosedPipeError before the command-line library sees it."""
    try:
        yield
    except BrokenPipeError:
        raise ClosedPipeError("standard output is closed") from None


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
        table.add_row(*(Text(visible(str(cell))) for cell in row))
    Console().print(table)


def abandon_stdout() -> None:
    """After a broken pipe: let the interpreter's last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
