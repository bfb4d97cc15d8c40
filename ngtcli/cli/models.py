"""`ngt models`: the models on this machine, getting one of a hub's, and deleting one."""

import os
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ngtcli.cli.command import Group
from ngtcli.cli.completion import models
from ngtcli.cli.notes import Notes
from ngtcli.cli.show import table
from ngtcli.errors import ModelError, NgtError, UsageError
from ngtcli.models.checkpoint import BUILTIN, BUILTIN_PATH, lacks_files, pull
from ngtcli.models.hub import be_quiet, cache_folder, cached_ids, split_id
from ngtcli.models.quantized import cached_weights
from ngtcli.models.recommended import recommendations
from ngtcli.system.cache import Removed
from ngtcli.system.json_form import HIDDEN
from ngtcli.system.progress import sized
from ngtcli.words import counted, nearest

models_app = Group("models")
Name = Annotated[
    str, typer.Argument(metavar="NAME[@REVISION]", help="A hub id.", autocompletion=models)
]


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be used without a download.

    `quantized_bytes`: so much the cache keeps of it in quantised weights, 0 for nothing; their
    `kinds` are then ("int8",).
    `unfinished_bytes`: so much is there of downloads that were broken off. `lacking`: a part that a
    model needs is not there yet.
    """

    name: str
    bytes: int
    path: str
    quantized_bytes: int = 0
    unfinished_bytes: int = 0
    kinds: tuple[str, ...] = ()
    lacking: bool = field(default=False, metadata=HIDDEN)


def _cells(model: Model) -> list[str]:
    size = sized(model.bytes) if Path(model.path).exists() else "gone"
    if model.unfinished_bytes or model.lacking:
        more = f" and {sized(model.unfinished_bytes)}" if model.unfinished_bytes else ","
        size += f"{more} unfinished"
    whole = [sized(model.quantized_bytes), "in", " and ".join(model.kinds)]
    return [model.name, size, " ".join(whole) if model.kinds else "", model.path]


@models_app.command("list", view=table("name,size,quantised,path", _cells))
def models_list() -> list[Model]:
    """List the models on this machine, and those kept with quantised weights."""
    found = [Model(BUILTIN, _size(BUILTIN_PATH), str(BUILTIN_PATH))]
    _, repos, broken = _scan()
    for repo in repos:
        is_cut = all(lacks_files(Path(revision.snapshot_path)) for revision in repo.revisions)
        sizes = repo.size_on_disk, str(repo.repo_path), 0, _unfinished(repo)
        found.append(Model(repo.repo_id, *sizes, lacking=is_cut))
    for name, folder in broken.items():
        found.append(Model(name, 0, str(folder), 0, _size(folder / "blobs")))
    for one in cached_weights():
        within = (m for m in found if Path(one.folder).is_relative_to(os.path.realpath(m.path)))
        if (model := next(within, None)) is None:
            found.append(model := Model(one.folder, _size(Path(one.folder)), one.folder))
        quantized_bytes = model.quantized_bytes + one.bytes
        found[found.index(model)] = replace(model, quantized_bytes=quantized_bytes, kinds=("int8",))
    if len(found) == 1:
        notes = Notes()
        notes.say("Only the built-in demonstration is here. Instruct models to begin with:")
        for line in recommendations():
            notes.say(f"  {line}")
    return found


def _scan() -> tuple[Any, list[Any], dict[str, Path]]:
    """What huggingface_hub finds in its cache, if that is there, and the models in it by name.

    The last are the folders of those that it finds broken, as a run that was killed may leave them.
    """
    from huggingface_hub import scan_cache_dir

    be_quiet()
    if not cache_folder().is_dir():
        return None, [], {}
    found = scan_cache_dir(cache_folder())
    models = [repo for repo in found.repos if repo.repo_type == "model"]
    whole = {repo.repo_path.name for repo in models}
    broken = {name: path for name, path in cached_ids().items() if path.name not in whole}
    return found, sorted(models, key=lambda repo: str(repo.repo_id)), broken


def _unfinished(repo: Any) -> int:
    """Bytes of a found repository's downloads that were broken off."""
    return sum(p.stat().st_size for p in Path(repo.repo_path).glob("blobs/*.incomplete"))


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.glob("*")
    return sum(f.stat().st_size for f in files if f.is_file())


@models_app.command("pull", view=lambda model: model.path)
def models_pull(name: Name) -> Model:
    """Download what is needed of a hub's model, or go on with that; print its folder."""
    if name == BUILTIN or not split_id(name)[0]:
        raise UsageError(
            f"{name or repr(name)}: not a hub id",
            hint="Give one, as in ngt models pull Qwen/Qwen3-8B",
        )
    notes = Notes()
    if os.path.isdir(name):
        notes.warn(f"-m {name} stands for the folder of that name here")
    notes.status(f"Asking the hub for {name} …")
    folder = pull(name, notes.status)
    notes.clear()
    return Model(name, _size(Path(folder)), folder)


def _whole(removed: Removed) -> str:
    return f"{counted(removed.files, 'file')}, {sized(removed.bytes)}"


@models_app.command("rm", view=lambda removed: f"{_whole(removed)} removed")
def models_rm(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> Removed:
    """Delete a hub's model from its cache, or one revision, and quantised weights made of it.

    Of a folder of yours only the quantised weights are deleted, which ngt's cache keeps.
    """
    if name == BUILTIN:
        raise UsageError("the built-in model is a part of ngt", hint="It goes with pip uninstall.")
    (found, repos, broken), (wanted, revision) = _scan(), split_id(name)
    repo = next((repo for repo in repos if repo.repo_id == wanted), None)
    there = repo.revisions if repo else ()
    chosen = [r for r in there if revision in (None, r.commit_hash, *r.refs)]
    folders = [str(r.snapshot_path) for r in chosen] or [os.path.expanduser(name)]
    wholes = {os.path.realpath(folder) for folder in folders}
    weights = [one.file for one in cached_weights() if os.path.realpath(one.folder) in wholes]
    lost = [broken[name]] if name in broken else []
    if not (chosen or weights or lost):
        hint = nearest(name, cached_ids(), "See ngt models list.")
        raise ModelError(f"{name}: nothing is kept of it", hint=hint)
    others = {f.blob_path for r in there if r not in chosen for f in r.files}
    files = {f.blob_path for r in chosen for f in r.files} - others
    files |= {*weights, *(file for place in lost for file in place.glob("blobs/*"))}
    if repo is not None and not others:
        files |= {*Path(repo.repo_path).glob("blobs/*.incomplete")}
    removed = Removed(len(files), sum(map(_size, files)))
    if not yes:
        _confirm(name, _whole(removed))
    if chosen:
        found.delete_revisions(*(r.commit_hash for r in chosen)).execute()  # raises nothing
    for path in (*(r.snapshot_path for r in chosen), *weights, *lost):
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            path.unlink()
        if path.exists():
            raise NgtError(f"{path}: it cannot be deleted", hint="Delete it by hand.")
    return removed


def _confirm(name: str, whole: str) -> None:
    """Ask whether to remove so much. Raises UsageError where nobody can answer, NgtError for no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{name}: {whole} would be removed", hint="Give --yes to do that.")
    if not typer.confirm(f"Remove {name}: {whole}?", err=True):
        raise NgtError("nothing was removed")
