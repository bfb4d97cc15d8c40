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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from ngtcli.errors import UsageError, reason_of
from ngtcli.system.files import home, identity, private_folder

NAME = "ngt.db"
DAMAGED = ".damaged"  # end of the name of a file that was set aside
ROW = 150  # bytes of a piece in the file beside its value, keys of 32 digits in mind; measured
Value = TypeVar("Value")
Result = TypeVar("Result")
_AT_ONCE = 500  # keys in a query; SQLite has room for 999 parameters
_WAIT_S = 10.0  # longest wait for another process that writes; guess
_USED_S = 86_400  # seconds after which another use of a piece is noted; guess
_DAMAGE = {
    sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH,
}  # fmt: skip
_OPENING = (
    "PRAGMA synchronous = OFF",  # what a failing power supply damages is noticed by sums
    "PRAGMA page_size = 16384",  # of 4 kB ones, values of 2.5 kB would waste a third (measured)
    "PRAGMA auto_vacuum = INCREMENTAL",
    "PRAGMA journal_mode = TRUNCATE",
    "CREATE TABLE IF NOT EXISTS piece (kind TEXT NOT NULL, key TEXT NOT NULL,"
    " used INTEGER NOT NULL, checksum BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (kind, key))",
)
listeners: list[Callable[[int], object]] = []  # told of each write how many bytes it has


@dataclass(frozen=True, slots=True)
class Kind(Generic[Value]):
    """One kind of piece: its name, and the type of its values.

    Values are anything that msgspec decodes to `type`, and are read back strictly as that type.
    Methods raise nothing of the file's. `key` is a `key_of` all that a value is made of.
    """

    name: str
    type: type[Value]

    def get(self, key: str) -> Value | None:
        """The piece; None where there is none, or where it is damaged or of another form."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, Value]:
        """The pieces that there are of these keys."""
        return self._decoded(_store().read(self.name, list(keys)))

    def each(self) -> dict[str, Value]:
        """All pieces by their keys."""
        return self._decoded(_store().read(self.name, None))

    def put(self, key: str, value: Value) -> None:
        """Store a piece in the place of the last one. Ignores text with lone surrogates."""
        self.put_many({key: value})

    def put_many(self, values: Mapping[str, Value]) -> None:
        """Store pieces in one transaction: all of them or none."""
        with suppress(UnicodeEncodeError):
            if pieces := {key: msgspec.msgpack.encode(value) for key, value in values.items()}:
                _store().write(self.name, pieces)
                for tell in listeners:
                    tell(sum(map(len, pieces.values())))

    def delete(self, keys: Iterable[str] | None = None) -> None:
        """Delete the pieces of these keys; of None, all of the kind."""
        if keys is None:
            _store().change("DELETE FROM piece WHERE kind = ?", [(self.name,)])
        else:
            _store().delete(self.name, keys)

    def _decoded(self, stored: dict[str, bytes]) -> dict[str, Value]:
        values, decoder = dict[str, Value](), msgspec.msgpack.Decoder(self.type)
        for key, data in stored.items():
            with suppress(msgspec.MsgspecError, ValueError, TypeError):  # of another form
                values[key] = decoder.decode(data)
        return values


class Used(NamedTuple):
    """Pieces of a kind that were used last in the same second since 1970, or a part of them.

    `end` is that of their keys, `bytes` what they take in the file.
    """

    kind: str
    used: int
    end: str
    pieces: int
    bytes: int


def by_use() -> list[Used]:
    """All pieces by their kind and last use."""
    rows = _store().rows(
        "SELECT kind, used, substr(key, -2) AS end, count(*),"
        f" sum(ifnull(length(value), 0) + {ROW}) FROM piece GROUP BY kind, used, end"
    )
    return [Used(*row) for row in rows]


def remove(pieces: Sequence[Used]) -> None:
    """Delete these pieces but those that were used since."""
    delete = "DELETE FROM piece WHERE kind = ? AND used = ? AND substr(key, -2) = ?"
    _store().change(delete, [group[:3] for group in pieces])


def take_remark() -> str:
    """What is wrong with the store, each thing once; "" for nothing new."""
    with suppress(UsageError):  # another user's, which was not used
        if (store := _stores.get(home("cache") / NAME)) is not None:
            remark, store.remark = store.remark, ""
            return remark
    return ""


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
        """Pieces, of None all; damaged ones are deleted, and a use of the others is noted."""
        select = "SELECT key, used, checksum, value FROM piece WHERE kind = ?"
        rows = self.rows(select, kind) if keys is None else []
        for begin in range(0, len(keys or ()), _AT_ONCE):
            some = (keys or [])[begin : begin + _AT_ONCE]
            rows += self.rows(f"{select} AND key IN ({', '.join('?' * len(some))})", kind, *some)
        whole, old, now = {}, [], int(time.time())
        for key, used, checksum, value in rows:
            if type(value) is bytes and checksum == _checksum(kind, key, value):
                whole[key] = value
                if not (isinstance(used, int) and now - used <= _USED_S):
                    old.append((now, kind, key))
        if len(whole) < len(rows):
            self.delete(kind, [key for key, *_ in rows if key not in whole])
        if old:
            self.change("UPDATE piece SET used = ? WHERE kind = ? AND key = ?", old)
        return whole

    def write(self, kind: str, values: Mapping[str, bytes]) -> None:
        now = int(time.time())
        self.change(
            "REPLACE INTO piece (kind, key, used, checksum, value) VALUES (?, ?, ?, ?, ?)",
            [(kind, key, now, _checksum(kind, key, value), value) for key, value in values.items()],
        )

    def delete(self, kind: str, keys: Iterable[str]) -> None:
        rows = [(kind, key) for key in keys]
        self.change("DELETE FROM piece WHERE kind = ? AND key = ?", rows)

    def rows(self, select: str, *parameters: str) -> list[tuple[Any, ...]]:
        """What a query gives; nothing, and no new file, where there is none."""
        if not self._is_there():
            return []
        return self._try(lambda opened: opened.execute(select, parameters).fetchall(), [])

    def change(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Execute a statement for each row in one transaction, if it has something to change."""

        def change(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(sql, rows)
            connection.execute("COMMIT")
            if sql.startswith("DELETE"):
                connection.executescript("PRAGMA incremental_vacuum")

        if rows and (sql.startswith("REPLACE") or self._is_there()):
            self._try(change, None)

    def _is_there(self) -> bool:
        is_in_memory = self._connection is not None and self._identity is None
        return is_in_memory or os.path.lexists(self._path)

    def _try(self, work: Callable[[sqlite3.Connection], Result], otherwise: Result) -> Result:
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
                except sqlite3.ProgrammingError:  # our own
                    raise
                except (sqlite3.Error, UnicodeError) as error:  # texts may be damaged, too
                    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
                    if code & 0xFF not in _DAMAGE:
                        self._remark(f"{self._path} is not written or read: {error}")
                        break
                    self._set_aside()
        return otherwise

    def _opened(self) -> sqlite3.Connection:
        """The connection: a new one where the file is another one than before, or is gone."""
        if self._connection is not None:
            if self._identity in (None, identity(self._path)):
                return self._connection
            self._close()
        try:
            private_folder(self._path.parent)
            with suppress(FileExistsError):
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            if not stat.S_ISREG(os.lstat(self._path).st_mode):
                raise OSError("not a regular file")
            self._identity, name = identity(self._path), str(self._path)
        except OSError as error:
            what = f"{self._path} cannot be opened, and nothing is stored"
            self._remark(f"{what}: {reason_of(error)}")
            self._identity, name = None, ":memory:"
        connection = sqlite3.connect(
            name, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
        )
        try:
            for command in _OPENING:
                connection.execute(command).close()
        except sqlite3.Error:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _set_aside(self) -> None:
        """Rename a file that is damaged or another version's, unless another process has."""
        self._close()
        if self._identity is not None and self._identity == identity(self._path):
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


def _checksum(kind: str, key: str, value: bytes) -> bytes:
    digest = hashlib.blake2b(f"{kind}\0{key}\0".encode(), digest_size=8)
    digest.update(value)
    return digest.digest()
