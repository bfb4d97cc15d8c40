"""Commands about presets, settings, models and the environment."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ngtcli.cli.completion import presets
from ngtcli.cli.options import (
    JsonOption,
    PresetOption,
    resolve,
    resolve_without_preset,
    with_settings,
)
from ngtcli.cli.streams import Notes, print_line, print_table
from ngtcli.config import PROJECT_FILE, SETTING_NAMES, Resolved
from ngtcli.errors import UsageError
from ngtcli.presets import load_preset, load_presets, preset_folders
from ngtcli.render.sinks import dump_json
from ngtcli.render.terminal import visible
from ngtcli.storage import home
from ngtcli.yaml_file import read_text

presets_app = typer.Typer(help="Presets: how a task is worded and set.", no_args_is_help=True)
config_app = typer.Typer(help="Settings and where they come from.", no_args_is_help=True)
models_app = typer.Typer(help="Models on this machine.", no_args_is_help=True)

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


@config_app.command("show")
@with_settings
def config_show(
    preset: PresetOption = None, json: JsonOption = False, flags: dict[str, Any] | None = None
) -> None:
    """Print each setting with its origin."""
    resolved = _resolved(flags or {}, preset)
    values = asdict(resolved.settings)
    if json:
        body = {n: {"value": values[n], "origin": resolved.origins[n]} for n in SETTING_NAMES}
        print_line(dump_json(body))
        return
    rows = [[name, _shown(values[name]), resolved.origins[name]] for name in SETTING_NAMES]
    print_table(["setting", "value", "origin"], rows)


def _resolved(flags: dict[str, Any], preset: str | None) -> Resolved:
    """The settings; those of a task's broken preset, where none was asked for, are left out."""
    if preset is None:
        try:
            load_preset("summarize")
        except UsageError as error:
            resolved = resolve_without_preset(flags)
            Notes().warn(f"without the settings of preset summarize: {error}")
            return resolved
    return resolve(flags, preset, "summarize")[0]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(repr, value)) if isinstance(value, tuple) else str(value)


@config_app.command("path")
def config_path(json: JsonOption = False) -> None:
    """Print the settings files, the strongest first."""
    files = [str(Path(PROJECT_FILE).absolute()), str(home("config") / "config.yaml")]
    print_line(dump_json(files) if json else "\n".join(files))


@models_app.command("path")
def models_path(json: JsonOption = False) -> None:
    """Print where the built-in model and downloaded models are."""
    builtin, hub = _builtin_folder(), _hub_folder()
    if json:
        print_line(dump_json({"builtin": str(builtin), "hub": str(hub)}))
    else:
        print_line(f"{builtin}\n{hub}")


@models_app.command("list")
def models_list(json: JsonOption = False) -> None:
    """List models that can be used without a download."""
    rows = [("builtin", _folder_size(_builtin_folder()), str(_builtin_folder()))]
    if _hub_folder().is_dir():
        from huggingface_hub import scan_cache_dir

        for repo in sorted(scan_cache_dir(_hub_folder()).repos, key=lambda r: r.repo_id):
            if repo.repo_type == "model":
                rows.append((repo.repo_id, repo.size_on_disk, str(repo.repo_path)))
    if json:
        print_line(dump_json([{"name": n, "bytes": b, "path": p} for n, b, p in rows]))
    else:
        print_table(["name", "size", "path"], [[n, f"{b / 1e6:.0f} MB", p] for n, b, p in rows])


def _builtin_folder() -> Path:
    return Path(__file__).parent.parent / "builtin" / "model"


def _hub_folder() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _folder_size(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.glob("*") if f.is_file())
