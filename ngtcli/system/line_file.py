"""Files that grow by whole lines, as journals and logs do.

A run that was killed leaves at most one torn line at the end of such a file.
"""

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


class LongLineError(OSError):
    """A line of a file has more bytes than may be read."""


class LineFile(io.FileIO):
    """A file that grows by whole lines, which are on disk when they are written; made with `mode`.

    Raises OSError, also for a link and for what is not a regular file.
    """

    def __init__(self, path: Path, mode: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        super().__init__(path, "r+", opener=lambda name, _: os.open(name, flags, mode))
        if not stat.S_ISREG(os.fstat(self.fileno()).st_mode):
            self.close()
            raise OSError(errno.EINVAL, "not a regular file", str(path))

    def append(self, text: str, sync: bool = True) -> int:
        """Write a line, with `sync` to disk, or nothing; where it begins. Raises OSError."""
        start = self.seek(0, os.SEEK_END)
        try:
            write_all(self, f"{text}\n".encode())
            if sync:
                os.fsync(self.fileno())
        except OSError:
            with suppress(OSError):
                self.truncate(start)
            raise
        return start

    def first_line(self, most: int) -> bytes:
        """The first `most` bytes, up to a line feed. Raises OSError."""
        head, feed, _ = os.pread(self.fileno(), most, 0).partition(b"\n")
        return head + feed

    def lines(self, most: int) -> Iterator[tuple[int, bytes]]:
        """Each line with its start; b"" in place of a last one without a line feed.

        Raises OSError, LongLineError for a line of more than `most` bytes.
        """
        start = self.seek(0)
        with os.fdopen(os.dup(self.fileno()), "rb") as buffered:
            while raw := buffered.readline(most + 1):
                if len(raw) > most:
                    raise LongLineError("a line is too long")
                yield start, raw if raw.endswith(b"\n") else b""
                start += len(raw)


def write_all(file: io.FileIO, data: bytes) -> None:
    """Write bytes to a file without a buffer, which may take a part of them at once."""
    while data:
        data = data[file.write(data) :]
