"""The files in the cache folder of tries: declared here, and described from their headers.

This module does not import numpy, because light commands list the files.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ngtcli.system import cache
from ngtcli.system.arrays import Array, ArrayFile, read_header
from ngtcli.system.files import DamagedFileError, parse_json
from ngtcli.system.json_form import HIDDEN, json_key

FOLDER = "tries"
_OF_CORPUS = {"stream": Array("int32"), "order": Array("int32")}
_MOST = 2**34  # derived: two arrays of 2^31 int32, the most that int32 can index
TRIES = ArrayFile(FOLDER, ".trie.safetensors", format="4", most=_MOST, arrays=_OF_CORPUS)
DATASTORES = ArrayFile(FOLDER, cache.DATASTORE, format="3", most=_MOST, arrays=_OF_CORPUS)
# Columns stand one row after the other.
BACKGROUNDS = ArrayFile(
    FOLDER,
    cache.BACKGROUND,
    format="5",
    most=2**31,  # derived: 90 million nodes
    arrays={"nodes": Array("int32"), "by_token": Array("int32"), "classes": Array("int8")},
)
POOLS = ArrayFile(
    FOLDER,
    cache.POOL,
    format="4",
    most=2**24,  # 50,000 ids, the tallies and the weights take a quarter of a megabyte
    arrays={
        "stream": Array("int32"),
        "predicted": Array("int32", rows="tallies"),
        "reached": Array("int32", rows="tallies"),
        "factors": Array("float64", rows="weights"),
        "squares": Array("float64", rows="weights"),
    },
)
TOKENIZER = "tokenizer"  # metadata: the fingerprint of the tokenizer whose ids were counted


@dataclass(frozen=True, slots=True)
class TrieReport:
    """The origin of the trie: "cached", "built", "rebuilt" (its file was damaged) or "none"."""

    status: str = field(metadata=json_key(choices=("cached", "built", "rebuilt", "none")))
    seconds: float = field(default=0.0, metadata=json_key(digits=6))
    nodes: int = 0
    path: Path | None = field(default=None, metadata=HIDDEN)


_OMIT = json_key(omit=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """A file as `ngt trie list` shows it; `created` is in seconds since 1970.

    A trie has `n` and `lp`, others a `name`; a trie and a background have `nodes`. For a
    background, `tokenizer` is the fingerprint of its tokenizer, and `model` a model with this
    tokenizer.
    """

    kind: Literal["trie", "datastore", "background"]
    key: str
    tokens: int
    bytes: int
    documents: tuple[str, ...]
    path: Path
    created: float = field(metadata=HIDDEN)
    n: int | None = field(default=None, metadata=_OMIT)
    lp: int | None = field(default=None, metadata=_OMIT)
    nodes: int | None = field(default=None, metadata=_OMIT)
    name: str | None = field(default=None, metadata=_OMIT)
    tokenizer: str | None = field(default=None, metadata=_OMIT)
    model: str | None = field(default=None, metadata=_OMIT)


_NUMBERS = {"n", "lp", "nodes"}
_KINDS: dict[str, tuple[ArrayFile, tuple[str, ...]]] = {  # and what else their files say
    "trie": (TRIES, ("n", "lp", "nodes")),
    "datastore": (DATASTORES, ("name",)),
    "background": (BACKGROUNDS, ("nodes", "name", TOKENIZER, "model")),
}


def describe(path: Path) -> KeptFile | None:
    """Describe a trie, datastore or background; return None for any other file."""
    kinds = [kind for kind, (file, _) in _KINDS.items() if path.name.endswith(file.suffix)]
    if not kinds:
        return None
    kind: Any = kinds[0]
    try:
        meta, _ = read_header(path)
        facts: dict[str, Any] = {
            name: int(meta[name]) if name in _NUMBERS else meta[name] for name in _KINDS[kind][1]
        }
        return KeptFile(
            kind=kind,
            path=path,
            key=meta["key"],
            tokens=int(meta["tokens"]),
            bytes=path.stat().st_size,
            documents=parse_json(meta["documents"], tuple[str, ...]),
            created=float(meta["created"]),
            **facts,
        )
    except (DamagedFileError, OSError, LookupError, ValueError):
        return None


def list_files(*kinds: ArrayFile) -> list[KeptFile]:
    """List all readable tries, datastores and backgrounds, or some kinds, the newest first."""
    files: list[KeptFile] = []
    for kind in kinds or [file for file, _ in _KINDS.values()]:
        for path in kind.paths():
            description = describe(path)
            if description is not None:
                files.append(description)
    return sorted(files, key=lambda file: -file.created)
