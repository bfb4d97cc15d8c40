"""Arrays of a cache file, mapped into memory: what is not looked at is not read.

The checksum of a file is compared when it is first read, and again whenever its size, its times or
its inode are others than they were then, which is kept beside it; or, with `map_unchecked`, never.
What the arrays mean, their reader must check where it uses them.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ngtcli.system.arrays import check_regular, checksum
from ngtcli.system.cache import mark_used
from ngtcli.system.storage import DamagedFileError, parse_json, read_json, write_json

Arrays = dict[str, npt.NDArray[np.int32]]

_HEADER = 1_000_000  # most bytes of a header; guess
_SMALL = 1000  # most bytes of what is kept of a check
_RACE_NS = 2_000_000_000  # a file this young may change without a new time; guess


def map_arrays(
    path: Path, names: Sequence[str], wanted: Mapping[str, str], most: int
) -> tuple[Arrays, dict[str, str]]:
    """The int32 arrays, one-dimensional and read-only, and the metadata of a safetensors file.

    For files that `write_arrays` wrote. Raises DamagedFileError as `read_arrays`.
    """
    try:
        check_regular(path, most)
        stamp = _stamp(path)
    except OSError as error:
        raise DamagedFileError(f"unreadable ({error})") from None
    arrays, metadata = _mapped(path, names, wanted, "r")
    known = _checked(path) == stamp
    if not known and metadata.get("checksum") != checksum(arrays):
        raise DamagedFileError("checksum differs")
    mark_used(path)  # which changes the last time of the stamp
    if time.time_ns() - stamp[1] > _RACE_NS:
        with suppress(OSError):  # then it is compared again
            now = _stamp(path)
            if now[:-1] == stamp[:-1] and not (known and now == stamp):
                write_json(_beside(path), {"stamp": now})
    return arrays, metadata


def map_unchecked(
    path: Path, names: Sequence[str], wanted: Mapping[str, str], most: int
) -> tuple[Arrays, dict[str, str]]:
    """The same, but the checksum is not compared: opening takes no longer for a larger file.

    Arrays are a private mapping: writing to them changes neither the file nor what others see.
    Raises DamagedFileError as `read_arrays`; FileNotFoundError.
    """
    try:
        check_regular(path, most)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedFileError(f"unreadable ({error})") from None
    return _mapped(path, names, wanted, "c")


def _mapped(
    path: Path, names: Sequence[str], wanted: Mapping[str, str], mode: Literal["r", "c"]
) -> tuple[Arrays, dict[str, str]]:
    """Raises DamagedFileError for what cannot be read, another form or other metadata."""
    try:
        return _opened(path, names, wanted, mode)
    except (OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        raise DamagedFileError(f"unreadable ({error})") from None


def _opened(
    path: Path, names: Sequence[str], wanted: Mapping[str, str], mode: Literal["r", "c"]
) -> tuple[Arrays, dict[str, str]]:
    """Raises OSError, ValueError, KeyError and TypeError as well."""
    whole: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, mode).view(np.ndarray)
    size = int.from_bytes(whole[:8].tobytes(), "little")
    if not 0 < size <= min(_HEADER, len(whole) - 8) or size % 4:
        raise DamagedFileError("no header")
    header = parse_json(whole[8 : 8 + size].tobytes(), dict)
    about = header.pop("__metadata__", {})
    if not isinstance(about, dict):
        raise DamagedFileError("no metadata")
    metadata = {str(k): str(v) for k, v in about.items()}
    if any(metadata.get(name) != value for name, value in wanted.items()):
        raise DamagedFileError("another version or another file's content")
    if set(header) != set(names):
        raise DamagedFileError("it holds other arrays")
    body = whole[8 + size :]
    return {name: _array(header[name], body) for name in names}, metadata


def _array(about: dict[str, Any], body: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    first, last = about["data_offsets"]
    if about["dtype"] != "I32" or about["shape"] != [(last - first) // 4] or first % 4:
        raise DamagedFileError("arrays of another type")
    if not 0 <= first <= last <= len(body) or (last - first) % 4:
        raise DamagedFileError("an array beyond its end")
    return body[first:last].view(np.int32)


def _stamp(path: Path) -> list[int]:
    about = os.stat(path)
    return [about.st_size, about.st_mtime_ns, about.st_ino, about.st_ctime_ns]


def _beside(path: Path) -> Path:
    """Where it is kept which state of the file was checked."""
    return path.with_suffix(".checked.json")


def _checked(path: Path) -> Any:
    with suppress(FileNotFoundError, DamagedFileError):
        return read_json(_beside(path), _SMALL).get("stamp")
    return None
