"""`ngt env`: versions, the device, threads and folders. Loads neither torch nor transformers."""

import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import metadata
from typing import Annotated

import typer

from ngtcli import __version__
from ngtcli.cli.options import JsonOption
from ngtcli.cli.output import print_json, print_table
from ngtcli.config import Settings, environment_and_file_layers, merge
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.system import sandbox
from ngtcli.system.json_form import json_key, to_json
from ngtcli.system.machine import pick_threads
from ngtcli.system.storage import home

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "numba", "typer", "rich")
ASK_S = 5.0  # longest wait for nvidia-smi; guessed


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Versions, the device, threads and folders."""

    ngt: str
    python: str
    platform: str
    device: str
    processor: str
    threads: int
    passes: str
    parsers: str
    torch: str
    transformers: str
    tokenizers: str
    safetensors: str
    numpy: str
    numba: str
    typer: str
    rich: str
    config_folder: str = field(metadata=json_key(name="config folder"))
    cache_folder: str = field(metadata=json_key(name="cache folder"))
    model_folder: str = field(metadata=json_key(name="model folder"))
    executable: str


def env(
    full: Annotated[
        bool, typer.Option("--full", help="Ask torch for the device; takes seconds.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show versions, the device and the folders used."""
    settings: Settings = merge(environment_and_file_layers()).settings
    device, name = _device_of_torch() if full else _likely_device()
    facts = Environment(
        ngt=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        device=device,
        processor=name,
        threads=pick_threads(settings.threads),
        passes=_passes(settings, device),
        parsers=_parsers(),
        **{package: _version(package) for package in PACKAGES},
        config_folder=str(home("config")),
        cache_folder=str(home("cache")),
        model_folder=str(BUILTIN_PATH),
        executable=shutil.which("ngt") or sys.argv[0],
    )
    if json:
        print_json(facts)
    else:
        print_table(["what", "value"], [[k, v] for k, v in to_json(facts).items()])


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
