"""Commands that show what is set and installed: config, presets, env."""

import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from ngtcli import __version__
from ngtcli.cli.completion import presets
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import (
    JsonOption,
    PresetOption,
    resolve,
    resolve_without_preset,
    with_settings,
)
from ngtcli.cli.output import print_either, print_facts, print_json, print_rows, print_table
from ngtcli.config import (
    PROJECT_FILE,
    SETTINGS,
    Layer,
    Resolved,
    Settings,
    environment_and_file_layers,
    merge,
    settings_schemas,
    shown_settings,
)
from ngtcli.errors import UsageError
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.model_files.needs import ModelNeeds
from ngtcli.prompt.preset import BrokenPreset, Preset, load_preset, load_presets, preset_folders
from ngtcli.render.terminal import visible
from ngtcli.system import sandbox
from ngtcli.system.files import home
from ngtcli.system.json_form import Schema, schema_of, shape, to_json
from ngtcli.system.machine import pick_device, pick_threads
from ngtcli.system.trials import processor
from ngtcli.system.yaml_file import read_text

config_app = typer.Typer(help="Settings and where they come from.", no_args_is_help=True)


@config_app.command("show")
@with_settings()
def config_show(
    flags: dict[str, Any], preset: PresetOption = None, json: JsonOption = False
) -> None:
    """Print each setting with its origin."""
    resolved = _resolved(flags, preset)
    values = shown_settings(resolved.settings)
    if json:
        print_json({n: {"value": values[n], "origin": resolved.origins[n]} for n in SETTINGS})
    else:
        rows = [[name, _shown(values[name]), resolved.origins[name]] for name in SETTINGS]
        print_table(["setting", "value", "origin"], rows)


def config_schema() -> Schema:
    """The schema of what `ngt config show` prints."""
    schemas = settings_schemas().items()
    return shape({n: shape({"value": one, "origin": schema_of(str)}) for n, one in schemas})


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
    paths = [Path(PROJECT_FILE).absolute(), home("config") / "config.yaml"]
    print_either(paths, json, "\n".join(map(str, paths)))


presets_app = typer.Typer(help="Presets: how a task is worded and set.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class PresetRow:
    """A preset in a list."""

    name: str
    description: str
    path: Path


@presets_app.command("list")
def presets_list(json: JsonOption = False) -> None:
    """List presets, those that cannot be used with what is wrong with them."""
    good, bad = load_presets()
    rows: list[PresetRow | BrokenPreset] = [*bad]
    rows += [PresetRow(p.name, p.description, p.path) for p in good]
    rows.sort(key=lambda row: row.name)
    print_rows(rows, json, ["name", "description"], _preset_cells)


def _preset_cells(row: PresetRow | BrokenPreset) -> list[str]:
    return [row.name, row.description if isinstance(row, PresetRow) else f"broken: {row.error}"]


@presets_app.command("show")
def presets_show(
    name: Annotated[str, typer.Argument(autocompletion=presets)], json: JsonOption = False
) -> None:
    """Print a preset."""
    preset = load_preset(name)
    body = {**to_json(preset), "settings": preset.settings.values}
    print_either(body, json, visible(read_text(preset.path).rstrip("\n")))


def preset_schema() -> Schema:
    """The schema of what `ngt presets show` prints."""
    values = settings_schemas()
    own = {"settings": shape(values, list(values)), "provenance": {"type": "object"}}
    return shape({**schema_of(Preset)["properties"], **own})


@presets_app.command("path")
def presets_path(json: JsonOption = False) -> None:
    """Print the folders presets are read from, the user's own first."""
    folders = preset_folders()
    print_either(folders, json, "\n".join(map(str, folders)))


PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "numba", "typer", "rich")
ASK_S = 5.0  # longest wait for nvidia-smi; guess


@with_settings(("model", "device"))
def env(
    flags: dict[str, Any],
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Say what memory the model needs; takes seconds. So does -m."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show versions, device and folders, and what a model needs here."""
    settings: Settings = merge([Layer("flag", flags), *environment_and_file_layers()]).settings
    full = verbose or bool(flags)
    device, name = _device_of_torch(settings.device) if full else _likely_device()
    passes = "CUDA graphs" if device == "cuda" and settings.capture else "not captured"
    held = "; ".join(f"{what} ({means})" for means, what in sandbox.holds().items())
    facts = {
        "ngt": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "processor": name,
        "threads": pick_threads(settings.threads),
        "passes": passes,
        "parsers": held or "no network and no programs for their Python code alone",
        **{package: _version(package) for package in PACKAGES},
        "config folder": str(home("config")),
        "cache folder": str(home("cache")),
        "model folder": str(BUILTIN_PATH),
        "executable": shutil.which("ngt") or sys.argv[0],
    }
    if full:
        from ngtcli.decode.memory_needs import needs_of  # here: it imports torch

        needs = needs_of(settings.model, device)
        facts |= {"model": needs} if json else needs.facts
    print_facts(facts, json)


def env_schema() -> Schema:
    """The schema of what `ngt env` prints."""
    machine = ("platform", "device", "processor", "threads", "passes", "parsers")
    folders = ("config folder", "cache folder", "model folder", "executable")
    names = ("ngt", "python", *machine, *PACKAGES, *folders)
    facts = {name: schema_of(int if name == "threads" else str) for name in names}
    return shape({**facts, "model": schema_of(ModelNeeds)}, ["model"])


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _likely_device() -> tuple[str, str]:
    """What `--device auto` stands for, and its name, as far as can be told without torch."""
    if "+cpu" not in _version("torch") and (name := _nvidia()):
        return "cuda", name
    if (platform.system(), platform.machine()) == ("Darwin", "arm64"):
        return "mps", processor()
    return "cpu", processor()


def _nvidia() -> str:
    """The first GPU that NVIDIA's driver names; "" where there is none."""
    if not (program := shutil.which("nvidia-smi")):
        return ""
    question = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(question, capture_output=True, text=True, timeout=ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return next(iter(done.stdout.splitlines()), "").strip()


def _device_of_torch(wanted: str) -> tuple[str, str]:
    device = pick_device(wanted)
    if device != "cuda":
        return device, processor()
    import torch

    return device, torch.cuda.get_device_name()
