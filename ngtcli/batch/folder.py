"""A folder of answers, a file each: which of them are written, and from what.

A journal in the folder, `.ngt.journal`, has a line for each file that was written, with a key of
all that it was made from. It is locked while a run writes there.
"""

import json
import os
from pathlib import Path
from typing import IO

from ngtcli.batch.appending import append_line, lock, open_appending, whole_lines
from ngtcli.documents.reading import reason_of
from ngtcli.errors import NgtError
from ngtcli.system.storage import DamagedFileError, parse_json, write_atomically

_NAME = ".ngt.journal"
_LONGEST = 10_000  # bytes of a line; a name and a key take some hundred


class AnswerFolder:
    """The files of a folder, which is made where there is none. `close` it.

    Raises NgtError where it cannot be written, UsageError where another process writes it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: dict[str, str] = {}
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._journal: IO[bytes] = open_appending(path / _NAME, 0o600)
        except OSError as error:
            raise _failure(error.filename or path, error) from None
        try:
            lock(self._journal, path)
            self._read()
        except BaseException as error:
            self._journal.close()
            if isinstance(error, OSError):
                raise _failure(path / _NAME, error) from None
            raise

    def _read(self) -> None:
        for start, raw in whole_lines(self._journal, _LONGEST):
            try:
                row = parse_json(raw, dict)
                self._keys[str(row["file"])] = str(row["key"])
            except (DamagedFileError, KeyError):  # torn
                self._journal.truncate(start)
                return

    def has(self, name: str, key: str) -> bool:
        """Whether the file of that name was made from what `key` stands for, and is there."""
        return self._keys.get(name) == key and (self._path / name).is_file()

    def wrote(self, path: str) -> bool:
        """Whether the file at `path` was written here."""
        folder, name = os.path.split(os.path.realpath(path))
        return name in self._keys and folder == os.path.realpath(self._path)

    def write(self, name: str, key: str, text: str) -> None:
        """Write a file whole, and note what it was made from. Raises NgtError."""
        try:
            write_atomically(self._path / name, text)
            append_line(self._journal, json.dumps({"file": name, "key": key}))
        except OSError as error:
            raise _failure(self._path / name, error) from None
        self._keys[name] = key

    def close(self) -> None:
        """End the lock."""
        self._journal.close()


def _failure(path: object, error: OSError) -> NgtError:
    return NgtError(f"{path}: {reason_of(error)}", "Name another folder with -o.")
