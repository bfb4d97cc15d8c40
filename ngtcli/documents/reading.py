"""Bytes of files and streams, up to a bound for all that one run reads."""

import errno
import os
from pathlib import Path
from typing import IO

from ngtcli.config import Settings
from ngtcli.documents.text import Unreadable
from ngtcli.errors import InputError
from ngtcli.reading import read_bounded, read_stream

_RAISE = "Raise the bound with --max-mb."
_ADVICE = {
    errno.EINVAL: "Name a file or a folder, or pipe a text in and name it -.",
    errno.EISDIR: "Name a file in it.",
    errno.ETIMEDOUT: "Start what writes to it first, or pipe its text in and name it -.",
}


def reason_of(error: Exception) -> str:
    """An operating system's reason in small letters, without its number."""
    return (getattr(error, "strerror", None) or str(error)).lower()


class Reader:
    """Reads until `max_mb` megabytes of the settings are used up by all files together."""

    def __init__(self, settings: Settings) -> None:
        self._bound = f"{settings.max_mb} MB"
        self._most = self._left = settings.max_mb * 1_000_000

    def file(self, path: str | Path, pipes: bool = False) -> bytes:
        """The bytes of a regular file, or with `pipes` of a pipe.

        Raises Unreadable where it cannot be read, or alone is more than the bound; InputError
        where all together are.
        """
        try:
            return self._counted(read_bounded(path, self._left, pipes))
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise self._over(os.stat(path).st_size) from None
            advice = _ADVICE.get(error.errno or 0, "Check the file and its permissions.")
            raise Unreadable(reason_of(error), advice) from None

    def stream(self, stream: IO[bytes]) -> bytes:
        """All that comes from a stream. Raises as `file` does."""
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
        """What is wrong where `size` bytes (0 if nobody knows) are more than is left."""
        if size > self._most or self._left == self._most:
            return Unreadable(f"more than {self._bound}", _RAISE)
        return InputError(f"more than {self._bound} of text in all", f"Name less. {_RAISE}")
