"""The files of the trie cache, described from their headers. Loads no numpy."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ngtcli.system import cache as cache_bound
from ngtcli.system.arrays import read_header
from ngtcli.system.storage import DamagedFileError, home, parse_json, remove_leftovers

SUFFIX = ".trie.safetensors"
DATASTORE_SUFFIX = cache_bound.DATASTORE
DATASTORE_ARRAYS = ("stream", "order")
BACKGROUND_SUFFIX = cache_bound.BACKGROUND
FAILED_SUFFIX = ".background.failed"  # why a background could not be made


@dataclass(frozen=True, slots=True)
class TrieFile:
    """A trie for `ngt trie list`: its header, `bytes` on disk, `created` in seconds since 1970."""

    path: Path
    key: str
    n: int
    lp: int
    tokens: int
    nodes: int
    bytes: int
    documents: tuple[str, ...]
    created: float


@dataclass(frozen=True, slots=True)
class DatastoreFile:
    """A datastore for `ngt trie list`; as `TrieFile`, with its `name`."""

    path: Path
    key: str
    name: str
    tokens: int
    bytes: int
    documents: tuple[str, ...]
    created: float


@dataclass(frozen=True, slots=True)
class BackgroundFile:
    """A background for `ngt trie list`; as `TrieFile`, with its `name`.

    `tokenizer` is the fingerprint of the one that it is for, `model` a model that has it.
    """

    path: Path
    key: str
    name: str
    tokens: int
    nodes: int
    bytes: int
    documents: tuple[str, ...]
    tokenizer: str
    model: str
    created: float


CacheFile = TrieFile | DatastoreFile | BackgroundFile


def trie_folder() -> Path:
    """The cache folder of tries, datastores and backgrounds. Raises UsageError as `home` does."""
    return home("cache") / "tries"


def list_tries() -> list[TrieFile]:
    """All readable tries, the newest first; other files are passed over."""
    found = [describe_trie(path) for path in sorted(trie_folder().glob(f"*{SUFFIX}"))]
    return sorted((f for f in found if f), key=lambda f: -f.created)


def describe_trie(path: Path) -> TrieFile | None:
    """The description of a trie's file; None if it is no readable trie."""
    try:
        meta, lengths = read_header(path)
        return TrieFile(
            path, meta["key"], int(meta["n"]), int(meta["lp"]), int(meta["tokens"]),
            lengths["token"], path.stat().st_size, document_names(meta), float(meta["created"]),
        )  # fmt: skip
    except (DamagedFileError, OSError, KeyError, ValueError):
        return None


def document_names(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """The names that `store.about` wrote. Raises DamagedFileError and KeyError."""
    return tuple(map(str, parse_json(metadata["documents"], list)))


def clear_tries() -> tuple[int, int]:
    """Delete all files that are listed here, and killed runs' temporary files; (files, bytes)."""
    count = size = 0
    ends = (SUFFIX, DATASTORE_SUFFIX, BACKGROUND_SUFFIX, FAILED_SUFFIX)
    for path in [p for end in ends for p in trie_folder().glob(f"*{end}")]:
        with suppress(OSError):  # another run may be clearing as well
            bytes_ = path.lstat().st_size
            path.unlink()
            count, size = count + 1, size + bytes_
    for folder in (trie_folder(), *(home("cache") / name for name in ("costs", "tune"))):
        files, bytes_ = remove_leftovers(folder, older_s=0.0)
        count, size = count + files, size + bytes_
    return count, size


def list_datastores() -> list[DatastoreFile]:
    """All readable datastores, the newest first; other files are passed over."""
    paths = sorted(trie_folder().glob(f"*{DATASTORE_SUFFIX}"))
    found = [describe_datastore(path) for path in paths]
    return sorted((f for f in found if f), key=lambda f: -f.created)


def describe_datastore(path: Path) -> DatastoreFile | None:
    """The description of a datastore's file; None if it is no readable datastore."""
    try:
        meta, lengths = read_header(path)
        if set(lengths) != set(DATASTORE_ARRAYS):
            return None
        return DatastoreFile(
            path, meta["key"], meta["name"], int(meta["tokens"]), path.stat().st_size,
            document_names(meta), float(meta["created"]),
        )  # fmt: skip
    except (DamagedFileError, OSError, KeyError, ValueError):
        return None


def list_backgrounds() -> list[BackgroundFile]:
    """All readable backgrounds, the newest first; other files are passed over."""
    paths = sorted(trie_folder().glob(f"*{BACKGROUND_SUFFIX}"))
    found = [describe_background(path) for path in paths]
    return sorted((f for f in found if f), key=lambda f: -f.created)


def describe_background(path: Path) -> BackgroundFile | None:
    """The description of a background's file; None if it is no readable background."""
    try:
        meta, _ = read_header(path)
        return BackgroundFile(
            path, meta["key"], meta["name"], int(meta["tokens"]), int(meta["nodes"]),
            path.stat().st_size, document_names(meta), meta["tokenizer"], meta["model"],
            float(meta["created"]),
        )  # fmt: skip
    except (DamagedFileError, OSError, KeyError, ValueError):
        return None


def describe(path: Path) -> CacheFile | None:
    """The description of any of these files; None if it is none."""
    return describe_trie(path) or describe_datastore(path) or describe_background(path)


def list_files() -> list[CacheFile]:
    """All readable tries, datastores and backgrounds, the newest first."""
    found: list[CacheFile] = [*list_tries(), *list_datastores(), *list_backgrounds()]
    return sorted(found, key=lambda file: -file.created)
