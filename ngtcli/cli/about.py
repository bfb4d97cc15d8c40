"""Commands that show what is set and installed: config, presets, models, env, schema."""

import platform
import shutil
import subprocess
import sys
from dataclasses import asdict
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
from ngtcli.cli.output import print_line, print_table
from ngtcli.config import (
    PROJECT_FILE,
    SETTINGS,
    Resolved,
    Settings,
    environment_and_file_layers,
    merge,
    shown_settings,
)
from ngtcli.errors import UsageError
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.prompt.preset import load_preset, load_presets, preset_folders
from ngtcli.render.sinks import dump_json
from ngtcli.render.terminal import visible
from ngtcli.system import sandbox
from ngtcli.system.machine import pick_threads
from ngtcli.system.storage import home
from ngtcli.system.yaml_file import read_text

config_app = typer.Typer(help="Settings and where they come from.", no_args_is_help=True)


@config_app.command("show")
@with_settings
def config_show(
    preset: PresetOption = None, json: JsonOption = False, flags: dict[str, Any] | None = None
) -> None:
    """Print each setting with its origin."""
    resolved = _resolved(flags or {}, preset)
    values = shown_settings(resolved.settings)
    if json:
        body = {n: {"value": values[n], "origin": resolved.origins[n]} for n in SETTINGS}
        print_line(dump_json(body))
        return
    rows = [[name, _shown(values[name]), resolved.origins[name]] for name in SETTINGS]
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


models_app = typer.Typer(help="Models on this machine.", no_args_is_help=True)


@models_app.command("path")
def models_path(json: JsonOption = False) -> None:
    """Print where the built-in model and downloaded models are."""
    builtin, hub = BUILTIN_PATH, _hub_folder()
    if json:
        print_line(dump_json({"builtin": str(builtin), "hub": str(hub)}))
    else:
        print_line(f"{builtin}\n{hub}")


@models_app.command("list")
def models_list(json: JsonOption = False) -> None:
    """List models that can be used without a download."""
    rows = [("builtin", _folder_size(BUILTIN_PATH), str(BUILTIN_PATH))]
    if _hub_folder().is_dir():
        from huggingface_hub import scan_cache_dir

        for repo in sorted(scan_cache_dir(_hub_folder()).repos, key=lambda r: r.repo_id):
            if repo.repo_type == "model":
                rows.append((repo.repo_id, repo.size_on_disk, str(repo.repo_path)))
    if json:
        print_line(dump_json([{"name": n, "bytes": b, "path": p} for n, b, p in rows]))
    else:
        print_table(["name", "size", "path"], [[n, f"{b / 1e6:.0f} MB", p] for n, b, p in rows])


def _hub_folder() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _folder_size(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.glob("*") if f.is_file())


PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "numba", "typer", "rich")
ASK_S = 5.0  # longest wait for nvidia-smi; guessed


def env(
    full: Annotated[
        bool, typer.Option("--full", help="Ask torch for the device; takes seconds.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show versions, the device and the folders used."""
    settings: Settings = merge(environment_and_file_layers()).settings
    device, name = _device_of_torch() if full else _likely_device()
    facts: dict[str, Any] = {
        "ngt": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "processor": name,
        "threads": pick_threads(settings.threads),
        "passes": _passes(settings, device),
        "parsers": _parsers(),
        **{package: _version(package) for package in PACKAGES},
        "config folder": str(home("config")),
        "cache folder": str(home("cache")),
        "model folder": str(BUILTIN_PATH),
        "executable": shutil.which("ngt") or sys.argv[0],
    }
    if json:
        print_line(dump_json(facts))
    else:
        print_table(["what", "value"], [[k, v] for k, v in facts.items()])


def _passes(settings: Settings, device: str) -> str:
    """How passes of a model are run, if it can be captured."""
    kind = "CUDA graphs" if device == "cuda" else "recorded operations"
    if settings.compile:
        return "torch.compile"
    return kind if settings.capture else "not captured"


def _parsers() -> str:
    """What parsers of documents are kept from here, and by which means of the system."""
    found = [f"{what} ({means})" for means, what in sandbox.holds().items()]
    return "; ".join(found) or "no network and no programs for their Python code alone"


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
        return "mps", platform.processor()
    return "cpu", platform.processor() or "unknown"


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


def _device_of_torch() -> tuple[str, str]:
    from ngtcli.system.machine import pick_device

    device = pick_device("auto")
    if device != "cuda":
        return device, platform.processor() or "unknown"
    import torch

    return device, torch.cuda.get_device_name()


def schema(
    command: Annotated[
        list[str] | None, typer.Argument(help="A command, as in ngt schema trie list.")
    ] = None,
) -> None:
    """Print the JSON Schema of what --json prints, of one command or of all that have one."""
    from ngtcli.render.schema import build

    print_line(dump_json(build(" ".join(command or []))))
