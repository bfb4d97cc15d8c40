"""What the cache holds, and the bound on it: what was used longest ago is removed first.

It holds pieces in the store and files. What can be made again by itself counts for the bound (see
STORES).
"""

import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from ngtcli.errors import counted
from ngtcli.system import store
from ngtcli.system.files import PARTIAL, home
from ngtcli.system.json_form import HIDDEN, json_key

LEFT_S = 3600.0  # seconds after which a file that was being written is a killed run's; guess
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

    def files(self, on_error: Callable[[OSError], None] | None = None) -> list[Path]:
        """Its files; another process may remove some meanwhile. `on_error` as in `os.walk`."""
        every = os.walk(self.path, onerror=on_error) if self.folder else ()
        found = (Path(place, name) for place, _, names in every for name in names)
        return sorted(p for p in found if not self.ends or p.name.endswith(self.ends))

    def pieces(self) -> list[store.Used]:
        """Its pieces by their last use."""
        return [group for group in store.by_use() if group.kind in self.kinds]


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
_OWN = {s.folder for s in STORES if s.bound == "own"}
_SPARED_FOLDERS = _OWN | {s.folder for s in STORES if s.bound == "none" and not s.ends}
_SPARED_ENDS = tuple(end for s in STORES if s.bound == "none" for end in s.ends)
_SPARED_KINDS = {kind for s in STORES if s.bound == "none" for kind in s.kinds}
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


_NOTHING = Removed()


class _Entry(NamedTuple):
    """A file, or the pieces of a kind that were used last in the same second."""

    used_ns: int  # since 1970
    size: int
    of: str | store.Used


def bound(most: int, before: Removed = _NOTHING, own: str = "") -> Removed:
    """Remove from the cache what is the longest unused where it has more than `most` bytes.

    Nine tenths are left, so that this is rare: to look at all pieces takes long. In the folder of a
    store that has its `own` bound all may be left, and the file used last stays. What has more than
    `most` goes before all others, which would not make room for it. A file that is being written,
    or that another process replaces meanwhile, stays. Returns what was removed, and `before`.
    """
    entries = list(_files(home("cache") / own, _SPARED_FOLDERS))
    if not own and sum(entry.size for entry in entries) + _size_of_store() > most:
        entries += _pieces()
    if (left := sum(entry.size for entry in entries)) <= most:
        return replace(before, most=most)
    entries.sort(key=lambda entry: (entry.size <= most, entry.used_ns))
    if own:
        entries.remove(max(entries, key=lambda entry: entry.used_ns))
    gone = []
    for entry in entries:
        if left <= (most if own else most - most // _FREED):
            break
        if isinstance(entry.of, store.Used) or _unlink(entry.of, entry.used_ns):
            gone.append(entry)
            left -= entry.size
    pieces = [entry.of for entry in gone if isinstance(entry.of, store.Used)]
    store.remove(pieces)
    files = [entry.size for entry in gone if isinstance(entry.of, str)]
    return Removed(
        before.pieces + sum(group.pieces for group in pieces),
        before.files + len(files),
        before.bytes + sum(entry.size for entry in gone),
        max(before.largest, *files, 0),
        most,
    )


def _files(folder: Path | str, spared: Collection[str] = ()) -> Iterator[_Entry]:
    """The files that count; folders of `spared` names do not, and links are not followed."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            with suppress(OSError):  # another process has removed it
                about = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(about.st_mode) and entry.name not in spared:
                    yield from _files(entry.path)
                elif stat.S_ISREG(about.st_mode) and not _is_spared(entry.name, about):
                    yield _Entry(_used_ns(about), about.st_size, entry.path)


def _pieces() -> Iterator[_Entry]:
    """The pieces that count for the shared bound."""
    for group in store.by_use():
        if group.kind not in _SPARED_KINDS:
            yield _Entry(group.used * 10**9, group.bytes, group)


def _size_of_store() -> int:
    """At least the bytes of all pieces."""
    path = home("cache") / store.NAME
    return path.stat().st_size if path.exists() else 0


def _is_spared(name: str, about: os.stat_result) -> bool:
    """Whether a file has no bound, is that of pieces, or is being written."""
    return (
        name.startswith(store.NAME) or name.endswith(_SPARED_ENDS) or _is_being_written(name, about)
    )


def _is_being_written(name: str, about: os.stat_result) -> bool:
    return name.endswith(PARTIAL) and time.time() - about.st_mtime < LEFT_S


def _unlink(path: str, used_ns: int) -> bool:
    """Remove a file unless another process has, or has used it since."""
    with suppress(OSError):
        if _used_ns(os.stat(path, follow_symlinks=False)) == used_ns:
            os.unlink(path)
            return True
    return False


def _used_ns(about: os.stat_result) -> int:
    """When a file was used last: read or written."""
    return max(about.st_atime_ns, about.st_mtime_ns)


class CacheBound:
    """Holds the cache to its bound while a command runs: each time that much was written.

    Until `hold_to` has told the bound nothing is removed.
    """

    def __init__(self) -> None:
        self._most = 0
        self._written = Counter[str]()  # bytes since that was looked at, by the folder of a bound
        self._removed = _NOTHING

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
        removed, self._removed, self._most = self._removed, _NOTHING, 0
        return removed

    def _hold(self, written: int) -> None:
        """Hold to the bounds below which more than `written` bytes were written since."""
        for own, size in list(self._written.items()):
            if self._most and size > written:
                self._written[own] = 0
                self._removed = bound(self._most, self._removed, own)


in_bounds = CacheBound()
store.listeners.append(in_bounds.wrote_bytes)


def held(named: Store) -> Held:
    """What a store holds."""
    files, pieces = named.files(), named.pieces()
    size = sum(group.bytes for group in pieces)
    for path in files:
        with suppress(OSError):  # another run removed it
            size += path.lstat().st_size
    count = sum(group.pieces for group in pieces)
    return Held(named, count, len(files), size, named.path)


def clear(stores: Iterable[Store]) -> Removed:
    """Delete what `stores` hold but what another process may be writing.

    What cannot be deleted does not keep the rest: its OSError is raised at the end.
    """
    pieces, failures, sizes = list[store.Used](), list[OSError](), list[int]()
    for named in stores:
        pieces += named.pieces()
        for path in named.files(failures.append):
            try:
                about = path.lstat()
                if not _is_being_written(path.name, about):
                    path.unlink()
                    sizes.append(about.st_size)
            except OSError as error:
                failures.append(error)
    store.remove(pieces)
    for failure in failures:
        if not isinstance(failure, FileNotFoundError):  # another run may be clearing as well
            raise failure
    size = sum(group.bytes for group in pieces) + sum(sizes)
    return Removed(sum(group.pieces for group in pieces), len(sizes), size)
