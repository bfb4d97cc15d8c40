"""The store: one SQLite file of the cache for what is small or made of one document.

It holds pieces, each of a kind and with a key of all that it is made of, so that nothing in it is
ever out of date. Several processes may use it at once. What is stored can be made again: a write
that fails costs a remark, a damaged file is set aside and begun anew, and where no file can be
opened the store is in memory.
"""

import hashlib
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec

from ngtcli.errors import reason_of
from ngtcli.system.files import home, private_folder

NAME = "ngt.db"
DAMAGED = ".damaged"  # end of the name of a file that was set aside
Value = TypeVar("Value")
Result = TypeVar("Result")
_VERSION = 1  # of the table below
_WAIT_S = 5.0  # longest wait for another process that writes; guess
_USED_S = 86_400  # seconds after which another use of a piece is noted; guess
# Results that say nothing against the file; after any other it is damaged.
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_TOOBIG,
}  # fmt: skip
_TABLE = (
    "CREATE TABLE piece (kind TEXT NOT NULL, key TEXT NOT NULL, used INTEGER NOT NULL,"
    " checksum BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (kind, key))"
)


@dataclass(frozen=True, slots=True)
class Kind(Generic[Value]):
    """One kind of piece: its name, and the type of its values.

    Values are bytes, or anything that msgspec decodes to `type`: they are read back strictly as
    that type. Methods raise nothing of the file's. `key` is a `key_of` all that a value is made of.
    """

    name: str
    type: type[Value]

    def get(self, key: str) -> Value | None:
        """The piece; None where there is none, or where it is damaged or of another form."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, Value]:
        """The pieces that there are of these keys, read in one transaction."""
        return self._decoded(_store().read(self.name, list(keys)))

    def each(self) -> dict[str, Value]:
        """All pieces by their keys."""
        return self._decoded(_store().read(self.name, None))

    def put(self, key: str, value: Value) -> None:
        """Store a piece in the place of the last one. Ignores text with lone surrogates."""
        self.put_many({key: value})

    def put_many(self, values: Mapping[str, Value]) -> None:
        """Store pieces in one transaction: all of them or none."""
        if not values:
            return
        with suppress(UnicodeEncodeError):
            _store().write(self.name, {key: self._encoded(v) for key, v in values.items()})

    def delete(self, keys: Iterable[str] | None = None) -> None:
        """Delete the pieces of these keys; of None, all of the kind."""
        _store().delete(self.name, None if keys is None else list(keys))

    def _encoded(self, value: Value) -> bytes:
        return value if isinstance(value, bytes) else msgspec.msgpack.encode(value)

    def _decoded(self, stored: dict[str, bytes]) -> dict[str, Value]:
        if self.type is bytes:
            return cast(dict[str, Value], stored)
        values: dict[str, Value] = {}
        for key, data in stored.items():
            with suppress(msgspec.MsgspecError, ValueError, TypeError):  # of another form
                values[key] = msgspec.msgpack.decode(data, type=self.type)
        return values


def take_remark() -> str:
    """What is wrong with the store, each thing once; "" for nothing new."""
    store = _store()
    remark, store.remark = store.remark, ""
    return remark


def sizes() -> dict[str, tuple[int, int]]:
    """The number of pieces of each kind, and the bytes of their values."""
    return _store().sizes()


def trim(most: int, spared: Iterable[str] = ()) -> tuple[int, int]:
    """Delete what was used longest ago until at most `most` bytes are left; kinds `spared` stay.

    Returns the number of pieces that went, and their bytes.
    """
    return _store().trim(most, set(spared))


class _Store:
    """The file at `path`, opened when it is first used; methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None  # of the file that is open; None: in memory
        self._told: set[str] = set()
        self.remark = ""

    def read(self, kind: str, keys: list[str] | None) -> dict[str, bytes]:
        return self._try(lambda connection: self._read(connection, kind, keys), {})

    def _read(
        self, connection: sqlite3.Connection, kind: str, keys: list[str] | None
    ) -> dict[str, bytes]:
        select = "SELECT key, used, checksum, value FROM piece WHERE kind = ?"
        connection.execute("BEGIN")
        if keys is None:
            rows = connection.execute(select, (kind,)).fetchall()
        else:
            found = (
                connection.execute(f"{select} AND key = ?", (kind, key)).fetchone() for key in keys
            )
            rows = [row for row in found if row is not None]
        connection.execute("COMMIT")
        whole = {
            key: value
            for key, _, checksum, value in rows
            if type(value) is bytes and checksum == _checksum(kind, key, value)
        }
        if damaged := [key for key, *_ in rows if key not in whole]:
            self.delete(kind, damaged)
        now = int(time.time())
        if old := [row[0] for row in rows if row[0] in whole and not _is_recent(row[1], now)]:
            self._note_use(kind, old, now)
        return whole

    def _note_use(self, kind: str, keys: list[str], now: int) -> None:
        update = "UPDATE piece SET used = ? WHERE kind = ? AND key = ?"
        self._change(update, [(now, kind, key) for key in keys], quietly=True)

    def write(self, kind: str, values: Mapping[str, bytes]) -> None:
        now = int(time.time())
        self._change(
            "REPLACE INTO piece (kind, key, used, checksum, value) VALUES (?, ?, ?, ?, ?)",
            [(kind, key, now, _checksum(kind, key, value), value) for key, value in values.items()],
        )

    def delete(self, kind: str, keys: list[str] | None) -> None:
        if keys is None:
            self._change("DELETE FROM piece WHERE kind = ?", [(kind,)], shrink=True)
        else:
            rows = [(kind, key) for key in keys]
            self._change("DELETE FROM piece WHERE kind = ? AND key = ?", rows)

    def sizes(self) -> dict[str, tuple[int, int]]:
        select = "SELECT kind, count(*), sum(length(value)) FROM piece GROUP BY kind"
        rows = self._rows(select)
        return {kind: (count, size) for kind, count, size in rows}

    def trim(self, most: int, spared: set[str]) -> tuple[int, int]:
        select = (
            "SELECT kind, key, ifnull(length(value), 0) FROM piece ORDER BY used DESC, rowid DESC"
        )
        rows = self._rows(select)
        room, gone = most, []
        for kind, key, size in rows:
            if kind not in spared:
                room -= size
                if room < 0:
                    gone.append((kind, key, size))
        if gone:
            delete = "DELETE FROM piece WHERE kind = ? AND key = ?"
            self._change(delete, [row[:2] for row in gone], shrink=True)
        return len(gone), sum(size for *_, size in gone)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _rows(self, select: str) -> list[tuple[Any, ...]]:
        nothing: list[tuple[Any, ...]] = []
        return self._try(lambda connection: connection.execute(select).fetchall(), nothing)

    def _change(
        self, sql: str, rows: list[tuple[Any, ...]], shrink: bool = False, quietly: bool = False
    ) -> None:
        """Execute a statement for each row in one transaction."""

        def change(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(sql, rows)
            connection.execute("COMMIT")
            if shrink:
                connection.executescript("PRAGMA incremental_vacuum")

        self._try(change, None, quietly)

    def _try(
        self, work: Callable[[sqlite3.Connection], Result], otherwise: Result, quietly: bool = False
    ) -> Result:
        """What `work` returns; `otherwise` where the file does not allow it."""
        with self._lock:
            for _ in range(2):  # again with a new file where this one is damaged
                try:
                    connection = self._opened()
                    try:
                        return work(connection)
                    finally:
                        if connection.in_transaction:
                            connection.rollback()
                except (sqlite3.Error, UnicodeError) as error:  # texts may be damaged, too
                    if _is_damage(error):
                        self._set_aside()
                        continue
                    if not quietly:
                        self._remark(f"{self._path} is not written or read: {error}")
                    break
        return otherwise

    def _opened(self) -> sqlite3.Connection:
        """The connection: a new one where the file is another one than before, or is gone."""
        if self._connection is not None and self._identity in (None, _identity(self._path)):
            return self._connection
        self.close()
        try:
            self._connect(self._made())
        except (OSError, sqlite3.Error, UnicodeError) as error:
            if not isinstance(error, OSError) and _is_damage(error):
                raise
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            self._remark(f"{self._path} cannot be opened, and nothing is stored: {reason}")
            self.close()
            self._connect(None)
        assert self._connection is not None
        return self._connection

    def _made(self) -> Path:
        """The path of the file, which is made where there is none. Raises OSError."""
        private_folder(self._path.parent)
        with suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        if not stat.S_ISREG(os.lstat(self._path).st_mode):
            raise OSError("not a regular file")
        return self._path

    def _connect(self, path: Path | None) -> None:
        connection = sqlite3.connect(
            path or ":memory:", timeout=_WAIT_S, isolation_level=None, check_same_thread=False
        )
        self._connection = connection
        self._identity = None if path is None else _identity(path)
        # What a failing power supply damages is noticed by sums, and made again.
        connection.execute("PRAGMA synchronous = OFF")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            self._set_aside()
            return self._connect(None if path is None else self._made())
        if version == 0:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("BEGIN IMMEDIATE")
            if not connection.execute("PRAGMA user_version").fetchone()[0]:  # else another made it
                connection.execute(_TABLE)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = TRUNCATE").fetchone()

    def _set_aside(self) -> None:
        """Rename a file that is damaged or another version's, unless another process has."""
        is_own = self._identity is not None and self._identity == _identity(self._path)
        self.close()
        if is_own:
            with suppress(OSError):
                os.replace(self._path, f"{self._path}{DAMAGED}")
                os.unlink(f"{self._path}-journal")
            self._remark(f"{self._path} was damaged: it is renamed, and what was in it made again")

    def _remark(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.remark = text


_stores: dict[Path, _Store] = {}
_of_parent: list[object] = []  # connections of the process that forked; to close them is not safe


def _store() -> _Store:
    """The store of the cache that is the user's now."""
    path = home("cache") / NAME
    return _stores.get(path) or _stores.setdefault(path, _Store(path))


def _after_fork() -> None:
    _of_parent.extend(_stores.values())
    _stores.clear()


os.register_at_fork(after_in_child=_after_fork)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return about.st_dev, about.st_ino


def _is_recent(used: object, now: int) -> bool:
    return isinstance(used, int) and now - used <= _USED_S


def _checksum(kind: str, key: str, value: bytes) -> bytes:
    digest = hashlib.blake2b(f"{kind}\0{key}\0".encode(), digest_size=8)
    digest.update(value)
    return digest.digest()


def _is_damage(error: sqlite3.Error | UnicodeError) -> bool:
    """Whether a file's content is at fault. Raises `error` where our own code is."""
    if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
        raise error
    return getattr(error, "sqlite_errorcode", 0) & 0xFF not in _UNAVAILABLE
