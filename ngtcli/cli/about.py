"""`ngt config`, `ngt presets` and `ngt env`: show settings, presets and the installation."""

import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from ngtcli import __version__, config
from ngtcli.cli.command import Group, command
from ngtcli.cli.completion import presets, quietly
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import PresetOption, layers_of, resolve
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.cli.show import Shown, facts, table
from ngtcli.engine.settings import settings_of
from ngtcli.errors import HubUnreachableError, UsageError
from ngtcli.models.checkpoint import BUILTIN_PATH, fetch
from ngtcli.models.hub import cache_folder
from ngtcli.models.needs import ModelNeeds, UnreachableModel
from ngtcli.models.recommended import estimate_of
from ngtcli.prompts.preset import BrokenPreset, Preset, load_preset, load_presets
from ngtcli.render.terminal import visible
from ngtcli.system import sandbox
from ngtcli.system.cpu import model_name
from ngtcli.system.files import home
from ngtcli.system.json_form import Schema, schema_of, shape, to_json
from ngtcli.system.machine import free_memory, pick_device, pick_threads
from ngtcli.system.yaml_file import read_text
from ngtcli.words import nearest

config_app = Group("config")
_NAMES = typer.Argument(
    metavar="[NAME]...",
    help="Only these settings.",
    autocompletion=quietly(lambda _: config.SETTINGS),
)


def _config_schema() -> Schema:
    text = schema_of(str)
    settings = {
        name: shape({"value": value, "origin": text, "help": text})
        for name, value in config.settings_schemas().items()
    }
    return shape(settings, list(settings))  # all are optional: names select some


def _config_view(report: Mapping[str, Mapping[str, Any]]) -> Shown:
    rows = [
        [name, _shown(setting["value"]), setting["origin"], setting["help"]]
        for name, setting in report.items()
    ]
    return ["setting", "value", "origin", "help"], rows


@config_app.command(
    "show",
    settings=tuple(config.SETTINGS),
    view=_config_view,
    report=_config_schema,
)
def config_show(
    flags: SettingFlags,
    names: Annotated[list[str] | None, _NAMES] = None,
    preset: PresetOption = None,
) -> dict[str, dict[str, Any]]:
    """Print each setting, its value and where it comes from."""
    settings = [_setting_of(name) for name in names or config.SETTINGS]
    resolved = _resolved(flags, preset)
    values = config.shown_settings(resolved.settings)
    return {
        setting.name: {
            "value": values[setting.name],
            "origin": resolved.origins[setting.name],
            "help": setting.help,
        }
        for setting in settings
    }


def _setting_of(name: str) -> config.Setting:
    """Return a setting by its name, which may be written as a flag. Raises UsageError."""
    setting = config.SETTINGS.get(name.lstrip("-").replace("-", "_"))
    if setting is None:
        hint = nearest(name, config.SETTINGS, "ngt config show lists them.")
        raise UsageError(f"unknown setting {name!r}", hint=hint)
    return setting


def _resolved(flags: dict[str, Any], preset: str | None) -> config.Resolved:
    """Resolve the settings; a broken default preset is left out with a warning."""
    if preset is None:
        try:
            load_preset("summarize")
        except UsageError as error:
            resolved = settings_of(layers_of(flags))
            Notes().warn(f"without the settings of preset summarize: {error}")
            return resolved
    return resolve(flags, preset)[0]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(repr, value)) if isinstance(value, tuple) else str(value)


presets_app = Group("presets")


@dataclass(frozen=True, slots=True)
class PresetRow:
    """A preset in a list."""

    name: str
    description: str
    path: Path


def _preset_cells(row: PresetRow | BrokenPreset) -> list[str]:
    return [row.name, row.description if isinstance(row, PresetRow) else f"broken: {row.error}"]


@presets_app.command("list", view=table("name,description", _preset_cells))
def presets_list() -> list[PresetRow | BrokenPreset]:
    """List presets, and what is wrong with invalid ones."""
    valid, broken = load_presets()
    rows: list[PresetRow | BrokenPreset] = [*broken]
    rows += [PresetRow(preset.name, preset.description, preset.path) for preset in valid]
    return sorted(rows, key=lambda row: row.name)


def _preset_schema() -> Schema:
    values = config.settings_schemas()
    properties = {
        **schema_of(Preset)["properties"],
        "settings": shape(values, list(values)),
        "provenance": {"type": "object"},
    }
    return shape(properties)


@presets_app.command(
    "show",
    view=lambda preset: visible(read_text(Path(preset["path"])).rstrip("\n")),
    report=_preset_schema,
)
def presets_show(name: Annotated[str, typer.Argument(autocompletion=presets)]) -> dict[str, Any]:
    """Print a preset."""
    preset = load_preset(name)
    return {**to_json(preset), "settings": preset.settings.values}


PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "numba", "typer", "rich")
_MACHINE = ("platform", "device", "processor", "threads", "passes", "parsers")
_FOLDERS = ("config", "cache", "state", "model", "hub")


def _env_schema() -> Schema:
    folders = [f"{name} folder" for name in _FOLDERS]
    names = ("ngt", "python", *_MACHINE, *PACKAGES, *folders, "executable")
    facts = {name: schema_of(int if name == "threads" else str) for name in names}
    models = {"model": schema_of(ModelNeeds), "unreachable": schema_of(UnreachableModel)}
    return shape({**facts, **models}, ["model", "unreachable"])


def _env_view(report: dict[str, Any]) -> Shown:
    shown = dict(report)
    needs: ModelNeeds | UnreachableModel | None = None
    for key in ("model", "unreachable"):
        needs = shown.pop(key, None) or needs
    if needs is not None:
        shown |= needs.facts
    return facts(shown)


@command("env", settings=("model", "device"), view=_env_view, report=_env_schema)
def env(
    flags: SettingFlags,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Show how much memory the model needs; takes seconds. Implied by -m.",
        ),
    ] = False,
) -> dict[str, Any]:
    """Show versions, device and folders, and how much memory a model needs."""
    settings: config.Settings = config.merge(layers_of(flags)).settings
    with_needs = verbose or bool(flags)
    unreachable = _unreachable(settings.model.model) if with_needs else None
    # Only torch knows the device, unless it is built for CPUs only. It takes seconds to load, so it
    # is asked only if the model's needs are shown.
    is_cpu_only = settings.model.device == "cpu" or "+cpu" in _version("torch")
    asks_torch = with_needs and (unreachable is None or not is_cpu_only)
    device = settings.model.device
    processor = model_name()
    if asks_torch:
        device, processor = _device_of_torch(settings.model.device)
    elif device == "auto":
        device = "cpu" if is_cpu_only else "auto (ngt env -v says which)"
    passes = "CUDA graphs" if settings.model.capture and device != "cpu" else "not captured"
    limits = [f"{limit} ({means})" for means, limit in sandbox.holds().items()]
    report: dict[str, Any] = {
        "ngt": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "processor": processor,
        "threads": pick_threads(settings.model.threads),
        "passes": passes,
        "parsers": "; ".join(limits) or "no network and no programs for their Python code only",
        **{package: _version(package) for package in PACKAGES},
        **{f"{name} folder": str(path) for name, path in _folders()},
        "executable": shutil.which("ngt") or sys.argv[0],
    }
    if with_needs and unreachable is None:
        from ngtcli.decoding.memory_needs import needs_of  # it imports torch

        report["model"] = needs_of(settings.model.model, device)
    if unreachable is not None:
        report["unreachable"] = unreachable
    return report


def _unreachable(name: str) -> UnreachableModel | None:
    """Return an estimate for a model that cannot be looked up; None for one that can be.

    Raises:
        ModelError: There is another problem than that Hugging Face cannot be reached.
    """
    try:
        fetch(name, ["config"])
    except HubUnreachableError as error:
        return UnreachableModel(name, str(error), estimate_of(name), free_memory("cpu"))
    return None


def _folders() -> Iterator[tuple[str, Path]]:
    """Yield the folders of ngt with their names."""
    paths = [home("config"), home("cache"), home("state"), BUILTIN_PATH, cache_folder()]
    yield from zip(_FOLDERS, paths, strict=True)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _device_of_torch(setting: str) -> tuple[str, str]:
    """Return the device that torch uses, and the name of its processor."""
    device = pick_device(setting)
    if device != "cuda":
        return device, model_name()
    import torch

    return device, torch.cuda.get_device_name()
