"""What tells weights from others; the quantised ones that the cache keeps. Knows no torch."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ngtcli.models.checkpoint import WEIGHTS
from ngtcli.models.stand_in import source_of
from ngtcli.system.arrays import ArrayFile, read_header
from ngtcli.system.files import DamagedFileError, key_of, parse_json, stamp_of
from ngtcli.system.trials import versions_and_cpu

QUANTIZED = ArrayFile("quantized", ".safetensors", format="3", most=2**50)
_END = 1 << 20  # bytes at each end of a file that tell it from others; a guess


@dataclass(frozen=True, slots=True)
class Kept:
    """Weights in 8 bits of the checkpoint in `folder`, their file and its bytes."""

    folder: str
    file: Path
    bytes: int


def name_of(dtype: object) -> str:
    """A torch.dtype as settings name it."""
    return str(dtype).removeprefix("torch.")


def kept_file(about: dict[str, Any]) -> Path:
    """The file of what `identity` tells.

    The order of its integers is that of this CPU and these versions. Raises UsageError as `home`.
    """
    key = key_of(os.path.realpath(about["folder"]), *versions_and_cpu())
    return QUANTIZED.path(key)


def identity(folder: str) -> dict[str, Any]:
    """What tells a checkpoint from a changed one: folder, names, sizes and states of its files.

    A GGUF file stands for its folder, an adapter for that of its base. It can be written as JSON.
    Raises OSError.
    """
    source = source_of(folder)
    stamps = [(path.name, stamp_of(path)) for path in _files(folder)]
    found = [[name, stamp.size, key_of(*stamp)] for name, stamp in stamps]
    return {"folder": os.path.realpath(source.file if source else folder), "files": found}


def _files(folder: str) -> list[Path]:
    source, kinds = source_of(folder), (*WEIGHTS, "adapter_*", "config.json")
    folder, base = (source.file, source.base) if source else (folder, "")
    places = map(Path, {folder, base or folder})
    files = {path for place in places for one in kinds for path in place.glob(one)}
    return sorted(files) or [Path(folder)]


def weights_of(folder: str) -> str:
    """A name for the weights in a folder as they are: `identity`, and both ends of each file.

    These have the header, and some weights. Raises OSError.
    """
    ends = blake2b(json.dumps(identity(folder)).encode(), digest_size=16)
    for path in _files(folder):
        with path.open("rb") as file:
            ends.update(file.read(_END))
            file.seek(-min(_END, file.seek(0, os.SEEK_END)), os.SEEK_END)
            ends.update(file.read())
    return ends.hexdigest()


def kept() -> Iterator[Kept]:
    """What the cache holds, in the order of the folders' names."""
    found = []
    for path in QUANTIZED.paths():
        try:
            about = parse_json(read_header(path)[0]["about"], dict)
            found.append(Kept(str(about["folder"]), path, path.stat().st_size))
        except (OSError, DamagedFileError, KeyError):
            continue  # it is made again
    yield from sorted(found, key=lambda one: one.folder)
