"""Read the bytes of files and streams, with one bound for all that a run reads."""

import errno
import os
from pathlib import Path
from typing import IO

from ngtcli.config import Settings
from ngtcli.documents.text import Unreadable
from ngtcli.errors import InputError
from ngtcli.system.reading import read_bounded, read_stream

_RAISE_BOUND = "Raise the bound with --max-mb."
_ADVICE = {
    errno.EINVAL: "Name a file or a folder, or pipe a text in and name it -.",
    errno.EISDIR: "Name a file in it.",
    errno.ETIMEDOUT: "Start what writes to it first, or pipe its text in and name it -.",
}


def reason_of(error: Exception) -> str:
    """The operating system's message in lower case, without the error number."""
    return (getattr(error, "strerror", None) or str(error)).lower()


def _unreadable(error: OSError) -> Unreadable:
    advice = _ADVICE.get(error.errno or 0, "Check the file and its permissions.")
    return Unreadable(reason_of(error), advice)


class Reader:
    """Reads at most `settings.max_mb` megabytes (10^6 bytes) in all."""

    def __init__(self, settings: Settings) -> None:
        self._bound = f"{settings.max_mb} MB"
        self._most = self._left = settings.max_mb * 1_000_000

    @property
    def most(self) -> int:
        """The bound in bytes."""
        return self._most

    def file(self, path: str | Path, pipes: bool = False) -> bytes:
        """The bytes of a regular file, or with `pipes` of a pipe.

        Raises Unreadable if it cannot be read or is larger than the bound by itself; InputError if
        it is larger than what is left of the bound.
        """
        try:
            return self._counted(read_bounded(path, self._left, pipes))
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise self._over(os.stat(path).st_size) from None
            raise _unreadable(error) from None

    def parsed_file(self, path: str | Path, pipes: bool = False) -> bytes:
        """As `file`, for a file whose text is counted later, by `count`; safe in any thread."""
        try:
            return read_bounded(path, self._most, pipes)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise Unreadable(f"more than {self._bound}", _RAISE_BOUND) from None
            raise _unreadable(error) from None

    def count(self, size: int) -> None:
        """Count the text that a parser made of a file. Raises as `file` does for too much."""
        if size > self._left:
            raise self._over(size)
        self._left -= size

    def stream(self, stream: IO[bytes]) -> bytes:
        """The bytes of a stream up to its end. Raises as `file` does."""
        try:
            return self._counted(read_stream(stream, self._left))
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise self._over(0) from None
            raise Unreadable(reason_of(error), "Pipe a text in or name a file.") from None

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        return data

    def _over(self, size: int) -> InputError:
        """The error where `size` bytes (0 if unknown) are more than is left of the bound."""
        if size > self._most or self._left == self._most:
            return Unreadable(f"more than {self._bound}", _RAISE_BOUND)
        return InputError(f"more than {self._bound} of text in all", f"Name less. {_RAISE_BOUND}")
