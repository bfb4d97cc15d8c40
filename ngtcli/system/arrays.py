"""Array files of the cache: each kind is declared once, and written and mapped alike.

They are safetensors. Arrays are written one after the other as they come, each at a multiple of 64
bytes; padding is an array, too. The header is zeros until all are written. A file is compared with
its checksum when it is mapped, unless it is as it was when that was done before.
What numbers mean, their reader must check: a manipulated file has the checksum that it should have.
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

Arrays = dict[str, Any]  # numpy arrays by their names
Metadata = dict[str, str]
Shapes = dict[str, tuple[str, list[int]]]  # dtypes, by their names in safetensors, and shapes

TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I32": "int32", "I64": "int64", "F16": "float16",
    "F32": "float32", "F64": "float64", "BF16": "uint16",  # the bits: numpy has no such numbers
}  # fmt: skip
ROOM = 1 << 22  # bytes of a header and its spaces: 30,000 arrays of usual names
PADDING = ":pad"  # end of a padding's name
_ALIGNED = 64  # bytes: a line of the CPU's cache, and what oneDNN aligns its own memory to


class Array(NamedTuple):
    """An array's numpy dtype, and a word for its entries.

    Arrays of a file with the same word have as many; of "" each has its own number.
    """

    dtype: str
    rows: str = ""


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """One kind of array file: `folder` of the cache, end of its files' names, format.

    It has the declared `arrays`, of one dimension; where none are declared, any. `most` is the
    largest size of a file in bytes.
    """

    folder: str
    suffix: str
    format: str
    most: int
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """The file of that name. Raises UsageError as `home`."""
        return home("cache") / self.folder / f"{name}{self.suffix}"

    def paths(self) -> list[Path]:
        """All files of this kind. Raises UsageError as `home`."""
        return sorted((home("cache") / self.folder).glob(f"*{self.suffix}"))

    def write(self, path: Path, arrays: "Mapping[str, np.ndarray]", metadata: Metadata) -> Path:
        """Write the declared arrays; only the owner can read the file, and `path` is returned.

        Raises OSError, EFBIG if the arrays are more than `most` bytes.
        """
        room = _ALIGNED * (len(json.dumps(metadata)) // _ALIGNED + 10 * (1 + len(self.arrays)))
        if room + sum(arrays[name].nbytes for name in self.arrays) > self.most:
            raise OSError(errno.EFBIG, f"more than {self.most / 1e6:g} MB", str(path))
        with closing(ArrayWriter(path.parent, room)) as writer:
            for name in self.arrays:
                writer.add(name, arrays[name])
            writer.finish(path, {**metadata, "format": self.format})
        return path

    def map(self, path: Path, wanted: Mapping[str, str] | None = None) -> tuple[Arrays, Metadata]:
        """The arrays, mapped: what is not looked at is not read; and the metadata.

        Writing to them changes neither the file nor what others see. Raises FileNotFoundError;
        DamagedFileError where the file has another format, other arrays, other metadata than
        `wanted`, or another checksum than its content.
        """
        try:
            stamp = stamp_of(path)
            metadata, shapes = read_header(path, self.most)
            with path.open("rb") as file:
                if stamp_of(file.fileno()) != stamp:  # replaced meanwhile
                    return self.map(path, wanted)
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileNotFoundError(*error.args) from None
        except (OSError, ValueError, MemoryError) as error:
            raise DamagedFileError(f"unreadable ({error})") from None
        checksum, about = metadata.pop("checksum", ""), {**(wanted or {}), "format": self.format}
        if any(metadata.get(name) != value for name, value in about.items()):
            raise DamagedFileError("another version or another file's content")
        if not self.arrays:  # all are looked at
            data.madvise(mmap.MADV_WILLNEED)
        begin = 8 + int.from_bytes(data[:8], "little")
        arrays = _views(data, begin, shapes)
        self._check(arrays)
        if CHECKED.get(key_of(path)) != stamp:  # which notes the use
            digest = hashlib.sha256(memoryview(data)[begin:])
            if checksum != _checksum(digest, shapes, metadata):
                raise DamagedFileError("checksum differs")
            CHECKED.put(key_of(path), stamp)
        return arrays, metadata

    def _check(self, arrays: Arrays) -> None:
        """Raise DamagedFileError unless these arrays are as they are declared."""
        wanted = {name: (declared.dtype, 1) for name, declared in self.arrays.items()}
        if self.arrays and wanted != {n: (a.dtype.name, a.ndim) for n, a in arrays.items()}:
            raise DamagedFileError("it holds other arrays")
        words = {name: declared.rows or name for name, declared in self.arrays.items()}
        if len({(words[n], len(arrays[n])) for n in words}) > len({*words.values()}):
            raise DamagedFileError("arrays of different lengths")


class ArrayWriter:
    """Writes a file for `folder`, with `room` bytes for its header.

    Methods raise OSError; `close` is to be called at last.
    """

    def __init__(self, folder: Path, room: int = ROOM) -> None:
        private_folder(folder)
        self._new, self._room = NewFile(folder, buffering=0), room
        self._file = self._new.file
        self._digest, self._shapes = hashlib.sha256(), Shapes()
        self._header: dict[str, Any] = {}
        try:
            self._end = self._file.seek(self._file.truncate(room))
        except OSError:
            self.close()
            raise

    def add(self, name: str, array: "np.ndarray") -> None:
        """Write an array."""
        kinds = [kind for kind, dtype in TYPES.items() if dtype == array.dtype.name]
        if not kinds:
            raise OSError(f"numbers of the type {array.dtype.name}")
        self._add(name, kinds[0], array.shape, array.reshape(-1).view("uint8").data)
        if rest := -self._end % _ALIGNED:
            self._add(name + PADDING, "U8", [rest], bytes(rest))

    def _add(self, name: str, kind: str, shape: Sequence[int], data: Any) -> None:
        write_all(self._file, memoryview(data))
        self._digest.update(data)
        begin, self._end = self._end - self._room, self._end + len(data)
        _, sizes = self._shapes[name] = kind, list(shape)
        offsets = [begin, self._end - self._room]
        self._header[name] = {"dtype": kind, "shape": sizes, "data_offsets": offsets}

    def finish(self, path: Path, metadata: Metadata) -> None:
        """Write the header; the file is `path` then, in the place of another."""
        told = {**metadata, "checksum": _checksum(self._digest, self._shapes, metadata)}
        header = json.dumps({"__metadata__": told, **self._header}).encode()
        if len(header) > (most := self._room - 8):
            raise OSError(f"{len(self._header)} arrays are too many")
        self._file.seek(0)
        write_all(self._file, most.to_bytes(8, "little") + header.ljust(most))
        self._new.finish(path)
        CHECKED.put(key_of(path), stamp_of(self._file.fileno()))
        cache_limit.wrote(self._end)

    def mapped(self) -> Arrays:
        """The arrays written so far, as `map` gives them; another run may remove the file."""
        data = mmap.mmap(self._file.fileno(), self._end, access=mmap.ACCESS_COPY)
        return _views(data, self._room, self._shapes)

    def close(self) -> None:
        """Close the file; nothing is left of it unless it is finished."""
        self._new.close()


def read_header(path: Path, most: int | None = None) -> tuple[Metadata, Shapes]:
    """The metadata, and dtype and shape of each array in the order of their places.

    Paddings are among them. Raises FileNotFoundError, and DamagedFileError for what is not a
    regular file, has more than `most` bytes or is not safetensors.
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


def _views(data: mmap.mmap, at: int, shapes: Shapes) -> Arrays:
    """The arrays in a mapped file, from the byte `at` on, but for paddings."""
    import numpy as np

    arrays, whole = Arrays(), np.frombuffer(data, np.uint8)
    for name, (kind, shape) in shapes.items():
        dtype = np.dtype(TYPES.get(kind, "uint8"))
        end = at + math.prod(shape) * dtype.itemsize
        if kind not in TYPES or at % dtype.itemsize or end > len(data):
            raise DamagedFileError("arrays of another type, or at odd places")
        if not name.endswith(PADDING):
            arrays[name] = whole[at:end].view(dtype).reshape(shape)
        at = end
    if at != len(data):
        raise DamagedFileError("it is longer or shorter than its arrays")
    return arrays


def _checksum(digest: Any, shapes: Shapes, metadata: Metadata) -> str:
    """In hex, when what the header says is added to the SHA-256 of the arrays' bytes."""
    digest.update(json.dumps([shapes, metadata], sort_keys=True).encode())
    return str(digest.hexdigest())
