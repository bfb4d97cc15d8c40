"""Where the answers of a batch go, a line each, in the order of the input.

A file only grows by whole lines. What is finished before its turn stands in a journal beside it,
`NAME.journal`, until then: a line for the head, then one for each such answer, its index before it.
A run that was killed leaves at most one torn line in each, which is cut off. What the journal says
last of an index counts, so that lines are replaced by it as well: the file is then written anew.
The journal is locked while a run writes. It also has a line for what was read for each answer
(work.Read), `r`, its index and two hashes. When all is written, only these and its head stay.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol

from ngtcli.batch.appending import (
    append_line,
    failure,
    first_line,
    lock,
    open_appending,
    whole_lines,
)
from ngtcli.batch.head import Head
from ngtcli.batch.waiting import Line
from ngtcli.batch.work import Read
from ngtcli.documents.json_object import json_object
from ngtcli.errors import InputError, UsageError
from ngtcli.system import process
from ngtcli.system.storage import write_atomically

_FIRST = b'{"format": "'  # what a journal begins with
_HEAD = 16_000_000  # bytes of the head at most; its settings come from files of 1 MB; guess
_READ = re.compile(rb"r(\d{1,12})\t([0-9a-f]*)\t([0-9a-f]*)\n")
_ANEW = "Name another file with -o, or write it again with --restart."


def _line_of(index: int, read: Read) -> str:
    return f"r{index}\t{read.files}\t{read.texts}"


def journal_of(path: Path) -> Path:
    """The journal beside an output."""
    real = path.resolve()
    return real.with_name(f"{real.name}.journal")


class Output(Protocol):
    """Gets each finished line once, in any order."""

    def put(self, index: int, text: str, failed: bool, read: Read | None = None) -> None:
        """Take the line of that index, without its line feed, and what was read for it."""


class StreamOutput:
    """Writes lines in order, each at once when its turn comes; those before it wait in memory."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write, self._next = write, 0
        self._waiting: dict[int, str] = {}
        self.failed = 0  # how many

    def put(self, index: int, text: str, failed: bool, read: Read | None = None) -> None:
        """Take a line. Raises what `write` raises."""
        self.failed += failed
        self._waiting[index] = text
        while self._next in self._waiting:
            text = self._waiting.pop(self._next)
            self._next += 1
            self._write(text)


class FileOutput:
    """The file of a batch and its journal, for `lines` in their order.

    Lines of at most `most` bytes are read of the file.
    `done` are the indices of lines that are finished, `failed` those of them that are errors, and
    `read` is what was read for lines, by index.
    Raises UsageError where the file is not one that this command began, or where another process
    writes it, or it cannot be opened; NgtError where it cannot be written later. `close` it.
    """

    def __init__(
        self, path: Path, head: Head, lines: Sequence[Line], restart: bool, most: int
    ) -> None:
        self._path, self._given, self._lines, self._most = path.resolve(), path, lines, most
        self._journal_path = journal_of(path)
        self.done: set[int] = set()
        self.failed: set[int] = set()
        self.read: dict[int, Read] = {}
        self._written = 0  # lines in the file
        self._places: dict[int, tuple[int, int]] = {}  # in the journal: start and size
        self._stale: set[int] = set()  # lines of the file that the journal replaces
        self._file: IO[bytes] | None = None
        try:
            self._journal = open_appending(self._journal_path, 0o600)
        except OSError as error:
            where = f"{path}: its journal {self._journal_path.name}"
            raise failure(where, error, UsageError) from None
        try:
            lock(self._journal, path)
            self._begin(head, restart)
        except BaseException as error:
            self._release()
            if isinstance(error, OSError):
                raise failure(path, error, UsageError) from None
            raise

    def _begin(self, head: Head, restart: bool) -> None:
        first = first_line(self._journal, _HEAD)
        there = self._path.exists() and self._path.stat().st_size > 0
        if restart or not first.endswith(b"\n"):
            if not restart:
                self._check_new(first, there)
            self._journal.truncate(0)
            self._file = open_appending(self._path, 0o666)
            self._file.truncate(0)
            append_line(self._journal, json.dumps(head.as_json()))
            return
        then = Head.read(first)
        if then is None:
            raise UsageError(f"{self._given}: begun by another version of ngt", _ANEW)
        then.check(head, self._given)
        self._file = open_appending(self._path, 0o666)
        self._read_file(self._file)
        self._read_journal()
        self._replace()
        self._drain()

    def _check_new(self, first: bytes, there: bool) -> None:
        """Raise UsageError where a journal without a head, or the file beside it, is not ours."""
        if there:
            if not first:  # it has just been made
                self._journal_path.unlink()
            what = "is there, and no journal says what it was made from"
            raise UsageError(f"{self._given}: {what}", _ANEW)
        if len(first) == _HEAD or not first.startswith(_FIRST[: len(first)]):
            raise UsageError(f"{self._journal_path}: not a journal of ngt's", _ANEW)

    def _read_file(self, file: IO[bytes]) -> None:
        """Note which lines are there, and cut off a torn one."""
        for index, (start, raw) in enumerate(whole_lines(file, self._most)):
            if not raw:
                file.truncate(start)
                break
            try:
                found = json_object(raw.decode())
            except (InputError, UnicodeDecodeError):
                found = {}
            if index >= len(self._lines) or found.get("id") != self._lines[index].id:
                what = f"line {index + 1} is not as it was written"
                raise UsageError(f"{self._given}: {what}", _ANEW)
            self._note(index, "error" in found)
            self._written = index + 1

    def _read_journal(self) -> None:
        """Note what stands there, and cut off a torn line."""
        for number, (start, raw) in enumerate(whole_lines(self._journal, max(self._most, _HEAD))):
            if not number:
                continue
            if found_read := _READ.fullmatch(raw):
                place, files, texts = (part.decode() for part in found_read.groups())
                self.read[int(place)] = Read(files, texts)
                continue
            index, _, text = raw.partition(b"\t")
            try:
                found = json_object(text.decode())
                place = int(index)
                if not 0 <= place < len(self._lines) or found.get("id") != self._lines[place].id:
                    raise ValueError
            except (InputError, ValueError):  # torn: nothing whole can follow
                self._journal.truncate(start)
                break
            if place < self._written and place in self.failed:  # others were moved, and are equal
                self._stale.add(place)
            self._journaled(place, start + len(index) + 1, len(text), "error" in found)

    def _journaled(self, index: int, start: int, size: int, failed: bool) -> None:
        self._places[index] = start, size
        self._note(index, failed)

    def _note(self, index: int, failed: bool) -> None:
        self.done.add(index)
        if failed:
            self.failed.add(index)
        else:
            self.failed.discard(index)

    def note_read(self, index: int, read: Read) -> None:
        """Note what was read for a line. Raises OSError."""
        self.read[index] = read
        append_line(self._journal, _line_of(index, read), sync=False)

    def put(self, index: int, text: str, failed: bool, read: Read | None = None) -> None:
        """Take a line; it is on disk when this returns. Raises NgtError where it cannot be."""
        try:
            with process.unbroken():
                if read is not None:
                    self.note_read(index, read)
                if index == self._written and self._file is not None:
                    append_line(self._file, text)
                    self._written += 1
                    self._note(index, failed)
                    self._drain()
                else:
                    start = self._journal.seek(0, os.SEEK_END) + len(f"{index}\t")
                    append_line(self._journal, f"{index}\t{text}")
                    if index < self._written:
                        self._stale.add(index)
                    self._journaled(index, start, len(text.encode()) + 1, failed)
        except OSError as error:
            raise failure(self._given, error) from None

    def _drain(self) -> None:
        """Move lines whose turn has come from the journal to the file."""
        while self._file is not None and self._written in self._places:
            text = self._text(self._written)
            append_line(self._file, text)
            self._written += 1

    def _text(self, index: int) -> str:
        start, size = self._places[index]
        return os.pread(self._journal.fileno(), size, start).decode().rstrip("\n")

    def _replace(self) -> None:
        """Write the file again, with the lines that the journal replaces."""
        if not self._stale or self._file is None:
            return
        self._file.seek(0)
        write_atomically(self._path, self._merged(self._file))
        self._file.close()
        self._file = open_appending(self._path, 0o666)
        self._stale.clear()

    def _merged(self, file: IO[bytes]) -> Iterator[str]:
        for index, (_, raw) in enumerate(whole_lines(file, self._most)):
            yield f"{self._text(index)}\n" if index in self._stale else raw.decode()

    def close(self) -> None:
        """Put replaced lines in place; when all is written, take answers out of the journal."""
        try:
            with process.unbroken():
                self._replace()
                if self._written == len(self._lines) and self._places:
                    self._journal.truncate(len(first_line(self._journal, _HEAD)))
                    if self.read:
                        rows = (_line_of(*one) for one in self.read.items())
                        append_line(self._journal, "\n".join(rows))
                    self._places.clear()
                self._release()
        except OSError as error:
            raise failure(self._given, error) from None

    def _release(self) -> None:
        """Close both files, which ends the lock."""
        self._journal.close()
        if self._file is not None:
            self._file.close()
