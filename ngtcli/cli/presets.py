"""`ngt presets`: how a task is worded and set."""

from dataclasses import asdict
from typing import Annotated

import typer

from ngtcli.cli.completion import presets
from ngtcli.cli.options import JsonOption
from ngtcli.cli.output import print_line, print_table
from ngtcli.prompt.preset import load_preset, load_presets, preset_folders
from ngtcli.render.sinks import dump_json
from ngtcli.render.terminal import visible
from ngtcli.system.yaml_file import read_text

presets_app = typer.Typer(help="Presets: how a task is worded and set.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(autocompletion=presets)]


@presets_app.command("list")
def presets_list(json: JsonOption = False) -> None:
    """List presets, those that cannot be used with what is wrong with them."""
    good, bad = load_presets()
    rows = [{"name": p.name, "description": p.description, "path": str(p.path)} for p in good]
    rows += [{"name": p.name, "error": p.error, "path": str(p.path)} for p in bad]
    rows.sort(key=lambda row: row["name"])
    if json:
        print_line(dump_json(rows))
        return
    cells = [
        [r["name"], f"broken: {r['error']}" if "error" in r else r["description"]] for r in rows
    ]
    print_table(["name", "description"], cells)


@presets_app.command("show")
def presets_show(name: NameArgument, json: JsonOption = False) -> None:
    """Print a preset."""
    preset = load_preset(name)
    if json:
        body = {
            **asdict(preset),
            "path": str(preset.path),
            "settings": dict(preset.settings.values),
        }
        print_line(dump_json(body))
    else:
        print_line(visible(read_text(preset.path).rstrip("\n")))


@presets_app.command("path")
def presets_path(json: JsonOption = False) -> None:
    """Print the folders presets are read from, the user's own first."""
    folders = [str(f) for f in preset_folders()]
    print_line(dump_json(folders) if json else "\n".join(folders))
