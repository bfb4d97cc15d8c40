"""`ngt models`: the models on this machine."""

from pathlib import Path

import typer

from ngtcli.cli.options import JsonOption
from ngtcli.cli.output import print_line, print_table
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.render.sinks import dump_json

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
