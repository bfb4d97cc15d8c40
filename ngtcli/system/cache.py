"""What the cache holds, and the bound on it: what was used longest ago is removed first.

What can be made again by itself counts for the bound (see STORES). The last use of a file is its
time of access, which is set here, since not all systems keep it.
"""

import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from ngtcli.system.json_form import HIDDEN, json_key

PARTIAL = ".partial"  # end of the name of a file that is being written
LEFT_S = 3600.0  # seconds after which such a file is left over from a killed run; guess
POOL = ".pool.safetensors"
DATASTORE = ".datastore.safetensors"
BACKGROUND = ".background.safetensors"
STAMP = ".checked.json"  # end of the name of what is known of a file of the same name


@dataclass(frozen=True, slots=True)
class Store:
    """One kind of thing that the cache holds: what it is, what makes it, and where it lies.

    It is all files in `folder`, or those whose names have one of `ends`. It counts for the bound if
    it is `bounded`; if it stands `apart`, it has a bound of its own, as large, that the file used
    last may exceed. What is `lasting` was learned or was made by a command for it, so that ngt does
    not make it again by itself.
    """

    name: str
    holds: str
    made_by: str
    folder: str = field(metadata=HIDDEN)
    ends: tuple[str, ...] = field(default=(), metadata=HIDDEN)
    bounded: bool = True
    apart: bool = field(default=False, metadata=HIDDEN)
    lasting: bool = False

    def files(self, root: Path) -> list[Path]:
        """The files in the cache folder `root`; another process may remove some meanwhile."""
        folder = root / self.folder
        every = folder.rglob("*") if not self.ends else folder.glob("*")
        found = (p for p in every if not self.ends or p.name.endswith(self.ends))
        return sorted(p for p in found if p.is_symlink() or not p.is_dir())


@dataclass(frozen=True, slots=True)
class Held:
    """What one `Store` holds now: files, and their bytes."""

    store: Store = field(metadata=json_key(flat=True))
    files: int
    bytes: int
    path: Path


STORES = (
    Store("documents", "texts and counts of documents", "reading them", "documents"),
    Store("passages", "passages, their indices and vectors", "choosing passages", "passages"),
    Store("counts", "n-gram counts of all documents given", "auto", "folders"),
    Store("parts", "answers to parts of long texts", "splitting them", "parts"),
    Store("tries", "n-gram tries of documents", "the method trie", "tries", (".trie.safetensors",)),
    Store(
        "datastores", "corpora for the method rest", "ngt trie build --rest", "tries",
        (DATASTORE,), bounded=False, lasting=True,
    ),
    Store(
        "backgrounds", "n-gram counts of general texts", "auto; ngt trie build --background",
        "tries", (BACKGROUND, ".background.failed"), bounded=False, lasting=True,
    ),
    Store(
        "pools", "phrases of earlier answers", "auto", "tries", (POOL,), bounded=False, lasting=True
    ),
    Store("compiled", "compiled functions", "the first use of auto", "compiled", bounded=False),
    Store("costs", "times of models' passes", "auto", "costs", bounded=False),
    Store("packed", "if packed weights are faster", "loading a model", "packed", bounded=False),
    Store("quantized", "models' quantised weights", "--quantize int8", "quantized", apart=True),
    Store("prefixes", "what models read of prompts", "answering", "prefixes", apart=True),
    Store(
        "stand-ins", "what GGUF files and adapters load with", "the first use of one", "stand-ins"
    ),
    Store("int8", "how 8-bit products are computed", "--quantize int8", "int8", bounded=False),
    Store("dtypes", "if half precision is faster", "loading a model", "dtypes", bounded=False),
    Store("exact", "if passes are exact", "--exact", "exact", bounded=False),
    Store("ways", "how models are run", "loading a model", "ways", bounded=False),
    Store("tune", "measurements of ngt tune", "ngt tune", "tune", bounded=False, lasting=True),
)  # fmt: skip
_APART = {s.folder for s in STORES if s.apart}
_SPARED_FOLDERS = _APART | {s.folder for s in STORES if not (s.bounded or s.ends)}
_SPARED_ENDS = (PARTIAL, *(end for s in STORES if not s.bounded for end in s.ends))
_SHARE = 20  # this part of the bound may be written before the cache is looked at again; guess
_FILES, _BYTES = 64, 2**28  # of one kind for one folder's documents that are kept; guess
_KEPT_S = 30 * 86_400.0  # seconds; guess
_LOOKED = 16  # of these files that are searched for what another one needs; guess
_MARK_S = 86_400.0  # seconds after which another use of a file is noted; guess


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed: files, their bytes, and the largest one's; what is left, and was the bound.

    All sizes are in bytes.
    """

    files: int = 0
    bytes: int = 0
    largest: int = 0
    left: int = 0
    most: int = 0


_NOTHING = Removed()


class _File(NamedTuple):
    used_ns: int  # since 1970
    size: int
    path: str


def note_use(path: str | Path) -> None:
    """Note that a file of the cache is used now; what cannot be noted is not."""
    with suppress(OSError):
        about = os.stat(path)
        if time.time() - _used_ns(about) / 1e9 > _MARK_S:
            os.utime(path, ns=(time.time_ns(), about.st_mtime_ns))


def renew(path: Path) -> None:
    """Note for `keep_last` that a file was asked for, not only searched."""
    with suppress(OSError):
        if time.time() - os.stat(path).st_mtime > _MARK_S:
            os.utime(path)


def bound(folder: Path, most: int, before: Removed = _NOTHING, apart: bool = False) -> Removed:
    """Remove files of the cache in `folder`, the longest unused first, until `most` bytes are left.

    It is the folder of a store if that stands `apart`: then the file used last stays.

    Files of more than `most` go before all others, which would not make room for them. A file that
    is being written, or that another process replaces meanwhile, stays. Returns what was removed,
    and `before`.
    """
    files = sorted(_files(folder, _SPARED_FOLDERS), key=lambda f: f.used_ns)
    left = sum(file.size for file in files)
    count, size, largest = before.files, before.bytes, before.largest
    if apart:
        files = [file for file in files if not file.path.endswith(STAMP)][:-1]
    for file in sorted(files, key=lambda f: f.size <= most):
        if left <= most:
            break
        with suppress(OSError):  # another process has removed it
            if _used_ns(os.stat(file.path, follow_symlinks=False)) == file.used_ns:
                os.unlink(file.path)
                count, size, left = count + 1, size + file.size, left - file.size
                largest = max(largest, file.size)
                if apart:
                    Path(file.path).with_suffix(STAMP).unlink(missing_ok=True)
    return Removed(count, size, largest, left, most)


class CacheBound:
    """Holds the cache to its bound while a command runs: each time that much was written.

    Until `hold_to` has told the bound nothing is removed.
    """

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._most = self._written = 0
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
        with suppress(OSError):  # another process has removed it
            if self._most and path.parent in {self._folder() / name for name in _APART}:
                self._removed = bound(path.parent, self._most, self._removed, apart=True)
            elif path.is_relative_to(self._folder()):
                self._written += max(1, path.stat().st_size)
        self._hold(self._most // _SHARE)

    def finish(self) -> Removed:
        """Hold to the bound at the end of a command; all that was removed since the last end.

        Nothing is looked at where nothing was written.
        """
        self._hold(0)
        removed, self._removed, self._most = self._removed, _NOTHING, 0
        return removed

    def _hold(self, written: int) -> None:
        """Hold to the bound if more than `written` bytes were written since that was done."""
        if self._most and self._written > written:
            self._written = 0
            self._removed = bound(self._folder(), self._most, self._removed)


def largest(folder: Path, pattern: str) -> list[Path]:
    """Files of one kind in a folder of the cache, the largest first, 16 at most."""
    found = sorted(_matching(folder, pattern), key=lambda f: -f.size)
    return [Path(file.path) for file in found[:_LOOKED]]


def keep_last(folder: Path, pattern: str) -> None:
    """Remove files of one kind that were written or renewed before others.

    Left are 64 at most, of 30 days, of 256 MB together or of three times as much as the largest.
    """
    found = sorted(_matching(folder, pattern), key=lambda f: -f.used_ns)
    room = max([_BYTES, *(3 * file.size for file in found)])
    for number, file in enumerate(found):
        room -= file.size
        if room < 0 or number >= _FILES or time.time() - file.used_ns / 1e9 > _KEPT_S:
            with suppress(OSError):  # another process may have removed it
                os.unlink(file.path)


def _matching(folder: Path, pattern: str) -> Iterator[_File]:
    """Files by a pattern of their names; `used_ns` is when they were written or renewed."""
    for entry, about in _entries(folder, lambda name: fnmatch(name, pattern)):
        yield _File(about.st_mtime_ns, about.st_size, entry.path)


def _files(folder: Path | str, spared: Collection[str] = ()) -> Iterator[_File]:
    """The files that count; folders of `spared` names do not."""
    for entry, about in _entries(folder):
        if stat.S_ISDIR(about.st_mode) and entry.name not in spared:
            yield from _files(entry.path)
        elif stat.S_ISREG(about.st_mode) and not entry.name.endswith(_SPARED_ENDS):
            yield _File(_used_ns(about), about.st_size, entry.path)


def _entries(
    folder: Path | str, wanted: Callable[[str], bool] = lambda _: True
) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """What has `wanted` names in a folder; links are not followed, and some may go meanwhile."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            with suppress(OSError):
                if wanted(entry.name):  # first, since a look at each takes long
                    yield entry, entry.stat(follow_symlinks=False)


def _used_ns(about: os.stat_result) -> int:
    """When a file was used last: read or written."""
    return max(about.st_atime_ns, about.st_mtime_ns)


def held(root: Path, store: Store) -> Held:
    """What the store holds in the cache folder `root`."""
    sizes = []
    for path in store.files(root):
        with suppress(OSError):  # another run removed it
            sizes.append(path.lstat().st_size)
    return Held(store, len(sizes), sum(sizes), root / store.folder)


def clear(root: Path, stores: Iterable[Store]) -> tuple[int, int]:
    """Delete what `stores` hold in the cache folder `root`, and what killed runs left of it.

    Returns the number of files and bytes. What cannot be deleted does not keep the rest: its
    OSError is raised at the end.
    """
    count = size = 0
    failure: OSError | None = None
    for store in stores:
        folder = root / store.folder
        try:
            with suppress(FileNotFoundError):
                os.scandir(folder).close()  # raises where nothing in it can be seen
        except OSError as error:
            failure = failure or error
        left: list[Path] = []
        if store.ends:  # in a folder of several stores another command may be writing
            left = leftovers(folder, older_s=0.0 if store.name == "tries" else LEFT_S)
        for path in (*store.files(root), *left):
            try:
                bytes_ = path.lstat().st_size
                path.unlink()
                count, size = count + 1, size + bytes_
            except FileNotFoundError:  # another run may be clearing as well
                pass
            except OSError as error:
                if path not in left:  # those may be another user's
                    failure = failure or error
        for place, _, _ in () if store.ends else os.walk(folder, topdown=False):
            with suppress(OSError):  # another run wrote to it
                os.rmdir(place)
    if failure:
        raise failure
    return count, size


def leftovers(folder: Path, prefix: str = "", older_s: float = LEFT_S) -> list[Path]:
    """Temporary files of killed runs whose names start with `prefix`.

    Files younger than `older_s` seconds are not among them: they may be another run's.
    """
    now = time.time()
    return [
        Path(entry.path)
        for entry, about in _entries(
            folder, lambda name: name.endswith(PARTIAL) and name.startswith(prefix)
        )
        if stat.S_ISREG(about.st_mode) and now - about.st_mtime >= older_s
    ]
