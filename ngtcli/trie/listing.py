"""The tries and datastores in the cache, described from their files' headers. Loads no numpy."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ngtcli.system import cache_bound
from ngtcli.system.storage import DamagedFileError, home, parse_json, read_header, remove_leftovers

SUFFIX = ".trie.safetensors"
DATASTORE_SUFFIX = cache_bound.DATASTORE
DATASTORE_ARRAYS = ("stream", "order")


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


def trie_folder() -> Path:
    """The cache folder of tries and datastores. Raises UsageError as `home` does."""
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
    """Delete all tries and datastores, and killed runs' temporary files; (files, bytes) deleted."""
    count = size = 0
    for path in [p for end in (SUFFIX, DATASTORE_SUFFIX) for p in trie_folder().glob(f"*{end}")]:
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
