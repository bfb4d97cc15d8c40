"""Array files of any arrays, written one after the other as they come, and mapped.

Each array begins at a multiple of 64 bytes. Behind the last one stands an index in JSON, which has
the checksum of all before it; then the length and the checksum of the index. A file only grows: one
whose writing was broken off, by a kill or by the end of the current, has no index and is not read.
"""

import errno
import hashlib
import json
import mmap
import os
import secrets
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngtcli.system import process
from ngtcli.system.arrays import compared, note_compared
from ngtcli.system.cache import PARTIAL, leftovers
from ngtcli.system.storage import (
    DamagedFileError,
    in_bounds,
    parse_json,
    private_folder,
)

_ALIGNED = 64  # bytes: a line of the CPU's cache, and what oneDNN aligns its own memory to
_LEFT_S = 120.0  # a file that did not grow for so long is a killed run's; guess
_MOST_INDEX = 1 << 26  # bytes; guess: 200 for each of 300,000 arrays
_END = 8 + hashlib.sha256().digest_size  # bytes behind the index
_BYTES = {"int8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4,
          "int64": 8, "uint8": 1, "bool": 1}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stored:
    """An array in a file: its type, its shape, and its bytes."""

    kind: str
    shape: tuple[int, ...]
    data: memoryview


class ArrayWriter:
    """Writes a file for `folder`. Its methods raise OSError; `discard` is to be called at last.

    Until it is finished it has no name, where the system has such files: a kill leaves nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._path: Path | None
        private_folder(folder)
        for left in leftovers(folder, older_s=_LEFT_S):
            with suppress(OSError):  # another run removes it
                left.unlink()
        self._folder, self._path = folder, None
        try:
            handle = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        except (AttributeError, OSError):  # the system, or the file system, has none without name
            handle, name = tempfile.mkstemp(dir=folder, suffix=PARTIAL)
            self._path = Path(name)
        self._file = os.fdopen(handle, "w+b", buffering=0)
        self._digest, self._at = hashlib.sha256(), 0
        self._index: dict[str, tuple[str, list[int], int]] = {}

    def add(self, name: str, kind: str, shape: Iterable[int], parts: Iterable[Any]) -> None:
        """Write an array, given in parts that are buffers of bytes."""
        if kind not in _BYTES:
            raise OSError(errno.EINVAL, f"numbers of the type {kind}")
        begin = self._at
        for part in parts:
            self._write(part)
        self._index[name] = kind, list(shape), begin
        self._write(bytes(-self._at % _ALIGNED))

    def finish(self, path: Path, about: dict[str, Any]) -> None:
        """Write the index with what is to be said `about` the arrays; the file is `path` then."""
        told = {"arrays": self._index, "about": about, "checksum": self._digest.hexdigest()}
        index = json.dumps(told).encode()
        self._write(index)
        self._write(len(index).to_bytes(8, "little") + hashlib.sha256(index).digest())
        with process.unbroken():
            if self._path is None:
                new = self._folder / f"{secrets.token_hex(8)}{PARTIAL}"
                # With a descriptor it is linkat, which follows the link; it is ignored otherwise.
                handle = self._file.fileno()
                os.link(f"/proc/self/fd/{handle}", new, src_dir_fd=handle, follow_symlinks=True)
                self._path = new
            self._path.replace(path)
        note_compared(path)
        in_bounds.wrote(path)

    def arrays(self) -> dict[str, Stored]:
        """The arrays that were written, mapped; they stay where another run removes the file."""
        if not self._at:
            return {}
        whole = memoryview(mmap.mmap(self._file.fileno(), self._at, access=mmap.ACCESS_COPY))
        return {name: _stored(whole, *of) for name, of in self._index.items()}

    def discard(self) -> None:
        """Close the file, and remove it unless it is finished."""
        self._file.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _write(self, data: Any) -> None:
        rest = memoryview(data)
        while len(rest):  # the system may write a part of it
            done = self._file.write(rest) or 0
            self._digest.update(rest[:done])
            rest = rest[done:]
            self._at += done


def read_index(path: Path) -> tuple[dict[str, Any], int]:
    """A file's index and where it begins. Raises OSError, DamagedFileError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _END))
        end = file.read(_END)
        length = int.from_bytes(end[:8], "little")
        if len(end) < _END or not 0 < length <= min(_MOST_INDEX, size - _END):
            raise DamagedFileError("it has no index")
        file.seek(begin := size - _END - length)
        index = file.read(length)
    if hashlib.sha256(index).digest() != end[8:]:
        raise DamagedFileError("it has no index")
    told = parse_json(index, dict)
    if told.keys() != {"arrays", "about", "checksum"}:
        raise DamagedFileError("another index")
    return told, begin


def map_arrays(path: Path, wanted: dict[str, Any]) -> tuple[dict[str, Stored], dict[str, Any]]:
    """The arrays by their names, mapped, and what is said about them, `wanted` among it.

    Writing to an array changes neither the file nor what others see. Raises OSError for a file that
    is not there or cannot be read; DamagedFileError for another one than was written, or about
    something else than `wanted`.
    """
    index, end = read_index(path)
    about, arrays = index["about"], index["arrays"]
    if not isinstance(about, dict) or any(about.get(n) != v for n, v in wanted.items()):
        raise DamagedFileError("they were made of other files")
    with path.open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if hasattr(mmap, "MADV_WILLNEED"):
        whole.madvise(mmap.MADV_WILLNEED)
    data = memoryview(whole)[:end]
    with compared(path) as known:
        if not known and hashlib.sha256(data).hexdigest() != index["checksum"]:
            raise DamagedFileError("checksum differs")
    try:
        return {name: _stored(data, *of) for name, of in arrays.items()}, about
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedFileError(f"arrays that are not there ({error})") from None


def _stored(data: memoryview, kind: str, shape: list[int], begin: int) -> Stored:
    """An array of these bytes. Raises ValueError, TypeError, KeyError for one that is not there."""
    size = _BYTES[kind]
    for length in shape:
        if type(length) is not int or length < 0:
            raise ValueError("a shape of another kind")
        size *= length
    if type(begin) is not int or not 0 <= begin <= begin + size <= len(data) or begin % _ALIGNED:
        raise ValueError("an array at an odd place")
    return Stored(kind, tuple(shape), data[begin : begin + size])
