"""A safetensors file of any arrays, written one after the other as they come, and mapped.

Each begins at a multiple of 64 bytes; padding is an array, too. The header's place is zeros until
all are written: a file whose writing was broken off is not read.
"""

import hashlib
import json
import mmap
import os
import secrets
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ngtcli.system import process
from ngtcli.system.arrays import TYPES, Shapes, compared, note_compared, read_header
from ngtcli.system.cache import in_bounds, leftovers
from ngtcli.system.files import PARTIAL, DamagedFileError, parse_json, private_folder

BEGIN = 1 << 22  # bytes of the header and its spaces: 30,000 arrays of usual names
PADDING = ":pad"  # end of a padding's name
_ALIGNED = 64  # bytes: a line of the CPU's cache, and what oneDNN aligns its own memory to
_LEFT_S = 120.0  # a file that did not grow for so long is a killed run's; guess
_KINDS = {name: kind for kind, name in TYPES.items()}


class ArrayWriter:
    """Writes a file for `folder`. Its methods raise OSError; `discard` is to be called at last.

    Until it is finished it has no name, where the system has such files: a kill leaves nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._path: Path | None = None
        private_folder(folder)
        for left in leftovers(folder, older_s=_LEFT_S):
            with suppress(OSError):  # another run removes it
                left.unlink()
        try:
            handle = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        except (AttributeError, OSError):  # the system, or the file system, has none without name
            handle, name = tempfile.mkstemp(dir=folder, suffix=PARTIAL)
            self._path = Path(name)
        self._file = os.fdopen(handle, "w+b", buffering=0)
        self._digest, self._size = hashlib.sha256(), 0
        self._header: dict[str, Any] = {}
        self._shapes: Shapes = {}
        self._file.seek(self._file.truncate(BEGIN))  # zeros until then

    def add(self, name: str, kind: str, shape: Iterable[int], data: Any) -> None:
        """Write an array, given as a buffer of bytes."""
        if kind not in _KINDS:
            raise OSError(f"numbers of the type {kind}")
        self._write(data)
        self._digest.update(data)
        begin, self._size = self._size, self._size + len(data)
        dtype, sizes = self._shapes[name] = _KINDS[kind], list(shape)
        self._header[name] = {"dtype": dtype, "shape": sizes, "data_offsets": [begin, self._size]}
        if rest := -self._size % _ALIGNED:
            self.add(name + PADDING, "uint8", [rest], bytes(rest))

    def finish(self, path: Path, about: dict[str, Any]) -> None:
        """Write the header with what is to be said `about` the arrays; the file is `path` then."""
        told = json.dumps(about)
        metadata = {"about": told, "checksum": _checksum(self._digest, self._shapes, told)}
        header = json.dumps({"__metadata__": metadata} | self._header).encode()
        if len(header) > (most := BEGIN - 8):
            raise OSError(f"{len(self._header)} arrays are too many")
        self._file.seek(0)
        self._write(most.to_bytes(8, "little") + header.ljust(most))
        with process.unbroken():
            if self._path is None:
                new = self._path = path.with_name(f"{secrets.token_hex(8)}{PARTIAL}")
                # With a descriptor it is linkat, which follows the link; it is ignored otherwise.
                handle = self._file.fileno()
                os.link(f"/proc/self/fd/{handle}", new, src_dir_fd=handle, follow_symlinks=True)
            self._path.replace(path)
        note_compared(path)
        in_bounds.wrote(path)

    def mapped(self) -> tuple[mmap.mmap, Shapes]:
        """The file and the arrays written so far; they stay where another run removes it."""
        return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY), self._shapes

    def discard(self) -> None:
        """Close the file, and remove it unless it is finished."""
        self._file.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _write(self, data: Any) -> None:
        rest = memoryview(data)
        while len(rest):  # the system may write a part of it
            rest = rest[self._file.write(rest) or 0 :]


def map_arrays(path: Path, wanted: dict[str, Any]) -> tuple[mmap.mmap, Shapes, dict[str, Any]]:
    """The file, mapped, its arrays, and what is said about them, `wanted` among it.

    Writing to it changes neither the file nor what others see. Raises OSError for a file that is
    not there or cannot be read; DamagedFileError for another than was written, or than `wanted`.
    """
    with path.open("rb") as file:
        metadata, shapes = read_header(path)
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    whole.madvise(mmap.MADV_WILLNEED)
    about = parse_json(told := metadata.get("about", ""), dict)
    if any(about.get(n) != v for n, v in wanted.items()):
        raise DamagedFileError("they were made of other files")
    with compared(path) as known:
        digest = hashlib.sha256(b"" if known else memoryview(whole)[BEGIN:])
        if not known and metadata.get("checksum") != _checksum(digest, shapes, told):
            raise DamagedFileError("checksum differs")
    return whole, shapes, about


def _checksum(digest: Any, shapes: Shapes, about: str) -> str:
    """In hex, when what the header says is added to the SHA-256 of the arrays' bytes."""
    digest.update(json.dumps([shapes, about], sort_keys=True).encode())
    return str(digest.hexdigest())
