"""What a batch writes, so that the same command goes on after a kill.

A journal next to the output, `NAME.journal`, has all that is finished: it is the truth, and the
file is a view of it, which gets the lines in the order of the input as their turns come. A file
that is not the beginning of that view after a kill, or since a line was run again, is written
anew; one that holds anything else is refused. When all is written, the journal keeps hashes in the
place of answers.

A folder with a file for each answer has the journal `.ngt.journal`, with two records for each file
that was written: before that a hash of its text, then with a key of all that it was made from. So a
file that another program wrote or changed is known, also after a kill, and is not written over.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ngtcli.documents.find import expanded
from ngtcli.errors import NgtError, UsageError, reason_of
from ngtcli.system import process
from ngtcli.system.files import identity, write_atomically
from ngtcli.system.journal import Form, Journal, LineFile, errors_named, write_all

ANOTHER_FILE = "Name another file with -o, or write it again with --restart."
_KEEP = (
    "Move it away, name another folder with -o, or make all files again, over what is there,"
    " with --restart."
)
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


_WORDS = {
    "input": "other lines: the input has changed (give new and mended lines a file of their own)",
    "wording": "another wording of preset {task}",
}
_BATCH = Form("ngt-batch", 3, DoneLine, ANOTHER_FILE, _WORDS)


class FileOutput:
    """The file of a batch of `count` lines and its journal, begun with what `head` says.

    `head` has SHA-256 of the `input` in hex, which of its lines are meant (`shard`), the `engine`,
    and under "TASK.NAME" how lines are answered, settings and wording. Lines have at most `most`
    bytes. `done` has what is known of each line that is finished, by index, without its text.
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
        self._is_old = False  # the file has a line that was run again since

        with ExitStack() as stack:
            self._journal = Journal(
                journal_of(path),
                _BATCH,
                head,
                most=2 * most + _RECORD,
                restart=restart,
                begin=self._empty if restart else self._check_new,
            )
            stack.callback(self._journal.close)
            with self._named(UsageError):
                self._file = LineFile(self._path, 0o666)
                stack.callback(lambda: self._file.close())
                self._compare(self._hashes())
                self._renew()
                self._append()
            self._open = stack.pop_all()

    def _named(self, kind: type[NgtError] = NgtError) -> AbstractContextManager[None]:
        return errors_named(self._given, ANOTHER_FILE, kind)

    def _empty(self) -> None:
        with self._named(UsageError), LineFile(self._path, 0o666) as file:
            file.truncate(0)

    def _check_new(self) -> None:
        """Raise UsageError where there is a file that no journal tells of."""
        if self._path.exists() and self._path.stat().st_size:
            what = "is there, and no journal says what it was made from"
            raise UsageError(f"{self._given}: {what}", ANOTHER_FILE)

    def _hashes(self) -> dict[int, list[str]]:
        """The hashes of all lines that the journal has had for each index, the last one's last."""
        hashes: dict[int, list[str]] = {}
        for place, done in self._journal:
            if done.text or done.sha256:
                own = done.sha256 or _hash(f"{done.text}\n".encode())
                hashes.setdefault(done.index, []).append(own)
            self._note(place, done)
        return hashes

    def _note(self, place: int, done: DoneLine) -> None:
        """Take in a record; one without a text or a hash says anew what was read, and no more."""
        if done.text:
            self._places[done.index] = place
        elif not done.sha256 and done.index in self.done:
            done = replace(done, failed=self.done[done.index].failed)
        self.done[done.index] = replace(done, text="")

    def _compare(self, hashes: Mapping[int, Sequence[str]]) -> None:
        """Cut a torn line off the file. Raises UsageError where it has any that is not ours."""
        for start, raw in self._file.lines(self._most):
            known = hashes.get(self._written, ())
            if not raw.endswith(b"\n") and self._text(self._written).encode().startswith(raw):
                self._file.truncate(start)
                break
            if _hash(raw) not in known:
                what = f"line {self._written + 1} is not as it was written"
                hint = "Move the file away, and it is made again, or name another with -o."
                raise UsageError(f"{self._given}: {what}", hint)
            self._is_old |= _hash(raw) != known[-1]
            self._written += 1
        # Texts that were in the file alone, and are there no more.
        for index in [i for i in self.done if i >= self._written and i not in self._places]:
            del self.done[index]

    def _text(self, index: int) -> str:
        """The last text of a line; "" where the journal has none."""
        place = self._places.get(index)
        return "" if place is None else self._journal.at(place).text

    def failed(self, index: int) -> bool:
        """Whether what is known of a line is an error."""
        return index in self.done and self.done[index].failed

    def put(self, done: DoneLine) -> None:
        """Take a line, which is on disk when this returns. Raises NgtError where it cannot be."""
        with self._named(), process.unbroken():
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
            write_atomically(self._path, self._view())
            self._file.close()
            self._file = LineFile(self._path, 0o666)
            self._is_old = False

    def _view(self) -> Iterator[str]:
        for index, (_, raw) in enumerate(self._file.lines(self._most)):
            text = self._text(index)
            yield f"{text}\n" if text else raw.decode()

    def close(self) -> None:
        """Put lines that were run again in place; the journal of a whole file needs no texts."""
        with self._named(), process.unbroken(), self._open:
            self._renew()
            if self._written == self._count and self._places:
                os.fsync(self._file.fileno())
                self._journal.close_with(self._without_texts())

    def _without_texts(self) -> Iterator[DoneLine]:
        for index, (_, raw) in enumerate(self._file.lines(self._most)):
            yield replace(self.done[index], sha256=_hash(raw))


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
        self._keys: dict[str, str] = {}
        self._hashes: dict[str, set[str]] = {}  # of all texts that were written under a name
        with errors_named(path, _FOLDER.hint, UsageError):
            path.mkdir(parents=True, exist_ok=True)
        self._journal = Journal(path / _FOLDER_JOURNAL, _FOLDER, {}, most=_FOLDER_LINE)
        self.close = self._journal.close
        try:
            with errors_named(path / _FOLDER_JOURNAL, _FOLDER.hint, UsageError):
                for _, made in self._journal:
                    self._note(made)
        except BaseException:
            self.close()
            raise

    def _note(self, made: _Made) -> None:
        self._hashes.setdefault(made.file, set()).add(made.sha256)
        if made.key:
            self._keys[made.file] = made.key

    def has(self, name: str, key: str) -> bool:
        """Whether the file of that name was made from what `key` stands for, and is there.

        It may have been changed since.
        """
        made = not self._restart and self._keys.get(name) == key
        return made and (self._path / name).is_file()

    def check(self, names: Iterable[str]) -> None:
        """Raise UsageError for files that are there and are not as they were written here."""
        found = [(name, reason) for name in names if (reason := self._changed(name))]
        if found and not self._restart:
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
            same = _hash(path.read_bytes()) in self._hashes[name]
        except OSError as error:
            return reason_of(error)
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
        made = _Made(name, _hash(text.encode()))
        with errors_named(self._path / name, _FOLDER.hint):
            self._journal.add(made)
            write_atomically(self._path / name, text)
            self._journal.add(replace(made, key=key))
        self._note(replace(made, key=key))
