"""stdin, stdout and stderr as commands use them: what fails there, and how wide they are."""

import io
import os
import sys
from contextlib import suppress
from typing import Any, BinaryIO, TextIO

from ngtcli.errors import ClosedPipeError, NgtError
from ngtcli.render.terminal import wants_color
from ngtcli.words import reason_of

NARROWEST, WIDEST, USUAL = 20, 1000, 80  # columns; the first two a guess


_color = "auto"  # the setting of the running command


def choose_color(setting: str) -> None:
    """Style nothing from now on where the setting `color` says so."""
    global _color
    _color = setting


def styles(stream: TextIO) -> bool:
    """Whether the running command styles what it writes to `stream`, besides answers.

    Colors that are forced are those of answers: a log of stderr gets none.
    """
    return _color != "never" and wants_color(stream, "auto")


class _Stdout(io.FileIO):
    """Standard output whose failures are NgtErrors, whoever wrote: a library as well."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise ClosedPipeError("standard output is closed") from None
        except OSError as error:
            hint = "Send the output elsewhere: to another file or disk, or to the terminal."
            raise NgtError(f"standard output: {reason_of(error)}", hint=hint) from None


class _Stderr(io.FileIO):
    """Standard error; what cannot be written there is dropped."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def own_streams() -> None:
    """Put our streams in the place of Python's, and mend what libraries read of the terminal.

    Where a caller has put other streams there, those stay.
    """
    choose_color("auto")
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        sys.stdout = _text(_Stdout(1, "wb", closefd=False), sys.stdout)
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:
        sys.stderr = _text(_Stderr(2, "wb", closefd=False), sys.stderr, lines=True)
    if "COLUMNS" in os.environ and not _columns_set():
        del os.environ["COLUMNS"]
    elif "COLUMNS" in os.environ or 0 < _columns_reported(sys.stdout) < NARROWEST:
        os.environ["COLUMNS"] = str(terminal_width(sys.stdout))
    os.environ["TERM"] = os.environ.get("TERM") or "dumb"


def _text(raw: io.FileIO, like: TextIO, lines: bool = False) -> TextIO:
    """A text stream over `raw`.

    What another program or a file gets is UTF-8, so that no character is lost. A terminal gets its
    own encoding, with "?" for a character that this one lacks.
    """
    like.flush()
    is_terminal = raw.isatty()
    encoding = like.encoding if is_terminal or lines else "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, "replace", line_buffering=lines or is_terminal
    )


def finish_stdout() -> None:
    """Write what is in the buffer; where that fails, let the last flush go to /dev/null."""
    try:
        sys.stdout.flush()
    except (NgtError, OSError, ValueError):
        if isinstance(getattr(sys.stdout.buffer, "raw", None), _Stdout):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def piped_stdin() -> BinaryIO | None:
    """Standard input where something is piped or redirected into it, else None.

    Reading it waits for what is not there yet, whatever the process that made the pipe wanted.
    """
    try:
        if sys.stdin is None or sys.stdin.isatty():
            return None
    except ValueError:  # closed
        return None
    with suppress(OSError):  # what has no descriptor
        os.set_blocking(sys.stdin.fileno(), True)
    return sys.stdin.buffer


def terminal_width(stream: TextIO) -> int:
    """Columns for what goes to `stream`, from NARROWEST to WIDEST.

    COLUMNS where it is a number above 0, else what the terminal reports, else USUAL.
    """
    columns = _columns_set() or _columns_reported(stream) or USUAL
    return min(max(columns, NARROWEST), WIDEST)


def _columns_set() -> int:
    """COLUMNS, 0 where it is unset or nonsense."""
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _columns_reported(stream: TextIO) -> int:
    """What the terminal behind `stream` reports: 0 where it knows nothing, or there is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0
