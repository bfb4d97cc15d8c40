"""The files in the cache folder of tries: declared here, and described from their headers.

Loads no numpy, since light commands list them.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ngtcli.system import cache
from ngtcli.system.arrays import Array, ArrayFile, read_header
from ngtcli.system.files import DamagedFileError, home, parse_json
from ngtcli.system.json_form import HIDDEN

FOLDER = "tries"
TRIES = ArrayFile(
    "the trie is",
    FOLDER,
    ".trie.safetensors",
    format="3",
    most=2**31,  # derived: 67 million tokens of about 32 bytes each
    arrays={
        "stream": Array("int32"),
        "token": Array("int32", rows="nodes"),
        "count": Array("int32", rows="nodes"),
        "link": Array("int32", rows="nodes"),
        "degree": Array("int32", rows="nodes"),
    },
)
DATASTORES = ArrayFile(
    "the datastore is",
    FOLDER,
    cache.DATASTORE,
    format="3",
    most=2**34,  # derived: two arrays of 2^31 int32, the most that int32 can index
    arrays={"stream": Array("int32"), "order": Array("int32")},
)
# Columns stand one row behind the other.
BACKGROUNDS = ArrayFile(
    "the background is",
    FOLDER,
    cache.BACKGROUND,
    format="4",
    most=2**31,  # derived: 90 million nodes
    arrays={"nodes": Array("int32"), "by_token": Array("int32")},
)
POOLS = ArrayFile(
    "the pool is",
    FOLDER,
    cache.POOL,
    format="3",
    most=2**24,  # 50,000 ids and the tallies take a quarter of a megabyte
    arrays={
        "stream": Array("int32"),
        "predicted": Array("int32", rows="tallies"),
        "reached": Array("int32", rows="tallies"),
    },
)
TOKENIZER = "tokenizer"  # metadata: the fingerprint of the tokenizer whose ids were counted


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """A file as `ngt trie list` shows it; `created` is in seconds since 1970."""

    kind: str
    key: str
    tokens: int
    bytes: int
    documents: tuple[str, ...]
    path: Path
    created: float = field(metadata=HIDDEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieFile(KeptFile):
    """A cached trie."""

    kind: Literal["trie"] = "trie"
    n: int
    lp: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatastoreFile(KeptFile):
    """A datastore, by its `name`."""

    kind: Literal["datastore"] = "datastore"
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundFile(KeptFile):
    """A background, by its `name`.

    `tokenizer` is the fingerprint of the one that it is for, `model` a model that has it.
    """

    kind: Literal["background"] = "background"
    name: str
    nodes: int
    tokenizer: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFile:
    """A pool of pieces of a model's answers, as `ngt trie pool show` shows it."""

    model: str
    answers: int
    tokens: int
    bytes: int
    path: Path


CacheFile = TrieFile | DatastoreFile | BackgroundFile


def trie_folder() -> Path:
    """The cache folder of tries, datastores, backgrounds and pools. Raises UsageError as `home`."""
    return home("cache") / FOLDER


def describe(path: Path) -> CacheFile | None:
    """The description of a trie, datastore or background; None for any other file."""
    try:
        meta, arrays = read_header(path)
        common: dict[str, Any] = {
            "path": path,
            "key": meta["key"],
            "tokens": int(meta["tokens"]),
            "bytes": path.stat().st_size,
            "documents": tuple(map(str, parse_json(meta["documents"], list))),
            "created": float(meta["created"]),
        }
        if path.name.endswith(TRIES.suffix):
            n, lp = int(meta["n"]), int(meta["lp"])
            return TrieFile(n=n, lp=lp, nodes=arrays["token"][1][0], **common)
        if path.name.endswith(DATASTORES.suffix):
            return DatastoreFile(name=meta["name"], **common)
        if path.name.endswith(BACKGROUNDS.suffix):
            words: dict[str, Any] = {name: meta[name] for name in ("name", TOKENIZER, "model")}
            return BackgroundFile(nodes=int(meta["nodes"]), **words, **common)
    except (DamagedFileError, OSError, LookupError, ValueError):
        pass
    return None


def list_files(*kinds: ArrayFile) -> list[CacheFile]:
    """All readable tries, datastores and backgrounds, or those of some kinds, the newest first."""
    paths = [path for kind in kinds or (TRIES, DATASTORES, BACKGROUNDS) for path in kind.paths()]
    found = [file for path in paths if (file := describe(path))]
    return sorted(found, key=lambda file: -file.created)


def list_backgrounds() -> list[BackgroundFile]:
    """All readable backgrounds, the newest first."""
    return [file for file in list_files(BACKGROUNDS) if isinstance(file, BackgroundFile)]


def list_pools() -> list[PoolFile]:
    """All readable pools."""
    found = []
    for path in POOLS.paths():
        with suppress(DamagedFileError, OSError, KeyError, ValueError):
            meta, _ = read_header(path)
            counts = {name: int(meta[name]) for name in ("answers", "tokens")}
            size = path.stat().st_size
            found.append(PoolFile(model=meta["model"], bytes=size, path=path, **counts))
    return found
