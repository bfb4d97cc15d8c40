"""The quantised weights that the cache keeps: one file for a checkpoint. Knows no torch."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngtcli.model_files.checkpoint import WEIGHTS
from ngtcli.model_files.stand_in import source_of
from ngtcli.system.arrays import read_header
from ngtcli.system.remembered import versions_and_cpu
from ngtcli.system.storage import DamagedFileError, home, key_of, parse_json

_FOLDER = "quantized"  # of the cache


@dataclass(frozen=True, slots=True)
class Kept:
    """Quantised weights of the checkpoint in `folder`, their file, its bytes; int4 or int8."""

    folder: str
    file: Path
    bytes: int
    kind: str


def kept_folder() -> Path:
    """Where the files are. Raises UsageError as `home`."""
    return home("cache") / _FOLDER


def kept_file(about: dict[str, Any]) -> Path:
    """The file of what `identity` tells.

    The order of its integers is that of this CPU and these versions. Raises UsageError as `home`.
    """
    bits = [about["bits"]] if "bits" in about else []
    key = key_of(os.path.realpath(about["folder"]), *bits, *versions_and_cpu())
    return kept_folder() / f"{key}.safetensors"


def identity(folder: str) -> dict[str, Any]:
    """What tells a checkpoint from a changed one: folder, names, sizes and times of its files.

    A GGUF file stands for its folder, an adapter for that of its base. It can be written as JSON.
    Raises OSError.
    """
    source, kinds = source_of(folder), (*WEIGHTS, "adapter_*", "config.json")
    folder, base = (source.file, source.base) if source else (folder, "")
    places = map(Path, {folder, base or folder})
    files = sorted({path for place in places for one in kinds for path in place.glob(one)})
    stats = [(path.name, path.stat()) for path in files or [Path(folder)]]
    found = [[name, about.st_size, about.st_mtime_ns] for name, about in stats]
    return {"folder": os.path.realpath(folder), "files": found}


def kept() -> Iterator[Kept]:
    """What the cache holds, in the order of the folders' names."""
    found = []
    for path in kept_folder().glob("*.safetensors"):
        try:
            about = parse_json(read_header(path)[0]["about"], dict)
            kind = f"int{about.get('bits', 8)}"
            found.append(Kept(str(about["folder"]), path, path.stat().st_size, kind))
        except (OSError, DamagedFileError, KeyError):
            continue  # it is made again
    yield from sorted(found, key=lambda one: (one.folder, one.kind))
