"""Arrays of numbers in cache files: safetensors, checked by a checksum when they are read."""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ngtcli.system.storage import DamagedFileError, mark_used, private_folder, write_file

if TYPE_CHECKING:  # numpy comes with safetensors, and light commands want neither
    import numpy as np


def write_arrays(
    path: Path, arrays: "Mapping[str, np.ndarray]", metadata: Mapping[str, str], most: int
) -> Path:
    """Write arrays, their checksum and `metadata` as safetensors; only the owner can read the file.

    Returns `path`. Raises OSError, EFBIG if the arrays are more than `most` bytes.
    """
    from safetensors import SafetensorError
    from safetensors import numpy as tensors

    if sum(array.nbytes for array in arrays.values()) > most:
        raise OSError(errno.EFBIG, f"more than {most / 1e6:g} MB", str(path))
    described = {**metadata, "checksum": checksum(arrays)}
    private_folder(path.parent)
    try:
        write_file(path, lambda partial: tensors.save_file(dict(arrays), partial, described), "")
    except SafetensorError as error:  # how the library words a full disk
        if number := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None
        raise OSError(str(error)) from None
    return path


def read_arrays(
    path: Path, names: Sequence[str], wanted: Mapping[str, str], most: int
) -> "dict[str, np.ndarray]":
    """The int32 arrays of exactly these names from a file that `write_arrays` wrote.

    Raises DamagedFileError if the file is larger than `most` bytes, or has other arrays, other
    metadata than `wanted`, or another checksum than its content.
    """
    import numpy as np

    arrays, metadata = _opened(path, names, most)
    mark_used(path)
    if any(a.dtype != np.int32 or a.ndim != 1 for a in arrays.values()):
        raise DamagedFileError("arrays of another type")
    if any(metadata.get(name) != value for name, value in wanted.items()):
        raise DamagedFileError("another version or another file's content")
    if metadata.get("checksum") != checksum(arrays):
        raise DamagedFileError("checksum differs")
    return arrays


def _opened(
    path: Path, names: Sequence[str], most: int
) -> "tuple[dict[str, np.ndarray], dict[str, str]]":
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(path, most)
        with safe_open(path, framework="np") as file:
            if set(file.keys()) != set(names):
                raise DamagedFileError("it holds other arrays")
            return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError, TypeError, MemoryError) as error:
        raise DamagedFileError(f"unreadable ({error})") from None


def read_header(path: Path) -> tuple[dict[str, str], dict[str, int]]:
    """The metadata of a safetensors file and the length of each array. Raises DamagedFileError."""
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(path, None)
        with safe_open(path, framework="np") as file:
            lengths = {name: file.get_slice(name).get_shape()[0] for name in file.keys()}  # noqa: SIM118
            return dict(file.metadata() or {}), lengths
    except (SafetensorError, OSError, ValueError, TypeError, IndexError, MemoryError) as error:
        raise DamagedFileError(f"unreadable ({error})") from None


def check_regular(path: Path, most: int | None) -> None:
    """Raise DamagedFileError unless it is a regular file of at most `most` bytes."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise DamagedFileError("not a regular file")
    if most is not None and about.st_size > most:
        raise DamagedFileError(f"more than {most / 1e6:g} MB")


def checksum(arrays: "Mapping[str, np.ndarray]") -> str:
    """SHA-256 in hex of the arrays' lengths and contents, in the order given."""
    import numpy as np

    digest = hashlib.sha256()
    for array in arrays.values():
        digest.update(len(array).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
