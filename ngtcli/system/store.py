"""The store: one SQLite file in the cache for small data and data made from one document.

The store holds pieces. Each has a kind, and a key that hashes everything it was made from, so that
no piece is ever out of date. Several processes may use the store at once. Everything in it can be
made again: a write that fails costs only a warning, and a damaged file is renamed and replaced by
a new one.

Data that cannot be made again is in a file of the same format in the state folder, which is never
cleared and has no size limit.
"""

import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from ngtcli.system.files import home, identity, private_folder
from ngtcli.words import reason_of

NAME = "ngt.db"
DAMAGED = ".damaged"  # suffix of a file that was renamed because it was damaged
ROW = 150  # bytes that a piece takes in the file beside its value, for 32-digit keys (measured)
Value = TypeVar("Value")
_WAIT_S = 10.0  # longest wait in seconds for another process that writes (guess)
_USE_INTERVAL_S = 86_400  # seconds until another use of a piece is recorded (guess)
_DAMAGE_CODES = {  # SQLite's errors that mean a damaged or foreign file
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
}
_CREATING = (
    "PRAGMA page_size = 16384",  # pages of 4 kB would waste a third on values of 2.5 kB (measured)
    "PRAGMA auto_vacuum = FULL",  # only for new files: it writes even to one that has it already
)
_OPENING = (
    "PRAGMA journal_mode = TRUNCATE",
    "CREATE TABLE IF NOT EXISTS piece (kind TEXT NOT NULL, key TEXT NOT NULL,"
    " used INTEGER NOT NULL, checksum BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (kind, key))",
)
_DELETE = "DELETE FROM piece WHERE kind = ? AND key = ?"
# Called after each write to the cache with its size in bytes.
listeners: list[Callable[[int], object]] = []


@dataclass(frozen=True, slots=True)
class Kind(Generic[Value]):
    """One kind of piece. Its methods never raise errors of the SQLite file.

    Every `key` is the `key_of` everything that the value was made from.

    Attributes:
        name: The name of the kind, which is part of the stored key.
        type: The type that values are strictly decoded to: anything msgspec can decode.
        variable: An environment variable that may name a folder with a store for this kind.
        is_state: Whether pieces are the user's state and do not belong to the cache.
    """

    name: str
    type: type[Value]
    variable: str = ""
    is_state: bool = False

    def get(self, key: str) -> Value | None:
        """Return the value of a piece; None if it is missing, damaged or of another type."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, Value]:
        """Return the values of the keys that have a piece."""
        return self._decode(self._store.read(self.name, keys))

    def each(self) -> dict[str, Value]:
        """Return all values by their keys."""
        return self._decode(self._store.read(self.name, None))

    def put(self, key: str, value: Value) -> None:
        """Store a piece, replacing an earlier one. Text with lone surrogates is ignored."""
        self.put_many({key: value})

    def put_many(self, values: Mapping[str, Value]) -> None:
        """Store pieces in one transaction: all of them or none."""
        now = int(time.time())
        rows = list[tuple[str, str, int, bytes, bytes]]()
        with suppress(UnicodeEncodeError):
            for key, value in values.items():
                data = msgspec.msgpack.encode(value)
                rows.append((self.name, key, now, _checksum(self.name, key, data), data))
            self._store.execute("REPLACE INTO piece VALUES (?, ?, ?, ?, ?)", rows)
            if rows and not self.is_state:
                size = sum(len(row[-1]) for row in rows)
                for report_write in listeners:
                    report_write(size)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the pieces of these keys."""
        self._store.execute(_DELETE, [(self.name, key) for key in keys])

    @property
    def _store(self) -> "_Store":
        return _store(os.environ.get(self.variable), "state" if self.is_state else "cache")

    def _decode(self, stored: dict[str, bytes]) -> dict[str, Value]:
        decoder = msgspec.msgpack.Decoder(self.type)
        values = dict[str, Value]()
        for key, data in stored.items():
            with suppress(msgspec.MsgspecError, ValueError, TypeError):  # of another type
                values[key] = decoder.decode(data)
        return values


class Piece(NamedTuple):
    """A piece without its value: its last use in seconds since 1970, and its size in bytes."""

    kind: str
    key: str
    used: int
    bytes: int


def pieces(kind: str = "") -> list[Piece]:
    """List all pieces, or those of one kind, with the bytes that each takes in the file."""
    sql = "SELECT kind, key, CAST(used AS INTEGER), ifnull(length(value), 0) + ? FROM piece"
    parameters: tuple[Any, ...] = (ROW,)
    if kind:
        sql += " WHERE kind = ?"
        parameters += (kind,)
    rows = _store().execute(sql, [parameters]) or []
    return [Piece(*row) for row in rows]


def remove(unwanted: Iterable[Piece]) -> bool:
    """Delete pieces; return False if that is not possible now."""
    rows = [(piece.kind, piece.key) for piece in unwanted]
    return not rows or _store().execute(_DELETE, rows) is not None


def take_remark() -> str:
    """Return a problem of a store that has not been returned yet, or ""."""
    for store in list(_stores.values()):
        if store.remark:
            remark, store.remark = store.remark, ""
            return remark
    return ""


class _Store:
    """The SQLite file at `path`, opened at its first use. Any thread may call the methods."""

    def __init__(self, path: Path, is_state: bool) -> None:
        self._path = path
        self._is_state = is_state
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None  # of the open file
        self._reported: set[str] = set()
        self.remark = ""

    def read(self, kind: str, keys: Iterable[str] | None) -> dict[str, bytes]:
        """Read the encoded values of some keys of a kind, or of all if `keys` is None.

        The use of each piece is recorded at most once per day. Damaged pieces are deleted.
        """
        now = int(time.time())
        sql = "SELECT key, checksum, value, used < ? FROM piece WHERE kind = ?"
        parameters: list[tuple[Any, ...]] = [(now - _USE_INTERVAL_S, kind)]
        if keys is not None:
            sql += " AND key = ?"
            parameters = [(now - _USE_INTERVAL_S, kind, key) for key in keys]

        values = dict[str, bytes]()
        damaged = []
        unrecorded = []  # pieces whose last recorded use is long ago
        for key, checksum, value, was_used_long_ago in self.execute(sql, parameters) or []:
            if type(value) is not bytes or checksum != _checksum(kind, key, value):
                damaged.append((kind, key))
                continue
            values[key] = value
            if was_used_long_ago:
                unrecorded.append((now, kind, key))
        self.execute(_DELETE, damaged)
        self.execute("UPDATE piece SET used = ? WHERE kind = ? AND key = ?", unrecorded)
        return values

    def execute(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]] | None:
        """Execute a statement once for each row of parameters, in one transaction.

        Only REPLACE creates a missing file. A damaged file is renamed, and the statement is tried
        once more with a new file.

        Returns:
            The rows of all results; None if the file cannot be used, or without `rows`.
        """
        if not rows:
            return None
        with self._lock:
            for _ in range(2):
                try:
                    return self._execute(sql, rows)
                except sqlite3.ProgrammingError:  # a defect of ngt
                    raise
                except OSError as error:
                    self._report(f"cannot be opened, so that nothing is stored: {reason_of(error)}")
                    break
                # Texts of the file, such as names of its tables, may be damaged as well.
                except (sqlite3.Error, UnicodeDecodeError) as error:
                    self._close()
                    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
                    if code & 0xFF not in _DAMAGE_CODES and not _is_newer_format(self._path):
                        hint = "end other runs of ngt, or make room"
                        self._report(f"is not written or read: {error}; {hint}")
                        break
                    self._set_aside()
        return None

    def _execute(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if self._connection is None or self._identity != identity(
            self._path
        ):  # replaced or deleted
            self._close()
            if not (sql.startswith("REPLACE") or os.path.lexists(self._path)):
                return []
            self._connection = self._open()
        connection = self._connection
        results = list[tuple[Any, ...]]()
        with connection:  # commits at the end
            connection.execute("BEGIN" if sql.startswith("SELECT") else "BEGIN IMMEDIATE")
            for row in rows:
                results += connection.execute(sql, row)
        return results

    def _open(self) -> sqlite3.Connection:
        """Open the file, creating it if it is missing.

        Raises OSError for a file that is not regular, or that other users own or may write to.
        """
        private_folder(self._path.parent)
        with suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        if self._path.is_symlink() or not self._path.is_file():
            raise OSError("not a regular file")
        for status in (self._path.stat(), self._path.parent.stat()):
            if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
                raise PermissionError("another user owns it or may write to it; delete it")
        self._identity = identity(self._path)
        connection = sqlite3.connect(
            self._path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
        )
        try:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            # Checksums reveal what a power failure damaged in the cache, and it is made again.
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._is_state else 'OFF'}")
            is_new = pages == 0
            for command in (*_CREATING, *_OPENING) if is_new else _OPENING:
                connection.execute(command).close()
        except BaseException:  # Ctrl-C as well: a half opened file would look damaged
            connection.close()
            raise
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _set_aside(self) -> None:
        """Rename a file that is damaged or of a newer format, unless another process has."""
        if self._identity == identity(self._path):
            with suppress(OSError):
                os.replace(self._path, f"{self._path}{DAMAGED}")
                os.unlink(f"{self._path}-journal")
            consequence = "forgotten" if self._is_state else "made again"
            self._report(f"was damaged: it is renamed, and what was in it is {consequence}")

    def _report(self, problem: str) -> None:
        if problem not in self._reported:
            self._reported.add(problem)
            self.remark = f"{self._path} {problem}"


_stores: dict[Path, _Store] = {}
# Connections of the parent process, kept in a fork, where closing them is not safe.
_parents_stores: list[object] = []


def _store(folder: str | None = None, home_kind: str = "cache") -> _Store:
    """Return the store in a folder, or the one in the user's "cache" or "state" folder.

    The folder is looked up each time, because NGT_HOME may change.
    """
    path = (Path(folder) / "ngt" if folder else home(home_kind)) / NAME
    return _stores.get(path) or _stores.setdefault(path, _Store(path, home_kind == "state"))


def _after_fork() -> None:
    _parents_stores.extend(_stores.values())
    _stores.clear()


os.register_at_fork(after_in_child=_after_fork)


def _is_newer_format(path: Path) -> bool:
    """Return whether a file has a newer SQLite format, which this SQLite reads but cannot write."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(19)[18:] > b"\2"
    return False


def _checksum(kind: str, key: str, value: bytes) -> bytes:
    digest = hashlib.blake2b(f"{kind}\0{key}\0".encode(), digest_size=8)
    digest.update(value)
    return digest.digest()
