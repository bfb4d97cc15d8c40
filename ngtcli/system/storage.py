"""Files of the user: folders, cache keys, bounded reading, atomic writing.

Cache files are written under a temporary name and renamed, so that a reader never sees a part of
one and two writers cannot mix theirs. Only their owner can read them, since they contain text of
documents and answers. A killed run leaves a temporary file, `*.partial`; the next write to that
folder removes it. A file that is damaged in any way raises one error when it is read. What the
cache holds is bounded (cache.py).
"""

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import platformdirs

from ngtcli.errors import UsageError, reason_of
from ngtcli.system import process
from ngtcli.system.cache import PARTIAL, CacheBound, note_use, remove_leftovers
from ngtcli.system.reading import read_bounded

Kind = TypeVar("Kind")
_LARGEST = 2.0**63  # the largest number read from JSON; derived: files here contain int64 at most
_CHECKSUM = b', "checksum": "'  # before the SHA-256 of what a cache file held without it
_DIGITS = 32  # hex digits of a key, 128 bits; guess


class DamagedFileError(Exception):
    """A file is damaged, foreign or of another version; the message says which."""


def home(kind: str) -> Path:
    """The user's folder for `kind`, "config" or "cache"; `NGT_HOME/kind` if NGT_HOME is set.

    A cache that is another user's is not used: an empty folder takes its place, which is removed
    when this process leaves unless a signal ends it. Raises UsageError if NGT_HOME is closed to
    this user, or starts with the home of an unknown one (`~name`).
    """
    if kind == "cache":
        return _own_cache(_home(kind))
    try:
        os.stat(config := _home(kind))
    except PermissionError:
        hint = "Set NGT_HOME to a folder of yours."
        raise UsageError(f"the settings in {config} are another user's", hint) from None
    except OSError:  # there are none
        pass
    return config


def _home(kind: str) -> Path:
    if base := os.environ.get("NGT_HOME"):
        try:
            return Path(base).expanduser() / kind
        except RuntimeError:
            raise UsageError(f"NGT_HOME is {base}: no such home", "Name a folder.") from None
    if kind == "config":
        return Path(platformdirs.user_config_dir("ngt", appauthor=False))
    return Path(platformdirs.user_cache_dir("ngt", appauthor=False))


def others_cache() -> Path | None:
    """The folder of the cache if it is another user's: `home` has an empty one in its place."""
    return None if home("cache") == (named := _home("cache")) else named


@cache
def _own_cache(named: Path) -> Path:
    """The folder of the cache; where it is another user's, one for this run alone.

    That one stays, closed to others, where a signal ends the process at once: later runs cannot
    tell it from the folder of a run that goes on.
    """
    if not _is_others(named):
        return named
    folder = Path(tempfile.mkdtemp(prefix="ngt-"))
    process.before_leaving(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


def _is_others(folder: Path) -> bool:
    """Whether a folder is another user's, and this one cannot write to it."""
    try:
        owner = os.stat(folder).st_uid
    except PermissionError:
        return True
    except OSError:
        return False
    return owner != os.geteuid() and not os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def mark_used(path: Path) -> None:
    """Note the use of a file, if it is one of the cache, for `bound_cache`."""
    if str(path).startswith(f"{home('cache')}{os.sep}"):
        note_use(path)


in_bounds = CacheBound(lambda: home("cache"))


def key_of(*parts: object) -> str:
    """The name of a cache entry: a hash of all that it depends on, 32 hex digits.

    >>> key_of(1, "tokenizer", "model") == key_of("1", "tokenizer", "model")
    True
    """
    text = "\0".join(map(str, parts))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def parse_json(text: str | bytes, kind: type[Kind]) -> Kind:
    """The JSON value in `text`, of type `kind` (dict, list, …). Raises DamagedFileError.

    It is also raised for NaN, infinities, numbers beyond 2^63, and values nested too deep to parse.

    >>> parse_json('{"1": 0.5}', dict)
    {'1': 0.5}
    """
    try:
        value = json.loads(text, parse_int=_whole, parse_float=_real, parse_constant=_no_number)
    except (ValueError, RecursionError, OverflowError, MemoryError) as error:
        raise DamagedFileError(_why_not_json(error)) from None
    if not isinstance(value, kind):
        raise DamagedFileError(f"not {'an object' if kind is dict else f'a {kind.__name__}'}")
    return value


def _why_not_json(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    return "not JSON" if isinstance(error, json.JSONDecodeError | UnicodeError) else str(error)


def _whole(text: str) -> int:
    if len(text) > 20 or abs(value := int(text)) > _LARGEST:
        raise ValueError("a number out of range")
    return value


def _real(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError("a number out of range")
    return value


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def read_json(path: Path, most: int) -> dict[str, Any]:
    """The JSON object in a file of at most `most` bytes.

    Raises FileNotFoundError; DamagedFileError for a device or pipe, a file that cannot be read or
    is larger, text for which `parse_json` raises it, and what `write_json` wrote and was changed.
    """
    try:
        data = read_bounded(path, most)
        mark_used(path)
    except FileNotFoundError:
        raise
    except (OSError, MemoryError) as error:
        raise DamagedFileError(reason_of(error)) from None
    return parse_json(_checked(data), dict)


def _checked(data: bytes) -> bytes:
    """The JSON that `write_json` wrote with a checksum; of another file all. Raises as above."""
    text, mark, end = data.rpartition(_CHECKSUM)
    if not mark:
        return data
    text += b"}"
    if end != f'{hashlib.sha256(text).hexdigest()}"}}'.encode():
        raise DamagedFileError("it was changed after it was written")
    return text


def write_atomically(path: Path, text: str | Iterable[str]) -> None:
    """Write `text`, or its pieces, in UTF-8 to a file of the user's, completely or not at all.

    Links are followed, and an existing file keeps its mode. A device or named pipe is written to
    directly, and so is a descriptor such as /dev/stdout: behind what it wrote before, and the file
    that it leads to stays the same. Raises OSError.
    """
    pieces = [text] if isinstance(text, str) else text
    if (descriptor := _descriptor(path)) is not None:
        with os.fdopen(os.dup(descriptor), "w", encoding="utf-8", newline="") as file:
            file.writelines(pieces)
        return
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text("".join(pieces), encoding="utf-8")
        return
    mask = os.umask(0)
    os.umask(mask)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask

    def write(partial: Path) -> None:
        with partial.open("w", encoding="utf-8", newline="") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(mode)

    # The name may be as long as the file system allows, so only 40 characters of it are used.
    write_file(path, write, f".{path.name[:40]}.")


def _descriptor(path: Path) -> int | None:
    """The descriptor that a path stands for.

    >>> _descriptor(Path("/dev/stdout")), _descriptor(Path("/dev/fd/5")), _descriptor(Path("a"))
    (1, 5, None)
    """
    name = os.path.abspath(path)
    found = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d{1,9})", name)
    return int(found[1]) if found else {"/dev/stdout": 1, "/dev/stderr": 2}.get(name)


def private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing; no other user can write to them.

    Nor can others enter those of the cache, which are closed to them if they are the user's. Raises
    OSError.
    """
    if not path.is_dir():
        private_folder(path.parent)
        path.mkdir(0o755, exist_ok=True)
    if path.is_relative_to(home("cache")):
        about = path.stat()
        if about.st_mode & 0o077 and about.st_uid == os.geteuid():
            path.chmod(0o700)
        if path != home("cache"):
            private_folder(path.parent)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object that is not empty as JSON, with a checksum as its last key, to a cache file.

    Only its owner can read it. Raises OSError; ValueError for NaN and infinities; TypeError for
    what JSON does not have.
    """
    text = json.dumps(value, allow_nan=False).encode()
    end = f'{hashlib.sha256(text).hexdigest()}"}}'.encode()

    def write(partial: Path) -> None:
        partial.write_bytes(text.removesuffix(b"}") + _CHECKSUM + end)

    private_folder(path.parent)
    write_file(path, write, "")


def write_file(path: Path, write: Callable[[Path], None], prefix: str) -> None:
    """Call `write` with a temporary file of mode 0600, then rename it to `path`."""
    remove_leftovers(path.parent, prefix)
    with process.unbroken():  # an interruption would leave the temporary file
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=PARTIAL)
        os.close(handle)
        partial = Path(name)
        try:
            write(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    in_bounds.wrote(path)
