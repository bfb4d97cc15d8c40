"""Identities of weights, and the files of quantized weights in the cache. Imports no torch."""

import json
import os
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
_END_BYTES = 1 << 20  # read at each end of a file to tell it from others (guess)


@dataclass(frozen=True, slots=True)
class CachedWeights:
    """Quantized weights in the cache.

    Attributes:
        folder: The checkpoint that they were made from.
        file: Where they are.
        bytes: Size of that file.
    """

    folder: str
    file: Path
    bytes: int


def name_of(dtype: object) -> str:
    """Return the name that settings have for a torch.dtype, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def cache_path(source: dict[str, Any]) -> Path:
    """Return the path of the file for the quantized weights of a checkpoint.

    Versions and CPU are a part of it, since the layout of the integers depends on them.

    Args:
        source: The checkpoint's `identity`.

    Raises:
        UsageError: See `home`.
    """
    key = key_of(os.path.realpath(source["folder"]), *versions_and_cpu())
    return QUANTIZED.path(key)


def identity(folder: str) -> dict[str, Any]:
    """Return the identity of a checkpoint, which changes with its files, as values of JSON.

    It is the folder (the file for GGUF, the adapter's folder for an adapter) with the names, sizes
    and stamps of all files that the weights come from.

    Raises:
        OSError: A file cannot be examined.
    """
    source = source_of(folder)
    files = []
    for path in _source_files(folder):
        stamp = stamp_of(path)
        files.append([path.name, stamp.size, key_of(*stamp)])
    return {"folder": os.path.realpath(source.file if source else folder), "files": files}


def _source_files(folder: str) -> list[Path]:
    """List the files that a folder's weights and configuration come from."""
    folders = {folder}
    source = source_of(folder)
    if source:
        folder = source.file
        folders = {source.file, source.base or source.file}
    files: set[Path] = set()
    for directory in map(Path, folders):
        for pattern in (*WEIGHTS, "adapter_*", "config.json"):
            files.update(directory.glob(pattern))
    return sorted(files) or [Path(folder)]  # A GGUF file is not a folder, so no pattern matches.


def fingerprint(folder: str) -> str:
    """Return a hash of a folder's weights: of `identity`, and of both ends of each file.

    The ends contain the header and some of the weights.

    Raises:
        OSError: A file cannot be read.
    """
    digest = blake2b(json.dumps(identity(folder)).encode(), digest_size=16)
    for path in _source_files(folder):
        with path.open("rb") as file:
            digest.update(file.read(_END_BYTES))
            file.seek(-min(_END_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
            digest.update(file.read())
    return digest.hexdigest()


def cached_weights() -> list[CachedWeights]:
    """List the quantized weights in the cache by the names of their folders."""
    weights = []
    for path in QUANTIZED.paths():
        try:
            source = parse_json(read_header(path)[0]["about"], dict)
            weights.append(CachedWeights(str(source["folder"]), path, path.stat().st_size))
        except (OSError, DamagedFileError, KeyError):
            continue  # A damaged file is replaced when it is needed.
    return sorted(weights, key=lambda entry: entry.folder)
