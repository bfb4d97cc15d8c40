"""An array of a cache file, mapped into memory instead of read: processes share its pages.

Opening takes less than a millisecond whatever the size, so the contents are not compared with the
checksum: whoever uses the array checks the bounds of all that it reads from it.
"""

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ngtcli.system.storage import DamagedFileError

if TYPE_CHECKING:
    import numpy as np


def map_array(
    path: Path, name: str, wanted: Mapping[str, str], most: int
) -> "tuple[np.ndarray, dict[str, str]]":
    """The one-dimensional int32 array `name`, the only one in a file of `write_arrays`; metadata.

    The array is a private mapping: writing to it changes neither the file nor what others see.
    Raises DamagedFileError if the file is larger than `most` bytes, holds another array or other
    metadata than `wanted`, or cannot be read; FileNotFoundError.
    """
    import numpy as np
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            with safe_open(path, framework="np") as tensors:  # it checks all of the header
                if list(tensors.keys()) != [name]:
                    raise DamagedFileError("it holds other arrays")
                one, metadata = tensors.get_slice(name), dict(tensors.metadata() or {})
                shape, kind = one.get_shape(), one.get_dtype()
            offset = state.st_size - 4 * shape[0] if len(shape) == 1 else -1
            if kind != "I32" or offset < 8 or offset % 4 or not shape[0]:
                raise DamagedFileError("an array of another type")
            if state.st_size > most:
                raise DamagedFileError(f"more than {most / 1e6:g} MB")
            if any(metadata.get(key) != value for key, value in wanted.items()):
                raise DamagedFileError("another version or another file's content")
            if not os.path.samestat(state, path.stat()):
                raise DamagedFileError("it changed while it was opened")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, IndexError, MemoryError) as error:
        raise DamagedFileError(f"unreadable ({error})") from None
    return np.frombuffer(mapped, np.int32, shape[0], offset), metadata
