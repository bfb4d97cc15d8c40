"""Files beside the user's that grow by whole lines: journals of what is done, and logs.

A run that was killed leaves at most one torn line at the end of such a file.
"""

import errno
import fcntl
import io
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from ngtcli.errors import NgtError, UsageError
from ngtcli.system.files import PARTIAL, DamagedFileError, identity, parse_json, write_all
from ngtcli.system.yaml_file import shown
from ngtcli.words import reason_of

Record = TypeVar("Record")  # a dataclass, or a Struct of msgspec
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MAX_WRITTEN_BYTES = 100_000  # of a record that names a written file; guess
_MAX_HEAD_BYTES = 16_000_000  # its settings come from files of 1 MB; guess
_FORMAT_KEYS = ("format", "version", "output")  # of a head
ANSWERS = ".ngt.journal"  # of a folder that answers are written to, a file for each document
_PAUSE_S = 0.005  # between two looks whether a lock is free; guess
_FULL = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Make room")
_FIRST = {  # what to do first, by the number of an error
    **_FULL,
    errno.EMSGSIZE: "Raise the limit with --set max_mb",
}


class LineFile(io.FileIO):
    """A file that grows by whole lines, locked until it is closed; made with `mode`.

    Raises OSError, also for a link, for what is not a regular file, and where another process has
    it for `wait_s` seconds.
    """

    def __init__(self, path: Path, mode: int = 0o600, wait_s: float = 0.0) -> None:
        end = time.monotonic() + wait_s
        while not self._is_opened(path, mode):
            if time.monotonic() >= end:
                raise BlockingIOError(errno.EAGAIN, "another process is writing it", str(path))
            time.sleep(_PAUSE_S)

    def _is_opened(self, path: Path, mode: int) -> bool:
        """Open and lock it; return False where another process has it, or replaced the file."""
        super().__init__(path, "r+", opener=lambda name, _: os.open(name, _FLAGS, mode))
        with ExitStack() as unless_locked:
            unless_locked.callback(self.close)
            if not stat.S_ISREG(os.fstat(self.fileno()).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            try:
                fcntl.flock(self, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:  # a file system without locks
                pass
            if identity(path) == identity(self.fileno()):
                unless_locked.pop_all()
        return not self.closed

    def append(self, line: bytes, sync: bool = True) -> int:
        """Write a line, with `sync` to disk, or nothing; return its place. Raises OSError."""
        start = self.seek(0, os.SEEK_END)
        try:
            write_all(self, line + b"\n")
            if sync:
                os.fsync(self.fileno())
        except OSError:
            with suppress(OSError):
                self.truncate(start)
            raise
        return start

    def lines(self, max_bytes: int, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield each line from `start` on with its place; a torn last one has no line feed.

        Raises OSError, also for a line of more than `max_bytes`.
        """
        with os.fdopen(os.dup(self.fileno()), "rb") as buffered:
            buffered.seek(start)
            while raw := buffered.readline(max_bytes + 1):
                if len(raw) > max_bytes:
                    raise OSError(errno.EMSGSIZE, "a line is too long")
                yield start, raw
                start += len(raw)


@contextmanager
def errors_named(
    where: object, hint: str, kind: type[NgtError] = NgtError, *, resumes: bool = False
) -> Iterator[None]:
    """Turn an OSError into an NgtError that names the file.

    Args:
        where: The file.
        hint: What else to do.
        kind: The class of the error; a full disk is never a UsageError.
        resumes: Whether the same command goes on where it ended.
    """
    try:
        yield
    except OSError as error:
        kind = NgtError if error.errno in _FULL else kind
        if error.errno == errno.EAGAIN:  # another process has it: beginning again would not help
            hint = "Wait for it, or name another output."
        elif resumes and error.errno in _FULL:
            hint = "Make room; the same command then goes on."
        else:
            hint = _either(_FIRST.get(error.errno or 0), hint)
        raise kind(f"{where}: {reason_of(error)}", hint=hint) from None


@dataclass(frozen=True, slots=True)
class Form(Generic[Record]):
    """What the journals of a format are.

    Attributes:
        format: The name of the format.
        version: The version of the format.
        kind: The type of the records.
        hint: What to do where a journal cannot be used.
        words: What to say where a value of the head differs, by the last part of its key; the first
            part stands for `{task}`. Else both values are named.
        output: What the run writes whose journal it is, where runs that write other things have
            journals of this format.
        earlier: The format and version of older journals that are read and continued, and the type
            of their records. One that is not `kind` has a method `record`, which makes a record.
    """

    format: str
    version: int
    kind: type[Record]
    hint: str
    words: Mapping[str, str] = field(default_factory=dict)
    output: str = ""
    earlier: Mapping[tuple[str, int], type[Any]] = field(default_factory=dict)


class Journal(Generic[Record]):
    """Records behind a head that says what was begun; locked until it is closed.

    The head is written with the first record. What stands behind the last whole record is cut off.

    Args:
        path: The file.
        form: What its records are.
        head: What was begun, as JSON has it.
        max_bytes: The longest line that is read.
        restart: Whether the first record takes the place of all there is, unless another program
            wrote it.

    Raises:
        UsageError: The journal is of another program, version or output, was begun with another
            head, or cannot be opened.
    """

    def __init__(
        self, path: Path, form: Form[Record], head: Mapping[str, Any], max_bytes: int, restart: bool
    ) -> None:
        self.path = path
        self.damaged = False  # whether lines could not be read
        self._form = form
        self._max_bytes = max_bytes
        self._partial = path.with_name(f"{path.name}{PARTIAL}")
        self._kinds: list[type[Any]] = [form.kind]  # the types of the records in the file
        self._earlier = 0  # where the records begin that a restart replaces
        format_of_head: dict[str, Any] = {"format": form.format, "version": form.version}
        if form.output:
            format_of_head["output"] = form.output
        # Settings may hold bytes of the command line that are no text.
        self._head = dumps(
            {**format_of_head, **head}, ensure_ascii=False, separators=(",", ":")
        ).encode(errors="replace")
        with errors_named(path, form.hint, UsageError, resumes=not restart):
            self._file = LineFile(path)
            try:
                self._partial.unlink(missing_ok=True)  # of a run that was killed
                self.begun = self._find_records(restart)  # their place: 0 where there are none
            except BaseException:
                self._file.close()
                raise

    def _find_records(self, restart: bool) -> int:
        """Return where the records begin; 0 where there are none. Raises UsageError."""
        line, feed, _ = os.pread(self._file.fileno(), _MAX_HEAD_BYTES, 0).partition(b"\n")
        if not feed and self._head.startswith(line[: self._head.index(b",")]):
            return 0  # empty, or a run was killed while it wrote the head
        then = (_read(line, dict[str, Any]) if feed else None) or {}
        now = _read(self._head, dict[str, Any]) or {}

        form = self._form
        then_format = str(then.pop("format", ""))
        then_version = then.pop("version", None)
        then_output = then.pop("output", form.output)
        is_current = (then_format, then_version) == (form.format, form.version)
        earlier_kind = None
        if not is_current and isinstance(then_version, int):
            earlier_kind = form.earlier.get((then_format, then_version))
        is_older = then_format in (form.format, *(name for name, _ in form.earlier))
        if not (is_current or is_older):
            raise UsageError(
                f"{self.path} was not written by ngt", hint=_either("Move it away", form.hint)
            )
        if then_output != form.output:
            raise UsageError(
                f"{self.path} is the journal of {shown(then_output)}, not of {form.output}",
                hint="Name another file with -o.",
            )
        if earlier_kind is not None and earlier_kind is not form.kind:
            self._kinds = [earlier_kind, form.kind]
        if restart:
            self._earlier = len(line) + 1
            return 0
        if not is_current and earlier_kind is None:
            raise UsageError(f"{self.path}: another version of ngt wrote it", hint=form.hint)
        self._check_head(then, {key: now[key] for key in now if key not in _FORMAT_KEYS})
        return len(line) + 1

    def _check_head(self, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Raise UsageError with all that differs, each setting once for all tasks."""
        changed: dict[str, str] = {}
        for key in {**now, **then}:
            if then.get(key) == now.get(key):
                continue
            task, _, name = key.rpartition(".")
            both = f"{name} {shown(then.get(key))}, now {shown(now.get(key))}"
            changed.setdefault(name, self._form.words.get(name, both).replace("{task}", task))
        if changed:
            raise UsageError(
                f"{self.path} was begun with {'; '.join(changed.values())}", hint=self._form.hint
            )

    def earlier(self) -> Iterator[tuple[int, Record]]:
        """Yield each record that a restart is to replace, with its place, until the first new one.

        Raises UsageError.
        """
        if self.begun or not self._earlier:
            return
        with errors_named(self.path, self._form.hint, UsageError):
            for place, line in self._file.lines(self._max_bytes, self._earlier):
                record = self._record(line)
                if record is not None:
                    yield place, record

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        """Yield each record with its place, without lines that are damaged. Raises UsageError."""
        if not self.begun:
            return
        with errors_named(self.path, self._form.hint, UsageError):
            for place, line in self._file.lines(self._max_bytes, self.begun):
                if not line.endswith(b"\n"):  # torn: the last one
                    self._file.truncate(place)
                    self.damaged = True
                    continue
                record = self._record(line)
                if record is None:
                    self.damaged = True
                else:
                    yield place, record

    def _record(self, line: bytes) -> Record | None:
        """Return what a line says, of this version or an older one; None for a damaged line."""
        for kind in self._kinds:
            value = _read(line, kind)
            if value is not None:
                record: Record = value if kind is self._form.kind else value.record()
                return record
        return None

    def at(self, place: int) -> Record:
        """Return the record at a place, which was read or added before. Raises OSError."""
        _, line = next(self._file.lines(self._max_bytes, place))
        record = self._record(line)
        if record is None:
            raise OSError(errno.EIO, "the journal was changed meanwhile")
        return record

    def add(self, record: Record) -> int:
        """Write a record to disk, and return its place. Raises OSError; then nothing is written."""
        line = msgspec.json.encode(record)
        if self.begun:
            return self._file.append(line)

        head = self._head + b"\n"
        if self._earlier:  # all of it is replaced at once: a kill leaves the old journal or the new
            self._replace(head + line)
        else:
            self._file.truncate(0)
            self._file.append(head + line)
        self._kinds = [self._form.kind]
        self.begun = len(head)
        return self.begun

    def _replace(self, lines: bytes) -> None:
        """Put a new file, which is locked, in the place of this one. Raises OSError."""
        new = LineFile(self._partial)
        try:
            new.truncate(0)
            new.append(lines)
            os.replace(self._partial, self.path)
        except BaseException:
            new.close()
            raise
        self._file.close()
        self._file = new

    def close(self) -> None:
        """End the lock, and remove the file where it is empty."""
        if not os.fstat(self._file.fileno()).st_size:
            self.path.unlink(missing_ok=True)
        self._file.close()


def answers_in(folder: str) -> dict[str, set[str]]:
    """Return the SHA-256 digests of each file that ngt wrote in a folder, by its name.

    The folder's journal of answers has them. A file of one of these names with other contents was
    written or changed by somebody else.
    """
    digests: dict[str, set[str]] = {}
    with suppress(OSError), open(os.path.join(folder, ANSWERS), "rb") as file:
        while line := file.readline(_MAX_WRITTEN_BYTES):
            if b'"written":' not in line:
                continue
            record = _read(line, dict[str, Any])
            if record is not None:
                name = str(record.get("written", ""))
                digests.setdefault(name, set()).add(str(record.get("sha256", "")))
    return digests


def _either(first: str | None, hint: str) -> str:
    """Put another thing to do before a hint."""
    if not first:
        return hint
    return f"{first}, or {hint[:1].lower()}{hint[1:]}"


def _read(line: bytes, kind: type[Record]) -> Record | None:
    """Return what a line says; None where that is nothing of the kind."""
    try:
        return parse_json(line, kind)
    except DamagedFileError:
        return None
