"""Folders of the cache that stand for a GGUF file or an adapter, and load as any model's does.

Such a folder has configuration and tokenizer; its config.json says where the weights are.
"""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from ngtcli.errors import NgtError
from ngtcli.model_files.checkpoint import read_object
from ngtcli.system.cache import in_bounds
from ngtcli.system.files import home, key_of, mark_used, new_file, private_folder
from ngtcli.system.json_form import to_json

_VERSION = 3  # raised where the files of a folder are made in another way
_CONFIG = "config.json"
_SOURCE = "ngt_source"  # in config.json


@dataclass(frozen=True, slots=True)
class Source:
    """What a folder stands for, also in `words`: a GGUF `file`, or an adapter's folder.

    The adapter is for the model in the folder `base`. `files` are the bytes of the other files.
    """

    file: str
    words: str
    base: str = ""
    files: Mapping[str, int] = field(default_factory=dict)


def source_of(folder: str | Path) -> Source | None:
    """What a folder that `stand_in` has made stands for; None for any other, whatever it says."""
    import msgspec  # here: most commands do without

    try:
        if os.path.dirname(os.path.realpath(folder)) != os.path.realpath(_folders()):
            return None  # a model of somebody else does not say which files are read
        return msgspec.convert(read_object(Path(folder) / _CONFIG)[_SOURCE], Source)
    except (KeyError, TypeError, ValueError, NgtError):
        return None


def _folders() -> Path:
    return home("cache") / "stand-ins"


def stand_in(made_of: object, make: Callable[[Path], Source]) -> str:
    """The folder for what is `made_of` this, which `make` fills where it is not there yet.

    Raises OSError for a cache that cannot be written to, and what `make` raises.
    """
    folder = _folders() / key_of(made_of, _VERSION, metadata.version("transformers"))
    source = source_of(folder)
    if source is None or not source.files.items() <= _sizes(folder).items():
        with tempfile.TemporaryDirectory() as place:
            source = make(Path(place))
            files = _sizes(Path(place))
            del files[_CONFIG]  # this is added to it
            told = {**to_json(source), "files": files}
            values = read_object(Path(place) / _CONFIG) | {_SOURCE: told}
            (Path(place) / _CONFIG).write_text(json.dumps(values), encoding="utf-8")
            private_folder(folder)
            for file in (*files, _CONFIG):
                with new_file(folder / file) as new:
                    size = new.write((Path(place) / file).read_bytes())
                in_bounds.wrote(size)
    for path in folder.iterdir():
        mark_used(path)
    return os.path.realpath(folder)


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}
