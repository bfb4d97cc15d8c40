"""The contents of the cache, and its size limit: least recently used entries are evicted first.

An entry is a piece in the SQLite store (store.py) or a file. STORES lists the kinds of entries and
the limit of each.
"""

import errno
import os
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from ngtcli.system import store
from ngtcli.system.files import PARTIAL, Stamp, home, key_of
from ngtcli.system.json_form import HIDDEN, json_key
from ngtcli.words import counted

# Age in seconds from which an unfinished file is taken to be left by a killed run (guess).
ABANDONED_S = 3600.0
POOL = ".pool.safetensors"
DATASTORE = ".datastore.safetensors"
BACKGROUND = ".background.safetensors"
# The state in which each file last matched its checksum, by the hash of its path.
CHECKED = store.Kind("checked", Stamp)
# Names of limits: the one that most stores share, and that of stores without any.
SHARED = ""
UNLIMITED = "none"


@dataclass(frozen=True, slots=True)
class Store:
    """One kind of content of the cache.

    Attributes:
        name: Its name in `ngt cache`.
        holds: Its contents, in words.
        made_by: The command or step that creates it, in words.
        parts: Its kinds of pieces and its file patterns (those have a "/"), separated by spaces.
        limit: The size limit that it shares with the other stores of the same name. Outside of
            SHARED, the most recently used file may exceed the limit; UNLIMITED evicts nothing.
        cleared_by_name: `ngt cache clear` leaves it unless it is named, because ngt does not
            recreate it by itself: it was learned, or a command made it.
    """

    name: str
    holds: str
    made_by: str
    parts: str = field(metadata=HIDDEN)
    limit: str = field(default=SHARED, metadata=HIDDEN)
    cleared_by_name: bool = False

    @property
    def path(self) -> Path:
        """Return the folder of its files, or the SQLite file of its pieces."""
        last_part = self.parts.split()[-1]
        folder, slash, _ = last_part.partition("/")
        return home("cache") / (folder if slash else store.NAME)


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """The number of pieces and files in one store, and their size in bytes."""

    store: Store = field(metadata=json_key(flat=True))
    pieces: int
    files: int
    bytes: int
    path: Path


STORES = (
    Store("documents", "texts of documents", "reading them", "files texts tokens"),
    Store("passages", "passages and their vectors", "choosing passages", "passages vectors ivf-pq"),
    Store("parts", "answers to parts of long texts", "splitting them", "parts"),
    Store("tries", "n-gram tries of documents", "the method trie", "tries/*.trie.safetensors"),
    Store(
        "datastores",
        "corpora for the method rest",
        "ngt trie build --rest",
        f"tries/*{DATASTORE}",
        UNLIMITED,
        True,
    ),
    Store(
        "backgrounds",
        "n-gram counts of general text",
        "the first use of auto",
        f"tries/*{BACKGROUND}",
        UNLIMITED,
    ),
    Store("pools", "phrases of earlier answers", "auto", f"tries/*{POOL}", UNLIMITED, True),
    Store("compiled", "compiled functions", "the first use of auto", "compiled"),
    Store(
        "trials",
        "results of trials of models, and times of forward passes",
        "loading a model; auto",
        "trials",
        UNLIMITED,
    ),
    Store(
        "quantized", "quantized weights of models", "--quantize int8", "quantized/*", "quantized"
    ),
    Store("prefixes", "KV entries of prompts", "answering", "prefixes/*", "prefixes"),
    Store(
        "stand-ins", "what GGUF files and adapters load with", "the first use of one", "stand-ins/*"
    ),
    Store("checked", "files whose checksums were verified", "using them", "checked"),
    Store("tune", "measurements of ngt tune", "ngt tune", "tune/*", UNLIMITED, True),
)
_STORE_OF_PART = {part: stored for stored in STORES for part in stored.parts.split()}
# Files that are never evicted: the SQLite store, and locks (compiled.py names the last one, too).
_NOT_EVICTED = (store.NAME, f"{store.NAME}-journal", "pools.lock", "compiling.lock")
_FREED_DIVISOR = 10  # eviction frees a tenth of the limit, so that it is rare (guess)
_CHECK_DIVISOR = 20  # a twentieth of the limit may be written between two checks (guess)


def store_of(path: Path, cache: Path) -> Store | None:
    """Return the store that a file in the folder `cache` belongs to.

    The result is None if an earlier version of ngt wrote the file.
    """
    name = os.path.relpath(path, cache)
    for part, stored in _STORE_OF_PART.items():
        if fnmatchcase(name, part):
            return stored
    return None


@dataclass(frozen=True, slots=True)
class Removed:
    """The number of files and pieces that were removed, and their size; `limit` is in bytes."""

    files: int = 0
    bytes: int = 0
    pieces: int = 0
    limit: int = field(default=0, metadata=HIDDEN)

    @property
    def words(self) -> str:
        """Return the counts and the size, in words."""
        counts = f"{counted(self.pieces, 'piece')} and {counted(self.files, 'file')}"
        return f"{counts}, {self.bytes / 1e6:.1f} MB"


class _Entry(NamedTuple):
    """A file or a piece, with its last use in nanoseconds since 1970 and its size in bytes."""

    content: Path | store.Piece
    store: Store | None
    used_ns: int
    size: int

    @property
    def limit(self) -> str:
        return self.store.limit if self.store else SHARED


def _list_pieces() -> list[_Entry]:
    return [
        _Entry(piece, _STORE_OF_PART.get(piece.kind), piece.used * 10**9, piece.bytes)
        for piece in store.pieces()
    ]


def _list_files(errors: list[OSError]) -> list[_Entry]:
    """List the files that may be removed; errors of folders are appended to `errors`.

    A file counts as used when it was written or last compared with its checksum. Unfinished files
    are listed once they are old enough to be left by a killed run.
    """
    entries = []
    checked = {piece.key: piece.used for piece in store.pieces(CHECKED.name)}
    cache = home("cache")
    for folder, _, names in os.walk(cache, onerror=errors.append):
        for name in names:
            if name in _NOT_EVICTED:
                continue
            path = Path(folder, name)
            with suppress(OSError):  # another process has removed it
                status = path.lstat()
                if path.suffix == PARTIAL and time.time() - status.st_mtime <= ABANDONED_S:
                    continue
                used_ns = max(status.st_mtime_ns, checked.get(key_of(path), 0) * 10**9)
                entries.append(_Entry(path, store_of(path, cache), used_ns, status.st_size))
    return entries


def _remove(entries: Iterable[_Entry], errors: list[OSError]) -> list[_Entry]:
    """Remove files and pieces; return those that are gone and append the errors of the others."""
    removed = []
    for entry in entries:
        try:
            if isinstance(entry.content, Path):
                entry.content.unlink()
            removed.append(entry)
        except OSError as error:
            errors.append(error)
    pieces = [entry.content for entry in removed if isinstance(entry.content, store.Piece)]
    if not store.remove(pieces):
        removed = [entry for entry in removed if isinstance(entry.content, Path)]
        path = str(home("cache") / store.NAME)
        errors.append(OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), path))
    return removed


def evict(max_bytes: int) -> list[_Entry]:
    """Remove least recently used entries of every limit that is exceeded.

    Entries that are larger than the limit go first: evicting others would not make room for them.
    Removing continues until a tenth of the limit is free, so that evicting, which lists the whole
    cache, is rare.

    Args:
        max_bytes: Bytes that the stores of one limit may have together.

    Returns:
        The removed entries.
    """
    entries = _list_files([])
    store_size = 0  # the file's size: an upper bound of its pieces, without listing them
    with suppress(OSError):
        store_size = (home("cache") / store.NAME).stat().st_size
    shared = [entry for entry in entries if entry.limit == SHARED]
    if _total_bytes(shared) + store_size > max_bytes:
        entries += _list_pieces()

    evicted: list[_Entry] = []
    for limit in {stored.limit for stored in STORES} - {UNLIMITED}:
        evicted += _least_recently_used(
            [entry for entry in entries if entry.limit == limit],
            max_bytes,
            keeps_newest=limit != SHARED,
        )
    return _remove(evicted, [])


def _least_recently_used(entries: list[_Entry], max_bytes: int, keeps_newest: bool) -> list[_Entry]:
    """Choose what to evict of the entries that share one limit; nothing if they are within it."""
    remaining = _total_bytes(entries)
    if remaining <= max_bytes:
        return []
    candidates = sorted(entries, key=lambda entry: entry.used_ns)
    if keeps_newest:
        candidates.pop()
    candidates.sort(key=lambda entry: entry.size <= max_bytes)  # stable: too large ones first
    chosen = []
    for entry in candidates:
        if remaining <= max_bytes - max_bytes // _FREED_DIVISOR:
            break
        chosen.append(entry)
        remaining -= entry.size
    return chosen


def _total_bytes(entries: Iterable[_Entry]) -> int:
    return sum(entry.size for entry in entries)


def _summarize(entries: Sequence[_Entry], limit: int = 0) -> Removed:
    files = sum(isinstance(entry.content, Path) for entry in entries)
    return Removed(
        files=files, bytes=_total_bytes(entries), pieces=len(entries) - files, limit=limit
    )


class CacheLimit:
    """A guard that keeps the cache within its size limit while a command writes to it.

    Nothing is evicted until `hold_to` has set the limit.
    """

    def __init__(self) -> None:
        self.max_bytes = 0
        self._written = 0  # bytes since the last check
        self._evicted: list[_Entry] = []

    def hold_to(self, max_bytes: int) -> None:
        """Set the limit; if one command sets several, the largest applies."""
        self.max_bytes = max(self.max_bytes, max_bytes)

    def wrote(self, size: int) -> None:
        """Count `size` bytes written to the cache, and evict now and then."""
        self._written += max(1, size)
        self._evict_after(self.max_bytes // _CHECK_DIVISOR)

    def finish(self) -> Removed:
        """Evict at the end of a command, if it wrote anything.

        Returns what was evicted since the last call.
        """
        self._evict_after(0)
        removed = _summarize(self._evicted, self.max_bytes)
        self._evicted = []
        self.max_bytes = 0
        return removed

    def _evict_after(self, written: int) -> None:
        """Evict if more than `written` bytes were written since the last check."""
        if self.max_bytes and self._written > written:
            self._written = 0
            self._evicted += evict(self.max_bytes)


cache_limit = CacheLimit()
store.listeners.append(cache_limit.wrote)


def measure_stores(stores: Iterable[Store]) -> list[StoreUsage]:
    """Count what each of `stores` contains now."""
    entries = _list_pieces() + _list_files([])
    usages = []
    for stored in stores:
        total = _summarize([entry for entry in entries if entry.store is stored])
        usages.append(StoreUsage(stored, total.pieces, total.files, total.bytes, stored.path))
    return usages


def clear(stores: Collection[Store]) -> Removed:
    """Delete the contents of `stores`, except what another process is writing.

    An entry that cannot be deleted does not keep the others: its OSError is raised at the end.
    """
    errors = list[OSError]()
    entries = _list_pieces() + _list_files(errors)
    removed = _remove([entry for entry in entries if entry.store in stores], errors)
    for error in errors:
        if not isinstance(error, FileNotFoundError):  # another run may be clearing as well
            raise error
    return _summarize(removed)
