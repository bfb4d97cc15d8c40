"""Standard streams: errors of writing, encodings, styles, and the width of the terminal."""

import io
import os
import sys
from contextlib import suppress
from typing import Any, BinaryIO, TextIO

from ngtcli.errors import ClosedPipeError, NgtError
from ngtcli.render.terminal import wants_color
from ngtcli.words import reason_of

# Widths in columns; the first two are guesses.
MIN_WIDTH = 20
MAX_WIDTH = 1000
DEFAULT_WIDTH = 80

_color = "auto"  # the setting of the running command


def choose_color(setting: str) -> None:
    """Apply the setting `color` to everything that the running command writes."""
    global _color
    _color = setting


def styles(stream: TextIO) -> bool:
    """Return whether the running command styles its output to `stream`, except answers.

    `--color always` applies to answers only, so that a log of stderr has no control sequences.
    """
    return _color != "never" and wants_color(stream, "auto")


class _Stdout(io.FileIO):
    """Standard output that raises NgtError on failure, also for libraries that write to it."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise ClosedPipeError("standard output is closed") from None
        except OSError as error:
            raise NgtError(
                f"standard output: {reason_of(error)}",
                hint="Send the output elsewhere: to another file or disk, or to the terminal.",
            ) from None


class _Stderr(io.FileIO):
    """Standard error that drops what cannot be written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def own_streams() -> None:
    """Replace Python's standard streams, and correct the variables that describe the terminal.

    Streams that a caller has replaced stay.
    """
    choose_color("auto")
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        sys.stdout = _text(_Stdout(1, "wb", closefd=False), sys.stdout)
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:
        sys.stderr = _text(_Stderr(2, "wb", closefd=False), sys.stderr, lines=True)
    if "COLUMNS" in os.environ and not _columns_set():
        del os.environ["COLUMNS"]
    elif "COLUMNS" in os.environ or 0 < _columns_reported(sys.stdout) < MIN_WIDTH:
        os.environ["COLUMNS"] = str(terminal_width(sys.stdout))
    os.environ["TERM"] = os.environ.get("TERM") or "dumb"


def _text(raw: io.FileIO, like: TextIO, lines: bool = False) -> TextIO:
    """Return a text stream that writes to `raw`.

    Pipes and files get UTF-8, so that no character is lost. A terminal gets its own encoding, with
    "?" for characters that this encoding does not have.

    Args:
        raw: The file.
        like: The stream that is replaced.
        lines: Whether the stream is flushed after every line.
    """
    like.flush()
    is_terminal = raw.isatty()
    encoding = like.encoding if is_terminal or lines else "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, "replace", line_buffering=lines or is_terminal
    )


def finish_stdout() -> None:
    """Flush standard output; if that fails, send what is left to /dev/null."""
    try:
        sys.stdout.flush()
    except (NgtError, OSError, ValueError):
        if isinstance(getattr(sys.stdout.buffer, "raw", None), _Stdout):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def piped_stdin() -> BinaryIO | None:
    """Return standard input if something is piped or redirected into it, else None.

    Reading it blocks, even if the process that made the pipe switched that off.
    """
    try:
        if sys.stdin is None or sys.stdin.isatty():
            return None
    except ValueError:  # closed
        return None
    with suppress(OSError):  # it has no descriptor
        os.set_blocking(sys.stdin.fileno(), True)
    return sys.stdin.buffer


def terminal_width(stream: TextIO) -> int:
    """Return the columns of `stream`, from MIN_WIDTH to MAX_WIDTH.

    That is COLUMNS if it is a number above 0, else what the terminal reports, else DEFAULT_WIDTH.
    """
    columns = _columns_set() or _columns_reported(stream) or DEFAULT_WIDTH
    return min(max(columns, MIN_WIDTH), MAX_WIDTH)


def _columns_set() -> int:
    """Return COLUMNS; 0 if it is unset or invalid."""
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _columns_reported(stream: TextIO) -> int:
    """Return the columns that the terminal reports; 0 if it does not, or there is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0
