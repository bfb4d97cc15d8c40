"""`ngt models`: list the models on this machine, download one, and delete one."""

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from ngtcli.system.reporting import reporting_to
from ngtcli.words import counted, nearest

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, HFCacheInfo

models_app = Group("models")
Name = Annotated[
    str,
    typer.Argument(metavar="NAME[@REVISION]", help="A Hugging Face id.", autocompletion=models),
]


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be used without a download.

    Attributes:
        name: Its Hugging Face id, its folder, or "builtin".
        bytes: The size of its files.
        path: Its folder.
        quantized_bytes: The size of its cached quantized weights; 0 for none.
        unfinished_bytes: The size of interrupted downloads.
        kinds: The formats of its cached quantized weights.
        lacking: Whether a file that the model needs has not been downloaded yet.
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
    if model.unfinished_bytes:
        size += f" and {sized(model.unfinished_bytes)} unfinished"
    elif model.lacking:
        size += ", unfinished"
    quantized = ""
    if model.kinds:
        quantized = f"{sized(model.quantized_bytes)} in {' and '.join(model.kinds)}"
    return [model.name, size, quantized, model.path]


@models_app.command("list", view=table("name,size,quantized,path", _cells))
def models_list() -> list[Model]:
    """List the models on this machine, and cached quantized weights."""
    listed = [Model(BUILTIN, _size(BUILTIN_PATH), str(BUILTIN_PATH)), *_downloaded()]
    for weights in cached_weights():
        owner = next((model for model in listed if _is_in(weights.folder, model.path)), None)
        if owner is None:
            owner = Model(weights.folder, _size(Path(weights.folder)), weights.folder)
            listed.append(owner)
        listed[listed.index(owner)] = replace(
            owner, quantized_bytes=owner.quantized_bytes + weights.bytes, kinds=("int8",)
        )
    if len(listed) == 1:
        notes = Notes()
        notes.say("Only the built-in demonstration model is here. Models to start with:")
        for line in recommendations():
            notes.say(f"  {line}")
    return listed


def _downloaded() -> list[Model]:
    """Return the models in the cache of huggingface_hub."""
    downloads = _scan()
    listed = []
    for repo in downloads.repos:
        lacks_parts = all(lacks_files(Path(revision.snapshot_path)) for revision in repo.revisions)
        listed.append(
            Model(
                name=repo.repo_id,
                bytes=repo.size_on_disk,
                path=str(repo.repo_path),
                unfinished_bytes=sum(map(_size, _unfinished(repo))),
                lacking=lacks_parts,
            )
        )
    for name, folder in downloads.broken.items():
        unfinished_bytes = _size(folder / "blobs")
        listed.append(Model(name, 0, str(folder), unfinished_bytes=unfinished_bytes))
    return listed


def _is_in(folder: str, parent: str) -> bool:
    return Path(folder).is_relative_to(os.path.realpath(parent))


@dataclass(frozen=True, slots=True)
class _Downloads:
    """The cache of huggingface_hub.

    Attributes:
        cache: The scanned cache; None if there is no such folder.
        repos: The models in it, by name.
        broken: The folders of models that a killed run left broken, by name.
    """

    cache: "HFCacheInfo | None" = None
    repos: "Sequence[CachedRepoInfo]" = ()
    broken: dict[str, Path] = field(default_factory=dict)


def _scan() -> _Downloads:
    """Read the cache of huggingface_hub."""
    from huggingface_hub import scan_cache_dir

    be_quiet()
    if not cache_folder().is_dir():
        return _Downloads()
    cache = scan_cache_dir(cache_folder())
    repos = [repo for repo in cache.repos if repo.repo_type == "model"]
    folders = {repo.repo_path.name for repo in repos}
    broken = {name: path for name, path in cached_ids().items() if path.name not in folders}
    return _Downloads(cache, sorted(repos, key=lambda repo: str(repo.repo_id)), broken)


def _unfinished(repo: "CachedRepoInfo") -> set[Path]:
    """Return the files of interrupted downloads of a repository."""
    return set(Path(repo.repo_path).glob("blobs/*.incomplete"))


def _size(path: Path) -> int:
    """Return the bytes of a file, or of the files in a folder."""
    files = [path] if path.is_file() else path.glob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


@models_app.command("pull", view=lambda model: model.path)
def models_pull(name: Name) -> Model:
    """Download a model from Hugging Face, or resume a download; print its folder."""
    if name == BUILTIN or not split_id(name)[0]:
        raise UsageError(
            f"{name or repr(name)}: not a Hugging Face id",
            hint="Give one, as in ngt models pull Qwen/Qwen3-8B",
        )
    notes = Notes()
    if os.path.isdir(name):
        notes.warn(f"-m {name} means the local folder of that name, not the model on Hugging Face")
    notes.status(f"Looking up {name} on Hugging Face …")
    with reporting_to(notes):
        folder = pull(name)
    notes.clear()
    return Model(name, _size(Path(folder)), folder)


def _files_and_size(removed: Removed) -> str:
    return f"{counted(removed.files, 'file')}, {sized(removed.bytes)}"


@models_app.command("rm", view=lambda removed: f"{_files_and_size(removed)} removed")
def models_rm(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> Removed:
    """Delete a downloaded model, or one revision, and its cached quantized weights.

    For a folder of your own, only its cached quantized weights are deleted.
    """
    if name == BUILTIN:
        raise UsageError(
            "the built-in model is part of ngt", hint="pip uninstall ngtcli removes it."
        )
    downloads = _scan()
    repo_id, revision = split_id(name)
    repo = next((repo for repo in downloads.repos if repo.repo_id == repo_id), None)
    revisions = repo.revisions if repo else frozenset()
    chosen = [r for r in revisions if revision in (None, r.commit_hash, *r.refs)]

    folders = [str(r.snapshot_path) for r in chosen] or [os.path.expanduser(name)]
    real_folders = {os.path.realpath(folder) for folder in folders}
    weights = [w.file for w in cached_weights() if os.path.realpath(w.folder) in real_folders]
    broken = [downloads.broken[name]] if name in downloads.broken else []
    if not (chosen or weights or broken):
        hint = nearest(name, cached_ids(), "See ngt models list.")
        raise ModelError(f"{name}: no such model on this machine", hint=hint)

    # Revisions share files, and those of the revisions that stay are not removed.
    shared = {f.blob_path for r in revisions if r not in chosen for f in r.files}
    files = {f.blob_path for r in chosen for f in r.files} - shared
    files.update(weights)
    for folder in broken:
        files.update(folder.glob("blobs/*"))
    if repo is not None and not shared:
        files.update(_unfinished(repo))
    removed = Removed(len(files), sum(map(_size, files)))
    if not yes:
        _confirm(name, _files_and_size(removed))

    if chosen and downloads.cache is not None:
        # This raises nothing if a file cannot be deleted: the check below finds that.
        downloads.cache.delete_revisions(*(r.commit_hash for r in chosen)).execute()
    for path in (*(r.snapshot_path for r in chosen), *weights, *broken):
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            path.unlink()
        if path.exists():
            raise NgtError(f"cannot delete {path}", hint="Delete it by hand.")
    return removed


def _confirm(name: str, files_and_size: str) -> None:
    """Ask the user whether to remove a model.

    Args:
        name: The model.
        files_and_size: How much would be removed.

    Raises:
        UsageError: There is no terminal to ask on.
        NgtError: The answer is no.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{name}: {files_and_size} would be removed", hint="Use --yes to remove it."
        )
    if not typer.confirm(f"Remove {name}: {files_and_size}?", err=True):
        raise NgtError("nothing was removed")
