"""Shapes of well-known models: their configurations without their weights. Knows no torch.

The files in `shapes/` have the form of config.json; `dtype` is that of the published weights.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngtcli.errors import InputError, UsageError, nearest, reason_of, shortened
from ngtcli.system.reading import read_bounded

SHAPES = Path(__file__).parent / "shapes"
_MOST = 1 << 20  # bytes of a configuration; the largest known have 20,000
_HINT = "Give a config.json of a transformers model."


@dataclass(frozen=True, slots=True)
class Shape:
    """`values` are those of config.json; among them stands the `model_type`."""

    name: str
    values: dict[str, Any]


def shape_names() -> list[str]:
    """The shapes that are shipped."""
    return sorted(path.stem for path in SHAPES.glob("*.json"))


def find_shape(name: str) -> Shape:
    """The shape of that name, or the one in a file, or in the config.json of a folder.

    Raises UsageError for an unknown name, InputError for a file that is no configuration.
    """
    if name in shape_names():
        return _read(name, SHAPES / f"{name}.json")
    path = Path(os.path.expanduser(name))
    if os.path.isdir(path):  # False, where Path.is_dir raises, for a name that is too long
        path = path / "config.json"
    if not os.path.exists(path):
        known = nearest(name.lower(), shape_names())
        raise UsageError(f"no shape {shortened(name)!r}", f"{known} A config.json will do, too.")
    return _read(path.parent.name if path.name == "config.json" else path.stem, path)


def _read(name: str, path: Path) -> Shape:
    try:
        values = json.loads(read_bounded(path, _MOST))
    except OSError as error:
        raise InputError(f"{path}: {reason_of(error)}", _HINT) from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not JSON", _HINT) from None
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise InputError(f"{path}: no configuration: it names no model_type", _HINT)
    return Shape(name, values)
