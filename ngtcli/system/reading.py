"""Read files, pipes and streams up to a bound."""

import errno
import os
import select
import stat
import time
from pathlib import Path
from typing import IO

WRITER_WAIT_S = 5.0  # longest wait for the first writer of a named pipe; guess
_PIECE = 1 << 20  # bytes read at once if the size is not known; guess


def read_bounded(path: Path | str, most: int, pipes: bool = False) -> bytes:
    """The bytes of a regular file, or with `pipes` of a pipe; at most `most`.

    Raises OSError: those of `open`; EISDIR for a folder; EINVAL for what is not a regular file (a
    device, a socket, a pipe without `pipes`); EFBIG for more than `most` bytes; ETIMEDOUT for a
    pipe that no process opens for writing within `WRITER_WAIT_S`.
    """
    _check_kind(os.stat(path).st_mode, path, pipes)  # opening some devices starts them
    # Without O_NONBLOCK, opening a pipe without a writer would block for ever.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb", buffering=0) as file:
        found = os.fstat(handle)
        _check_kind(found.st_mode, path, pipes)
        if stat.S_ISFIFO(found.st_mode):
            first = _first_bytes(handle, path)
            os.set_blocking(handle, True)
            return read_stream(file, most, path, first=first)
        if found.st_size > most:
            raise _too_big(most, path)
        return read_stream(file, most, path, found.st_size)


def identity(path: Path | str | int) -> tuple[int, int] | None:
    """What all paths and descriptors of one file have in common; None where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def read_stream(
    stream: IO[bytes], most: int, path: Path | str = "", size: int = 0, first: bytes = b""
) -> bytes:
    """`first`, then the bytes of `stream` to its end; at most `most` in all.

    `size` is the expected number of bytes of the stream, 0 if unknown. Raises OSError: EFBIG for
    more than `most` bytes; EAGAIN if a non-blocking file has no data, as some below /proc.
    """
    parts, left = [first], most - len(first)
    wanted = size + 1 if size else _PIECE
    # A buffered `read` reads again after the end of file, which a terminal signals only once.
    read = getattr(stream, "read1", stream.read)
    while left >= 0 and (part := read(min(wanted, left + 1))):
        parts.append(part)
        left -= len(part)
        wanted = _PIECE
    if left < 0:
        raise _too_big(most, path)
    if part is None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
    return b"".join(parts) if first else b"".join(parts[1:])  # `join` does not copy a single part


def _check_kind(mode: int, path: Path | str, pipes: bool) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not (stat.S_ISREG(mode) or (pipes and stat.S_ISFIFO(mode))):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def _too_big(most: int, path: Path | str) -> OSError:
    return OSError(errno.EFBIG, f"more than {most / 1e6:g} MB", str(path))


def _first_bytes(handle: int, path: Path | str) -> bytes:
    """The data in a non-blocking pipe; waits for a writer, but not for data. Raises OSError."""
    poll, end = select.poll(), time.monotonic() + WRITER_WAIT_S
    poll.register(handle, select.POLLIN)
    while time.monotonic() < end:
        try:
            piece = os.read(handle, _PIECE)
        except BlockingIOError:
            return b""  # there is a writer, which has not written yet
        if piece or poll.poll(0):  # data, or a writer that closed the pipe again
            return piece
        time.sleep(0.02)
    reason = f"a pipe that nobody wrote to for {WRITER_WAIT_S:g} s"
    raise OSError(errno.ETIMEDOUT, reason, str(path))
