"""What `ngt batch` reads lines from and writes lines to."""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ngtcli.batch.output import journal_of
from ngtcli.cli.output import print_line
from ngtcli.cli.reading import standard_input
from ngtcli.documents.find import STDIN, expanded
from ngtcli.errors import InputError, NgtError, UsageError, reason_of
from ngtcli.system.reading import identity

_ANOTHER = "Name another file with -o."


def open_lines(source: str) -> IO[bytes]:
    """The lines' stream. Raises InputError."""
    if source != STDIN:
        try:
            return open(source, "rb")
        except OSError as error:
            what = f"{source}: {reason_of(error)}"
            raise InputError(what, "Name a file of JSON lines.") from None
    stream = standard_input([STDIN])
    if stream is None:
        raise InputError("standard input: nothing is piped in", "Pipe JSON lines in.")
    return stream


def check_apart(source: str, output: Path | None) -> None:
    """Raise UsageError where the answers would be written over the lines, or behind them."""
    read = 0 if source == STDIN else source
    try:
        regular = stat.S_ISREG(os.stat(read).st_mode)
    except (OSError, ValueError):
        return
    if regular and identity(read) in Written(output).files():
        where = output or "standard output"
        raise UsageError(f"{where}: it is the input, or its journal is", _ANOTHER)


class Written:
    """The files that a batch writes: its output, standard output without one, and the journal."""

    def __init__(self, output: Path | None) -> None:
        self._paths = () if output is None else (output.resolve(), journal_of(output))

    def files(self) -> frozenset[tuple[int, int]]:
        """Those that are there now, by their `identity`."""
        found = map(identity, self._paths or (1,))
        return frozenset(one for one in found if one)

    def check(self, number: int, paths: Sequence[str]) -> None:
        """Raise UsageError where the line of that number names one of them, there or not yet."""
        there = self.files() if paths else frozenset()
        for path in map(expanded, paths):
            if os.path.abspath(path) in map(str, self._paths) or identity(path) in there:
                what = f"line {number} reads {path}, and this command would write over it"
                raise UsageError(what, _ANOTHER)


def is_file(path: Path | None) -> bool:
    """Whether a file stands there, or may be made there: no device and no pipe."""
    return path is not None and (path.is_file() or not path.exists())


@contextmanager
def writer(path: Path | None) -> Iterator[Callable[[str], object]]:
    """What writes a line: to standard output, or to `path`, which is emptied. Raises NgtError."""
    if path is None:
        yield print_line
        return
    with _telling(path):
        file = path.open("wb", buffering=0)  # so that closing it writes nothing more

    def write(line: str) -> None:
        data = f"{line}\n".encode()
        with _telling(path):
            while data:
                data = data[file.write(data) :]

    with file:
        yield write


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    """Raise what fails at a file as NgtError."""
    try:
        yield
    except OSError as error:
        raise NgtError(f"{path}: {reason_of(error)}", "Choose another file.") from None
