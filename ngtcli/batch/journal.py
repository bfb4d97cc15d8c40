"""Files that grow by whole lines, as journals do, and what a journal begins with.

A run that was killed leaves at most one torn line at the end of such a file.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self

from ngtcli.errors import NgtError, UsageError, reason_of
from ngtcli.system.storage import DamagedFileError, parse_json
from ngtcli.system.yaml_file import shown

FORMAT, VERSION = "ngt-batch", 1
ANOTHER_FILE = "Name another file with -o, or write it again with --restart."
_FULL = (errno.ENOSPC, errno.EDQUOT)


class LineFile:
    """A file that grows by whole lines, which are on disk when they are written; made with `mode`.

    Raises OSError, also for a link and for what is not a regular file.
    """

    def __init__(self, path: Path, mode: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(path, flags, mode)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        self.file: IO[bytes] = os.fdopen(handle, "r+b", buffering=0)

    @property
    def size(self) -> int:
        """In bytes."""
        return os.fstat(self.file.fileno()).st_size

    def append(self, text: str, sync: bool = True) -> None:
        """Write a line, with `sync` to disk, or nothing. Raises OSError."""
        file = self.file
        data, start = f"{text}\n".encode(), file.seek(0, os.SEEK_END)
        try:
            write_all(file, data)
            if sync:
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(start)
            raise

    def cut(self, size: int) -> None:
        """Keep the first `size` bytes."""
        self.file.truncate(size)

    def read(self, start: int, size: int) -> bytes:
        """The bytes from `start` on."""
        return os.pread(self.file.fileno(), size, start)

    def first_line(self, most: int) -> bytes:
        """The first `most` bytes, up to a line feed. Raises OSError."""
        head, feed, _ = self.read(0, most).partition(b"\n")
        return head + feed

    def lines(self, most: int) -> Iterator[tuple[int, bytes]]:
        """Each line with its start; b"" in place of a last one without a line feed.

        Raises OSError, EFBIG for a line of more than `most` bytes.
        """
        start = self.file.seek(0)
        with os.fdopen(os.dup(self.file.fileno()), "rb") as buffered:
            while raw := buffered.readline(most + 1):
                if len(raw) > most:
                    raise OSError(errno.EFBIG, "a line is too long")
                yield start, raw if raw.endswith(b"\n") else b""
                start += len(raw)

    def close(self) -> None:
        """Close it, which ends the lock."""
        self.file.close()


def write_all(file: IO[bytes], data: bytes) -> None:
    """Write bytes to a file without a buffer, which may take a part of them at once."""
    while data:
        data = data[file.write(data) :]


def open_journal(path: Path, output: Path, where: object, what: str = "file") -> LineFile:
    """The journal of an output, a `what`, locked for as long as it is open.

    Raises UsageError, where it cannot be opened under the name `where`, and where another process
    has it.
    """
    try:
        journal = LineFile(path, 0o600)
    except OSError as error:
        raise failure(where, error, UsageError, what) from None
    try:
        fcntl.flock(journal.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        journal.close()
        hint = "Wait for it, or name another file with -o."
        raise UsageError(f"{output}: another process is writing it", hint) from None
    except OSError:  # a file system without locks
        pass
    return journal


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


@dataclass(frozen=True, slots=True)
class Head:
    """What an output was begun with: the command that resumes it must ask for the same.

    SHA-256 of the input in hex, which of its lines are meant, and how they are answered: `answers`
    are settings and wording by task, JSON-ready; see `prompt.preset.deciding`.
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
            version = found.pop("format"), found.pop("version")
            head = cls(**found)
        except (DamagedFileError, KeyError, TypeError):
            return None
        kinds = [type(head.input), type(head.shard), type(head.engine), type(head.answers)]
        if version != (FORMAT, VERSION) or kinds != [str, str, str, dict]:
            return None
        return head if all(isinstance(of_task, dict) for of_task in head.answers.values()) else None

    def check(self, now: "Head", path: object) -> None:
        """Raise UsageError, which names what differs, unless `now` asks for the same."""
        changed = list(_changes(self, now))
        if not changed:
            return
        more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
        hint = ANOTHER_FILE
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
    named: set[str] = set()
    for task in sorted({*then.answers, *now.answers}):
        before, after = then.answers.get(task, {}), now.answers.get(task, {})
        for name in sorted({*before, *after} - named):
            was, is_ = before.get(name), after.get(name)
            if was == is_:
                continue
            named.add(name)
            if name == "wording":
                yield f"another wording of preset {task}"
            else:
                yield f"{name} {shown(was)}, now {shown(is_)}"
