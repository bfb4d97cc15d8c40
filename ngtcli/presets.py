"""Presets: how a task is worded, and its settings. A preset is one YAML file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ngtcli.config import Layer, check_key, read_mapping
from ngtcli.errors import UsageError, nearest
from ngtcli.storage import home

_WORDING = ("description", "template", "document", "titled_document", "separator")
PROVENANCE = "provenance"  # key of a mapping that says where a preset's settings come from


@dataclass(frozen=True, slots=True)
class Preset:
    """Wording and settings of one task; `{documents}` and `{question}` are filled in `template`."""

    name: str
    path: Path
    template: str
    description: str = ""
    document: str = "{text}"
    titled_document: str = "{name}\n{text}"
    separator: str = "\n\n"
    settings: Layer = Layer("preset")
    provenance: Mapping[str, Any] = field(default_factory=dict)


def preset_folders() -> list[Path]:
    """Where presets are looked for, the user's own first."""
    package = Path(__file__).parent
    shipped = package / "presets"  # in a wheel; in a checkout they stand at the top level
    return [home("config") / "presets", shipped if shipped.is_dir() else package.parent / "presets"]


def preset_files() -> dict[str, Path]:
    """Preset files by name, sorted; a user's preset hides a shipped one of the same name."""
    found: dict[str, Path] = {}
    for folder in preset_folders():
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def load_preset(name: str) -> Preset:
    """The preset of that name. Raises UsageError for an unknown name or key."""
    files = preset_files()
    if name not in files:
        raise UsageError(f"no preset {name!r}", nearest(name, files))
    path = files[name]
    data = read_mapping(path)
    wording = {k: _text(k, data[k], path) for k in _WORDING if k in data}
    origin = data.pop(PROVENANCE, {})
    if not isinstance(origin, dict):
        raise UsageError(f"{path}: {PROVENANCE} is {origin!r}", "It must be a mapping.")
    origin = json.loads(json.dumps(origin, default=str))  # YAML reads dates, JSON has none
    values = {k: check_key(k, v, path, _WORDING) for k, v in data.items() if k not in _WORDING}
    if "{documents}" not in wording.get("template", ""):
        raise UsageError(f"{path}: template lacks {{documents}}", "Add `template:` with it.")
    layer = Layer(f"preset {name}", values)
    return Preset(name, path, settings=layer, provenance=origin, **wording)


def _text(name: str, value: Any, path: Path) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{path}: {name} is {value!r}", "It must be a string.")
    return value
