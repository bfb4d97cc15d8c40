"""What a batch writes, so that the same command goes on after a kill.

The journal of an output, `NAME.journal`, has all lines that are done: it is the truth. The file is
a view of it, which gets the lines in the order of the input as their turns come, and is written
again where a line was run again. A file that holds anything else is refused. When all is written,
the journal keeps hashes in the place of texts.

The journal of a folder with a file for each answer, `.ngt.journal`, has two records for each: a
hash of its text before it is written, then a key of all that it was made from. So a file that
another program wrote or changed is known, also after a kill, and is not written over.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ngtcli.documents.find import expanded
from ngtcli.errors import UsageError, reason_of
from ngtcli.system import process
from ngtcli.system.files import identity, write_atomically
from ngtcli.system.journal import Form, Journal, LineFile, errors_named, write_all

ANOTHER_FILE = "Name another file with -o, or write it again with --restart."
_KEEP = (
    "Move it away, name another folder with -o, or make all files again, over what is there,"
    " with --restart."
)
_WORDS = {
    "input": "other lines: the input has changed (give new and mended lines a file of their own)",
    "wording": "another wording of preset {task}",
}
_FOLDER_JOURNAL = ".ngt.journal"
_FOLDER_LINE = 10_000  # bytes of a record; a name, a key and a hash take some hundred
_RECORD = 1_000_000  # bytes of a record beside its text, which may be twice as long there; guess


class DoneLine(Struct, frozen=True, omit_defaults=True):
    """A line that is done: its `index`, its text or a hash of that, and whether it is an error.

    `files` is a hash of the sizes and times of the files that were read for it, `texts` one of
    their texts; "" where it names none.
    """

    index: int
    text: str = ""
    sha256: str = ""
    failed: bool = False
    files: str = ""
    texts: str = ""


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
            with errors_named(path, ANOTHER_FILE):
                self._file = io.FileIO(path, "w")  # no buffer: closing it writes nothing more

    def put(self, done: DoneLine) -> None:
        """Take a line. Raises what `write` raises."""
        self._waiting[done.index] = done.text
        while self._next in self._waiting:
            text = self._waiting.pop(self._next)
            self._next += 1
            if self._file is None:
                self._write(text)
            else:
                with errors_named(self._path, ANOTHER_FILE):
                    write_all(self._file, f"{text}\n".encode())

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()


_BATCH = Form("ngt-batch", 3, DoneLine, ANOTHER_FILE, _WORDS)


class FileOutput:
    """The file of a batch of `count` lines and its journal, begun with what `head` says.

    `head` has SHA-256 of the `input` in hex, which of its lines are meant (`shard`), the `engine`,
    and under "TASK.NAME" how lines are answered, settings and wording. Lines have at most `most`
    bytes. `done` has what is known of each line that is done, by index, without its text.
    Raises UsageError where the file is not one that this command wrote, or where another process
    writes it, or it cannot be opened; NgtError where it cannot be written later. `close` it.
    """

    def __init__(
        self, path: Path, head: Mapping[str, Any], count: int, restart: bool, most: int
    ) -> None:
        self._path, self._given, self._count, self._most = path.resolve(), path, count, most
        self.done: dict[int, DoneLine] = {}
        self._places: dict[int, int] = {}  # in the journal, of the last text of each line
        self._written = 0  # lines in the file
        self._is_old = False  # a line in the file was run again since
        bound, begin = 2 * most + _RECORD, partial(self._begin, restart)
        with ExitStack() as stack:
            self._journal = Journal(
                journal_of(path), _BATCH, head, most=bound, restart=restart, begin=begin
            )
            stack.callback(self._journal.close)
            with errors_named(path, ANOTHER_FILE, UsageError):
                self._file = LineFile(self._path, 0o666)
                stack.callback(lambda: self._file.close())
                self._read()
                self._renew()
                self._append()
            self._open = stack.pop_all()

    def _begin(self, restart: bool) -> None:
        """Empty the file. Raises UsageError where there is one and it is not begun again."""
        if self._path.exists() and self._path.stat().st_size:
            if not restart:
                what = "is there, and no journal says what it was made from"
                raise UsageError(f"{self._given}: {what}", ANOTHER_FILE)
            with errors_named(self._given, ANOTHER_FILE, UsageError), LineFile(self._path) as file:
                file.truncate(0)

    def _read(self) -> None:
        """Compare the file with the journal. Raises UsageError where it has a line not of ours."""
        hashes: dict[int, list[str]] = {}  # of all texts of each line, the last one's last
        for place, done in self._journal:
            if done.text or done.sha256:  # else it says what was read and no more
                own = done.sha256 or _hash(f"{done.text}\n".encode())
                hashes.setdefault(done.index, []).append(own)
            self._note(place, done)
        for start, raw in self._file.lines(self._most):
            if not raw.endswith(b"\n") and self._text(self._written).encode().startswith(raw):
                self._file.truncate(start)  # torn
                break
            own = _hash(raw)
            if own not in hashes.get(self._written, ()):
                what = f"line {self._written + 1} is not as it was written"
                hint = "Move the file away, and it is made again, or name another with -o."
                raise UsageError(f"{self._given}: {what}", hint)
            self._is_old |= own != hashes[self._written][-1]
            self._written += 1
        for index in [i for i in self.done if i >= self._written and i not in self._places]:
            del self.done[index]  # its text was in the file alone

    def _note(self, place: int, done: DoneLine) -> None:
        if done.text:
            self._places[done.index] = place
        self.done[done.index] = replace(done, text="")

    def _text(self, index: int) -> str:
        """The last text of a line; "" where the journal has none."""
        place = self._places.get(index)
        return "" if place is None else self._journal.at(place).text

    def failed(self, index: int) -> bool:
        """Whether a line is done and is an error."""
        return index in self.done and self.done[index].failed

    def put(self, done: DoneLine) -> None:
        """Take a line, which is on disk when this returns. Raises NgtError where it cannot be."""
        with errors_named(self._given, ANOTHER_FILE), process.unbroken():
            self._note(self._journal.add(done), done)
            self._is_old |= bool(done.text) and done.index < self._written
            self._append()

    def _append(self) -> None:
        """Write to the file the lines whose turn has come."""
        while text := self._text(self._written):
            self._file.append(text.encode(), sync=False)
            self._written += 1

    def _renew(self) -> None:
        """Write the file again where a line in it was run again."""
        if self._is_old:
            rows = enumerate(self._file.lines(self._most))
            own = (f"{text}\n" if (text := self._text(i)) else raw.decode() for i, (_, raw) in rows)
            write_atomically(self._path, own)
            self._file.close()
            self._file, self._is_old = LineFile(self._path, 0o666), False

    def close(self) -> None:
        """Put lines that were run again in place; the journal of a whole file needs no texts."""
        with errors_named(self._given, ANOTHER_FILE), process.unbroken(), self._open:
            self._renew()
            if self._written == self._count and self._places:
                os.fsync(self._file.fileno())
                rows = enumerate(self._file.lines(self._most))
                own = (replace(self.done[i], sha256=_hash(raw)) for i, (_, raw) in rows)
                self._journal.close_with(own)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def journal_of(path: Path) -> Path:
    """The journal next to an output."""
    real = path.resolve()
    return real.with_name(f"{real.name}.journal")


def written_with(output: Path | None) -> frozenset[tuple[int, int]]:
    """What a batch writes and is there now, by `identity`: the file, or standard output, and the
    journal.
    """
    paths = (1,) if output is None else (output, journal_of(output))
    return frozenset(filter(None, map(identity, paths)))


def check_not_read(number: int, paths: Sequence[str], output: Path | None) -> None:
    """Raise UsageError where the line of that number names what is written, there or not yet."""
    own = () if output is None else (str(output.resolve()), str(journal_of(output)))
    written = written_with(output) if paths else frozenset()
    for path in map(expanded, paths):
        if os.path.abspath(path) in own or identity(path) in written:
            what = f"line {number} reads {path}, and this command would write over it"
            raise UsageError(what, "Name another file with -o.")


# --- a file for each answer ---


class _Made(Struct, frozen=True, omit_defaults=True):
    """A file, a hash of its text, and a key of all that it was made from once it is written."""

    file: str
    sha256: str = ""
    key: str = ""


_FOLDER = Form("ngt-answers", 1, _Made, "Name another folder with -o.")


class AnswerFolder:
    """The files of a folder, which is made where there is none. `close` it.

    With `restart` none of them counts as made, and each may be written over. Raises UsageError
    where the folder cannot be opened, or another process writes it.
    """

    def __init__(self, path: Path, restart: bool = False) -> None:
        self._path, self._restart = path, restart
        with errors_named(path, _FOLDER.hint, UsageError):
            path.mkdir(parents=True, exist_ok=True)
        self._journal = Journal(path / _FOLDER_JOURNAL, _FOLDER, {}, most=_FOLDER_LINE)
        self.close = self._journal.close
        self._made: dict[str, list[_Made]] = {}
        for _, made in self._journal:
            self._made.setdefault(made.file, []).append(made)

    def has(self, name: str, key: str) -> bool:
        """Whether the file of that name was made from what `key` stands for, and is there.

        It may have been changed since.
        """
        keys = [made.key for made in self._made.get(name, ()) if made.key]
        return not self._restart and keys[-1:] == [key] and (self._path / name).is_file()

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
        if name not in self._made or not path.is_file():
            return "it is there, and this command did not write it"
        try:
            with path.open("rb") as file:
                own = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            return reason_of(error)
        known = any(made.sha256 == own for made in self._made[name])
        return "" if known else "it was changed after this command wrote it"

    def wrote(self, path: str) -> bool:
        """Whether the file at `path` was written here."""
        folder, name = os.path.split(os.path.realpath(path))
        return name in self._made and folder == os.path.realpath(self._path)

    def write(self, name: str, key: str, text: str) -> None:
        """Write a file whole, and note what it was made from.

        Raises UsageError as `check` does, for what happened since, and NgtError.
        """
        self.check([name])
        made = _Made(name, _hash(text.encode()), key)
        with errors_named(self._path / name, _FOLDER.hint):
            self._journal.add(replace(made, key=""))
            write_atomically(self._path / name, text)
            self._journal.add(made)
        self._made.setdefault(name, []).append(made)
