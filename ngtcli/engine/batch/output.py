"""What a batch writes, so that the same command goes on after a kill.

The journal of an output, `NAME.journal`, has all lines that are done: it is the truth. The file is
a view of it, which gets the lines in the order of the input as their turns come, and is written
again where a line was run again. A file that holds anything else is refused.
"""

import io
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ngtcli.documents.find import expanded
from ngtcli.errors import UsageError
from ngtcli.system import process
from ngtcli.system.files import identity, write_all, write_atomically
from ngtcli.system.journal import Form, Journal, LineFile, errors_named

_FORCE = "Name another file with -o, or write over it with --force."
ANOTHER_FILE = "Name another file with -o, or write it again with --restart."
_WORDS = {
    "input": "other lines: the input has changed (give new and mended lines a file of their own)",
    "wording": "another wording of preset {task}",
}
_RECORD = 1_000_000  # bytes of a record beside its text, which may be twice as long there; guess


class DoneLine(Struct, frozen=True, omit_defaults=True):
    """A line that is done: its `index`, its text, and whether that is an error.

    `files` is a hash of the sizes and times of the files that were read for it, `texts` one of
    their texts; "" where it names none.
    """

    index: int
    text: str = ""
    failed: bool = False
    files: str = ""
    texts: str = ""


class StreamOutput:
    """Writes lines in order, each at once when its turn comes; those before it wait in memory.

    They go to `path`, in the place of what is there, or with `write` where there is none. Raises
    NgtError for what fails at the file, and what `write` raises. `close` it.
    """

    def __init__(self, path: Path | None, write: Callable[[str], object]) -> None:
        self._path, self._write, self._next = path, write, 0
        self._waiting: dict[int, str] = {}
        self.close: Callable[[], None] = lambda: None
        if path is not None:
            with errors_named(path, ANOTHER_FILE):
                file = io.FileIO(path, "a")  # no buffer: closing it writes nothing more
            self._write, self.close = partial(self._write_to, file), file.close

    def _write_to(self, file: io.FileIO, text: str) -> None:
        with errors_named(self._path, ANOTHER_FILE):
            if not self._next and os.path.isfile(file.fileno()):
                file.truncate(0)
            write_all(file, f"{text}\n".encode())

    def put(self, done: DoneLine) -> None:
        """Take a line."""
        self._waiting[done.index] = done.text
        while self._next in self._waiting:
            self._write(self._waiting.pop(self._next))
            self._next += 1


_BATCH = Form("ngt-batch", 3, DoneLine, ANOTHER_FILE, _WORDS)


class FileOutput:
    """The file of a batch and its journal, begun with what `head` says.

    `head` has SHA-256 of the `input` in hex, which of its lines are meant (`shard`), the `engine`,
    and under "TASK.NAME" how lines are answered, settings and wording. Lines have at most `most`
    bytes. With `restart` the first line takes the place of all there is; of what this command did
    not write only with `force`, too. `done` has what is known
    of each line that is done, by index, without its text. Raises UsageError where the file is not
    one that this command wrote, or where another process writes it, or it cannot be opened;
    NgtError where it cannot be written later. `close` it.
    """

    def __init__(
        self, path: Path, head: Mapping[str, Any], restart: bool, most: int, force: bool = False
    ) -> None:
        self._path, self._given, self._most = path.resolve(), path, most
        self.done: dict[int, DoneLine] = {}
        self._places: dict[int, list[int]] = {}  # in the journal, of all texts of each line
        self._written = 0  # lines in the file
        self._is_old = False  # a line in the file was run again since
        self._errors_named = partial(errors_named, path, ANOTHER_FILE, resumes=not restart)
        with ExitStack() as stack, self._errors_named(UsageError):
            journal = journal_of(path)
            self._journal = Journal(journal, _BATCH, head, 2 * most + _RECORD, restart)
            stack.callback(self._journal.close)
            self._file = LineFile(self._path, 0o666)
            stack.callback(lambda: self._file.close())
            for place, done in (*self._journal.earlier(), *self._journal):
                self._note(place, done)
            if not force:
                self._check(restart)
            if restart:
                self._places, self.done, self._written, self._is_old = {}, {}, 0, False
            elif force and self._journal.begun:  # else the first line does it
                self._file.truncate(0)
            self._append()
            self._open = stack.pop_all()

    def _check(self, restart: bool) -> None:
        """Compare the file with the journal. Raises UsageError where it has a line not of ours."""
        for start, raw in self._file.lines(self._most):
            if not self._journal.begun and not self._places:
                what = "is there, and no journal says what it was made from"
                raise UsageError(f"{self._given}: {what}", hint=_FORCE)
            places = self._places.get(self._written, ())
            own = [f"{self._text(place)}\n".encode() for place in places]
            if not raw.endswith(b"\n") and any(line.startswith(raw) for line in own):
                if not restart:
                    self._file.truncate(start)  # torn
                return
            if raw not in own:
                what = f"line {self._written + 1} is not as it was written"
                hint = "Move the file away, name another with -o, or write over it with --force."
                raise UsageError(f"{self._given}: {what}", hint=hint)
            self._is_old |= raw != own[-1]
            self._written += 1

    def _note(self, place: int, done: DoneLine) -> None:
        self._places.setdefault(done.index, []).append(place)
        self.done[done.index] = replace(done, text="")

    def _text(self, place: int) -> str:
        return self._journal.at(place).text

    def failed(self, index: int) -> bool:
        """Whether a line is done and is an error."""
        return index in self.done and self.done[index].failed

    def put(self, done: DoneLine) -> None:
        """Take a line, which is on disk when this returns. Raises NgtError where it cannot be."""
        with self._errors_named(), process.unbroken():
            if not self._journal.begun:  # the file first: after a kill the journal has it all
                self._file.truncate(0)
            self._note(self._journal.add(done), done)
            self._is_old |= done.index < self._written
            self._append()

    def _append(self) -> None:
        """Write to the file the lines whose turn has come."""
        while places := self._places.get(self._written):
            self._file.append(self._text(places[-1]).encode(), sync=False)
            self._written += 1

    def close(self) -> None:
        """Write the file again where a line in it was run again."""
        with self._errors_named(), process.unbroken(), self._open:
            if self._is_old:
                last = (self._text(self._places[i][-1]) for i in range(self._written))
                write_atomically(self._path, (f"{text}\n" for text in last))


def journal_of(path: Path) -> Path:
    """The journal next to an output."""
    real = path.resolve()
    return real.with_name(f"{real.name}.journal")


def written_with(output: Path | None) -> frozenset[tuple[int, int] | None]:
    """What a batch writes and is there now, by `identity`: a file or standard output, a journal."""
    paths = (1,) if output is None else (output, journal_of(output))
    return frozenset(identity(path) for path in paths if os.path.isfile(path))


def check_not_read(number: int, paths: Sequence[str], output: Path | None) -> None:
    """Raise UsageError where the line of that number names what is written, there or not yet."""
    own = () if output is None else (str(output.resolve()), str(journal_of(output)))
    written = written_with(output) if paths else frozenset()
    for path in map(expanded, paths):
        if os.path.abspath(path) in own or identity(path) in written:
            what = f"line {number} reads {path}, and this command would write over it"
            raise UsageError(what, hint="Name another file with -o.")
