"""Folders of the cache that stand for a GGUF file or an adapter and load like any model folder.

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

_VERSION = 3  # of the files in a folder; raise it when they are made differently
_CONFIG = "config.json"
_SOURCE = "ngt_source"  # key in config.json


@dataclass(frozen=True, slots=True)
class Source:
    """The GGUF file or adapter that a folder stands for.

    Attributes:
        file: The GGUF file, or the adapter's folder.
        words: A description for people.
        base: The folder of the adapter's base model; "" for a GGUF file.
    """

    file: str
    words: str
    base: str = ""


def source_of(folder: str | Path) -> Source | None:
    """Return the source of a folder that `stand_in` made; None for any other folder.

    The config.json of a downloaded model must not decide which files are read.
    """
    import msgspec  # here: most commands do without

    try:
        if os.path.dirname(os.path.realpath(folder)) != os.path.realpath(_folders()):
            return None
        return msgspec.convert(read_object(Path(folder) / _CONFIG)[_SOURCE], Source)
    except (KeyError, TypeError, ValueError, NgtError):
        return None


def _folders() -> Path:
    return home("cache") / "stand-ins"


def stand_in(inputs: object, make: Callable[[Path], Source]) -> str:
    """Return the folder for some inputs, making it first if the cache does not have it.

    Args:
        inputs: All that the folder's content depends on; its key.
        make: Writes the files to a folder, and returns what they stand for.

    Raises:
        OSError: The cache cannot be written to.
        Exception: Whatever `make` raises.
    """
    folder = _folders() / key_of(inputs, _VERSION, metadata.version("transformers"))
    stamps = _stamps(folder)
    if not stamps or CHECKED.get_many(stamps) != stamps:
        with tempfile.TemporaryDirectory() as temporary:
            draft = Path(temporary)
            source = make(draft)
            values = read_object(draft / _CONFIG) | {_SOURCE: to_json(source)}
            (draft / _CONFIG).write_text(json.dumps(values), encoding="utf-8")
            private_folder(folder)
            for path in draft.iterdir():
                with new_file(folder / path.name) as new:
                    cache_limit.wrote(new.write(path.read_bytes()))
        CHECKED.put_many(_stamps(folder))
    return os.path.realpath(folder)


def _stamps(folder: Path) -> dict[str, Stamp]:
    """Return the stamps of a folder and its files by their keys; {} if there is no such folder."""
    if not folder.is_dir():
        return {}
    paths = [folder, *folder.iterdir()]
    return {key_of(path): stamp_of(path) for path in paths}
