"""Files next to the user's that grow by complete lines: journals of finished work, and logs.

A run that is killed leaves at most one incomplete line, at the end of the file.
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
_MAX_WRITTEN_BYTES = 100_000  # the longest record that names a written file (guess)
_MAX_HEAD_BYTES = 16_000_000  # of a head, whose settings come from files of 1 MB (guess)
_FORMAT_KEYS = ("format", "version", "output")  # the keys of a head that are no settings
ANSWERS = ".ngt.journal"  # the journal of a folder that has a file with the answer of each document
_PAUSE_S = 0.005  # between two attempts to get a lock (guess)
_FULL = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Make room")
# The first advice for an error, by its number.
_FIRST = {
    **_FULL,
    errno.EMSGSIZE: "Raise the limit with --set max_mb",
}


class LineFile(io.FileIO):
    """A file that grows by complete lines, locked until it is closed.

    Args:
        path: The file, which is created if it is missing.
        mode: The permissions of a new file.
        wait_s: How long to wait for another process that has locked it.

    Raises:
        BlockingIOError: Another process has locked it.
        OSError: It is a link or not a regular file, or cannot be opened.
    """

    def __init__(self, path: Path, mode: int = 0o600, wait_s: float = 0.0) -> None:
        end = time.monotonic() + wait_s
        while not self._is_opened(path, mode):
            if time.monotonic() >= end:
                raise BlockingIOError(errno.EAGAIN, "another process is writing it", str(path))
            time.sleep(_PAUSE_S)

    def _is_opened(self, path: Path, mode: int) -> bool:
        """Open and lock it; return False if another process has locked or replaced the file."""
        super().__init__(path, "r+", opener=lambda name, _: os.open(name, _FLAGS, mode))
        with ExitStack() as unless_locked:
            unless_locked.callback(self.close)
            if not stat.S_ISREG(os.fstat(self.fileno()).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            try:
                fcntl.flock(self, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:  # The file system has no locks.
                pass
            if identity(path) == identity(self.fileno()):
                unless_locked.pop_all()
        return not self.closed

    def append(self, line: bytes, sync: bool = True) -> int:
        """Append a line and return its offset.

        Args:
            line: The line, without a line feed.
            sync: Wait until it is on disk.

        Raises:
            OSError: It cannot be written; then the file is unchanged.
        """
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
        """Yield the offset and the bytes of each line from the offset `start` on.

        An incomplete last line has no line feed.

        Raises:
            OSError: A line has more than `max_bytes`, or the file cannot be read.
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
        hint: Advice for the user.
        kind: The class of the error; a full disk is never a UsageError.
        resumes: The same command can be run again and continues.
    """
    try:
        yield
    except OSError as error:
        kind = NgtError if error.errno in _FULL else kind
        if error.errno == errno.EAGAIN:  # Another process has locked it.
            hint = "Wait for it, or name another output."
        elif resumes and error.errno in _FULL:
            hint = "Make room, then run the same command again: it continues."
        else:
            hint = _either(_FIRST.get(error.errno or 0), hint)
        raise kind(f"{where}: {reason_of(error)}", hint=hint) from None


@dataclass(frozen=True, slots=True)
class Form(Generic[Record]):
    """A format of journals.

    Attributes:
        format: The name of the format.
        version: The version of the format.
        kind: The type of the records.
        hint: Advice if a journal cannot be used.
        words: Messages for differing values of a head, by the last part of the key. `{task}` in
            them is replaced by the first part. For other keys the message names both values.
        output: The output of the run, if runs with several kinds of output use this format.
        by_command: Whether the first part of a key names the command of ngt that started the run.
        earlier: The record types of older journals that can be continued, by format and version. A
            type other than `kind` has a method `record`, which returns a record of `kind`.
    """

    format: str
    version: int
    kind: type[Record]
    hint: str
    words: Mapping[str, str] = field(default_factory=dict)
    output: str = ""
    earlier: Mapping[tuple[str, int], type[Any]] = field(default_factory=dict)
    by_command: bool = False


def _commands_of(head: Mapping[str, Any]) -> list[str]:
    """Return the first parts of the keys of a head that have two.

    >>> _commands_of({"fields": "name", "extract.seed": 0, "extract.n": 8})
    ['extract']
    """
    return sorted({key.partition(".")[0] for key in head if "." in key})


class Journal(Generic[Record]):
    """A file with a head, which identifies a run, and a record per line; locked until closed.

    The head is written together with the first record. An incomplete last line is cut off.

    Args:
        path: The file.
        form: Its format.
        head: The run: its settings and inputs, as values of JSON.
        max_bytes: The longest line that is read.
        restart: The first record replaces the journal, unless another program wrote it.

    Attributes:
        damaged: Lines could not be read.
        begun: The offset of the first record; 0 if there are no records.

    Raises:
        UsageError: Another program, version or output has written the journal, its head differs, or
            it cannot be opened.
    """

    def __init__(
        self, path: Path, form: Form[Record], head: Mapping[str, Any], max_bytes: int, restart: bool
    ) -> None:
        self.path = path
        self.damaged = False
        self._form = form
        self._max_bytes = max_bytes
        self._partial = path.with_name(f"{path.name}{PARTIAL}")
        self._kinds: list[type[Any]] = [form.kind]  # the types of the records in the file
        self._earlier = 0  # the offset of the records that a restart replaces
        format_of_head: dict[str, Any] = {"format": form.format, "version": form.version}
        if form.output:
            format_of_head["output"] = form.output
        # Settings may contain bytes of the command line that are not valid text.
        self._head = dumps(
            {**format_of_head, **head}, ensure_ascii=False, separators=(",", ":")
        ).encode(errors="replace")
        with errors_named(path, form.hint, UsageError, resumes=not restart):
            self._file = LineFile(path)
            try:
                self._partial.unlink(missing_ok=True)  # A run that was killed may have left it.
                self.begun = self._find_records(restart)
            except BaseException:
                self._file.close()
                raise

    def _find_records(self, restart: bool) -> int:
        """Check the head; return the offset of the first record, 0 if there are no records.

        Raises:
            UsageError: The journal cannot be continued.
        """
        line, feed, _ = os.pread(self._file.fileno(), _MAX_HEAD_BYTES, 0).partition(b"\n")
        if not feed and self._head.startswith(line[: self._head.index(b",")]):
            return 0  # The file is empty, or a run was killed while it wrote the head.
        stored = (_read(line, dict[str, Any]) if feed else None) or {}
        current = _read(self._head, dict[str, Any]) or {}

        form = self._form
        stored_format = str(stored.pop("format", ""))
        stored_version = stored.pop("version", None)
        stored_output = stored.pop("output", form.output)
        is_current = (stored_format, stored_version) == (form.format, form.version)
        earlier_kind = None
        if not is_current and isinstance(stored_version, int):
            earlier_kind = form.earlier.get((stored_format, stored_version))
        is_older = stored_format in (form.format, *(name for name, _ in form.earlier))
        if not (is_current or is_older):
            raise UsageError(
                f"{self.path} was not written by ngt", hint=_either("Move it away", form.hint)
            )
        if stored_output != form.output:
            raise UsageError(
                f"{self.path} is the journal of {shown(stored_output)}, not of {form.output}",
                hint="Name another file with -o.",
            )
        if earlier_kind is not None and earlier_kind is not form.kind:
            self._kinds = [earlier_kind, form.kind]
        if restart:
            self._earlier = len(line) + 1
            return 0
        if not is_current and earlier_kind is None:
            raise UsageError(f"{self.path} was written by another version of ngt", hint=form.hint)
        settings = {key: value for key, value in current.items() if key not in _FORMAT_KEYS}
        self._check_head(stored, settings)
        return len(line) + 1

    def _check_head(self, stored: Mapping[str, Any], current: Mapping[str, Any]) -> None:
        """Raise UsageError with all differences; a setting is named once for all tasks."""
        if self._form.by_command:
            before, now = _commands_of(stored), _commands_of(current)
            if before and now and before != now:  # All settings differ, which says nothing more.
                raise UsageError(
                    f"{self.path} was started by ngt {before[0]}, not by ngt {now[0]}",
                    hint=self._form.hint,
                )
        changed: dict[str, str] = {}
        for key in {**current, **stored}:
            if stored.get(key) == current.get(key):
                continue
            task, _, name = key.rpartition(".")
            both = f"{name} {shown(stored.get(key))}, now {shown(current.get(key))}"
            changed.setdefault(name, self._form.words.get(name, both).replace("{task}", task))
        if changed:
            raise UsageError(
                f"{self.path} was started with {'; '.join(changed.values())}", hint=self._form.hint
            )

    def earlier(self) -> Iterator[tuple[int, Record]]:
        """Yield each record that a restart will replace, with its offset.

        There are none any more once a new record was added.

        Raises:
            UsageError: The file cannot be read.
        """
        if self.begun or not self._earlier:
            return
        with errors_named(self.path, self._form.hint, UsageError):
            for offset, line in self._file.lines(self._max_bytes, self._earlier):
                record = self._record(line)
                if record is not None:
                    yield offset, record

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        """Yield each record with its offset; damaged lines are left out.

        Raises:
            UsageError: The file cannot be read.
        """
        if not self.begun:
            return
        with errors_named(self.path, self._form.hint, UsageError):
            for offset, line in self._file.lines(self._max_bytes, self.begun):
                if not line.endswith(b"\n"):  # The last line is incomplete.
                    self._file.truncate(offset)
                    self.damaged = True
                    continue
                record = self._record(line)
                if record is None:
                    self.damaged = True
                else:
                    yield offset, record

    def _record(self, line: bytes) -> Record | None:
        """Decode a line of this version or an older one; return None for a damaged line."""
        for kind in self._kinds:
            value = _read(line, kind)
            if value is not None:
                record: Record = value if kind is self._form.kind else value.record()
                return record
        return None

    def at(self, offset: int) -> Record:
        """Return the record at an offset that was read or written before. Raises OSError."""
        _, line = next(self._file.lines(self._max_bytes, offset))
        record = self._record(line)
        if record is None:
            raise OSError(errno.EIO, "the journal was changed in the meantime")
        return record

    def add(self, record: Record) -> int:
        """Write a record to disk and return its offset. Raises OSError; then nothing is written."""
        line = msgspec.json.encode(record)
        if self.begun:
            return self._file.append(line)

        head = self._head + b"\n"
        if self._earlier:
            # The file is replaced in one step: a kill leaves either the old journal or the new one.
            self._replace(head + line)
        else:
            self._file.truncate(0)
            self._file.append(head + line)
        self._kinds = [self._form.kind]
        self.begun = len(head)
        return self.begun

    def _replace(self, lines: bytes) -> None:
        """Replace this file by a new one, which is locked. Raises OSError."""
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
        """Release the lock, and remove the file if it is empty."""
        if not os.fstat(self._file.fileno()).st_size:
            self.path.unlink(missing_ok=True)
        self._file.close()


def answers_in(folder: str) -> dict[str, set[str]]:
    """Return the SHA-256 digests of the files that ngt wrote in a folder, by name.

    They are in the folder's journal of answers. A file of such a name with another digest was
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
    """Put other advice before a hint."""
    if not first:
        return hint
    return f"{first}, or {hint[:1].lower()}{hint[1:]}"


def _read(line: bytes, kind: type[Record]) -> Record | None:
    """Decode a line; return None if it is not of this kind."""
    try:
        return parse_json(line, kind)
    except DamagedFileError:
        return None
