"""The store: one SQLite file of the cache for what is small or made of one document.

It holds pieces, each of a kind and with a key of all that it is made of, so that nothing in it is
ever out of date. Several processes may use it at once. What is stored can be made again: a write
that fails costs a remark, and a damaged file is set aside and begun anew.

What cannot be made again has such a file, too, in the folder of the state: nothing clears or bounds
that one.
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
DAMAGED = ".damaged"  # end of the name of a file that was set aside
ROW = 150  # bytes of a piece in the file beside its value, keys of 32 digits in mind; measured
Value = TypeVar("Value")
_WAIT_S = 10.0  # longest wait for another process that writes; guess
_USED_S = 86_400  # seconds after which another use of a piece is noted; guess
_DAMAGE = {
    sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH,
}  # fmt: skip
_MAKING = (
    "PRAGMA page_size = 16384",  # of 4 kB ones, values of 2.5 kB would waste a third (measured)
    "PRAGMA auto_vacuum = FULL",  # which writes to a file that has it, too
)
_OPENING = (
    "PRAGMA journal_mode = TRUNCATE",
    "CREATE TABLE IF NOT EXISTS piece (kind TEXT NOT NULL, key TEXT NOT NULL,"
    " used INTEGER NOT NULL, checksum BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (kind, key))",
)
_DELETE = "DELETE FROM piece WHERE kind = ? AND key = ?"
listeners: list[Callable[[int], object]] = []  # told of each write how many bytes it has


@dataclass(frozen=True, slots=True)
class Kind(Generic[Value]):
    """One kind of piece: its name, and the type of its values.

    Values are anything that msgspec decodes to `type`, and are read back strictly as that type.
    Methods raise nothing of the file's. `key` is a `key_of` all that a value is made of. Where the
    `variable` of the environment names a folder they are in a store there. With `is_state` they are
    in the store of the user's state, and not of the cache.
    """

    name: str
    type: type[Value]
    variable: str = ""
    is_state: bool = False

    def get(self, key: str) -> Value | None:
        """The piece; None where there is none, or where it is damaged or of another form."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, Value]:
        """The pieces that there are of these keys."""
        return self._decoded(self._store.read(self.name, keys))

    def each(self) -> dict[str, Value]:
        """All pieces by their keys."""
        return self._decoded(self._store.read(self.name, None))

    def put(self, key: str, value: Value) -> None:
        """Store a piece in the place of the last one. Ignores text with lone surrogates."""
        self.put_many({key: value})

    def put_many(self, values: Mapping[str, Value]) -> None:
        """Store pieces in one transaction: all of them or none."""
        now, rows = int(time.time()), list[tuple[str, str, int, bytes, bytes]]()
        with suppress(UnicodeEncodeError):
            for key, value in values.items():
                data = msgspec.msgpack.encode(value)
                rows.append((self.name, key, now, _checksum(self.name, key, data), data))
            self._store.execute("REPLACE INTO piece VALUES (?, ?, ?, ?, ?)", rows)
            for tell in listeners if rows and not self.is_state else []:
                tell(sum(len(row[-1]) for row in rows))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the pieces of these keys."""
        self._store.execute(_DELETE, [(self.name, key) for key in keys])

    @property
    def _store(self) -> "_Store":
        return _store(os.environ.get(self.variable), "state" if self.is_state else "cache")

    def _decoded(self, stored: dict[str, bytes]) -> dict[str, Value]:
        values, decoder = dict[str, Value](), msgspec.msgpack.Decoder(self.type)
        for key, data in stored.items():
            with suppress(msgspec.MsgspecError, ValueError, TypeError):  # of another form
                values[key] = decoder.decode(data)
        return values


class Piece(NamedTuple):
    """A piece without its value: when it was used last, in seconds since 1970, and its bytes."""

    kind: str
    key: str
    used: int
    bytes: int


def pieces(kind: str = "") -> list[Piece]:
    """All pieces, or those of a kind, with what they take in the file."""
    select = "SELECT kind, key, CAST(used AS INTEGER), ifnull(length(value), 0) + ? FROM piece"
    where, more = (" WHERE kind = ?", (kind,)) if kind else ("", ())
    return [Piece(*row) for row in _store().execute(select + where, [(ROW, *more)]) or ()]


def remove(chosen: Iterable[Piece]) -> bool:
    """Delete these pieces; False where that is not possible."""
    rows = [(piece.kind, piece.key) for piece in chosen]
    return not rows or _store().execute(_DELETE, rows) is not None


def take_remark() -> str:
    """What is wrong with a store, each thing once; "" for nothing new."""
    for store in list(_stores.values()):
        if store.remark:
            remark, store.remark = store.remark, ""
            return remark
    return ""


class _Store:
    """The file at `path`, opened when it is first used; methods may be called from any thread."""

    def __init__(self, path: Path, is_state: bool) -> None:
        self._path, self._is_state = path, is_state
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None  # of the file that is open
        self._told: set[str] = set()
        self.remark = ""

    def read(self, kind: str, keys: Iterable[str] | None) -> dict[str, bytes]:
        """Pieces, of None all; damaged ones are deleted, and a use of the others is noted."""
        now = int(time.time())
        select = "SELECT key, checksum, value, used < ? FROM piece WHERE kind = ?"
        if keys is not None:
            select += " AND key = ?"
        wanted = [()] if keys is None else zip(keys)
        rows = self.execute(select, [(now - _USED_S, kind, *one) for one in wanted]) or []
        whole = {
            key: value
            for key, checksum, value, _ in rows
            if type(value) is bytes and checksum == _checksum(kind, key, value)
        }
        self.execute(_DELETE, [(kind, key) for key, *_ in rows if key not in whole])
        old = [(now, kind, key) for key, *_, is_old in rows if is_old and key in whole]
        self.execute("UPDATE piece SET used = ? WHERE kind = ? AND key = ?", old)
        return whole

    def execute(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]] | None:
        """What a statement gives for all rows of parameters, in one transaction.

        None where the file does not allow it. REPLACE alone makes a file where there is none.
        """
        with self._lock:
            for _ in range(2 if rows else 0):  # again with a new file where this one is damaged
                try:
                    return self._execute(sql, rows)
                except sqlite3.ProgrammingError:  # our own
                    raise
                except OSError as error:
                    self._remark(f"cannot be opened, and nothing is stored: {reason_of(error)}")
                    break
                except (sqlite3.Error, UnicodeDecodeError) as error:  # texts may be damaged, too
                    self._close()
                    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
                    if code & 0xFF not in _DAMAGE and not _is_later(self._path):
                        hint = "end other runs of ngt, or make room"
                        self._remark(f"is not written or read: {error}; {hint}")
                        break
                    self._set_aside()
        return None

    def _execute(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if self._connection is None or self._identity != identity(self._path):  # is gone
            self._close()
            if not (sql.startswith("REPLACE") or os.path.lexists(self._path)):
                return []
            self._connection = self._opened()
        connection = self._connection
        with connection:  # the end of the transaction
            connection.execute("BEGIN" if sql.startswith("SELECT") else "BEGIN IMMEDIATE")
            return [result for row in rows for result in connection.execute(sql, row)]

    def _opened(self) -> sqlite3.Connection:
        """Open the file, which is made if it is missing. Raises OSError for one not to be used."""
        private_folder(self._path.parent)
        with suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        if self._path.is_symlink() or not self._path.is_file():
            raise OSError("not a regular file")
        for about in (self._path.stat(), self._path.parent.stat()):
            if about.st_uid not in (os.geteuid(), 0) or about.st_mode & 0o022:
                raise PermissionError("others may write to it, or it is theirs; delete it")
        self._identity = identity(self._path)
        connection = sqlite3.connect(
            self._path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
        )
        try:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            # What a power failure damages of the cache is noticed by its sums, and made again.
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._is_state else 'OFF'}")
            for command in _OPENING if pages else (*_MAKING, *_OPENING):
                connection.execute(command).close()
        except BaseException:  # also Ctrl-C: half opened it would look damaged
            connection.close()
            raise
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _set_aside(self) -> None:
        """Rename a file that is damaged or another version's, unless another process has."""
        if self._identity == identity(self._path):
            with suppress(OSError):
                os.replace(self._path, f"{self._path}{DAMAGED}")
                os.unlink(f"{self._path}-journal")
            became = "forgotten" if self._is_state else "made again"
            self._remark(f"was damaged: it is renamed, and what was in it is {became}")

    def _remark(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.remark = f"{self._path} {text}"


_stores: dict[Path, _Store] = {}
_of_parent: list[object] = []  # connections of the process that forked; to close them is not safe


def _store(folder: str | None = None, place: str = "cache") -> _Store:
    """The store of a folder, or of the user's cache or state as they are now."""
    path = (Path(folder) / "ngt" if folder else home(place)) / NAME
    return _stores.get(path) or _stores.setdefault(path, _Store(path, place == "state"))


def _after_fork() -> None:
    _of_parent.extend(_stores.values())
    _stores.clear()


os.register_at_fork(after_in_child=_after_fork)


def _is_later(path: Path) -> bool:
    """Whether a file says that it is of a later form, which SQLite reads and never writes."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(19)[18:] > b"\2"
    return False


def _checksum(kind: str, key: str, value: bytes) -> bytes:
    digest = hashlib.blake2b(f"{kind}\0{key}\0".encode(), digest_size=8)
    digest.update(value)
    return digest.digest()
