"""Models of a hub: what the local cache has of them, and downloads of the files that are needed.

Which hub, where its cache is, whether it is asked and by whom are the settings of huggingface_hub
(HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE, HF_TOKEN). Its own download deletes a file that is not
complete. So large files are read by its `http_get` into blobs/SHA256.incomplete of its cache, from
where a later run goes on, and are then put where its `snapshot_download` looks for them.
"""

import errno
import glob
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Collection
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

from ngtcli.errors import HubUnreachableError, ModelError
from ngtcli.system.files import read_bounded
from ngtcli.system.progress import ByteBar, sized
from ngtcli.words import counted, reason_of

Notify = Callable[[str], None]
WHOLE = ("model.safetensors", "pytorch_model.bin")
# Where `transformers` looks for weights: of those that a repository has the first is loaded.
PREFERRED = tuple(name for one in WHOLE for name in (one, f"{one}.index.json"))
# Configuration, tokenizer, templates, card. In folders there are other formats' files (onnx,
# original), but for parts of embedding models (1_Pooling) and additional_chat_templates.
_TEXTS = ["*.json", "*.jinja", "*.model", "*.txt", "*.vocab", "*.tiktoken", "README.md"]
_FOREIGN = ["[!0-9a]*/*"]
_INDEX_BYTES = 100_000_000  # most of an index of weights; guess, the largest known have 10 MB
_AT_ONCE = 4  # files that are downloaded together; guess
_MOST_IDS = 2000  # that are offered, and that a name is compared with; guess
_HUB_WAIT_S = 5.0  # for the hub's answer; guess
_AGAIN = "Run it again: it goes on where it stopped."
_ROOM = "Make room (ngt models list), or set HF_HOME to a folder on another disk."
_OTHER = "Set HF_HOME to a folder that you can write to."


def split_id(name: str) -> tuple[str, str | None]:
    """The id and the revision of NAME or NAME@REVISION; ("", None) for what cannot be an id.

    >>> split_id("Qwen/Qwen3-8B@v1"), split_id("gpt2"), split_id("a//b"), split_id("gpt2@")
    (('Qwen/Qwen3-8B', 'v1'), ('gpt2', None), ('', None), ('', None))
    """
    if name.startswith((".", "/", "~")) or name.endswith("@") or not name.isascii():
        return "", None  # told without the import
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    repo, _, revision = name.partition("@")
    try:
        validate_repo_id(repo)
    except HFValidationError:
        return "", None
    return repo, revision or None


def cache_folder() -> Path:
    """Where the hub's downloads are."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def cached_ids() -> dict[str, Path]:
    """The folders of models in the hub's cache by id, in order; of many models only some."""
    found = sorted(islice(cache_folder().glob("models--*"), _MOST_IDS))
    return {f.name.removeprefix("models--").replace("--", "/", 1): f for f in found}


def cached_folder(name: str) -> str:
    """The folder of NAME[@REVISION] in the cache, "" for none; files of it may be missing."""
    import huggingface_hub
    from huggingface_hub import errors

    repo, revision = split_id(name)
    be_quiet()
    try:
        folder = huggingface_hub.snapshot_download(
            repo, revision=revision, local_files_only=True,
            allow_patterns=_TEXTS, ignore_patterns=_FOREIGN,
        )  # fmt: skip
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        return str(getattr(error, "snapshot_path", "") or "")
    return str(folder)


def weight_files(folder: Path, names: Collection[str], before: Collection[str] = ()) -> list[str]:
    """Of the files `names` those whose weights `transformers` loads; [] where that is not known.

    A file of `before` is one that goes before them. An index of several files is read in `folder`.
    """
    first = next((name for name in (*before, *PREFERRED) if name in names), "")
    if first in ("", *WHOLE, *before):
        return [first] if first else []
    try:
        index = json.loads(read_bounded(folder / first, _INDEX_BYTES))
        return sorted(set(map(str, index["weight_map"].values())))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


@dataclass(frozen=True, slots=True)
class Remote:
    """A model as the hub has it: its commit, the bytes of its files, the SHA-256 of large ones."""

    repo: str
    revision: str | None
    commit: str
    sizes: dict[str, int]
    hashes: dict[str, str]


@lru_cache(maxsize=8)  # of what the hub has told: a failure is not remembered
def ask(name: str) -> Remote:
    """What the hub has under NAME[@REVISION]. Raises ModelError, why it cannot be known or had."""
    import huggingface_hub
    from huggingface_hub import constants

    repo, revision = split_id(name)
    be_quiet()
    try:
        about = huggingface_hub.model_info(
            repo, revision=revision, timeout=_HUB_WAIT_S, files_metadata=True
        )
        files = {file.rfilename: file for file in about.siblings or ()}
        if about.gated and "config.json" in files:  # raises where this user has no consent
            url = huggingface_hub.hf_hub_url(repo, "config.json", revision=about.sha)
            huggingface_hub.get_hf_file_metadata(url)
    except Exception as error:  # networks fail in many ways
        raise _refusal(name, error) from None
    sizes = {name: file.size or 0 for name, file in files.items()}
    large = [f for f in files.values() if f.lfs and re.fullmatch("[0-9a-f]{64}", f.lfs.sha256)]
    most = constants.MAX_HTTP_DOWNLOAD_SIZE  # larger ones the hub sends by its own protocol
    hashes = {f.rfilename: f.lfs.sha256 for f in large if sizes[f.rfilename] <= most}
    return Remote(repo, revision, about.sha or "", sizes, hashes)


def _refusal(name: str, error: Exception) -> ModelError:
    """Return the error that explains why Hugging Face does not say what it has of a model."""
    from huggingface_hub import constants, errors

    match error:
        case errors.GatedRepoError():
            return ModelError(
                f"{name} asks for consent on the hub",
                hint="Give it there, then log in: hf auth login",
            )
        case errors.RevisionNotFoundError():
            repo, revision = split_id(name)
            return ModelError(
                f"{repo} has no revision {revision}", hint="Name a branch, tag or commit."
            )
        case errors.RepositoryNotFoundError():
            return ModelError(f"{name}: no such folder, and no such model on the hub")
        case errors.HfHubHTTPError():
            status = error.response.status_code
            hint = "Log in again: hf auth login" if status == 401 else ""
            return ModelError(f"{name}: {constants.ENDPOINT} answers {status}", hint=hint)
    if isinstance(error, errors.OfflineModeIsEnabled):
        problem = "HF_HUB_OFFLINE is set"
    else:
        why = f"{type(error).__name__}, {constants.ENDPOINT}"
        problem = f"Hugging Face cannot be reached ({why})"
    if cached_folder(name):
        message = f"{name}: {problem}; what the local cache has of it stays as it is"
        return HubUnreachableError(message, hint="Try it again later.")
    return HubUnreachableError(f"{name}: not on this machine, and {problem}")


def download(name: str, weights: bool, progress: Notify, before: Collection[str] = ()) -> str:
    """The folder in the cache with what is needed of NAME[@REVISION], which the hub is asked for.

    Weights are left out unless `weights`; `before` is as for `weight_files`. `progress` gets lines.
    What a run that was broken off has read is used. Raises ModelError.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import filter_repo_objects

    remote = ask(name)
    files = [*filter_repo_objects(remote.sizes, allow_patterns=_TEXTS, ignore_patterns=_FOREIGN)]
    small = [file for file in files if file not in remote.hashes or file in PREFERRED]
    snapshot = partial(snapshot_download, remote.repo, revision=remote.revision)
    try:
        folder = Path(snapshot(allow_patterns=[*map(glob.escape, small)]))
        if cut := [file for file in small if remote.sizes[file] not in (0, _size(folder / file))]:
            snapshot(allow_patterns=[*map(glob.escape, cut)], force_download=True)
        if weights:
            files += weight_files(folder, remote.sizes, before)
        large = {remote.hashes[file]: file for file in files if file in remote.hashes}
        _read_all(remote, large, folder.parents[1], progress)
        return str(snapshot(allow_patterns=[*map(glob.escape, files)]))
    except ModelError:
        raise
    except Exception as error:  # networks fail in many ways
        own = {errno.ENOSPC: f"{_ROOM} {_AGAIN}", errno.EACCES: _OTHER, errno.EROFS: _OTHER}
        why = reason_of(error).strip().partition("\n")[0][:200] or type(error).__name__
        hint = own.get(getattr(error, "errno", 0), _AGAIN)
        raise ModelError(f"{name}: the download broke off ({why})", hint=hint) from error


def _read_all(remote: Remote, large: dict[str, str], storage: Path, progress: Notify) -> None:
    """Read those files, by their SHA-256, that are not whole among the blobs of `storage`.

    Raises what the hub raises, OSError, and ModelError where the disk has no room for them.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import WeakFileLock

    blobs, locks = storage / "blobs", storage.parent / ".locks" / storage.name  # the hub's own
    for folder in (blobs, locks):
        folder.mkdir(parents=True, exist_ok=True)
    every = {name: remote.sizes[file] for name, file in large.items()}
    sizes = {name: size for name, size in every.items() if _size(blobs / name) != size}
    done = sum(_size(blobs / f"{name}.incomplete") for name in sizes)
    left = sum(sizes.values()) - done
    if left > (free := shutil.disk_usage(blobs).free):
        what = f"{sized(left)} are to be downloaded, and {storage.parent} has {sized(free)} left"
        raise ModelError(f"{remote.repo}: {what}", hint=_ROOM)
    if sizes:
        files = counted(len(sizes), "large file")
        progress(f"Downloading {remote.repo}: {files}, {sized(left)} …")
    bar = ByteBar("Downloading", left + done, progress, done)

    def read(name: str) -> None:
        url = hf_hub_url(remote.repo, large[name], revision=remote.commit)
        with WeakFileLock(locks / f"{name}.lock"):
            if _size(blobs / name) != sizes[name]:  # another process may have read it
                _read(url, blobs / name, sizes[name], bar)

    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        for one in as_completed([pool.submit(read, name) for name in sizes]):
            one.result()
    finally:  # nobody waits for the files that are still read: they end with their next bytes
        bar.closed = True
        pool.shutdown(wait=False, cancel_futures=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read(url: str, blob: Path, size: int, bar: ByteBar) -> None:
    """Read what is missing of a file whose name is its SHA-256, after failures, too.

    Raises what the hub raises where nothing more comes, OSError for what is not that file, and
    CancelledError where the `bar` is closed.
    """
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    def update(n: float) -> None:
        if bar.closed:
            raise CancelledError
        bar.update(n)

    part, shown = blob.with_name(f"{blob.name}.incomplete"), SimpleNamespace(update=update)
    had = _size(part)
    while had < size:
        try:
            with part.open("ab", buffering=0) as file:
                http_get(
                    url, file, resume_size=had, expected_size=size,
                    headers={**build_hf_headers(), "Accept-Encoding": "identity"},
                    tqdm_class=lambda **_: nullcontext(shown),
                )  # fmt: skip
        except Exception:
            if bar.closed or _size(part) <= had:
                raise
        had = _size(part)
    with part.open("rb") as whole:
        found = hashlib.file_digest(whole, "sha256").hexdigest()
    if found != blob.name:
        part.unlink()
        raise OSError("a file is not what the hub says, and is read again next time")
    os.replace(part, blob)


def be_quiet() -> None:
    """Keep the hub's bars off stderr, and its warnings unless its own variable asks for them."""
    from huggingface_hub.utils import disable_progress_bars, logging

    disable_progress_bars()
    warnings.filterwarnings("ignore", module="huggingface_hub")
    if not os.environ.get("HF_HUB_VERBOSITY"):
        logging.set_verbosity_error()
