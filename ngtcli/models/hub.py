"""Models on the Hugging Face hub: finding them in the local cache, and downloading their files.

The settings of huggingface_hub apply (HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE, HF_TOKEN). The
library's own download deletes an incomplete file. So large files are downloaded with its `http_get`
to blobs/SHA256.incomplete in its cache, where a later run can continue, and are then renamed to the
path where its `snapshot_download` looks for them.
"""

import errno
import glob
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Collection
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

from ngtcli.errors import HubUnreachableError, ModelError
from ngtcli.system import reporting
from ngtcli.system.files import read_bounded
from ngtcli.system.progress import ByteBar, sized
from ngtcli.words import counted, reason_of

SINGLE_FILES = ("model.safetensors", "pytorch_model.bin")
# Where `transformers` looks for weights: it loads the first that a repository has.
PREFERRED = tuple(name for file in SINGLE_FILES for name in (file, f"{file}.index.json"))
# Configuration, tokenizer, templates and card. Folders of a repository have files in other formats
# (onnx, original), except parts of embedding models (1_Pooling) and additional_chat_templates.
_SMALL_FILES = ["*.json", "*.jinja", "*.model", "*.txt", "*.vocab", "*.tiktoken", "README.md"]
_IGNORED_FILES = ["[!0-9a]*/*"]
# Maximum size of an index of weights (guess: the largest known have 10 MB).
_MAX_INDEX_BYTES = 100_000_000
_PARALLEL_DOWNLOADS = 4  # (guess)
_MAX_IDS = 2000  # ids that are offered, and that a name is compared with (guess)
_HUB_TIMEOUT_S = 5.0  # for the hub's answer (guess)
_RETRY = "Run it again: it continues where it stopped."
_FREE_SPACE = "Free space (ngt models list), or set HF_HOME to a folder on another disk."
_WRITABLE = "Set HF_HOME to a folder that you can write to."


def split_id(name: str) -> tuple[str, str | None]:
    """Split NAME or NAME@REVISION into id and revision; ("", None) if it cannot be an id.

    >>> split_id("Qwen/Qwen3-8B@v1"), split_id("gpt2"), split_id("a//b"), split_id("gpt2@")
    (('Qwen/Qwen3-8B', 'v1'), ('gpt2', None), ('', None), ('', None))
    """
    if name.startswith((".", "/", "~")) or name.endswith("@") or not name.isascii():
        return "", None  # decided without the slow import
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    repo, _, revision = name.partition("@")
    try:
        validate_repo_id(repo)
    except HFValidationError:
        return "", None
    return repo, revision or None


def cache_folder() -> Path:
    """Return the folder of the hub's downloads."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def cached_ids() -> dict[str, Path]:
    """Return the folders of models in the hub's cache by id, sorted; at most _MAX_IDS of them."""
    folders = sorted(islice(cache_folder().glob("models--*"), _MAX_IDS))
    return {
        folder.name.removeprefix("models--").replace("--", "/", 1): folder for folder in folders
    }


def cached_folder(name: str) -> str:
    """Return the folder of NAME[@REVISION] in the cache, "" for none; it may lack files."""
    import huggingface_hub
    from huggingface_hub import errors

    repo, revision = split_id(name)
    be_quiet()
    try:
        folder = huggingface_hub.snapshot_download(
            repo,
            revision=revision,
            local_files_only=True,
            allow_patterns=_SMALL_FILES,
            ignore_patterns=_IGNORED_FILES,
        )
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        return str(getattr(error, "snapshot_path", "") or "")
    return str(folder)


def weight_files(folder: Path, names: Collection[str], before: Collection[str] = ()) -> list[str]:
    """Select the files with the weights that `transformers` would load.

    Args:
        folder: The folder with the index of the weight files, if there is one.
        names: All files of the model.
        before: Names that come before those that `transformers` looks for.

    Returns:
        Names of files; [] if there are no weights or the index cannot be read.
    """
    first = next((name for name in (*before, *PREFERRED) if name in names), "")
    if not first:
        return []
    if first in SINGLE_FILES or first in before:
        return [first]
    try:
        index = json.loads(read_bounded(folder / first, _MAX_INDEX_BYTES))
        return sorted(set(map(str, index["weight_map"].values())))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


@dataclass(frozen=True, slots=True)
class Remote:
    """A model on the hub.

    Attributes:
        repo: Its id.
        revision: The revision that was asked for; None: the default.
        commit: The commit of that revision.
        sizes: Bytes of its files.
        hashes: SHA-256 in hex of its large files.
    """

    repo: str
    revision: str | None
    commit: str
    sizes: dict[str, int]
    hashes: dict[str, str]


@lru_cache(maxsize=8)  # an error is not cached
def ask(name: str) -> Remote:
    """Ask the hub for NAME[@REVISION]. Raises ModelError if it cannot be reached or refuses."""
    import huggingface_hub
    from huggingface_hub import constants

    repo, revision = split_id(name)
    be_quiet()
    try:
        info = huggingface_hub.model_info(
            repo, revision=revision, timeout=_HUB_TIMEOUT_S, files_metadata=True
        )
        files = {file.rfilename: file for file in info.siblings or ()}
        if info.gated and "config.json" in files:
            # Raises an error if this user has not been granted access.
            url = huggingface_hub.hf_hub_url(repo, "config.json", revision=info.sha)
            huggingface_hub.get_hf_file_metadata(url)
    except Exception as error:  # a network fails with errors of many types
        raise _refusal(name, error) from None
    sizes = {file_name: file.size or 0 for file_name, file in files.items()}
    hashes: dict[str, str] = {}
    for file_name, file in files.items():
        # The hub sends still larger files by its own protocol only.
        is_http = sizes[file_name] <= constants.MAX_HTTP_DOWNLOAD_SIZE
        if is_http and file.lfs and re.fullmatch("[0-9a-f]{64}", file.lfs.sha256):
            hashes[file_name] = file.lfs.sha256
    return Remote(repo, revision, info.sha or "", sizes, hashes)


def _refusal(name: str, error: Exception) -> ModelError:
    """Make the error that explains why the hub does not answer for a model."""
    from huggingface_hub import constants, errors

    match error:
        case errors.GatedRepoError():
            return ModelError(
                f"{name}: access to this model must be requested on the hub",
                hint="Request it on the model's page, then log in: hf auth login",
            )
        case errors.RevisionNotFoundError():
            repo, revision = split_id(name)
            return ModelError(
                f"{repo} has no revision {revision}", hint="Use a branch, tag or commit."
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
        message = f"{name}: {problem}; its files in the local cache are unchanged"
        return HubUnreachableError(message, hint="Try again later.")
    return HubUnreachableError(f"{name}: not on this machine, and {problem}")


def download(name: str, weights: bool, before: Collection[str] = ()) -> str:
    """Download the needed files of a model; continue an interrupted download.

    Args:
        name: NAME[@REVISION].
        weights: Whether its weights are needed.
        before: See `weight_files`.

    Returns:
        Its folder in the hub's cache.

    Raises:
        ModelError: The hub cannot be reached or refuses, or the download fails.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import filter_repo_objects

    remote = ask(name)
    files = list(
        filter_repo_objects(
            remote.sizes, allow_patterns=_SMALL_FILES, ignore_patterns=_IGNORED_FILES
        )
    )
    small = [file for file in files if file not in remote.hashes or file in PREFERRED]
    snapshot = partial(snapshot_download, remote.repo, revision=remote.revision)
    try:
        folder = Path(snapshot(allow_patterns=[*map(glob.escape, small)]))
        incomplete = [file for file in small if remote.sizes[file] not in (0, _size(folder / file))]
        if incomplete:
            snapshot(allow_patterns=[*map(glob.escape, incomplete)], force_download=True)
        if weights:
            files += weight_files(folder, remote.sizes, before)
        large = {remote.hashes[file]: file for file in files if file in remote.hashes}
        _download_large(remote, large, folder.parents[1])
        return str(snapshot(allow_patterns=[*map(glob.escape, files)]))
    except ModelError:
        raise
    except Exception as error:  # a network fails with errors of many types
        hints = {
            errno.ENOSPC: f"{_FREE_SPACE} {_RETRY}",
            errno.EACCES: _WRITABLE,
            errno.EROFS: _WRITABLE,
        }
        why = reason_of(error).strip().partition("\n")[0][:200] or type(error).__name__
        hint = hints.get(getattr(error, "errno", 0), _RETRY)
        raise ModelError(f"{name}: the download failed ({why})", hint=hint) from error


def _download_large(remote: Remote, large: dict[str, str], storage: Path) -> None:
    """Download the large files that are not complete yet.

    Args:
        remote: The model.
        large: Names of its files by their SHA-256.
        storage: The model's folder in the hub's cache.

    Raises:
        ModelError: The disk has not enough space.
        OSError: A file cannot be written.
        Exception: Whatever the hub's library raises.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import WeakFileLock

    # Where the hub's library has its files and locks.
    blobs = storage / "blobs"
    locks = storage.parent / ".locks" / storage.name
    blobs.mkdir(parents=True, exist_ok=True)
    locks.mkdir(parents=True, exist_ok=True)

    sizes: dict[str, int] = {}  # of files that are not complete, by SHA-256
    for sha256, file in large.items():
        size = remote.sizes[file]
        if _size(blobs / sha256) != size:
            sizes[sha256] = size
    downloaded = sum(_size(blobs / f"{sha256}.incomplete") for sha256 in sizes)
    missing = sum(sizes.values()) - downloaded
    free = shutil.disk_usage(blobs).free
    if missing > free:
        raise ModelError(
            f"{remote.repo}: the download needs {sized(missing)}, and {storage.parent} has"
            f" {sized(free)} free",
            hint=_FREE_SPACE,
        )
    if sizes:
        files = counted(len(sizes), "large file")
        reporting.status(f"Downloading {remote.repo}: {files}, {sized(missing)} …")
    bar = ByteBar("Downloading", missing + downloaded, downloaded)

    def download_file(sha256: str) -> None:
        url = hf_hub_url(remote.repo, large[sha256], revision=remote.commit)
        with WeakFileLock(locks / f"{sha256}.lock"):
            # Another process may have downloaded it meanwhile.
            if _size(blobs / sha256) != sizes[sha256]:
                _download_blob(url, blobs / sha256, sizes[sha256], bar)

    pool = ThreadPoolExecutor(_PARALLEL_DOWNLOADS)
    try:
        for download in as_completed([pool.submit(download_file, sha256) for sha256 in sizes]):
            download.result()
    finally:
        # After an error or an interrupt the other downloads end by themselves at their next bytes.
        bar.closed = True
        pool.shutdown(wait=False, cancel_futures=True)


def _size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it is missing."""
    return path.stat().st_size if path.exists() else 0


def _download_blob(url: str, blob: Path, size: int, bar: ByteBar) -> None:
    """Download the missing bytes of a file; try again after a failure that made some progress.

    Args:
        url: The URL of the file.
        blob: The path to write; its name is the file's SHA-256.
        size: The size of the file in bytes.
        bar: The progress bar, which counts the bytes.

    Raises:
        OSError: The downloaded file has another hash.
        CancelledError: The bar was closed.
        Exception: Whatever the hub's library raises.
    """
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    def update(n: float) -> None:
        if bar.closed:
            raise CancelledError
        bar.update(n)

    partial_file = blob.with_name(f"{blob.name}.incomplete")
    tqdm_bar = SimpleNamespace(update=update)  # all that http_get uses of a bar of tqdm
    downloaded = _size(partial_file)
    while downloaded < size:
        try:
            with partial_file.open("ab", buffering=0) as file:
                http_get(
                    url,
                    file,
                    resume_size=downloaded,
                    expected_size=size,
                    headers={**build_hf_headers(), "Accept-Encoding": "identity"},
                    tqdm_class=lambda **_: nullcontext(tqdm_bar),
                )
        except Exception:
            if bar.closed or _size(partial_file) <= downloaded:
                raise
        downloaded = _size(partial_file)
    with partial_file.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    if sha256 != blob.name:
        partial_file.unlink()
        raise OSError("a downloaded file is damaged; the next run downloads it again")
    os.replace(partial_file, blob)


def be_quiet() -> None:
    """Turn off the hub library's progress bars, and its warnings unless HF_HUB_VERBOSITY is set."""
    from huggingface_hub.utils import disable_progress_bars, logging

    disable_progress_bars()
    warnings.filterwarnings("ignore", module="huggingface_hub")
    if not os.environ.get("HF_HUB_VERBOSITY"):
        logging.set_verbosity_error()
