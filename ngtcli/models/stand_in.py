"""Folders of the cache that stand for a GGUF file or an adapter, and load as any model's does.

Such a folder has configuration and tokenizer; its config.json says where the weights are.
"""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ngtcli.errors import NgtError
from ngtcli.models.checkpoint import read_object
from ngtcli.system.cache import CHECKED, cache_limit
from ngtcli.system.files import Stamp, home, key_of, new_file, private_folder, stamp_of
from ngtcli.system.json_form import to_json

_VERSION = 3  # raised where the files of a folder are made in another way
_CONFIG = "config.json"
_SOURCE = "ngt_source"  # in config.json


@dataclass(frozen=True, slots=True)
class Source:
    """What a folder stands for, also in `words`: a GGUF `file`, or an adapter's folder.

    The adapter is for the model in the folder `base`.
    """

    file: str
    words: str
    base: str = ""


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
    if not (stamps := _stamps(folder)) or CHECKED.get_many(stamps) != stamps:
        with tempfile.TemporaryDirectory() as place:
            told = {_SOURCE: to_json(make(Path(place)))}
            values = read_object(Path(place) / _CONFIG) | told
            (Path(place) / _CONFIG).write_text(json.dumps(values), encoding="utf-8")
            private_folder(folder)
            for path in Path(place).iterdir():
                with new_file(folder / path.name) as new:
                    cache_limit.wrote(new.write(path.read_bytes()))
        CHECKED.put_many(_stamps(folder))
    return os.path.realpath(folder)


def _stamps(folder: Path) -> dict[str, Stamp]:
    """The states of a folder and of all that is in it, by their keys; {} where there is none."""
    paths = [folder, *folder.iterdir()] if folder.is_dir() else []
    return {key_of(path): stamp_of(path) for path in paths}
