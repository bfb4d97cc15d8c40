"""Files beside the user's that grow by whole lines: journals of what is done, and logs.

A run that was killed leaves at most one torn line at the end of such a file.
"""

import errno
import fcntl
import io
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from ngtcli.errors import NgtError, UsageError, reason_of
from ngtcli.system.files import write_atomically
from ngtcli.system.yaml_file import shown

Record = TypeVar("Record")  # a dataclass, or a Struct of msgspec
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FULL = (errno.ENOSPC, errno.EDQUOT)
_HEAD = 16_000_000  # bytes of a head at most; its settings come from files of 1 MB; guess
_PAUSE_S = 0.005  # between two looks whether a lock is free; guess


class LongLineError(OSError):
    """A line of a file has more bytes than may be read."""


class LineFile(io.FileIO):
    """A file that grows by whole lines, locked until it is closed; made with `mode`.

    Raises OSError, also for a link, for what is not a regular file, and where another process has
    it for `wait_s` seconds.
    """

    def __init__(self, path: Path, mode: int = 0o600, wait_s: float = 0.0) -> None:
        end = time.monotonic() + wait_s
        while True:
            super().__init__(path, "r+", opener=lambda name, _: os.open(name, _FLAGS, mode))
            try:
                if self._is_locked(path):
                    return
                if time.monotonic() >= end:
                    raise BlockingIOError(errno.EAGAIN, "another process is writing it", str(path))
            except BaseException:
                self.close()
                raise
            self.close()
            time.sleep(_PAUSE_S)

    def _is_locked(self, path: Path) -> bool:
        """Whether it could be locked, and no other process put another file in its place."""
        own = os.fstat(self.fileno())
        if not stat.S_ISREG(own.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        try:
            fcntl.flock(self, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            pass
        return os.path.exists(path) and os.path.samestat(own, os.stat(path))

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

        Raises OSError, LongLineError for a line of more than `most` bytes.
        """
        with os.fdopen(os.dup(self.fileno()), "rb") as buffered:
            buffered.seek(start)
            while raw := buffered.readline(most + 1):
                if len(raw) > most:
                    raise LongLineError("a line is too long")
                yield start, raw
                start += len(raw)


def write_all(file: io.FileIO, data: bytes) -> None:
    """Write bytes to a file without a buffer, which may take a part of them at once."""
    while data:
        data = data[file.write(data) :]


@contextmanager
def errors_named(where: object, hint: str, kind: type[NgtError] = NgtError) -> Iterator[None]:
    """Make of an OSError an error of a kind, for a file at `where`; `hint` names another way.

    That of a full disk is never a UsageError.
    """
    try:
        yield
    except OSError as error:
        other = _lower(hint)
        if error.errno in _FULL:
            kind, hint = NgtError, f"Make room, or {other}"
        elif isinstance(error, LongLineError):
            hint = f"Raise the bound with --max-mb, or {other}"
        elif isinstance(error, BlockingIOError):
            hint = f"Wait for it, or {other}"
        raise kind(f"{where}: {reason_of(error)}", hint) from None


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

    What stands behind the last whole record is cut off. Raises UsageError for a journal that
    another version or program wrote, that was begun with another `head`, or that cannot be opened;
    with `restart` it is begun anew unless another program wrote it. `begin` is called before a head
    is written, and may raise. A line has at most `most` bytes.
    """

    def __init__(
        self,
        path: Path,
        form: Form[Record],
        head: Mapping[str, Any],
        *,
        most: int,
        restart: bool = False,
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        self._path, self._form, self._most = path, form, most
        self._read = msgspec.json.Decoder(form.kind).decode
        self._head = msgspec.json.encode({"format": form.format, "version": form.version, **head})
        with errors_named(path, form.hint, UsageError):
            self._file = LineFile(path)
            try:
                begun = self._place_of_records(restart)
                if begun is None:
                    begin()
                    self._file.truncate(0)
                    self._file.append(self._head)
                self._start = len(self._head) + 1 if begun is None else begun
            except BaseException:
                if not os.fstat(self._file.fileno()).st_size:  # it has just been made
                    path.unlink()
                self._file.close()
                raise

    def _place_of_records(self, restart: bool) -> int | None:
        """Where they begin; None where they are to. Raises UsageError for another journal."""
        line, feed, _ = os.pread(self._file.fileno(), _HEAD, 0).partition(b"\n")
        if not feed and self._head.startswith(line[: self._head.index(b",")]):
            return None
        if self._record(line + feed) is not None:  # of an earlier version, without a head
            return 0
        then, now = _object(line), _object(self._head)
        if not feed or then.get("format") != self._form.format:
            hint = f"Move it away, or {_lower(self._form.hint)}"
            raise UsageError(f"{self._path}: ngt did not write it", hint)
        if restart:
            return None
        if then.get("version") != self._form.version:
            raise UsageError(f"{self._path}: another version of ngt wrote it", self._form.hint)
        changed: dict[str, str] = {}  # by the last part of a key: told once for two tasks
        for key in {**now, **then}:
            task, _, name = key.rpartition(".")
            if then.get(key) != now.get(key):
                words = f"{name} {shown(then.get(key))}, now {shown(now.get(key))}"
                known = self._form.words.get(name, "").replace("{task}", task)
                changed.setdefault(name, known or words)
        if changed:
            more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
            what = f"{self._path} was begun with {next(iter(changed.values()))}{more}"
            raise UsageError(what, self._form.hint)
        return len(line) + 1

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        """Each record with its place. Raises OSError."""
        for place, line in self._file.lines(self._most, self._start):
            record = self._record(line)
            if record is None:  # torn: nothing whole can follow
                self._file.truncate(place)
                return
            yield place, record

    def _record(self, line: bytes) -> Record | None:
        try:
            return self._read(line) if line.endswith(b"\n") else None
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None

    def at(self, place: int) -> Record:
        """The record at a place. Raises OSError."""
        _, line = next(self._file.lines(self._most, place))
        return self._read(line)

    def add(self, record: Record) -> int:
        """Write a record to disk; its place. Raises OSError, and then nothing is written."""
        return self._file.append(msgspec.json.encode(record))

    def close(self) -> None:
        """End the lock."""
        self._file.close()

    def close_with(self, records: Iterable[Record]) -> None:
        """Put these in the place of all records, and end the lock. Raises OSError."""
        lines = chain([self._head], map(msgspec.json.encode, records))
        write_atomically(self._path, (f"{line.decode()}\n" for line in lines))
        self.close()


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _object(line: bytes) -> dict[str, Any]:
    """The values in a line by key, those of an inner object by both keys; {} for another line."""
    try:
        found = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    outer = {key: value for key, value in found.items() if not isinstance(value, dict)}
    inner = ((a, own) for a, own in found.items() if isinstance(own, dict))
    return outer | {f"{a}.{b}": value for a, own in inner for b, value in own.items()}
