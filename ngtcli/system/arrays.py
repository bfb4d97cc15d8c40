"""Array files of the cache, written and memory-mapped; each kind is declared once.

The format is safetensors. Arrays are written one after another as they come, each at a multiple of
64 bytes; padding is stored as a separate array. The header is zeros until all arrays are written.
Mapping a file verifies its checksum, unless the file has not changed since the last verification.
A manipulated file may have a correct checksum, so readers validate the numbers themselves.
"""

import errno
import hashlib
import json
import math
import mmap
import stat
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ngtcli.system.cache import CHECKED, cache_limit
from ngtcli.system.files import (
    DamagedFileError,
    NewFile,
    home,
    key_of,
    private_folder,
    stamp_of,
    write_all,
)

if TYPE_CHECKING:  # numpy comes with safetensors, and light commands want neither
    import numpy as np

Arrays = dict[str, Any]  # numpy arrays by name
Metadata = dict[str, str]
Shapes = dict[str, tuple[str, list[int]]]  # by name: safetensors' name of a dtype, and a shape

TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "BF16": "uint16",  # the bits: numpy has no such numbers
}
# Bytes reserved for a header, enough for 30,000 arrays with names of usual length (derived).
HEADER_SIZE = 1 << 22
PADDING = ":pad"  # suffix of the name of padding
# Alignment of arrays in bytes: that of a line of the CPU's cache, and of oneDNN.
_ALIGNMENT = 64


class Array(NamedTuple):
    """The declaration of an array: its numpy dtype, and a word for its entries.

    Arrays of a file with the same word have the same length; "" allows any length.
    """

    dtype: str
    rows: str = ""


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """One kind of array file.

    Attributes:
        folder: Its folder in the cache.
        suffix: The end of its file names.
        format: Version of what it contains; another version counts as damaged.
        most: Largest size of a file in bytes.
        arrays: The one-dimensional arrays of each file, by name; if empty, any arrays.
    """

    folder: str
    suffix: str
    format: str
    most: int
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """Return the path of the file with a name. Raises UsageError as `home` does."""
        return home("cache") / self.folder / f"{name}{self.suffix}"

    def paths(self) -> list[Path]:
        """Return the paths of all files of this kind. Raises UsageError as `home` does."""
        return sorted((home("cache") / self.folder).glob(f"*{self.suffix}"))

    def write(self, path: Path, arrays: "Mapping[str, np.ndarray]", metadata: Metadata) -> Path:
        """Write the declared arrays to a file that only its owner can read; return its path.

        Raises OSError, with EFBIG if the file would exceed `most` bytes.
        """
        # The header has the metadata, and at most 640 bytes for an array and its padding (derived).
        blocks = len(json.dumps(metadata)) // _ALIGNMENT + 10 * (1 + len(self.arrays))
        header_size = _ALIGNMENT * blocks
        if header_size + sum(arrays[name].nbytes for name in self.arrays) > self.most:
            raise OSError(errno.EFBIG, f"more than {self.most / 1e6:g} MB", str(path))
        with closing(ArrayWriter(path.parent, header_size)) as writer:
            for name in self.arrays:
                writer.add(name, arrays[name])
            writer.finish(path, {**metadata, "format": self.format})
        return path

    def map(self, path: Path, expected: Mapping[str, str] | None = None) -> tuple[Arrays, Metadata]:
        """Map a file into memory and return its arrays and metadata.

        Pages that are not accessed are not read. Writing to the arrays changes neither the file nor
        what other processes see.

        Args:
            path: The file.
            expected: The metadata that it must have.

        Raises:
            FileNotFoundError: There is no such file.
            DamagedFileError: Its format, arrays, metadata or checksum is not as expected.
        """
        try:
            stamp = stamp_of(path)
            metadata, shapes = read_header(path, self.most)
            with path.open("rb") as file:
                if stamp_of(file.fileno()) != stamp:  # replaced meanwhile
                    return self.map(path, expected)
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(*error.args) from None
        except (OSError, ValueError, MemoryError) as error:
            raise DamagedFileError(f"unreadable ({error})") from None

        checksum = metadata.pop("checksum", "")
        required = {**(expected or {}), "format": self.format}
        if any(metadata.get(name) != value for name, value in required.items()):
            raise DamagedFileError("another version or another file's content")
        if not self.arrays:  # such files are read whole
            data.madvise(mmap.MADV_WILLNEED)
        data_start = 8 + int.from_bytes(data[:8], "little")
        arrays = _views(data, data_start, shapes)
        self._check(arrays)
        key = key_of(path)
        if CHECKED.get(key) != stamp:  # this lookup also records that the file was used
            digest = hashlib.sha256(memoryview(data)[data_start:])
            if checksum != _checksum(digest, shapes, metadata):
                raise DamagedFileError("checksum differs")
            CHECKED.put(key, stamp)
        return arrays, metadata

    def _check(self, arrays: Arrays) -> None:
        """Raise DamagedFileError unless the arrays are as declared."""
        if not self.arrays:
            return
        declared = {name: (array.dtype, 1) for name, array in self.arrays.items()}
        actual = {name: (array.dtype.name, array.ndim) for name, array in arrays.items()}
        if actual != declared:
            raise DamagedFileError("it holds other arrays")
        lengths: dict[str, int] = {}
        for name, array in self.arrays.items():
            length = len(arrays[name])
            if lengths.setdefault(array.rows or name, length) != length:
                raise DamagedFileError("arrays of different lengths")


class ArrayWriter:
    """A writer of an array file, piece by piece; call `close` last. Methods raise OSError.

    Args:
        folder: Where the file is written.
        header_size: Bytes to reserve for its header.
    """

    def __init__(self, folder: Path, header_size: int = HEADER_SIZE) -> None:
        private_folder(folder)
        self._new_file = NewFile(folder, buffering=0)
        self._file = self._new_file.file
        self._header_size = header_size
        self._digest = hashlib.sha256()
        self._shapes = Shapes()
        self._header: dict[str, Any] = {}
        try:
            self._end = self._file.seek(self._file.truncate(header_size))
        except OSError:
            self.close()
            raise

    def add(self, name: str, array: "np.ndarray") -> None:
        """Write an array."""
        kinds = [kind for kind, dtype in TYPES.items() if dtype == array.dtype.name]
        if not kinds:
            raise OSError(f"a file cannot hold numbers of type {array.dtype.name}")
        self._add_bytes(name, kinds[0], array.shape, array.reshape(-1).view("uint8").data)
        padding = -self._end % _ALIGNMENT
        if padding:
            self._add_bytes(name + PADDING, "U8", [padding], bytes(padding))

    def _add_bytes(self, name: str, kind: str, shape: Sequence[int], data: Any) -> None:
        write_all(self._file, memoryview(data))
        self._digest.update(data)
        start = self._end
        self._end += len(data)
        self._shapes[name] = kind, list(shape)
        self._header[name] = {
            "dtype": kind,
            "shape": list(shape),
            "data_offsets": [start - self._header_size, self._end - self._header_size],
        }

    def finish(self, path: Path, metadata: Metadata) -> None:
        """Write the header and give the file its name, replacing an earlier file."""
        checksum = _checksum(self._digest, self._shapes, metadata)
        complete_metadata = {**metadata, "checksum": checksum}
        header = json.dumps({"__metadata__": complete_metadata, **self._header}).encode()
        available = self._header_size - 8  # the first 8 bytes are the header's length
        if len(header) > available:
            raise OSError(f"{len(self._header)} arrays are too many")
        self._file.seek(0)
        write_all(self._file, available.to_bytes(8, "little") + header.ljust(available))
        self._new_file.finish(path)
        CHECKED.put(key_of(path), stamp_of(self._file.fileno()))
        cache_limit.wrote(self._end)

    def mapped(self) -> Arrays:
        """Map the arrays written so far, as `ArrayFile.map` does.

        They stay valid if another process removes the file.
        """
        data = mmap.mmap(self._file.fileno(), self._end, access=mmap.ACCESS_COPY)
        return _views(data, self._header_size, self._shapes)

    def close(self) -> None:
        """Close the file, and remove it unless it is finished."""
        self._new_file.close()


def read_header(path: Path, most: int | None = None) -> tuple[Metadata, Shapes]:
    """Read the metadata of a file, and the dtype and shape of its arrays, padding included.

    Arrays are in the order in which they are stored.

    Raises:
        FileNotFoundError: There is no such file.
        DamagedFileError: It is no regular file, larger than `most` bytes, or not safetensors.
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
            shapes = {name: (s.get_dtype(), list(s.get_shape())) for name, s in slices.items()}
            return dict(file.metadata() or {}), shapes
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, MemoryError) as error:
        raise DamagedFileError(f"unreadable ({error})") from None


def _views(data: mmap.mmap, data_start: int, shapes: Shapes) -> Arrays:
    """View the arrays of a mapped file, without padding, from the byte `data_start` on.

    Raises DamagedFileError if they do not fill the rest of the file exactly.
    """
    import numpy as np

    arrays = Arrays()
    raw = np.frombuffer(data, np.uint8)
    start = data_start
    for name, (kind, shape) in shapes.items():
        dtype = np.dtype(TYPES.get(kind, "uint8"))
        end = start + math.prod(shape) * dtype.itemsize
        if kind not in TYPES or start % dtype.itemsize or end > len(data):
            raise DamagedFileError("arrays of another type, or at odd places")
        if not name.endswith(PADDING):
            arrays[name] = raw[start:end].view(dtype).reshape(shape)
        start = end
    if start != len(data):
        raise DamagedFileError("it is longer or shorter than its arrays")
    return arrays


def _checksum(digest: Any, shapes: Shapes, metadata: Metadata) -> str:
    """Return the SHA-256 in hex of the arrays' bytes, already in `digest`, and of the header."""
    digest.update(json.dumps([shapes, metadata], sort_keys=True).encode())
    return str(digest.hexdigest())
