"""Files that grow by whole lines, which are on disk when they are written.

What an output was begun with: the command that resumes it must ask for the same.

Where the answers of a batch go, a line each, in the order of the input.

A file only grows by whole lines. What is finished before its turn stands in a journal beside it,
`NAME.journal`, until then: a line for the head, then one for each such answer, its index before it.
A run that was killed leaves at most one torn line in each, which is cut off. What the journal says
last of an index counts, so that lines are replaced by it as well: the file is then written anew.
The journal is locked while a run writes. It also has a line for what was read for each answer
(work.Read), `r`, its index and two hashes. When all is written, only these and its head stay.

A folder of answers, a file each: which of them are written, and from what.

A journal in the folder, `.ngt.journal`, has two lines for each file that was written: before that
a hash of its text, then with a key of all that it was made from. So a file that another program
wrote or changed is known, also after a kill, and is not written over. The journal is locked while
a run writes there.

What `ngt batch` reads lines from and writes lines to.
"""

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Protocol, Self

from ngtcli.batch.input import Line
from ngtcli.batch.questions import Read
from ngtcli.cli.output import print_line
from ngtcli.cli.reading import standard_input
from ngtcli.config import OF_ENGINE, SECRET, Settings
from ngtcli.documents.find import expanded
from ngtcli.documents.json_object import json_object
from ngtcli.documents.listing import STDIN
from ngtcli.documents.reading import reason_of
from ngtcli.errors import InputError, NgtError, UsageError
from ngtcli.prompt.preset import Preset
from ngtcli.system import process
from ngtcli.system.reading import identity
from ngtcli.system.storage import DamagedFileError, key_of, parse_json, write_atomically
from ngtcli.system.yaml_file import shown

_FULL = (errno.ENOSPC, errno.EDQUOT)


def open_appending(path: Path, mode: int) -> IO[bytes]:
    """A file for reading and for writing at its end, made with `mode`.

    Raises OSError, also for a link and for what is no regular file.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    handle = os.open(path, flags, mode)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(handle, "r+b", buffering=0)


def append_line(file: IO[bytes], text: str, sync: bool = True) -> None:
    """Write a line, with `sync` to disk, or nothing. Raises OSError."""
    data, start = f"{text}\n".encode(), file.seek(0, os.SEEK_END)
    try:
        while data:
            data = data[file.write(data) :]
        if sync:
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            file.truncate(start)
        raise


def whole_lines(file: IO[bytes], most: int) -> Iterator[tuple[int, bytes]]:
    """Each line with its start; b"" in place of a last one without a line feed.

    Raises OSError, EFBIG for a line of more than `most` bytes.
    """
    start = file.seek(0)
    with os.fdopen(os.dup(file.fileno()), "rb") as buffered:
        while raw := buffered.readline(most + 1):
            if len(raw) > most:
                raise OSError(errno.EFBIG, "a line is too long")
            yield start, raw if raw.endswith(b"\n") else b""
            start += len(raw)


def first_line(file: IO[bytes], most: int) -> bytes:
    """The first `most` bytes, up to a line feed. Raises OSError."""
    head, feed, _ = os.pread(file.fileno(), most, 0).partition(b"\n")
    return head + feed


def failure(
    where: object, error: OSError, kind: type[NgtError] = NgtError, what: str = "file"
) -> NgtError:
    """The error, of a kind, for a `what` of the user's that cannot be opened or written.

    A full disk is never a UsageError.
    """
    hint = f"name another {what} with -o."
    if error.errno in _FULL:
        kind, hint = NgtError, f"make room, or {hint}"
    elif error.errno == errno.EFBIG:
        hint = f"raise the bound with --max-mb, or {hint}"
    return kind(f"{where}: {reason_of(error)}", hint[0].upper() + hint[1:])


def lock(file: IO[bytes], path: Path) -> None:
    """Lock the journal for as long as it is open. Raises UsageError where another process has."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"{path}: another process is writing it", "Wait for it, or name another file with -o."
        ) from None
    except OSError:  # a file system without locks
        return


FORMAT, VERSION = "ngt-batch", 1
# Settings that decide no text, only how fast or within which bounds it comes.
_FREE = {
    "pool", "pool_documents", "background", "draft_from", "cache_mb", "calibrate", "threads",
    "packed", "capture", "compile", "color", "max_mb", "max_files", "max_depth", "parser_seconds",
    "parser_mb", *SECRET, *OF_ENGINE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Head:
    """SHA-256 of the input in hex, which of its lines are meant, and how they are answered.

    `answers` are settings and wording by task, JSON-ready; see `deciding`.
    """

    input: str
    shard: str
    engine: str
    answers: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The fields, and the format's name and version."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def read(cls, line: bytes) -> Self | None:
        """The head in a line; None for another one's line, or one of another version."""
        try:
            found = parse_json(line, dict)
            same = (found.pop("format"), found.pop("version")) == (FORMAT, VERSION)
            head = cls(**found)
        except (DamagedFileError, KeyError, TypeError):
            return None
        return head if same and head._is_whole() else None

    def _is_whole(self) -> bool:
        """Whether all fields are what they should be."""
        words, answers = (self.input, self.shard, self.engine), self.answers
        return (
            all(isinstance(word, str) for word in words)
            and isinstance(answers, dict)
            and all(isinstance(of_task, dict) for of_task in answers.values())
        )

    def check(self, now: "Head", path: object) -> None:
        """Raise UsageError, which names what differs, unless `now` asks for the same."""
        changed = list(_changes(self, now))
        if not changed:
            return
        more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
        hint = "Name another file with -o, or write it again with --restart."
        if self.input != now.input:
            hint = f"Put new and mended lines into a file of their own. {hint}"
        raise UsageError(f"{path} was begun with {changed[0]}{more}", hint)


def _changes(then: Head, now: Head) -> Iterator[str]:
    """What was otherwise, in words."""
    if then.input != now.input:
        yield "other lines: the input has changed"
    for name in ("shard", "engine"):
        before, after = getattr(then, name), getattr(now, name)
        if before != after:
            yield f"{name} {before}, now {after}"
    told: set[str] = set()
    for task in sorted({*then.answers, *now.answers}):
        before, after = then.answers.get(task, {}), now.answers.get(task, {})
        for name in sorted({*before, *after}):
            was, is_ = before.get(name), after.get(name)
            if was != is_ and name not in told:
                told.add(name)
                if name == "wording":
                    yield f"another wording of preset {task}"
                else:
                    yield f"{name} {shown(was)}, now {shown(is_)}"


def deciding(settings: Settings, preset: Preset) -> dict[str, Any]:
    """The settings on which the answers of a task depend, and a hash of its wording, JSON-ready."""
    wording = (
        preset.template, preset.refine, preset.document, preset.titled_document, preset.separator,
    )  # fmt: skip
    values = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(settings).items()
        if name not in _FREE
    }
    return {**values, "wording": key_of(*wording)}


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


_NAME = ".ngt.journal"
_LONGEST = 10_000  # bytes of a line; a name, a key and a hash take some hundred
_KEEP = (
    "Move it away, name another folder with -o, or make all files again, over what is there,"
    " with --restart."
)


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
            self._journal: IO[bytes] = open_appending(path / _NAME, 0o600)
        except OSError as error:
            raise failure(error.filename or path, error, UsageError, "folder") from None
        try:
            lock(self._journal, path)
            self._read()
        except BaseException as error:
            self._journal.close()
            if isinstance(error, OSError):
                raise failure(path / _NAME, error, UsageError, "folder") from None
            raise

    def _read(self) -> None:
        for start, raw in whole_lines(self._journal, _LONGEST):
            try:
                row = parse_json(raw, dict)
                self._note(**{name: str(value) for name, value in row.items()})
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
        if not same and not self._hashes[name]:
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
        try:
            append_line(self._journal, json.dumps(line))
            write_atomically(self._path / name, text)
            append_line(self._journal, json.dumps({**line, "key": key}))
        except OSError as error:
            raise failure(self._path / name, error, what="folder") from None
        self._note(**line, key=key)

    def close(self) -> None:
        """End the lock."""
        self._journal.close()


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
