"""numba's cache of compiled functions, in a folder that no other user can write to.

numba writes its files whole and renames them, so that processes can share the folder. They are
pickles, which it trusts: a folder that others may have written to is not used. Added here: a file
that is damaged (by a checksum), or cannot be written, costs a remark and not the answer; and a
result is used only for the signature that it was compiled for, since two processes at once may give
two one name.
"""

# numba has no types.
# mypy: disable-error-code="no-untyped-call"

import hashlib
import os
import pickle
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba.core import caching

from ngtcli.errors import reason_of
from ngtcli.system import process
from ngtcli.system.cache import LEFT_S
from ngtcli.system.files import home, private_folder

UNUSED_S = 30 * 86400.0  # after which another version's unused results are removed; guess
_VERSION = "ngt-"
_SUM = hashlib.sha256().digest_size  # bytes


class _Locator(caching.UserProvidedCacheLocator):
    """Also finds the folder where nothing can be written."""

    def ensure_cache_path(self) -> None:
        with suppress(OSError):
            os.makedirs(self.get_cache_path(), 0o700, exist_ok=True)


class _Place(caching.CompileResultCacheImpl):
    _locator_classes = [_Locator]


class _Files(caching.IndexDataCacheFile):
    """With a checksum before a result: machine code with a wrong byte may end the process."""

    def _load_data(self, name: str) -> Any:
        data = Path(self._data_path(name)).read_bytes()
        if hashlib.sha256(data[_SUM:]).digest() != data[:_SUM]:
            raise ValueError("checksum differs")
        return pickle.loads(data[_SUM:])

    def _save_data(self, name: str, data: Any) -> None:
        dumped = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(dumped).digest() + dumped)


class StoredFunction(caching.FunctionCache):
    """The stored results of one function, for numba. Raises RuntimeError without a folder.

    `tell` gets what the user is to know.
    """

    _impl_class = _Place

    def __init__(self, function: Any, tell: Callable[[str], object]) -> None:
        super().__init__(function)
        self._cache_file = _Files(
            self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp()
        )
        self._tell = tell

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The function for these types of arguments; None where it is to be compiled."""
        try:
            found = super().load_overload(sig, target_context)
        except Exception:  # whatever reading a damaged pickle raises
            self._tell("compiled functions that were kept are damaged; they are compiled again")
            with suppress(OSError):
                self.flush()
            return None
        return found if found is None or tuple(found.signature.args) == tuple(sig) else None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a function if that is possible."""
        try:
            with process.unbroken():  # an interruption would leave a temporary file
                super().save_overload(sig, data)
        except Exception as error:  # a full disk; a damaged file that could not be emptied
            folder = Path(self.cache_path).parent.parent
            self._tell(f"compiled functions are not kept: {folder}: {reason_of(error)}")


def open_folder(versions: str, tell: Callable[[str], object]) -> str:
    """The folder for the present source and these versions; "" where there is none to use.

    Raises UsageError as `home`.
    """
    # All source that is compiled is in the name: numba checks only the file of a function, not
    # those of functions that it calls.
    digest = hashlib.sha256(versions.encode("utf-8", "surrogateescape"))
    package = Path(__file__).parent.parent
    digest.update(os.fsencode(package))
    for file in sorted([*package.glob("trie/**/*.py"), *package.glob("draft/**/*.py")]):
        digest.update(file.read_bytes())
    chosen = os.environ.get("NUMBA_CACHE_DIR")  # numba's own variable takes precedence
    parent = Path(chosen) if chosen else home("cache") / "compiled"
    base = parent / (_VERSION + digest.hexdigest()[:32])
    try:
        if base.is_dir() and _is_open(base) and base.stat().st_uid == os.geteuid():
            shutil.rmtree(base)
        private_folder(base)
        base.chmod(0o700)
        os.utime(base)
        _tidy(base)
    except OSError as error:
        if not base.is_dir():
            tell(f"compiled functions are not kept: {parent}: {reason_of(error)}")
            return ""
    if base.stat().st_uid not in (os.geteuid(), 0) or _is_open(base):
        tell(f"compiled functions are not kept: {base} is another user's or others may write to it")
        return ""
    return str(base)


def _is_open(folder: Path) -> bool:
    """Whether others may write to a folder."""
    return bool(folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _tidy(base: Path) -> None:
    """Remove what killed processes left, pipes, and old versions. Raises OSError."""
    now = time.time()
    for file in base.glob("*/*"):
        is_left = ".tmp." in file.name and now - file.stat().st_mtime > LEFT_S
        if is_left or not (file.is_file() or file.is_dir()):  # opening a pipe would wait for ever
            file.unlink(missing_ok=True)
    for other in base.parent.glob(f"{_VERSION}*"):
        if other != base and now - other.stat().st_mtime > UNUSED_S:
            shutil.rmtree(other, ignore_errors=True)
