"""Which files ngt wrote with -o, --html and /save: only those may be written over.

For each the store has a piece whose key is the file's path and the SHA-256 of what was written. A
file without one was written by somebody else, or edited, or the record of it was cleared.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from ngtcli.errors import UsageError
from ngtcli.system.files import key_of

if TYPE_CHECKING:
    from ngtcli.system.store import Kind

_LARGEST = 1_000_000_000  # bytes of a file that is compared; larger ones are not ours: guess


def check_own(path: Path, hint: str, force: bool = False) -> None:
    """Raise UsageError with `hint` for a regular file, not empty, that is not as ngt wrote it."""
    if not force and path.is_file() and path.stat().st_size and not _is_own(path):
        what = "it is there already, and not as ngt wrote it"
        raise UsageError(f"{path}: {what}", hint)


def remember(path: Path, text: str) -> None:
    """Note that `text` was written to a file, which may then be written over."""
    if path.is_file():
        _pieces().put(_key(path, hashlib.sha256(text.encode()).hexdigest()), True)


def _is_own(path: Path) -> bool:
    if path.stat().st_size > _LARGEST:
        return False
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return False
    return _pieces().get(_key(path, digest)) is not None


def _key(path: Path, digest: str) -> str:
    return key_of(str(path.resolve()), digest)


def _pieces() -> "Kind[bool]":
    from ngtcli.system.store import Kind  # here: most runs write no file

    return Kind("written", bool)
