"""Array files of the cache: each kind is declared once, and written, read and mapped alike.

They are safetensors, whose metadata have the kind's format and a SHA-256 of the contents. Read into
memory, a file is compared with its checksum every time; mapped, when it is first read and whenever
its size or its times of change differ from those it had then; or, with `map_unchecked`, never. What
numbers mean, their reader must check: a manipulated file has the checksum that it should have.
"""

import errno
import hashlib
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ngtcli.errors import reason_of
from ngtcli.system.cache import STAMP, in_bounds, keep_last, largest
from ngtcli.system.files import (
    DamagedFileError,
    home,
    mark_used,
    new_file,
    private_folder,
    read_json,
    write_json,
)

if TYPE_CHECKING:  # numpy comes with safetensors, and light commands want neither
    import numpy as np

Arrays = dict[str, Any]  # numpy arrays by their names
Metadata = dict[str, str]
Shapes = dict[str, tuple[str, list[int]]]  # dtypes, by their names in safetensors, and shapes

ANY = -1  # as many columns as there are, one at least
TYPES = {
    "BOOL": "bool", "U8": "uint8", "U64": "uint64", "I8": "int8", "I32": "int32", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip
_SMALL = 1000  # most bytes of what is stored of a check
_RACE_NS = 2_000_000_000  # a file this young may change without a new time; guess


class Array(NamedTuple):
    """An array's numpy dtype, its columns (0: it has one dimension), and a word for its rows.

    Arrays of a file with the same word have as many rows; of "" each has its own number.
    """

    dtype: str
    columns: int = 0
    rows: str = ""


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """One kind of array file: `folder` of the cache, end of its files' names, format, arrays.

    `most` is the largest size of a file in bytes. `what` begins sentences about one: "the trie is".
    `check` raises DamagedFileError for arrays that do not belong together.
    """

    what: str
    folder: str
    suffix: str
    format: str
    most: int
    arrays: Mapping[str, Array]
    check: Callable[[Arrays], None] = lambda _: None

    def path(self, name: str) -> Path:
        """The file of that name. Raises UsageError as `home`."""
        return home("cache") / self.folder / f"{name}{self.suffix}"

    def paths(self) -> list[Path]:
        """All files of this kind. Raises UsageError as `home`."""
        return sorted((home("cache") / self.folder).glob(f"*{self.suffix}"))

    def write(self, path: Path, arrays: "Mapping[str, np.ndarray]", metadata: Metadata) -> Path:
        """Write arrays of the declared names and dtypes; only the owner can read the file.

        Returns `path`. Raises OSError, EFBIG if the arrays are more than `most` bytes.
        """
        import numpy as np
        from safetensors import SafetensorError
        from safetensors import numpy as tensors

        ordered = {name: np.ascontiguousarray(arrays[name]) for name in self.arrays}
        if sum(array.nbytes for array in ordered.values()) > self.most:
            raise OSError(errno.EFBIG, f"more than {self.most / 1e6:g} MB", str(path))
        about = {**metadata, "format": self.format, "checksum": checksum(ordered)}
        private_folder(path.parent)
        try:
            with new_file(path) as file:
                file.write(tensors.save(ordered, about))
        except SafetensorError as error:  # how the library words a full disk
            if number := re.search(r"os error (\d+)", str(error)):
                raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None
            raise OSError(str(error)) from None
        in_bounds.wrote(path)
        return path

    def keep(
        self,
        path: Path,
        arrays: "Mapping[str, np.ndarray]",
        metadata: Metadata,
        warn: Callable[[str], object],
    ) -> bool:
        """Write as `write` does; False where that is not possible, and `warn` gets the reason.

        Of files whose names begin alike, up to a point, all but the last ones are removed.
        """
        try:
            self.write(path, arrays, metadata)
        except OSError as error:
            warn(f"{self.what} not cached: {reason_of(error)}")
            return False
        keep_last(path.parent, f"{path.name.partition('.')[0]}.*{self.suffix}")
        return True

    def read(self, path: Path, wanted: Mapping[str, str] | None = None) -> tuple[Arrays, Metadata]:
        """The arrays, read into memory, and the metadata.

        Raises FileNotFoundError; DamagedFileError where the file has another format, other arrays,
        other metadata than `wanted`, or another checksum than its content.
        """
        arrays, metadata = self._open(path, wanted or {}, "r")
        try:
            arrays = {name: array.copy() for name, array in arrays.items()}
        except MemoryError:
            raise DamagedFileError("more than memory holds") from None
        mark_used(path)
        if metadata.get("checksum") != checksum(arrays):
            raise DamagedFileError("checksum differs")
        return arrays, metadata

    def map(self, path: Path, wanted: Mapping[str, str] | None = None) -> tuple[Arrays, Metadata]:
        """The same, mapped and read-only: what is not looked at is not read. Raises as `read`."""
        with compared(path) as known:
            arrays, metadata = self._open(path, wanted or {}, "r")
            if not known and metadata.get("checksum") != checksum(arrays):
                raise DamagedFileError("checksum differs")
        return arrays, metadata

    def find(
        self, path: Path, warn: Callable[[str], object] = lambda _: None
    ) -> tuple[Arrays, Metadata] | None:
        """As `map`, and checked; None without a file, or with a line to `warn` if damaged."""
        try:
            arrays, metadata = self.map(path)
            self.check(arrays)
            return arrays, metadata
        except FileNotFoundError:
            return None
        except DamagedFileError as error:
            warn(f"{self.what} made again: {error}")
            return None

    def map_unchecked(
        self, path: Path, wanted: Mapping[str, str] | None = None
    ) -> tuple[Arrays, Metadata]:
        """The same without a checksum: opening takes no longer for a larger file.

        Arrays are a private mapping: writing to them changes neither the file nor what others see.
        Raises as `read`.
        """
        return self._open(path, wanted or {}, "c")

    def _open(
        self, path: Path, wanted: Mapping[str, str], mode: Literal["r", "c"]
    ) -> tuple[Arrays, Metadata]:
        import numpy as np

        metadata, found = read_header(path, self.most)
        if any(metadata.get(n) != v for n, v in {**wanted, "format": self.format}.items()):
            raise DamagedFileError("another version or another file's content")
        if found.keys() != self.arrays.keys():
            raise DamagedFileError("it holds other arrays")
        self._check_shapes(found)
        arrays: Arrays = {}
        try:
            whole = np.memmap(path, np.uint8, mode).view(np.ndarray)
            at = 8 + int.from_bytes(whole[:8].tobytes(), "little")
            for name, (kind, shape) in found.items():
                end = at + math.prod(shape) * np.dtype(TYPES[kind]).itemsize
                arrays[name] = whole[at:end].view(TYPES[kind]).reshape(shape)
                at = end
        except (OSError, ValueError, MemoryError) as error:
            raise DamagedFileError(f"unreadable ({error})") from None
        if at != len(whole) or not all(array.flags.aligned for array in arrays.values()):
            raise DamagedFileError("it was replaced while it was opened, or arrays at odd places")
        return {name: arrays[name] for name in self.arrays}, metadata

    def _check_shapes(self, found: Shapes) -> None:
        """Raise DamagedFileError unless these arrays are as they are declared."""
        lengths: dict[str, set[int]] = {}
        for name, declared in self.arrays.items():
            kind, shape = found[name]
            columns = shape[1] if len(shape) == 2 else 0
            fits = columns == declared.columns or (declared.columns == ANY and columns > 0)
            if TYPES.get(kind) != declared.dtype or not fits or not 1 <= len(shape) <= 2:
                raise DamagedFileError("arrays of another type")
            lengths.setdefault(declared.rows or name, set()).add(shape[0])
        if any(len(of_one) > 1 for of_one in lengths.values()):
            raise DamagedFileError("arrays of different lengths")

    def others(self, family: str) -> list[Path]:
        """Files whose names begin with `family` and a point: the largest first, 16 at most."""
        return largest(home("cache") / self.folder, f"{family}.*{self.suffix}")


def read_header(path: Path, most: int | None = None) -> tuple[Metadata, Shapes]:
    """The metadata, and dtype and shape of each array in the order of their places.

    Raises FileNotFoundError, and DamagedFileError for what is not a regular file, has more than
    `most` bytes or is not safetensors.
    """
    from safetensors import SafetensorError, safe_open

    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise DamagedFileError("not a regular file")
        if most is not None and about.st_size > most:
            raise DamagedFileError(f"more than {most / 1e6:g} MB")
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            arrays = {name: (s.get_dtype(), list(s.get_shape())) for name, s in slices.items()}
            return dict(file.metadata() or {}), arrays
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, MemoryError) as error:
        raise DamagedFileError(f"unreadable ({error})") from None


def checksum(arrays: "Mapping[str, np.ndarray]") -> str:
    """SHA-256 in hex of the arrays' lengths and contents, in the order given."""
    digest = hashlib.sha256()
    for array in arrays.values():
        digest.update(len(array).to_bytes(8, "little"))
        digest.update(array.data if array.size else b"")
    return digest.hexdigest()


@contextmanager
def compared(path: Path) -> Iterator[bool]:
    """A block that compares a file with its checksum unless it is given True, and uses the file.

    Raises FileNotFoundError; DamagedFileError for what cannot be looked at.
    """
    try:
        stamp = _stamp(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedFileError(f"unreadable ({error})") from None
    known = _is_known(path, stamp)
    yield known
    mark_used(path)  # which changes the last time of the stamp
    with suppress(OSError):  # then it is compared again
        now = _stamp(path)
        is_old = time.time_ns() - stamp[1] > _RACE_NS
        if (known or is_old) and now[:-1] == stamp[:-1] and not (known and now == stamp):
            write_json(_stamp_path(path), {"stamp": now})


def note_compared(path: Path) -> None:
    """Note that a file is as its checksum says: this process has just written it."""
    with suppress(OSError):  # then it is compared when it is read
        write_json(_stamp_path(path), {"stamp": _stamp(path)})


def _stamp(path: Path) -> list[int]:
    about = os.stat(path)
    return [about.st_size, about.st_mtime_ns, about.st_ctime_ns]


def _stamp_path(path: Path) -> Path:
    """Where it is stored which state of the file was compared with its checksum."""
    return path.with_suffix(STAMP)


def _is_known(path: Path, stamp: list[int]) -> bool:
    with suppress(FileNotFoundError, DamagedFileError):
        return read_json(_stamp_path(path), _SMALL).get("stamp") == stamp
    return False
