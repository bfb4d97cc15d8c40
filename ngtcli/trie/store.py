"""The cache of document tries: one safetensors file a trie, checked in full before it is used.

A file is named by its key, a hash of everything the trie depends on. It is written under a
temporary name and renamed, so two writers cannot mix and a reader never sees half a file. Anything
wrong with a file makes `load` raise `TrieFileError`; the caller builds anew. Hostile files are met
by bounds checks: a file that passes can at worst draft nonsense, which verification refuses.

Datastores (datastore.py) are kept beside the tries, by the same rules and with the same helpers.
"""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ngtcli import process
from ngtcli.documents.load import Document
from ngtcli.storage import home
from ngtcli.trie.ngram import ARRAY_NAMES, SEPARATOR, NGramTrie, TrieArrays

FORMAT = 1
SUFFIX = ".trie.safetensors"
DATASTORE_SUFFIX = ".datastore.safetensors"


class TrieFileError(Exception):
    """A trie file is damaged, foreign or of another version; the message says which."""


@dataclass(frozen=True, slots=True)
class TrieFile:
    """What `ngt trie list` shows of a trie, from its file's header alone."""

    path: Path
    key: str
    n: int
    lp: int
    tokens: int
    nodes: int
    bytes: int
    documents: tuple[str, ...]
    created: float


def trie_folder() -> Path:
    return home("cache") / "tries"


def trie_path(key: str) -> Path:
    return trie_folder() / f"{key}{SUFFIX}"


def trie_key(fingerprint: str, documents: Sequence[Document], n: int, lp: int) -> str:
    """Hash of tokenizer, documents' text in order, n, lp and format version; 32 hex digits."""
    digest = hashlib.sha256(f"{FORMAT}\0{fingerprint}\0{n}\0{lp}".encode())
    for document in documents:
        digest.update(bytes.fromhex(document.sha256))
    return digest.hexdigest()[:32]


def save(trie: NGramTrie, key: str, documents: Sequence[Document]) -> Path:
    """Write the trie to the cache. Raises OSError where the folder cannot be written."""
    arrays = {name: getattr(trie.arrays, name) for name in ARRAY_NAMES}
    metadata = {
        "format": str(FORMAT),
        "key": key,
        "n": str(trie.n),
        "lp": str(trie.lp),
        "tokens": str(trie.tokens),
        **about(documents),
    }
    return write_file(trie_path(key), arrays, metadata)


def about(documents: Sequence[Document]) -> dict[str, str]:
    """What a file says of its making."""
    names = json.dumps([d.name for d in documents[:50]])
    return {"created": str(int(time.time())), "documents": names}


def write_file(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> Path:
    """Write arrays with their checksum under a temporary name, then rename. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with process.unbroken():
        handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
        os.close(handle)
        try:
            save_file(dict(arrays), partial, {**metadata, "checksum": checksum(arrays)})
            os.replace(partial, path)
        except SafetensorError as error:  # how the library words a full disk
            raise OSError(str(error)) from None
        finally:
            Path(partial).unlink(missing_ok=True)
    return path


def load(key: str, n: int, lp: int, vocabulary: int) -> NGramTrie | None:
    """The cached trie of that key; None where there is none. Raises TrieFileError."""
    path = trie_path(key)
    if not path.is_file():
        return None
    wanted = {"format": str(FORMAT), "key": key, "n": str(n), "lp": str(lp)}
    arrays = read_file(path, ARRAY_NAMES, wanted)
    trie_arrays = TrieArrays(**arrays)
    check_bounds(trie_arrays, vocabulary)
    return NGramTrie(trie_arrays, n, lp)


def read_file(path: Path, names: Sequence[str], wanted: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The int32 arrays of exactly these names. Raises TrieFileError where the file has others,
    other metadata than `wanted`, or content that its checksum does not confirm."""
    try:
        with safe_open(path, framework="np") as file:
            metadata = dict(file.metadata() or {})
            if set(file.keys()) != set(names):
                raise TrieFileError("not a trie file")
            arrays = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError) as error:
        raise TrieFileError(f"unreadable ({error})") from None
    if any(a.dtype != np.int32 or a.ndim != 1 for a in arrays.values()):
        raise TrieFileError("arrays of another type")
    if any(metadata.get(name) != value for name, value in wanted.items()):
        raise TrieFileError("another version or another trie's file")
    if metadata.get("checksum") != checksum(arrays):
        raise TrieFileError("checksum differs")
    return arrays


def checksum(arrays: Mapping[str, np.ndarray]) -> str:
    """Hash of lengths and contents, in the order given."""
    digest = hashlib.sha256()
    for array in arrays.values():
        digest.update(len(array).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def check_bounds(arrays: TrieArrays, vocabulary: int) -> None:
    """Raise TrieFileError unless every index stays inside and every link leads onward.

    Links onward (to larger node numbers) mean that no walk can loop; token bounds mean that no
    draft can hold an id that the model has no embedding for.
    """
    stream, token, count, link, degree = (getattr(arrays, name) for name in ARRAY_NAMES)
    nodes = len(token)
    if not nodes or not (len(count) == len(link) == len(degree) == nodes):
        raise TrieFileError("arrays of different lengths")
    if len(stream) and stream[-1] != SEPARATOR:
        raise TrieFileError("the last document has no end")
    if stream.size and (int(stream.min()) < SEPARATOR or int(stream.max()) >= vocabulary):
        raise TrieFileError("token ids outside the vocabulary")
    if nodes > 1 and (int(token[1:].min()) < 0 or int(token.max()) >= vocabulary):
        raise TrieFileError("token ids outside the vocabulary")
    if int(count[1:].min(initial=1)) < 1 or int(degree.min()) < 0:
        raise TrieFileError("negative counts")
    _check_links(len(stream), count, link, degree)


def _check_links(places: int, count: np.ndarray, link: np.ndarray, degree: np.ndarray) -> None:
    once = count == 1
    once[0] = False
    tails = link[once]
    if tails.size and (int(tails.min()) < 0 or int(tails.max()) >= places - 1):
        raise TrieFileError("a tail outside the text")
    if degree[once].any():
        raise TrieFileError("children on a tail")
    inner = np.flatnonzero(degree)
    if inner.size and (
        bool((link[inner] <= inner).any())
        or int((link[inner].astype(np.int64) + degree[inner]).max()) > len(count)
    ):
        raise TrieFileError("children outside the trie")


def list_tries() -> list[TrieFile]:
    """All readable trie files, the newest first."""
    found = [describe(path) for path in sorted(trie_folder().glob(f"*{SUFFIX}"))]
    return sorted((f for f in found if f), key=lambda f: -f.created)


def describe(path: Path) -> TrieFile | None:
    """The header of a trie file; None where it is not one."""
    try:
        with safe_open(path, framework="np") as file:
            meta = dict(file.metadata() or {})
            sizes = {name: file.get_slice(name).get_shape()[0] for name in ARRAY_NAMES}
        names = tuple(str(name) for name in json.loads(meta["documents"]))
        return TrieFile(
            path, meta["key"], int(meta["n"]), int(meta["lp"]), int(meta["tokens"]),
            sizes["token"], path.stat().st_size, names, float(meta["created"]),
        )  # fmt: skip
    except (SafetensorError, OSError, KeyError, ValueError, IndexError):
        return None


def clear_tries() -> tuple[int, int]:
    """Delete every trie, datastore and half-written file; (files, bytes) removed."""
    endings = (SUFFIX, DATASTORE_SUFFIX, ".partial")
    files = [p for end in endings for p in trie_folder().glob(f"*{end}")]
    size = sum(p.stat().st_size for p in files)
    for path in files:
        path.unlink(missing_ok=True)
    return len(files), size
