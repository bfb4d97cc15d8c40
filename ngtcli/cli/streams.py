"""stdin, stdout and stderr as commands use them: progress, notes, errors, failures."""

import io
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, TextIO

from ngtcli import process
from ngtcli.errors import ClosedPipeError, GrammarError, NgtError
from ngtcli.render.terminal import (
    DIM,
    cut,
    drafted_style,
    is_plain,
    paint,
    reveal,
    visible,
    wants_color,
)

NARROWEST, WIDEST, USUAL = 20, 1000, 80  # columns; the first two guessed
LONGEST_LINE = 2000  # characters of a line of an error: guessed
_WIPE = "\r\x1b[K"  # to the line's start, then clear to its end


class _Stdout(io.FileIO):
    """Standard output whose failures are NgtErrors, whoever wrote: a library as well."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise ClosedPipeError("standard output is closed") from None
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            hint = "Send the answer elsewhere: to another file or disk, or to the terminal."
            raise NgtError(f"standard output: {reason}", hint) from None


class _Stderr(io.FileIO):
    """Standard error; what cannot be written there is dropped, for nobody could be told."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def own_streams() -> None:
    """Put our streams in the place of Python's, and mend what libraries read of the terminal.

    Where a caller has put other streams there, those stay.
    """
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        sys.stdout = _text(_Stdout(1, "wb", closefd=False), sys.stdout)
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:
        sys.stderr = _text(_Stderr(2, "wb", closefd=False), sys.stderr, lines=True)
    if "COLUMNS" in os.environ and not _columns_set():
        del os.environ["COLUMNS"]
    elif "COLUMNS" in os.environ or 0 < _columns_told(sys.stdout) < NARROWEST:
        os.environ["COLUMNS"] = str(terminal_width(sys.stdout))
    os.environ["TERM"] = os.environ.get("TERM") or "dumb"


def _text(raw: io.FileIO, like: TextIO, lines: bool = False) -> TextIO:
    """A text stream over `raw`; a name or a text that the encoding lacks is written with "?"."""
    like.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw), like.encoding, "replace", line_buffering=lines or raw.isatty()
    )


def finish_stdout() -> None:
    """Write what stands in the buffer; where that fails, let the last flush go nowhere."""
    try:
        sys.stdout.flush()
    except (NgtError, OSError, ValueError):
        if isinstance(getattr(sys.stdout.buffer, "raw", None), _Stdout):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def piped_stdin() -> BinaryIO | None:
    """Standard input where something is piped or redirected into it, else None."""
    try:
        return None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer
    except ValueError:  # closed
        return None


def terminal_width(stream: TextIO) -> int:
    """Columns for what goes to `stream`, from NARROWEST to WIDEST.

    COLUMNS where it is a number above 0, else what the terminal reports, else USUAL.
    """
    columns = _columns_set() or _columns_told(stream) or USUAL
    return min(max(columns, NARROWEST), WIDEST)


def _columns_set() -> int:
    """COLUMNS, 0 where it is unset or nonsense."""
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _columns_told(stream: TextIO) -> int:
    """What the terminal behind `stream` reports: 0 where it knows nothing, or there is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0


def stderr_width() -> int:
    """Columns of the terminal behind stderr; stdout may be a pipe at the same time."""
    return terminal_width(sys.stderr)


class Notes:
    """What goes to stderr. On a terminal one status line is shown and wiped again."""

    def __init__(self, verbose: bool = False) -> None:
        self.terminal = sys.stderr.isatty()
        self.verbose = verbose
        self.said = False
        self._wipes = self.terminal and not is_plain()
        self._status = False

    def status(self, message: str) -> None:
        """A passing line: what is being done right now."""
        if self._wipes:
            process.wipe_at_end(_WIPE.encode())
            line = cut(reveal(visible(message)), stderr_width() - 1)
            sys.stderr.write((_WIPE if self._status else "") + line)
            sys.stderr.flush()
            self._status = True
        elif self.verbose:
            self.say(message)

    def clear(self) -> None:
        """Wipe the status line."""
        if self._status:
            sys.stderr.write(_WIPE)
            sys.stderr.flush()
            self._status = False
            process.wipe_at_end(b"")

    def begin_answer(self) -> None:
        """Before the answer's first words: no status line, and below other lines an empty one."""
        self.clear()
        if self.said and self.terminal and sys.stdout.isatty():
            sys.stderr.write("\n")
            sys.stderr.flush()
        self.said = False

    def say(self, message: str, dim: bool = False) -> None:
        """A line that stays."""
        self.clear()
        self.said = True
        text = reveal(visible(message))
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
        self.said = True
        for line in lines_of([*drafted, "the model's own"], stderr_width() - len("Sources: ")):
            words = [paint(w, drafted_style(w)) if painted and w in drafted else w for w in line]
            sys.stderr.write(f"Sources: {' · '.join(words)}\n")

    def facts(self, parts: list[str]) -> None:
        """Short facts with dots between them, broken between facts at the terminal's width."""
        for line in lines_of(parts, stderr_width()):
            self.say(" · ".join(line), dim=True)


def once(say: Callable[[str], None]) -> Callable[[str], None]:
    """`say`, for each message once, though it holds for every prompt of every round."""
    said: set[str] = set()

    def first(message: str) -> None:
        if message not in said:
            said.add(message)
            say(message)

    return first


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
    if sys.stderr.isatty() and not is_plain():
        sys.stderr.write(_WIPE)  # a status line may stand there
    shown = pointed(error.text, error.place) if isinstance(error, GrammarError) else []
    for line in (f"ngt: {error}", *shown, error.hint):
        if line:
            sys.stderr.write(reveal(visible(_shortened(line.replace("\n", " ")))) + "\n")


def _shortened(line: str) -> str:
    """`line` without its middle where a name in it is too long to be read."""
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE // 2]} … {line[-200:]}"


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
