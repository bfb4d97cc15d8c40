"""`ngt presets`: how a task is worded and set."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ngtcli.cli.completion import presets
from ngtcli.cli.options import JsonOption
from ngtcli.cli.output import print_json, print_line, print_table
from ngtcli.config import settings_schemas
from ngtcli.prompt.preset import BrokenPreset, Preset, load_preset, load_presets, preset_folders
from ngtcli.render.terminal import visible
from ngtcli.system.json_form import Schema, schema_of, shape, to_json
from ngtcli.system.yaml_file import read_text

presets_app = typer.Typer(help="Presets: how a task is worded and set.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class PresetRow:
    """A preset in a list."""

    name: str
    description: str
    path: Path


NameArgument = Annotated[str, typer.Argument(autocompletion=presets)]


@presets_app.command("list")
def presets_list(json: JsonOption = False) -> None:
    """List presets, those that cannot be used with what is wrong with them."""
    good, bad = load_presets()
    rows: list[PresetRow | BrokenPreset] = [
        *bad,
        *(PresetRow(p.name, p.description, p.path) for p in good),
    ]
    rows.sort(key=lambda row: row.name)
    if json:
        print_json(rows)
        return
    cells = [
        [row.name, row.description if isinstance(row, PresetRow) else f"broken: {row.error}"]
        for row in rows
    ]
    print_table(["name", "description"], cells)


@presets_app.command("show")
def presets_show(name: NameArgument, json: JsonOption = False) -> None:
    """Print a preset."""
    preset = load_preset(name)
    if json:
        print_json({**to_json(preset), "settings": preset.settings.values})
    else:
        print_line(visible(read_text(preset.path).rstrip("\n")))


def shown_schema() -> Schema:
    """The schema of what `ngt presets show` prints."""
    values = settings_schemas()
    own = {"settings": shape(values, list(values)), "provenance": {"type": "object"}}
    return shape({**schema_of(Preset)["properties"], **own})


@presets_app.command("path")
def presets_path(json: JsonOption = False) -> None:
    """Print the folders presets are read from, the user's own first."""
    folders = [str(f) for f in preset_folders()]
    if json:
        print_json(folders)
    else:
        print_line("\n".join(folders))
