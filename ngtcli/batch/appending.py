"""Files that grow by whole lines, which are on disk when they are written."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from ngtcli.errors import NgtError, UsageError, reason_of

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
