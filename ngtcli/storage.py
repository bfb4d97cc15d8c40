"""What lies on disk: the user's folders, cache keys, bounded reading, whole writing.

Caches are written under a temporary name and renamed, so that a reader never sees half a file and
two writers cannot mix; the files are readable by their owner alone, for they hold what documents
and answers say. A run that is killed leaves a temporary file, `*.partial`; the next write to that
folder removes it. Whatever is wrong with a file that is read back raises one error.
"""

import errno
import hashlib
import json
import math
import os
import stat
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import platformdirs

from ngtcli import process
from ngtcli.errors import UsageError
from ngtcli.reading import read_bounded

if TYPE_CHECKING:  # numpy comes with safetensors, and light commands want neither
    import numpy as np

Kind = TypeVar("Kind")
PARTIAL = ".partial"
LEFT_S = 3600.0  # seconds after which a temporary file is nobody's any more: guessed
_LARGEST = 2.0**63  # beyond it a number in a file of ours is a mistake
_DIGITS = 32  # of a key


class DamagedFileError(Exception):
    """A file is damaged, foreign or of another version; the message says which."""


def home(kind: str) -> Path:
    """The user's folder for `kind`, "config" or "cache"; `NGT_HOME/kind` where NGT_HOME is set.

    Raises UsageError where NGT_HOME begins with the name of a user who is not known.
    """
    if base := os.environ.get("NGT_HOME"):
        try:
            return Path(base).expanduser() / kind
        except RuntimeError:
            raise UsageError(f"NGT_HOME is {base}: no such home", "Name a folder.") from None
    if kind == "config":
        return Path(platformdirs.user_config_dir("ngt", appauthor=False))
    return Path(platformdirs.user_cache_dir("ngt", appauthor=False))


def key_of(*parts: object) -> str:
    """The name of a cache entry: a hash of all it depends on, 32 hex digits.

    >>> key_of(1, "tokenizer", "model") == key_of("1", "tokenizer", "model")
    True
    """
    text = "\0".join(map(str, parts))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def parse_json(text: str | bytes, kind: type[Kind]) -> Kind:
    """The JSON value in `text`, of type `kind` (dict, list, …). Raises DamagedFileError.

    Refused are text that is not JSON, NaN and infinities, numbers of more than 63 bits, and what is
    nested too deep to be read.

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
    raise ValueError(f"{text} is no number")


def read_json(path: Path, most: int) -> dict[str, Any]:
    """The JSON object in a file of at most `most` bytes.

    Raises FileNotFoundError, and DamagedFileError for whatever else is wrong: a device or a pipe,
    a file that cannot be read or is larger, text that `parse_json` refuses.
    """
    try:
        data = read_bounded(path, most)
    except FileNotFoundError:
        raise
    except (OSError, MemoryError) as error:
        raise DamagedFileError(str(getattr(error, "strerror", None) or error)) from None
    return parse_json(data, dict)


def write_atomically(path: Path, text: str) -> None:
    """Write UTF-8 `text` to a file of the user's, whole or not at all. Raises OSError.

    Links are followed, and the mode of a file that is there is kept. What is there and no regular
    file (a device, a named pipe) is written to directly.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    mask = os.umask(0)
    os.umask(mask)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask

    def write(partial: Path) -> None:
        with partial.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(mode)

    # A name may be as long as the file system allows; of 40 characters every system has room.
    _write(path, write, f".{path.name[:40]}.")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON-ready value to a cache, readable by its owner alone. Raises OSError."""
    text = json.dumps(value, allow_nan=False)

    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8")

    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, write, "")


def write_arrays(
    path: Path, arrays: "Mapping[str, np.ndarray]", metadata: Mapping[str, str], most: int
) -> Path:
    """Write arrays with their checksum to a cache as safetensors, readable by the owner alone.

    Raises OSError, EFBIG where they are more than `most` bytes.
    """
    from safetensors import SafetensorError
    from safetensors import numpy as tensors

    if sum(array.nbytes for array in arrays.values()) > most:
        raise OSError(errno.EFBIG, f"more than {most / 1e6:g} MB", str(path))
    told = {**metadata, "checksum": checksum(arrays)}
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write(path, lambda partial: tensors.save_file(dict(arrays), partial, told), "")
    except SafetensorError as error:  # how the library words a full disk
        raise OSError(str(error)) from None
    return path


def _write(path: Path, write: Callable[[Path], None], prefix: str) -> None:
    """Let `write` fill a temporary file of mode 0600, which then takes the place of `path`."""
    remove_leftovers(path.parent, prefix)
    with process.unbroken():  # an interruption waits, or it would leave the temporary file
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=PARTIAL)
        os.close(handle)
        partial = Path(name)
        try:
            write(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def remove_leftovers(folder: Path, prefix: str = "", older_s: float = LEFT_S) -> tuple[int, int]:
    """Remove temporary files of runs that were killed, of a name that begins with `prefix`.

    Younger ones than `older_s` seconds may be another run's and stay. (files, bytes) removed.
    """
    now, files, size = time.time(), 0, 0
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if not (entry.name.endswith(PARTIAL) and entry.name.startswith(prefix)):
                continue
            with suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(about.st_mode) and now - about.st_mtime >= older_s:
                    os.unlink(entry.path)
                    files, size = files + 1, size + about.st_size
    return files, size


def read_arrays(
    path: Path, names: Sequence[str], wanted: Mapping[str, str], most: int
) -> "dict[str, np.ndarray]":
    """The int32 arrays of exactly these names from a file that `write_arrays` wrote.

    Raises DamagedFileError where the file is larger than `most` bytes, has other arrays, other
    metadata than `wanted`, or content that its checksum does not confirm.
    """
    import numpy as np

    arrays, metadata = _opened(path, names, most)
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
        _check_regular(path, most)
        with safe_open(path, framework="np") as file:
            if set(file.keys()) != set(names):
                raise DamagedFileError("it holds other arrays")
            return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError, TypeError, MemoryError) as error:
        raise DamagedFileError(f"unreadable ({error})") from None


def read_header(path: Path) -> tuple[dict[str, str], dict[str, int]]:
    """Metadata, and the length of each array by its name. Raises DamagedFileError."""
    from safetensors import SafetensorError, safe_open

    try:
        _check_regular(path, None)
        with safe_open(path, framework="np") as file:
            lengths = {name: file.get_slice(name).get_shape()[0] for name in file.keys()}  # noqa: SIM118
            return dict(file.metadata() or {}), lengths
    except (SafetensorError, OSError, ValueError, TypeError, IndexError, MemoryError) as error:
        raise DamagedFileError(f"unreadable ({error})") from None


def _check_regular(path: Path, most: int | None) -> None:
    """Raise DamagedFileError for a pipe, a device, a folder, or more than `most` bytes."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise DamagedFileError("not a regular file")
    if most is not None and about.st_size > most:
        raise DamagedFileError(f"more than {most / 1e6:g} MB")


def checksum(arrays: "Mapping[str, np.ndarray]") -> str:
    """Hash of lengths and contents, in the order given."""
    import numpy as np

    digest = hashlib.sha256()
    for array in arrays.values():
        digest.update(len(array).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
