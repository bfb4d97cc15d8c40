"""Models of a hub: what the local cache has of them, and downloads of the files that are needed.

Which hub, where its cache is, whether it is asked and by whom are the settings of huggingface_hub
(HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE, HF_TOKEN). Its own download of a file starts from nothing in
each process. So large files are read by its `http_get` into blobs/ETAG.incomplete of its cache,
from where a later run goes on, and are then put where its `snapshot_download` looks for them.
"""

import errno
import glob
import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from operator import eq
from pathlib import Path
from typing import Any, Self

from ngtcli.errors import ModelError, counted, progress_bar, reason_of, sized, time_left
from ngtcli.system.reading import read_bounded

Notify = Callable[[str], None]
WHOLE = ("model.safetensors", "pytorch_model.bin")
# Where `transformers` looks for weights: of those that a repository has the first is loaded.
PREFERRED = tuple(name for one in WHOLE for name in (one, f"{one}.index.json"))
# Configuration, tokenizer, templates, card. In folders there are other formats' files (onnx,
# original), but for parts of embedding models (1_Pooling) and additional_chat_templates.
_TEXTS = ["*.json", "*.jinja", "*.model", "*.txt", "*.vocab", "*.tiktoken", "README.md"]
_FOREIGN = ["[!0-9a]*/*"]
_INDEX_BYTES = 100_000_000  # most of an index of weights; guess, the largest known have 10 MB
_LARGE = 5_000_000  # bytes from which on a file is resumed and shown; guess
_AT_ONCE = 4  # files that are downloaded together; guess
_HUB_WAIT_S = 5.0  # for the hub's answer; guess
_SHOWN_S = 0.1  # between two lines of progress; guess
_PART = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_ID = re.compile(rf"(?!.*(?:--|\.\.))({_PART}(?:/{_PART})?)(?:@([\w./-]+))?", re.ASCII)
AGAIN = "Run it again: it goes on where it stopped."


def split_id(name: str) -> tuple[str, str | None]:
    """The id and the revision of NAME or NAME@REVISION; ("", None) for what cannot be an id.

    >>> split_id("Qwen/Qwen3-8B@v1"), split_id("gpt2"), split_id("a//b"), split_id("a--b/c")
    (('Qwen/Qwen3-8B', 'v1'), ('gpt2', None), ('', None), ('', None))
    """
    found = _ID.fullmatch(name)
    if not found or len(found[1]) > 96 or found[1].endswith(".git"):  # the hub's own rules
        return "", None
    return found[1], found[2]


def cache_folder() -> Path:
    """Where the hub's downloads are."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def cached_ids(most: int) -> list[str]:
    """The ids of models in the hub's cache, in order; of `most` of them at most."""
    found = islice(cache_folder().glob("models--*"), most)
    return sorted(f.name.removeprefix("models--").replace("--", "/", 1) for f in found)


def cached_folder(name: str) -> tuple[str, bool]:
    """The folder of NAME[@REVISION] in the cache, and whether it has all small files of the hub's.

    ("", False) where it is not there.
    """
    import huggingface_hub
    from huggingface_hub import errors

    repo, revision = split_id(name)
    _be_quiet()
    try:
        folder = huggingface_hub.snapshot_download(
            repo, revision=revision, local_files_only=True,
            allow_patterns=_TEXTS, ignore_patterns=_FOREIGN,
        )  # fmt: skip
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        return str(getattr(error, "snapshot_path", "") or ""), False
    return str(folder), True


def weight_files(folder: Path, names: Collection[str]) -> list[str]:
    """Of the files `names` those whose weights `transformers` loads; [] where that is not known.

    An index of several files is read in `folder`.
    """
    first = next((name for name in PREFERRED if name in names), "")
    if first in ("", *WHOLE):
        return [first] if first else []
    try:
        index = json.loads(read_bounded(folder / first, _INDEX_BYTES))
        return sorted(set(map(str, index["weight_map"].values())))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


@dataclass(frozen=True, slots=True)
class Remote:
    """A model as the hub has it: its commit, and the bytes of its files by name."""

    repo: str
    revision: str | None
    commit: str
    sizes: dict[str, int]


@lru_cache(maxsize=8)
def ask(name: str) -> Remote | ModelError:
    """What the hub has under NAME[@REVISION], or why that cannot be known or had."""
    import huggingface_hub
    from huggingface_hub import constants, errors

    repo, revision = split_id(name)
    _be_quiet()
    try:
        about = huggingface_hub.model_info(
            repo, revision=revision, timeout=_HUB_WAIT_S, files_metadata=True
        )
        sizes = {file.rfilename: file.size or 0 for file in about.siblings or ()}
        if about.gated and "config.json" in sizes:  # raises where this user has no consent
            url = huggingface_hub.hf_hub_url(repo, "config.json", revision=about.sha)
            huggingface_hub.get_hf_file_metadata(url)
        return Remote(repo, revision, about.sha or "", sizes)
    except errors.OfflineModeIsEnabled:
        return ModelError(f"{name} is not in the local cache, and HF_HUB_OFFLINE is set")
    except errors.GatedRepoError:
        return _consent(name)
    except errors.RevisionNotFoundError:
        return ModelError(f"{repo} has no revision {revision}", "Name a branch, tag or commit.")
    except errors.RepositoryNotFoundError:
        return ModelError(f"{name}: no such folder, and no such model on the hub")
    except Exception as error:  # networks fail in many ways
        where = f"{type(error).__name__}, {constants.ENDPOINT}"
        what = "no such folder; it is not in the local cache, and the hub cannot be reached"
        return ModelError(f"{name}: {what} ({where})")


def _consent(name: str) -> ModelError:
    hint = "Give it there, then log in: hf auth login"
    return ModelError(f"{name} asks for consent on the hub", hint)


def download(name: str, weights: bool, progress: Notify) -> str:
    """The folder in the cache with what is needed of NAME[@REVISION], which the hub is asked for.

    Weights are left out unless `weights`. `progress` gets lines. What a run that was broken off
    has read is used. Raises ModelError.
    """
    remote = ask(name)
    if isinstance(remote, ModelError):
        raise remote
    from huggingface_hub.utils import filter_repo_objects

    with _failing(name):
        sizes = remote.sizes
        texts = [*filter_repo_objects(sizes, allow_patterns=_TEXTS, ignore_patterns=_FOREIGN)]
        first = [file for file in texts if sizes[file] < _LARGE or file in PREFERRED]
        folder = _snapshot(remote, first)
        files = texts + (weight_files(Path(folder), sizes) if weights else [])
        if large := [file for file in files if sizes.get(file, 0) >= _LARGE]:
            _fill(remote, Path(folder).parents[1], large, progress)
        return _snapshot(remote, files)


def _snapshot(remote: Remote, files: list[str]) -> str:
    """The folder with these files; those of which no blob is in the cache are downloaded."""
    import huggingface_hub
    from tqdm import tqdm

    folder: str = huggingface_hub.snapshot_download(
        remote.repo, revision=remote.revision, allow_patterns=[*map(glob.escape, files)],
        tqdm_class=partial(tqdm, disable=True),
    )  # fmt: skip
    return folder


@dataclass(frozen=True, slots=True)
class _Blob:
    """A large file: its address, its size, where it is to be, and the hub's lock for that."""

    url: str
    size: int
    path: Path
    lock: Path

    @property
    def part(self) -> Path:
        """What has been read of it; as the hub names what is not complete."""
        return self.path.with_name(f"{self.path.name}.incomplete")

    def have(self) -> int:
        """Bytes that are in the cache."""
        for path in (self.path, self.part):
            with suppress(OSError):
                return path.stat().st_size
        return 0

    def fill(self, bar: "_FileBar") -> None:
        """Read what is missing. Raises what the hub raises, and OSError."""
        from huggingface_hub.utils import WeakFileLock

        self.lock.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(self.lock):
            if not self.path.exists():  # another process may have read it
                resumed = self._read(bar)
                self._check(resumed)
                os.replace(self.part, self.path)
        bar(initial=self.size)

    def _read(self, bar: "_FileBar") -> bool:
        """Read to the end, after a failure again if something came; whether there was a part."""
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        if self.have() > self.size:
            self.part.unlink()
        first = had = self.have()
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        while True:
            try:
                with self.part.open("ab", buffering=0) as file:
                    http_get(
                        self.url, file, resume_size=had, headers=headers, expected_size=self.size,
                        tqdm_class=bar,
                    )  # fmt: skip
                return first > 0
            except Exception:
                if self.have() <= had:
                    raise
                had = self.have()

    def _check(self, resumed: bool) -> None:
        """Raise OSError if parts of several runs are not the file that its name, a hash, says."""
        if not resumed or len(self.path.name) != hashlib.sha256().digest_size * 2:
            return
        with self.part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.path.name:
            self.part.unlink()
            raise OSError("a file is not what the hub says, and is read again next time")


def _fill(remote: Remote, storage: Path, files: list[str], progress: Notify) -> None:
    """Put large files among the blobs of the folder `storage`, several at a time.

    Raises what the hub raises, OSError, and ModelError where the disk has no room for them.
    """
    import huggingface_hub

    (storage / "blobs").mkdir(parents=True, exist_ok=True)

    def blob(file: str) -> _Blob | None:
        url = huggingface_hub.hf_hub_url(remote.repo, file, revision=remote.commit)
        about = huggingface_hub.get_hf_file_metadata(url)
        if not about.size or not re.fullmatch(r"\w[\w.-]*", about.etag or ""):
            return None  # the hub's own download says what is wrong
        lock = storage.parent / ".locks" / storage.name / f"{about.etag}.lock"
        return _Blob(url, about.size, storage / "blobs" / str(about.etag), lock)

    pool = ThreadPoolExecutor(_AT_ONCE)
    bar = None
    try:
        blobs = list({one.path: one for one in pool.map(blob, files) if one is not None}.values())
        left = sum(max(0, one.size - one.have()) for one in blobs)
        if left > (free := shutil.disk_usage(storage).free):
            raise ModelError(
                f"{remote.repo}: {sized(left)} are to be downloaded, and {storage.parent} has"
                f" {sized(free)} left",
                "Make room (ngt models list), or set HF_HOME to a folder on another disk.",
            )
        progress(f"Downloading {remote.repo}: {counted(len(blobs), 'large file')}, {sized(left)} …")
        bar = _Bar([one.size for one in blobs], progress)
        list(pool.map(lambda at: blobs[at].fill(_FileBar(bar, at)), range(len(blobs))))
    finally:  # threads that still read do so until the process ends
        pool.shutdown(wait=False, cancel_futures=True)
        if bar is not None:
            bar.closed = True


class _Bar:
    """Shows bytes, finished files and speed as one line, as often as `_SHOWN_S` says."""

    def __init__(self, sizes: list[int], progress: Notify) -> None:
        self.closed = False
        self._sizes, self._done, self._progress = sizes, [0] * len(sizes), progress
        self._begin, self._shown, self._read = time.monotonic(), 0.0, 0
        self._lock = threading.Lock()

    def put(self, file: int, done: int, read: int = 0) -> None:
        """So many bytes of a file are there, `read` of them since the last call."""
        with self._lock:
            self._done[file], self._read = done, self._read + read
            now = time.monotonic()
            if not self.closed and now - self._shown >= _SHOWN_S:
                self._shown = now
                self._progress(self._line(now - self._begin))

    def add(self, file: int, read: int) -> None:
        self.put(file, self._done[file] + read, read)

    def _line(self, seconds: float) -> str:
        done, total = sum(self._done), sum(self._sizes)
        ready = sum(map(eq, self._done, self._sizes))
        line = f"Downloading {progress_bar(done, total)} {sized(done, total)}"
        line += f", {ready}/{counted(len(self._sizes), 'file')}"
        if self._read <= 0 or not seconds:
            return line
        rate = self._read / seconds
        return f"{line}, {sized(round(rate))}/s, {time_left((total - done) / rate)} left"


class _FileBar:
    """One file's share of a bar; huggingface_hub calls it as it does the class `tqdm`."""

    def __init__(self, bar: _Bar, file: int) -> None:
        self._bar, self._file = bar, file

    def __call__(self, *, initial: int = 0, **_: object) -> Self:
        self._bar.put(self._file, initial)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, n: float | None = 1) -> None:
        self._bar.add(self._file, int(n or 0))


@contextmanager
def _failing(name: str) -> Iterator[None]:
    """Make one ModelError of whatever ends a download."""
    from huggingface_hub import errors

    try:
        yield
    except ModelError:
        raise
    except errors.GatedRepoError:
        raise _consent(name) from None
    except Exception as error:  # networks fail in many ways
        full = getattr(error, "errno", None) == errno.ENOSPC
        why = reason_of(error).strip().partition("\n")[0][:200] or type(error).__name__
        hint = f"Make room (ngt models list). {AGAIN}" if full else AGAIN
        raise ModelError(f"{name}: the download broke off ({why})", hint) from error


def _be_quiet() -> None:
    """Keep the hub's warnings off stderr, unless its own variable says what is to be shown."""
    from huggingface_hub.utils import logging

    if not os.environ.get("HF_HUB_VERBOSITY"):
        logging.set_verbosity_error()


def scan() -> Any:
    """What huggingface_hub finds in its cache; None where that is not there."""
    from huggingface_hub import scan_cache_dir

    return scan_cache_dir(cache_folder()) if cache_folder().is_dir() else None


def unfinished(repo: Any) -> int:
    """Bytes of a found repository's downloads that were broken off."""
    return sum(p.stat().st_size for p in Path(repo.repo_path).glob("blobs/*.incomplete"))
