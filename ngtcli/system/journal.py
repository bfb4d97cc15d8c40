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
from ngtcli.system.files import DamagedFileError, identity, parse_json, write_all
from ngtcli.system.yaml_file import shown
from ngtcli.words import reason_of

Record = TypeVar("Record")  # a dataclass, or a Struct of msgspec
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_RECORD = 100_000  # bytes of a record that names a written file at most; guess
_HEAD = 16_000_000  # bytes of a head at most; its settings come from files of 1 MB; guess
ANSWERS = ".ngt.journal"  # of a folder that answers are written to, a file for each document
_PAUSE_S = 0.005  # between two looks whether a lock is free; guess
_FULL = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Make room")
_FIRST = {  # what to do first, by the number of an error
    **_FULL,
    errno.EMSGSIZE: "Raise the bound with --set max_mb",
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
        """Open it; False where another process has it, or put another file in its place."""
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
        """Write a line, with `sync` to disk, or nothing; where it begins. Raises OSError."""
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

    def lines(self, most: int, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Each line from `start` on with its place; a torn last one has no line feed.

        Raises OSError, also for a line of more than `most` bytes.
        """
        with os.fdopen(os.dup(self.fileno()), "rb") as buffered:
            buffered.seek(start)
            while raw := buffered.readline(most + 1):
                if len(raw) > most:
                    raise OSError(errno.EMSGSIZE, "a line is too long")
                yield start, raw
                start += len(raw)


@contextmanager
def errors_named(
    where: object, hint: str, kind: type[NgtError] = NgtError, *, resumes: bool = False
) -> Iterator[None]:
    """Make of an OSError an error of a kind, for a file at `where`; `hint` names another way.

    That of a full disk is never a UsageError. `resumes` says that the same command goes on where it
    ended.
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
    """What journals of a `format` are: the `kind` of their records, in `version` of them.

    `hint` says what else to do where one cannot be used. `words` say what differs of two heads, by
    the last part of a key and with its first as `{task}`, where the values do not.
    """

    format: str
    version: int
    kind: type[Record]
    hint: str
    words: Mapping[str, str] = field(default_factory=dict)


class Journal(Generic[Record]):
    """Records behind a head that says what was begun; locked until it is closed.

    The head is written with the first record, and what stands behind the last whole one is cut off.
    Raises UsageError for a journal that another version or program wrote, that was begun with
    another `head`, or that cannot be opened; with `restart` the first record takes the place of all
    there is, unless another program wrote it. A line has at most `most` bytes.
    """

    def __init__(
        self, path: Path, form: Form[Record], head: Mapping[str, Any], most: int, restart: bool
    ) -> None:
        self.path, self._form, self._most = path, form, most
        self.damaged = False  # whether lines could not be read
        self._earlier = 0  # where the records begin that a restart replaces
        begun = {"format": form.format, "version": form.version, **head}
        # Settings may hold bytes of the command line that are no text.
        self._head = dumps(begun, ensure_ascii=False, separators=(",", ":")).encode(
            errors="replace"
        )
        with errors_named(path, form.hint, UsageError, resumes=not restart):
            self._file = LineFile(path)
            try:
                self.begun = self._place_of_records(restart)  # as a place: 0 for an empty file
            except BaseException:
                self._file.close()
                raise

    def _place_of_records(self, restart: bool) -> int:
        """Where they begin; 0 where there are none. Raises UsageError for another journal."""
        line, feed, _ = os.pread(self._file.fileno(), _HEAD, 0).partition(b"\n")
        if not feed and self._head.startswith(line[: self._head.index(b",")]):
            return 0
        then, now = (_read(one, dict[str, Any]) or {} for one in (line + feed, self._head))
        if not feed or then.get("format") != self._form.format:
            hint = _either("Move it away", self._form.hint)
            raise UsageError(f"{self.path} was not written by ngt", hint=hint)
        if restart:
            self._earlier = len(line) + 1
            return 0
        if then.get("version") != self._form.version:
            raise UsageError(f"{self.path}: another version of ngt wrote it", hint=self._form.hint)
        changed: dict[str, str] = {}  # by the last part of a key: told once for two tasks
        for key in {**now, **then}:
            task, _, name = key.rpartition(".")
            words = f"{name} {shown(then.get(key))}, now {shown(now.get(key))}"
            if then.get(key) != now.get(key):
                changed.setdefault(name, self._form.words.get(name, words).replace("{task}", task))
        if changed:
            what = f"{self.path} was begun with {'; '.join(changed.values())}"
            raise UsageError(what, hint=self._form.hint)
        return len(line) + 1

    def earlier(self) -> Iterator[tuple[int, Record]]:
        """Each record that a restart is to replace, with its place, until the first new one."""
        with errors_named(self.path, self._form.hint, UsageError):
            start = 0 if self.begun else self._earlier
            for place, line in self._file.lines(self._most, start) if start else ():
                if (record := _read(line, self._form.kind)) is not None:
                    yield place, record

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        """Each record with its place, without lines that were damaged. Raises UsageError."""
        with errors_named(self.path, self._form.hint, UsageError):
            for place, line in self._file.lines(self._most, self.begun) if self.begun else ():
                if not line.endswith(b"\n"):  # torn: the last one
                    self._file.truncate(place)
                    self.damaged = True
                elif (record := _read(line, self._form.kind)) is not None:
                    yield place, record
                else:
                    self.damaged = True

    def at(self, place: int) -> Record:
        """The record at a place. Raises OSError."""
        _, line = next(self._file.lines(self._most, place))
        return msgspec.json.decode(line, type=self._form.kind)

    def add(self, record: Record) -> int:
        """Write a record to disk; its place. Raises OSError, and then nothing is written."""
        if not self.begun:
            self._file.truncate(0)
        head = self._head + b"\n" if not self.begun else b""
        place = self._file.append(head + msgspec.json.encode(record)) + len(head)
        self.begun = self.begun or place
        return place

    def close(self) -> None:
        """End the lock; an empty file is taken away."""
        if not os.fstat(self._file.fileno()).st_size:
            self.path.unlink(missing_ok=True)
        self._file.close()


def answers_in(folder: str) -> dict[str, set[str]]:
    """The SHA-256 digests of each file that ngt wrote in a folder, by its name.

    The folder's journal of answers has them. A file of one of these names with other contents was
    written or changed by somebody else.
    """
    digests: dict[str, set[str]] = {}
    with suppress(OSError), open(os.path.join(folder, ANSWERS), "rb") as file:
        while line := file.readline(_RECORD):
            if b'"written":' not in line:
                continue
            record = _read(line, dict[str, Any])
            if record is not None:
                name = str(record.get("written", ""))
                digests.setdefault(name, set()).add(str(record.get("sha256", "")))
    return digests


def _either(first: str | None, hint: str) -> str:
    return f"{first}, or {hint[:1].lower()}{hint[1:]}" if first else hint


def _read(line: bytes, kind: type[Record]) -> Record | None:
    """What a line says; None where that is nothing of the kind."""
    with suppress(DamagedFileError):
        return parse_json(line, kind)
    return None
