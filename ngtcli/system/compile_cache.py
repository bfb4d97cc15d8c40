"""The results of compiling, kept in a folder from process to process, and checked.

numba's cache files are pickles that it reads unchecked, so it does not read the stored folder
itself: at the start each stored file is compared with its checksum and linked into a folder of this
process, which numba reads and writes. New results are stored as a new folder with checksums, which
replaces the old one. Two processes thus cannot mix their files, and the content of a damaged folder
is compiled again. A folder that another user owns or can write to is not used.
"""

import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from ngtcli.system.reading import read_bounded
from ngtcli.system.storage import home

LARGEST = 16_000_000  # bytes of a file; guess: the largest has 0.2 MB
ABANDONED_S = 60.0  # age from which an unlocked folder has no process any more; guess
UNUSED_S = 30 * 86400.0  # after which another version's unused results are removed; guess
_REPLACED = 5  # attempts to read a folder that other processes replace meanwhile; guess
_SUMS, _KEPT, _OWN, _VERSION = "checksums.json", "kept-", "run-", "ngt-"


class CompileCache:
    """This process's copy, in `folder`, of the results stored in `base`; None if it cannot be made.

    `remark` is a message for the user: that results cannot be stored, or that they were damaged.
    """

    def __init__(self, base: Path) -> None:
        self.base, self.remark = base, ""
        self.folder: Path | None = None
        self.empty = True  # whether there are no stored results to use
        self.compiled = 0  # functions, since the last `keep`
        self._lock = -1
        self._process = os.getpid()  # a fork of it does not own the folder
        writable = self._make_base()
        try:
            parent = base if writable else None
            self.folder = Path(tempfile.mkdtemp(prefix=_OWN, dir=parent))
            self._lock = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        damaged = self._take_stored() if base.is_dir() and not self.remark else []
        if damaged and self.empty:
            self.remark = f"the compiled functions in {base} are damaged; they are compiled again"
        if writable:
            self._tidy(damaged)

    def _take_stored(self) -> list[Path]:
        """Link the stored results into this process's folder; returns the damaged folders.

        A folder that vanishes meanwhile was replaced by another process: its successor is read.
        """
        damaged: list[Path] = []
        for _ in range(_REPLACED):
            stored = self._stored()
            untaken = [folder for folder in stored if not self._take(folder)]
            damaged = [folder for folder in untaken if folder.exists()]
            self.empty = len(untaken) == len(stored)
            if not self.empty or len(damaged) == len(untaken):
                break
        return damaged

    def _make_base(self) -> bool:
        """Make the folder; whether this process can write to it. Sets `remark` if it cannot."""
        try:
            self.base.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = self.base.stat()
            if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                self.remark = (
                    f"compiled functions are not kept: {self.base} is another user's or others may"
                    " write to it"
                )
                return False
            tempfile.TemporaryFile(dir=self.base).close()
            return True
        except OSError as error:
            if not any(self._stored()):
                self.remark = (
                    f"compiled functions are not kept: {self.base.parent}:"
                    f" {(error.strerror or str(error)).lower()}"
                )
            return False

    def _stored(self) -> list[Path]:
        """The folders with stored results, the newest first."""
        with suppress(OSError):
            found = [f for f in self.base.glob(f"{_KEPT}*") if f.is_dir() and not f.is_symlink()]
            return sorted(found, key=lambda f: f.stat().st_mtime_ns, reverse=True)
        return []

    def _take(self, stored: Path) -> bool:
        """Link the files of a stored folder into this process's; whether all are undamaged."""
        assert self.folder is not None
        try:
            sums = json.loads(read_bounded(stored / _SUMS, LARGEST))
            for name, wanted in sums.items():
                source, own = stored / name, self.folder / name
                if own.resolve().parent.parent != self.folder.resolve():
                    return False
                if hashlib.sha256(read_bounded(source, LARGEST)).hexdigest() != wanted:
                    return False
            for name in sums:
                _link(stored / name, self.folder / name)
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            return False
        return bool(sums)

    def keep(self) -> None:
        """Store what was compiled since the last call; an OSError is ignored."""
        if not self.compiled or self.folder is None or self.folder.parent != self.base:
            return
        if self._process != os.getpid():
            return
        self.compiled = 0
        with suppress(OSError):
            partial = Path(tempfile.mkdtemp(prefix=_OWN, dir=self.base))
            sums = {}
            for file in sorted(self.folder.glob("*/*.nb[ic]")):
                name = f"{file.parent.name}/{file.name}"
                _link(file, partial / name)
                sums[name] = hashlib.sha256(file.read_bytes()).hexdigest()
            (partial / _SUMS).write_text(json.dumps(sums), encoding="utf-8")
            older = self._stored()
            partial.rename(partial.with_name(partial.name.replace(_OWN, _KEPT)))
            self._tidy(older)

    def close(self) -> None:
        """Store what was compiled and remove this process's folder."""
        self.keep()
        if self.folder is not None and self._process == os.getpid():
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self.folder = None

    def _tidy(self, folders: list[Path]) -> None:
        """Remove `folders`, those of ended processes, and those of versions unused for UNUSED_S."""
        now = time.time()
        with suppress(OSError):
            os.utime(self.base)
            for own in self.base.glob(f"{_OWN}*"):
                old = own != self.folder and now - own.stat().st_mtime > ABANDONED_S
                if old and _abandoned(own):
                    folders = [*folders, own]
            for other in self.base.parent.glob(f"{_VERSION}*"):
                if other != self.base and now - other.stat().st_mtime > UNUSED_S:
                    folders = [*folders, other]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    """Link `source` as `target`, or copy it if it cannot be linked."""
    target.parent.mkdir(exist_ok=True, mode=0o700)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _abandoned(folder: Path) -> bool:
    """Whether no process has locked this folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def cache_folder(versions: str) -> Path:
    """The cache folder for the present source and these versions.

    The name has a hash of all source that is compiled, since numba checks only the file of a
    function, not those of functions that it calls. Raises UsageError as `home`, and OSError.
    """
    digest = hashlib.sha256(versions.encode("utf-8", "surrogateescape"))
    package = Path(__file__).parent.parent
    digest.update(os.fsencode(package))
    for file in sorted([*package.glob("trie/**/*.py"), *package.glob("draft/**/*.py")]):
        digest.update(file.read_bytes())
    # numba's own variable takes precedence.
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(chosen) if chosen else home("cache") / "compiled"
    return base / (_VERSION + digest.hexdigest()[:32])
