"""A folder of answers, a file each: which of them are written, and from what.

A journal in the folder, `.ngt.journal`, has two lines for each file that was written: before that
a hash of its text, then with a key of all that it was made from. So a file that another program
wrote or changed is known, also after a kill, and is not written over. The journal is locked while
a run writes there.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from ngtcli.batch.appending import append_line, failure, lock, open_appending, whole_lines
from ngtcli.errors import UsageError, reason_of
from ngtcli.system.storage import DamagedFileError, parse_json, write_atomically

_NAME = ".ngt.journal"
_LONGEST = 10_000  # bytes of a line; a name, a key and a hash take some hundred
_KEEP = (
    "Move it away, name another folder with -o, or make all files again, over what is there,"
    " with --restart."
)


class AnswerFolder:
    """The files of a folder, which is made where there is none. `close` it.

    With `restart` none of them counts as made, and each may be written over. Raises UsageError
    where the folder cannot be opened, or another process writes it.
    """

    def __init__(self, path: Path, restart: bool = False) -> None:
        self._path, self._restart = path, restart
        self._keys: dict[str, str] = {}
        self._hashes: dict[str, set[str]] = {}  # of all texts that were written under a name
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._journal: IO[bytes] = open_appending(path / _NAME, 0o600)
        except OSError as error:
            raise failure(error.filename or path, error, UsageError, "folder") from None
        try:
            lock(self._journal, path)
            self._read()
        except BaseException as error:
            self._journal.close()
            if isinstance(error, OSError):
                raise failure(path / _NAME, error, UsageError, "folder") from None
            raise

    def _read(self) -> None:
        for start, raw in whole_lines(self._journal, _LONGEST):
            try:
                row = parse_json(raw, dict)
                self._note(**{name: str(value) for name, value in row.items()})
            except (DamagedFileError, TypeError):  # torn
                self._journal.truncate(start)
                return

    def _note(self, file: str, sha256: str = "", key: str = "") -> None:
        """Take a line of the journal; those of earlier versions have no hash."""
        self._hashes.setdefault(file, set()).update({sha256} - {""})
        if key:
            self._keys[file] = key

    def has(self, name: str, key: str) -> bool:
        """Whether the file of that name was made from what `key` stands for, and is there.

        It may have been changed since.
        """
        made = not self._restart and self._keys.get(name) == key
        return made and (self._path / name).is_file()

    def check(self, names: Iterable[str]) -> None:
        """Raise UsageError for files that are there and are not as they were written here."""
        if self._restart:
            return
        found = [(name, reason) for name in names if (reason := self._changed(name))]
        if found:
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            raise UsageError(f"{self._path / found[0][0]}: {found[0][1]}{more}", _KEEP)

    def _changed(self, name: str) -> str:
        """Why a file is not written over; "" where it is absent, or as it was written here."""
        path = self._path / name
        if not os.path.lexists(path):
            return ""
        if name not in self._hashes or not path.is_file():
            return "it is there, and this command did not write it"
        try:
            with path.open("rb") as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() in self._hashes[name]
        except OSError as error:
            return reason_of(error)
        if not same and not self._hashes[name]:
            return "an earlier version of ngt wrote it, and it may have been changed since"
        return "" if same else "it was changed after this command wrote it"

    def wrote(self, path: str) -> bool:
        """Whether the file at `path` was written here."""
        folder, name = os.path.split(os.path.realpath(path))
        return name in self._hashes and folder == os.path.realpath(self._path)

    def write(self, name: str, key: str, text: str) -> None:
        """Write a file whole, and note what it was made from.

        Raises UsageError as `check` does, for what happened since, and NgtError.
        """
        self.check([name])
        line = {"file": name, "sha256": hashlib.sha256(text.encode()).hexdigest()}
        try:
            append_line(self._journal, json.dumps(line))
            write_atomically(self._path / name, text)
            append_line(self._journal, json.dumps({**line, "key": key}))
        except OSError as error:
            raise failure(self._path / name, error, what="folder") from None
        self._note(**line, key=key)

    def close(self) -> None:
        """End the lock."""
        self._journal.close()
