"""What a batch writes, so that the same command goes on after a kill.

The answers of a file of lines go to a file, a line each, in the order of the input, which only
grows by whole lines. What is finished before its turn stands in a journal next to it,
`NAME.journal`, until then: a line for the head, then one for each such answer, its index before it.
A run that was killed leaves at most one torn line in each, which is cut off. What the journal says
last of an index counts, so that lines are replaced by it as well: the file is then written again.
It also has a line for what was read for each answer (Read), `r`, its index and two hashes. When all
is written, only these and its head stay.

A folder with a file for each answer has the journal `.ngt.journal`, with two lines for each file
that was written: before that a hash of its text, then with a key of all that it was made from. So a
file that another program wrote or changed is known, also after a kill, and is not written over.

A journal is locked while a run writes.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ngtcli.batch.input import Line
from ngtcli.batch.journal import (
    ANOTHER_FILE,
    FORMAT,
    Head,
    check_head,
    errors_named,
    open_journal,
    read_head,
)
from ngtcli.batch.json_lines import json_object
from ngtcli.documents.find import expanded
from ngtcli.errors import InputError, UsageError, reason_of
from ngtcli.system import process
from ngtcli.system.files import DamagedFileError, identity, parse_json, write_atomically
from ngtcli.system.line_file import LineFile, write_all

_FIRST = b'{"format": "'  # what a journal begins with
_HEAD = 16_000_000  # bytes of the head at most; its settings come from files of 1 MB; guess
_READ = re.compile(rb"r(\d{1,12})\t([0-9a-f]*)\t([0-9a-f]*)\n")
_FOLDER_JOURNAL = ".ngt.journal"
_FOLDER_LINE = 10_000  # bytes of a line; a name, a key and a hash take some hundred
_KEEP = (
    "Move it away, name another folder with -o, or make all files again, over what is there,"
    " with --restart."
)


@dataclass(frozen=True, slots=True)
class Read:
    """What was read for a line: a hash of its files' sizes and times, and one of their texts."""

    files: str
    texts: str


class StreamOutput:
    """Writes lines in order, each at once when its turn comes; those before it wait in memory.

    They go to `path`, which is emptied, or with `write` where there is none. `close` it.
    Raises NgtError for what fails at the file.
    """

    def __init__(self, path: Path | None, write: Callable[[str], object]) -> None:
        self._path, self._write, self._next = path, write, 0
        self._waiting: dict[int, str] = {}
        self._file: io.FileIO | None = None
        if path is not None:
            with errors_named(path):
                self._file = io.FileIO(path, "w")  # no buffer: closing it writes nothing more

    def put(self, index: int, text: str, failed: bool, read: Read | None = None) -> None:
        """Take the line of that index, without its line feed. Raises what `write` raises."""
        self._waiting[index] = text
        while self._next in self._waiting:
            text = self._waiting.pop(self._next)
            self._next += 1
            if self._file is None:
                self._write(text)
            else:
                with errors_named(self._path):
                    write_all(self._file, f"{text}\n".encode())

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()


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
        # Start and size in the journal, of lines whose turn has not come or that replace others.
        self._places: dict[int, tuple[int, int]] = {}
        where = f"{path}: its journal {self._journal_path.name}"
        with ExitStack() as stack, errors_named(path, UsageError):
            self._journal = open_journal(self._journal_path, path, where)
            stack.callback(self._journal.close)
            head = {**FORMAT, **head}
            is_begun = not restart and self._is_begun(head)
            if not is_begun:
                self._journal.truncate(0)
            self._file = LineFile(self._path, 0o666)
            stack.callback(lambda: self._file.close())
            if not is_begun:
                self._file.truncate(0)
                self._journal.append(json.dumps(head))
            self._read_file()
            self._read_journal()
            self._replace()
            self._drain()
            self._open = stack.pop_all()

    def _is_begun(self, head: Head) -> bool:
        """Whether an earlier run has begun it. Raises UsageError where that was another one."""
        first = self._journal.first_line(_HEAD)
        if not first.endswith(b"\n"):
            self._check_new(first)
            return False
        if (then := read_head(first)) is None:
            raise UsageError(f"{self._given}: begun by another version of ngt", ANOTHER_FILE)
        check_head(then, head, self._given)
        return True

    def _check_new(self, first: bytes) -> None:
        """Raise UsageError where a journal without a head, or the file next to it, is not ours."""
        if self._path.exists() and self._path.stat().st_size > 0:
            if not first:  # it has just been made
                self._journal_path.unlink()
            what = "is there, and no journal says what it was made from"
            raise UsageError(f"{self._given}: {what}", ANOTHER_FILE)
        if len(first) == _HEAD or not first.startswith(_FIRST[: len(first)]):
            raise UsageError(f"{self._journal_path}: not a journal of ngt's", ANOTHER_FILE)

    def _fails(self, index: int, raw: bytes) -> bool:
        """Whether the answer to that line is an error. Raises InputError where it is of another."""
        if not 0 <= index < len(self._lines):
            raise InputError("no such line")
        try:
            found = json_object(raw.decode())
        except UnicodeDecodeError:
            raise InputError("not UTF-8") from None
        if found.get("id") != self._lines[index].id:
            raise InputError("another id")
        return "error" in found

    def _read_file(self) -> None:
        """Note which lines are there, and cut off a torn one."""
        for index, (start, raw) in enumerate(self._file.lines(self._most)):
            if not raw:
                self._file.truncate(start)
                break
            try:
                self._note(index, self._fails(index, raw))
            except InputError:
                what = f"line {index + 1} is not as it was written"
                raise UsageError(f"{self._given}: {what}", ANOTHER_FILE) from None
            self._written = index + 1

    def _read_journal(self) -> None:
        """Note what stands there, and cut off a torn line."""
        rows = self._journal.lines(max(self._most, _HEAD))
        next(rows)  # the head
        for start, raw in rows:
            if read := _READ.fullmatch(raw):
                place, files, texts = (part.decode() for part in read.groups())
                self.read[int(place)] = Read(files, texts)
                continue
            number, _, text = raw.partition(b"\t")
            try:
                index = int(number)
                failed = self._fails(index, text)
            except (InputError, ValueError):  # torn: nothing whole can follow
                self._journal.truncate(start)
                break
            if index >= self._written or index in self.failed:  # others were moved, and are equal
                self._places[index] = start + len(number) + 1, len(text)
            self._note(index, failed)

    def _note(self, index: int, failed: bool) -> None:
        self.done.add(index)
        (self.failed.add if failed else self.failed.discard)(index)

    def note_read(self, index: int, read: Read) -> None:
        """Note what was read for a line. Raises OSError."""
        self.read[index] = read
        self._journal.append(_line_of(index, read), sync=False)

    def put(self, index: int, text: str, failed: bool, read: Read | None = None) -> None:
        """Take the line of that index, without its line feed, and what was read for it.

        It is on disk when this returns. Raises NgtError where it cannot be.
        """
        with errors_named(self._given), process.unbroken():
            if read is not None:
                self.note_read(index, read)
            if index == self._written:
                self._file.append(text)
                self._written += 1
            else:
                start = self._journal.append(f"{index}\t{text}")
                self._places[index] = start + len(f"{index}\t"), len(text.encode())
            self._note(index, failed)
            self._drain()

    def _drain(self) -> None:
        """Move lines whose turn has come from the journal to the file."""
        while self._written in self._places:
            self._file.append(self._text(self._written))
            del self._places[self._written]
            self._written += 1

    def _text(self, index: int) -> str:
        start, size = self._places[index]
        return os.pread(self._journal.fileno(), size, start).decode().rstrip("\n")

    def _replace(self) -> None:
        """Write the file again, with the lines that the journal replaces."""
        replaced = [index for index in self._places if index < self._written]
        if not replaced:
            return
        write_atomically(self._path, self._merged())
        self._file.close()
        self._file = LineFile(self._path, 0o666)
        for index in replaced:
            del self._places[index]

    def _merged(self) -> Iterator[str]:
        for index, (_, raw) in enumerate(self._file.lines(self._most)):
            yield f"{self._text(index)}\n" if index in self._places else raw.decode()

    def close(self) -> None:
        """Put replaced lines in place; when all is written, take answers out of the journal."""
        with errors_named(self._given), process.unbroken():
            self._replace()
            if self._written == len(self._lines):
                head = len(self._journal.first_line(_HEAD))
                read = "\n".join(_line_of(*one) for one in self.read.items())
                if self._journal.seek(0, os.SEEK_END) > head + len(read) + bool(read):
                    self._journal.truncate(head)
                    if read:
                        self._journal.append(read)
            self._open.close()  # both files, which ends the lock


def _line_of(index: int, read: Read) -> str:
    return f"r{index}\t{read.files}\t{read.texts}"


def journal_of(path: Path) -> Path:
    """The journal next to an output."""
    real = path.resolve()
    return real.with_name(f"{real.name}.journal")


class Written:
    """The files that a batch writes: its output, standard output without one, and the journal."""

    def __init__(self, output: Path | None) -> None:
        self._paths = () if output is None else (output.resolve(), journal_of(output))

    def files(self) -> frozenset[tuple[int, int]]:
        """Those that are there now, by their `identity`."""
        return frozenset(filter(None, map(identity, self._paths or (1,))))

    def check(self, number: int, paths: Sequence[str]) -> None:
        """Raise UsageError where the line of that number names one of them, there or not yet."""
        there = self.files() if paths else frozenset()
        for path in map(expanded, paths):
            if os.path.abspath(path) in map(str, self._paths) or identity(path) in there:
                what = f"line {number} reads {path}, and this command would write over it"
                raise UsageError(what, "Name another file with -o.")


# --- a file for each answer ---


class AnswerFolder:
    """The files of a folder, which is made where there is none. `close` it.

    With `restart` none of them counts as made, and each may be written over. Raises UsageError
    where the folder cannot be opened, or another process writes it.
    """

    def __init__(self, path: Path, restart: bool = False) -> None:
        self._path, self._restart = path, restart
        self._keys: dict[str, str] = {}
        self._hashes: dict[str, set[str]] = {}  # of all texts that were written under a name
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            with errors_named(error.filename or path, UsageError, "folder"):
                raise
        journal = path / _FOLDER_JOURNAL
        with ExitStack() as stack, errors_named(journal, UsageError, "folder"):
            self._journal = open_journal(journal, path, journal, "folder")
            stack.callback(self.close)
            self._read()
            stack.pop_all()

    def _read(self) -> None:
        for start, raw in self._journal.lines(_FOLDER_LINE):
            try:
                self._note(**parse_json(raw, dict))
            except (DamagedFileError, TypeError):  # torn
                self._journal.truncate(start)
                return

    def _note(self, file: str, sha256: str = "", key: str = "") -> None:
        """Take a line of the journal; those of earlier versions have no hash."""
        self._hashes.setdefault(file, set()).update({sha256} - {""})
        if key:
            self._keys[file] = key

    def has(self, name: str, key: str) -> bool:
        """Whether the file of that name was made from what `key` stands for, and is there.

        It may have been changed since.
        """
        made = not self._restart and self._keys.get(name) == key
        return made and (self._path / name).is_file()

    def check(self, names: Iterable[str]) -> None:
        """Raise UsageError for files that are there and are not as they were written here."""
        if self._restart:
            return
        found = [(name, reason) for name in names if (reason := self._changed(name))]
        if found:
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            raise UsageError(f"{self._path / found[0][0]}: {found[0][1]}{more}", _KEEP)

    def _changed(self, name: str) -> str:
        """Why a file is not written over; "" where it is absent, or as it was written here."""
        path = self._path / name
        if not os.path.lexists(path):
            return ""
        if name not in self._hashes or not path.is_file():
            return "it is there, and this command did not write it"
        try:
            with path.open("rb") as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() in self._hashes[name]
        except OSError as error:
            return reason_of(error)
        if not self._hashes[name]:
            return "an earlier version of ngt wrote it, and it may have been changed since"
        return "" if same else "it was changed after this command wrote it"

    def wrote(self, path: str) -> bool:
        """Whether the file at `path` was written here."""
        folder, name = os.path.split(os.path.realpath(path))
        return name in self._hashes and folder == os.path.realpath(self._path)

    def write(self, name: str, key: str, text: str) -> None:
        """Write a file whole, and note what it was made from.

        Raises UsageError as `check` does, for what happened since, and NgtError.
        """
        self.check([name])
        line = {"file": name, "sha256": hashlib.sha256(text.encode()).hexdigest()}
        with errors_named(self._path / name, what="folder"):
            self._journal.append(json.dumps(line))
            write_atomically(self._path / name, text)
            self._journal.append(json.dumps({**line, "key": key}))
        self._note(**line, key=key)

    def close(self) -> None:
        """End the lock."""
        self._journal.close()
