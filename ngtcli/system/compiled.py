"""numba's `njit`, whose results are kept: compiling takes several seconds, once per user.

numba keeps them in the user's cache folder, below a name of versions and of all sources that are
compiled: it looks at the file of a function alone, and not at those of functions that it calls. Its
files are pickles, which it trusts: a folder that others may have written to is not used. Where a
file is damaged (by a checksum) or cannot be written, this costs a remark and not the answer.
"""

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ngtcli.system import process
from ngtcli.system.files import home, private_folder, read_bounded
from ngtcli.words import reason_of

F = TypeVar("F")

COMPILING_S = 20  # to compile all functions of `auto`; measured on one slow core
UNUSED_S = 30 * 86400.0  # after which another version's unused results are removed; guess
# What is compiled, and the modules whose constants are compiled into it.
SOURCES = ("draft/auto/core/*.py", "draft/auto/config.py", "draft/guesses.py", "draft/origins.py",
           "trie/background.py", "trie/background_search.py", "trie/counts.py")  # fmt: skip
_VERSION = "ngt-"
_FORM = b"with checksums"  # of the files in such a folder
_SUM, _MOST = hashlib.sha256().digest_size, 1 << 28  # bytes; the largest file known has 303,693

_listeners: list[Callable[[str], object]] = []
_remarks: list[str] = []  # the first is told; the others are the same trouble elsewhere


@cache
def _opened() -> bool:
    """Have numba keep what it compiles from now on, if possible; the first call imports it."""
    import llvmlite
    import numba
    from numba.core import event

    folder = _open_folder("|".join((numba.__version__, llvmlite.__version__, sys.version)))
    is_first = not folder or not any(Path(folder).glob("*/*.nbi"))
    how_long = [f" (about {COMPILING_S} s)"] if is_first else []

    class Compiles(event.Listener):
        """Hears of functions that numba compiles, not of those that it finds in its cache."""

        def on_start(self, data: Any) -> None:
            if _listeners:
                _listeners.pop()(f"Compiling once{how_long.pop() if how_long else ''} …")

        def on_end(self, data: Any) -> None:
            pass

    config: Any = numba.config  # these are not in its types
    config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = folder, "UserProvidedCacheLocator"
    register: Any = event.register
    register("numba:compile", Compiles())
    return bool(folder)


def announce(tell: Callable[[str], object]) -> None:
    """Call `tell` with a status line, once, when a function is compiled next."""
    _listeners[:] = [tell]


def take_remark() -> str:
    """What the user is to know of the cache, once in a run; else ""."""
    remark = _remarks[0] if _remarks else ""
    _remarks[:] = [""] * bool(_remarks)  # the later ones are never the first
    return remark


def njit(**options: Any) -> Callable[[F], F]:
    """numba's decorator `njit`; what it compiles is kept if possible."""
    is_kept = _opened()
    import numba

    def decorate(function: F) -> F:
        compiled: Any = numba.njit(cache=is_kept, **options)(function)
        if is_kept and hasattr(compiled, "_cache"):  # else numba is told to compile nothing
            _guard(compiled._cache)
        return compiled  # type: ignore[no-any-return]

    return decorate


def unowned(function: F) -> F:
    """Compile a function without reference counts of arrays, half the time of very short loops.

    Such a function cannot create arrays. numba does not list the option in its types.
    """
    return njit(_nrt=False)(function)


def _guard(kept: Any) -> None:
    """Have numba's cache of a function use nothing damaged, and tell what goes wrong."""
    files, load, save = kept._cache_file, kept.load_overload, kept.save_overload
    dump, load_data, load_index = files._dump, files._load_data, files._load_index

    def with_sum(value: Any) -> bytes:  # behind the pickle, where nothing is read
        dumped: bytes = dump(value)
        return dumped + hashlib.sha256(dumped).digest()

    def load_whole(name: str) -> Any:  # machine code with a wrong byte may end the process
        data = read_bounded(files._data_path(name), _MOST)
        if hashlib.sha256(data[:-_SUM]).digest() != data[-_SUM:]:
            raise ValueError("checksum differs")
        return load_data(name)

    def load_regular() -> Any:  # to open a pipe would never end
        with suppress(FileNotFoundError):
            read_bounded(files._index_path, _MOST)
        return load_index()

    def load_overload(signature: Any, target: Any) -> Any:
        try:
            found = load(signature, target)
        except Exception:  # whatever reading a damaged pickle raises
            _remarks.append("compiled functions that were kept are damaged; they are made again")
            with suppress(OSError):
                kept.flush()
            return None
        # Two processes at once may give the results for two signatures one name.
        return found if found and tuple(found.signature.args) == tuple(signature) else None

    def save_overload(signature: Any, data: Any) -> None:
        try:
            with process.unbroken():  # an interruption would leave a temporary file
                save(signature, data)
        except Exception as error:  # a full disk; a damaged file that could not be emptied
            _remark_not_kept(Path(kept.cache_path).parent.parent, error)

    files._dump, files._load_data, files._load_index = with_sum, load_whole, load_regular
    kept.load_overload, kept.save_overload = load_overload, save_overload


def _remark_not_kept(folder: Path, error: Exception) -> None:
    _remarks.append(f"compiled functions are not kept: {folder}: {reason_of(error)}")


def _open_folder(versions: str) -> str:
    """The folder for the sources and these versions; "" for none to use. Raises as `home`."""
    package = Path(__file__).parent.parent
    sources = sorted(file for pattern in SOURCES for file in package.glob(pattern))
    digest = hashlib.sha256(_FORM + versions.encode("utf-8", "surrogateescape"))
    digest.update(b"".join(source.read_bytes() for source in sources))
    parent = Path(os.environ.get("NUMBA_CACHE_DIR") or home("cache") / "compiled")  # numba's first
    folder = parent / (_VERSION + digest.hexdigest()[:32])
    try:
        if not folder.is_dir():
            private_folder(folder)
            folder.chmod(0o700)
        about = folder.stat()
        if about.st_uid not in (os.geteuid(), 0) or about.st_mode & 0o022:
            raise PermissionError("others may write to it, or it is theirs; delete it")
        os.utime(folder)
    except OSError as error:
        _remark_not_kept(folder if folder.is_dir() else parent, error)
        return ""
    for other in parent.glob(f"{_VERSION}*"):
        with suppress(OSError):
            if other != folder and time.time() - other.stat().st_mtime > UNUSED_S:
                shutil.rmtree(other, ignore_errors=True)
    return str(folder)
