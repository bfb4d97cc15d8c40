"""What the cache holds, and the bound on it: what was used longest ago is removed first.

It holds pieces in the store and files. What can be made again by itself counts for the bound (see
STORES).
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

LEFT_S = 3600.0  # seconds after which a file that is not finished is a killed run's; guess
POOL = ".pool.safetensors"
DATASTORE = ".datastore.safetensors"
BACKGROUND = ".background.safetensors"
CHECKED = store.Kind("checked", Stamp)  # when it was right: of files, by hashes of their paths
ALL = ""  # the bound that all of the cache has together
NONE = "none"


@dataclass(frozen=True, slots=True)
class Store:
    """One kind of thing that the cache holds: what it is, and what makes it.

    It is pieces of the kinds, and files that match the patterns, which `parts` names. Those of one
    `bound` may have so much together; of another than ALL the file used last may exceed it, and of
    NONE nothing is removed. What is `cleared_by_name` alone was learned or was made by a command
    for it, so that ngt does not make it again by itself.
    """

    name: str
    holds: str
    made_by: str
    parts: str = field(metadata=HIDDEN)
    bound: str = field(default=ALL, metadata=HIDDEN)
    cleared_by_name: bool = False

    @property
    def path(self) -> Path:
        """The folder of its files, or the file of its pieces."""
        folder, slash, _ = self.parts.rpartition(" ")[2].partition("/")
        return home("cache") / (folder if slash else store.NAME)


@dataclass(frozen=True, slots=True)
class Held:
    """What one `Store` holds now: pieces and files, and their bytes."""

    store: Store = field(metadata=json_key(flat=True))
    pieces: int
    files: int
    bytes: int
    path: Path


STORES = (
    Store("documents", "texts of documents", "reading them", "files texts tokens"),
    Store(
        "passages", "passages and their vectors", "choosing passages", "passages vectors ivf-pq"
    ),
    Store("parts", "answers to parts of long texts", "splitting them", "parts"),
    Store("tries", "n-gram tries of documents", "the method trie", "tries/*.trie.safetensors"),
    Store(
        "datastores", "corpora for the method rest", "ngt trie build --rest", f"tries/*{DATASTORE}",
        NONE, True,
    ),
    Store(
        "backgrounds", "n-gram counts of general text", "the first use of auto",
        f"tries/*{BACKGROUND}", NONE,
    ),
    Store("pools", "phrases of earlier answers", "auto", f"tries/*{POOL}", NONE, True),
    Store("compiled", "compiled functions", "the first use of auto", "compiled"),
    Store(
        "trials", "what was tried of models, and times of passes", "loading a model; auto",
        "trials", NONE,
    ),
    Store(
        "quantized", "models' quantised weights", "--quantize int8", "quantized/*", "quantized"
    ),
    Store("prefixes", "what models read of prompts", "answering", "prefixes/*", "prefixes"),
    Store(
        "stand-ins", "what GGUF files and adapters load with", "the first use of one", "stand-ins/*"
    ),
    Store("checked", "which files were compared with their checksums", "using them", "checked"),
    Store("tune", "measurements of ngt tune", "ngt tune", "tune/*", NONE, True),
)  # fmt: skip
_BY_PART = {part: named for named in STORES for part in named.parts.split()}
# Which writers lock; the last of them stands in compiled.py, too.
_LEFT_OUT = (store.NAME, f"{store.NAME}-journal", "pools.lock", "compiling.lock")
_FREED = 10  # this part of the bound is free afterwards; guess
_SHARE = 20  # this part of the bound may be written before the cache is looked at again; guess


def store_of(path: Path, cache: Path) -> Store | None:
    """What a file of that cache belongs to; None: it is an earlier version's."""
    name = os.path.relpath(path, cache)
    return next((_BY_PART[part] for part in _BY_PART if fnmatchcase(name, part)), None)


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed: files, bytes and pieces; `most` was the bound, in bytes."""

    files: int = 0
    bytes: int = 0
    pieces: int = 0
    most: int = field(default=0, metadata=HIDDEN)

    @property
    def words(self) -> str:
        """What was removed, in words."""
        what = f"{counted(self.pieces, 'piece')} and {counted(self.files, 'file')}"
        return f"{what}, {self.bytes / 1e6:.1f} MB"


class _Entry(NamedTuple):
    """A file or a piece, and when it was used last, in nanoseconds since 1970."""

    of: Path | store.Piece
    store: Store | None
    used_ns: int
    size: int

    @property
    def bound(self) -> str:
        return self.store.bound if self.store else ALL


def _pieces() -> list[_Entry]:
    return [_Entry(p, _BY_PART.get(p.kind), p.used * 10**9, p.bytes) for p in store.pieces()]


def _files(errors: list[OSError]) -> list[_Entry]:
    """All files but those of the store, a lock, and those that are being written.

    A killed run's file that is not finished is one of them an hour after. A file was used when it
    was written, or last compared with its piece.
    """
    found, uses = [], {piece.key: piece.used for piece in store.pieces(CHECKED.name)}
    for place, _, names in os.walk(cache := home("cache"), onerror=errors.append):
        for path in (Path(place, name) for name in names if name not in _LEFT_OUT):
            with suppress(OSError):  # another process has removed it
                about = path.lstat()
                if path.suffix != PARTIAL or time.time() - about.st_mtime > LEFT_S:
                    used = max(about.st_mtime_ns, uses.get(key_of(path), 0) * 10**9)
                    found.append(_Entry(path, store_of(path, cache), used, about.st_size))
    return found


def _remove(entries: Iterable[_Entry], errors: list[OSError]) -> list[_Entry]:
    """Remove files and pieces; what is gone."""
    gone = []
    for entry in entries:
        try:
            if isinstance(entry.of, Path):
                entry.of.unlink()
            gone.append(entry)
        except OSError as error:
            errors.append(error)
    if not store.remove(entry.of for entry in gone if isinstance(entry.of, store.Piece)):
        gone = [entry for entry in gone if isinstance(entry.of, Path)]
        path = str(home("cache") / store.NAME)
        errors.append(OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), path))
    return gone


def bound(most: int) -> list[_Entry]:
    """Remove what is the longest unused of all that has one bound, if it has more than `most`.

    That are bytes. Nine tenths are left, so that this is rare: to look at all pieces takes long.
    What has more than `most` goes before all others, which would not make room for it; but the file
    used last stays where it is not the bound of ALL. Returns what was removed.
    """
    entries, stored, chosen = _files([]), 0, []  # at least the bytes of all pieces
    with suppress(OSError):
        stored = (home("cache") / store.NAME).stat().st_size
    if _bytes(entry for entry in entries if entry.bound == ALL) + stored > most:
        entries += _pieces()
    for name in {named.bound for named in STORES} - {NONE}:
        own = sorted((e for e in entries if e.bound == name), key=lambda entry: entry.used_ns)
        left = _bytes(own)
        own = own[: None if name == ALL else -1] if left > most else []
        for entry in sorted(own, key=lambda entry: entry.size <= most):
            if left > most - most // _FREED:
                chosen.append(entry)
                left -= entry.size
    return _remove(chosen, [])


def _bytes(entries: Iterable[_Entry]) -> int:
    return sum(entry.size for entry in entries)


def _sum(entries: Sequence[_Entry], most: int = 0) -> Removed:
    files = sum(isinstance(entry.of, Path) for entry in entries)
    return Removed(files, _bytes(entries), len(entries) - files, most)


class CacheBound:
    """Holds the cache to its bound while a command runs: each time that much was written.

    `most` is in bytes. Until `hold_to` has told it nothing is removed.
    """

    def __init__(self) -> None:
        self.most = self._written = 0  # bytes since the cache was looked at
        self._gone: list[_Entry] = []

    def hold_to(self, most: int) -> None:
        """The bound in bytes; of several in one command the largest holds."""
        self.most = max(self.most, most)

    def wrote(self, size: int) -> None:
        """Note that pieces, or a file of the cache, of so many bytes were written."""
        self._written += max(1, size)
        self._hold(self.most // _SHARE)

    def finish(self) -> Removed:
        """Hold to the bound at the end of a command; all that was removed since the last end.

        Nothing is looked at where nothing was written.
        """
        self._hold(0)
        removed = _sum(self._gone, self.most)
        self._gone, self.most = [], 0
        return removed

    def _hold(self, written: int) -> None:
        """Hold to the bound where more than `written` bytes were written since that was done."""
        if self.most and self._written > written:
            self._written = 0
            self._gone += bound(self.most)


in_bounds = CacheBound()
store.listeners.append(in_bounds.wrote)


def held(stores: Iterable[Store]) -> list[Held]:
    """What stores hold."""
    entries, found = _pieces() + _files([]), []
    for named in stores:
        size = _sum([entry for entry in entries if entry.store is named])
        found.append(Held(named, size.pieces, size.files, size.bytes, named.path))
    return found


def clear(stores: Collection[Store]) -> Removed:
    """Delete what `stores` hold but what another process is writing.

    What cannot be deleted does not keep the rest: its OSError is raised at the end.
    """
    errors = list[OSError]()
    entries = [entry for entry in _pieces() + _files(errors) if entry.store in stores]
    gone = _remove(entries, errors)
    for error in errors:
        if not isinstance(error, FileNotFoundError):  # another run may be clearing as well
            raise error
    return _sum(gone)
