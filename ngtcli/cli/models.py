"""`ngt models`: the models on this machine."""

from dataclasses import dataclass
from pathlib import Path

import typer

from ngtcli.cli.options import JsonOption
from ngtcli.cli.output import print_json, print_line, print_table
from ngtcli.model_files.checkpoint import BUILTIN_PATH

models_app = typer.Typer(help="Models on this machine.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be used without a download."""

    name: str
    bytes: int
    path: str


@dataclass(frozen=True, slots=True)
class ModelFolders:
    """Where models are."""

    builtin: str
    hub: str


@models_app.command("path")
def models_path(json: JsonOption = False) -> None:
    """Print where the built-in model and downloaded models are."""
    folders = ModelFolders(str(BUILTIN_PATH), str(_hub_folder()))
    if json:
        print_json(folders)
    else:
        print_line(f"{folders.builtin}\n{folders.hub}")


@models_app.command("list")
def models_list(json: JsonOption = False) -> None:
    """List models that can be used without a download."""
    found = [Model("builtin", _folder_size(BUILTIN_PATH), str(BUILTIN_PATH))]
    if _hub_folder().is_dir():
        from huggingface_hub import scan_cache_dir

        for repo in sorted(scan_cache_dir(_hub_folder()).repos, key=lambda r: r.repo_id):
            if repo.repo_type == "model":
                found.append(Model(repo.repo_id, repo.size_on_disk, str(repo.repo_path)))
    if json:
        print_json(found)
    else:
        rows = [[model.name, f"{model.bytes / 1e6:.0f} MB", model.path] for model in found]
        print_table(["name", "size", "path"], rows)


def _hub_folder() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _folder_size(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.glob("*") if f.is_file())
