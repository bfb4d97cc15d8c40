"""What the cache holds, and the bound on it: what was used longest ago is removed first.

It holds pieces in the store and files. What can be made again by itself counts for the bound (see
STORES).
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from ngtcli.errors import counted
from ngtcli.system import store
from ngtcli.system.files import PARTIAL, home
from ngtcli.system.json_form import HIDDEN, json_key

LEFT_S = 3600.0  # seconds after which a file that is not finished is a killed run's; guess
POOL = ".pool.safetensors"
DATASTORE = ".datastore.safetensors"
BACKGROUND = ".background.safetensors"
Bound = Literal["shared", "own", "none"]


@dataclass(frozen=True, slots=True)
class Store:
    """One kind of thing that the cache holds: what it is, what makes it, and where it lies.

    It is pieces of `kinds`, and all files in `folder`, or those whose names have one of `ends`. Its
    `bound` is what all of the cache may have together ("shared"); another one, as large, that the
    file used last may exceed ("own"); or it has "none". What is `cleared_by_name` alone was learned
    or was made by a command for it, so that ngt does not make it again by itself.
    """

    name: str
    holds: str
    made_by: str
    kinds: tuple[str, ...] = field(default=(), metadata=HIDDEN)
    folder: str = field(default="", metadata=HIDDEN)
    ends: tuple[str, ...] = field(default=(), metadata=HIDDEN)
    bound: Bound = "shared"
    cleared_by_name: bool = False

    @property
    def path(self) -> Path:
        """The folder of its files, or the file of its pieces."""
        return home("cache") / (self.folder or store.NAME)


@dataclass(frozen=True, slots=True)
class Held:
    """What one `Store` holds now: pieces and files, and their bytes."""

    store: Store = field(metadata=json_key(flat=True))
    pieces: int
    files: int
    bytes: int
    path: Path


STORES = (
    Store("documents", "texts of documents", "reading them", ("files", "texts", "tokens")),
    Store(
        "passages", "passages and their vectors", "choosing passages",
        ("passages", "vectors", "ivf-pq"),
    ),
    Store("counts", "ids of documents and their n-gram counts", "auto", ("ids",), "folders"),
    Store("parts", "answers to parts of long texts", "splitting them", ("parts",)),
    Store(
        "tries", "n-gram tries of documents", "the method trie", folder="tries",
        ends=(".trie.safetensors",),
    ),
    Store(
        "datastores", "corpora for the method rest", "ngt trie build --rest", folder="tries",
        ends=(DATASTORE,), bound="none", cleared_by_name=True,
    ),
    Store(
        "backgrounds", "n-gram counts of general texts", "auto; ngt trie build --background",
        ("failures",), "tries", (BACKGROUND,), "none", cleared_by_name=True,
    ),
    Store(
        "pools", "phrases of earlier answers", "auto", folder="tries", ends=(POOL,), bound="none",
        cleared_by_name=True,
    ),
    Store(
        "compiled", "compiled functions", "the first use of auto", folder="compiled", bound="none"
    ),
    Store(
        "trials", "what was tried of models, and times of passes", "loading a model; auto",
        ("trials",), bound="none",
    ),
    Store(
        "quantized", "models' quantised weights", "--quantize int8", folder="quantized", bound="own"
    ),
    Store(
        "prefixes", "what models read of prompts", "answering", folder="prefixes", bound="own"
    ),
    Store(
        "stand-ins", "what GGUF files and adapters load with", "the first use of one",
        folder="stand-ins",
    ),
    Store("checked", "which files were compared with their checksums", "using them", ("checked",)),
    Store(
        "tune", "measurements of ngt tune", "ngt tune", folder="tune", bound="none",
        cleared_by_name=True,
    ),
)  # fmt: skip
_BY_KIND = {kind: named for named in STORES for kind in named.kinds}
_OWN = {named.folder: named for named in STORES if named.bound == "own"}
_OF_STORE = (store.NAME, f"{store.NAME}-journal")
_FREED = 10  # this part of the bound is free afterwards; guess
_SHARE = 20  # this part of the bound may be written before the cache is looked at again; guess


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed: pieces, files, their bytes, and those of the largest file.

    `most` was the bound, in bytes.
    """

    pieces: int = 0
    files: int = 0
    bytes: int = 0
    largest: int = 0
    most: int = 0

    @property
    def words(self) -> str:
        """What was removed, in words."""
        what = f"{counted(self.pieces, 'piece')} and {counted(self.files, 'file')}"
        return f"{what}, {self.bytes / 1e6:.1f} MB"


class _Entry(NamedTuple):
    """A file, or pieces that were used last in the same second; `store` is None if none knows it.

    Then it is an earlier version's.
    """

    of: Path | store.Used
    store: Store | None
    used_ns: int  # since 1970
    size: int


def _pieces() -> list[_Entry]:
    return [
        _Entry(group, _BY_KIND.get(group.kind), group.used * 10**9, group.bytes)
        for group in store.by_use()
    ]


def _files(on_error: Callable[[OSError], None] | None = None) -> list[_Entry]:
    """All files but those of the store and those that are being written; `on_error` as `os.walk`.

    A killed run's file that is not finished is one of them an hour after.
    """
    found = []
    for place, _, names in os.walk(home("cache"), onerror=on_error):
        for path in (Path(place, name) for name in names if name not in _OF_STORE):
            with suppress(OSError):  # another process has removed it
                about = path.lstat()
                if path.suffix != PARTIAL or time.time() - about.st_mtime > LEFT_S:
                    named = store_of(path)
                    found.append(_Entry(path, named, _used_ns(about), about.st_size))
    return found


def store_of(path: Path) -> Store | None:
    """The store that a file of the cache belongs to."""
    folder = path.relative_to(home("cache")).parts[0]
    ours = (named for named in STORES if named.folder == folder)
    return next((s for s in ours if not s.ends or path.name.endswith(s.ends)), None)


def _used_ns(about: os.stat_result) -> int:
    """When a file was used last: read or written."""
    return max(about.st_atime_ns, about.st_mtime_ns)


def _remove(
    entries: Iterable[_Entry], on_error: Callable[[OSError], object] = lambda _: None
) -> list[_Entry]:
    """Remove what no other process has removed, or used, since; `on_error` is told what stays."""
    gone = []
    for entry in entries:
        try:
            if isinstance(entry.of, Path):
                if _used_ns(entry.of.lstat()) != entry.used_ns:
                    continue
                entry.of.unlink()
            gone.append(entry)
        except OSError as error:
            on_error(error)
    store.remove([entry.of for entry in gone if isinstance(entry.of, store.Used)])
    return gone


def bound(most: int, own: Store | None = None) -> list[_Entry]:
    """Remove from the cache what is the longest unused where it has more than `most` bytes.

    Nine tenths are left, so that this is rare: to look at all pieces takes long. Of a store that
    has its `own` bound all may be left, and the file used last stays. What has more than `most`
    goes before all others, which would not make room for it. Returns what was removed.
    """
    entries = _counted(_files(), own)
    if own is None and sum(entry.size for entry in entries) + _size_of_store() > most:
        entries += _counted(_pieces(), own)
    if (left := sum(entry.size for entry in entries)) <= most:
        return []
    if own is not None:
        entries.remove(max(entries, key=lambda entry: entry.used_ns))
    chosen = []
    for entry in sorted(entries, key=lambda entry: (entry.size <= most, entry.used_ns)):
        if left > (most if own else most - most // _FREED):
            chosen.append(entry)
            left -= entry.size
    return _remove(chosen)


def _counted(entries: list[_Entry], own: Store | None) -> list[_Entry]:
    """Those that count for the bound of a store, or the shared one."""
    if own is not None:
        return [entry for entry in entries if entry.store is own]
    return [entry for entry in entries if entry.store is None or entry.store.bound == "shared"]


def _size_of_store() -> int:
    """At least the bytes of all pieces."""
    path = home("cache") / store.NAME
    return path.stat().st_size if path.exists() else 0


def _sum(gone: Sequence[_Entry], most: int = 0) -> Removed:
    files = [entry.size for entry in gone if isinstance(entry.of, Path)]
    pieces = [entry.of.pieces for entry in gone if isinstance(entry.of, store.Used)]
    size = sum(entry.size for entry in gone)
    return Removed(sum(pieces), len(files), size, max(files, default=0), most)


class CacheBound:
    """Holds the cache to its bound while a command runs: each time that much was written.

    Until `hold_to` has told the bound nothing is removed.
    """

    def __init__(self) -> None:
        self._most = 0
        self._written = Counter[str]()  # bytes since that was looked at, by the folder of a bound
        self._gone: list[_Entry] = []

    def hold_to(self, most: int) -> None:
        """The bound in bytes; of several in one command the largest holds."""
        self._most = max(self._most, most)

    @property
    def most(self) -> int:
        """The bound in bytes; 0 where there is none yet."""
        return self._most

    def wrote(self, path: Path) -> None:
        """Note that a file was written."""
        if path.is_relative_to(home("cache")):
            with suppress(OSError):  # another process has removed it
                name = path.relative_to(home("cache")).parts[0]
                self.wrote_bytes(path.stat().st_size, name if name in _OWN else "")

    def wrote_bytes(self, size: int, own: str = "") -> None:
        """Note that pieces, or a file in the folder of its `own` bound, were written."""
        self._written[own] += max(1, size)
        self._hold(self._most // _SHARE)

    def finish(self) -> Removed:
        """Hold to the bound at the end of a command; all that was removed since the last end.

        Nothing is looked at where nothing was written.
        """
        self._hold(0)
        removed = _sum(self._gone, self._most)
        self._gone, self._most = [], 0
        return removed

    def _hold(self, written: int) -> None:
        """Hold to the bounds below which more than `written` bytes were written since."""
        for own, size in list(self._written.items()):
            if self._most and size > written:
                self._written[own] = 0
                self._gone += bound(self._most, _OWN.get(own))


in_bounds = CacheBound()
store.listeners.append(in_bounds.wrote_bytes)


def held(stores: Iterable[Store]) -> list[Held]:
    """What stores hold."""
    entries, found = _pieces() + _files(), []
    for named in stores:
        size = _sum([entry for entry in entries if entry.store is named])
        found.append(Held(named, size.pieces, size.files, size.bytes, named.path))
    return found


def clear(stores: Collection[Store]) -> Removed:
    """Delete what `stores` hold but what another process is writing.

    What cannot be deleted does not keep the rest: its OSError is raised at the end.
    """
    errors = list[OSError]()
    entries = [entry for entry in _pieces() + _files(errors.append) if entry.store in stores]
    gone = _remove(entries, errors.append)
    for error in errors:
        if not isinstance(error, FileNotFoundError):  # another run may be clearing as well
            raise error
    return _sum(gone)
