"""The cache of document tries: one safetensors file a trie, checked in full before it is used.

A file is named by its key, a hash of everything the trie depends on, and written and read as
`ngtcli.storage` does it. Anything wrong with a file makes `load` raise `DamagedFileError`; the
caller builds anew. Hostile files are met by bounds checks: a file that passes can at worst draft
nonsense, which verification refuses.

Datastores (datastore.py) and pools (pool.py) are kept beside the tries.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ngtcli.documents.load import Document
from ngtcli.storage import (
    DamagedFileError,
    key_of,
    read_arrays,
    write_arrays,
)
from ngtcli.trie.listing import SUFFIX, trie_folder
from ngtcli.trie.ngram import ARRAY_NAMES, SEPARATOR, NGramTrie, TrieArrays

FORMAT = 2  # 2: text that looks like a control token is encoded as text
MOST = 2**31  # bytes of a trie's file: 67 million tokens at 32 bytes, far beyond any context


def trie_path(key: str) -> Path:
    return trie_folder() / f"{key}{SUFFIX}"


def trie_key(fingerprint: str, documents: Sequence[Document], n: int, lp: int) -> str:
    """Hash of tokenizer, documents' text in order, n, lp and format version; 32 hex digits."""
    return key_of(FORMAT, fingerprint, n, lp, *(document.sha256 for document in documents))


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
    return write_arrays(trie_path(key), arrays, metadata, MOST)


def about(documents: Sequence[Document]) -> dict[str, str]:
    """What a file says of its making."""
    names = json.dumps([d.name for d in documents[:50]])
    return {"created": str(int(time.time())), "documents": names}


def load(key: str, n: int, lp: int, vocabulary: int) -> NGramTrie | None:
    """The cached trie of that key; None where there is none. Raises DamagedFileError."""
    path = trie_path(key)
    if not path.is_file():
        return None
    wanted = {"format": str(FORMAT), "key": key, "n": str(n), "lp": str(lp)}
    arrays = read_arrays(path, ARRAY_NAMES, wanted, MOST)
    trie_arrays = TrieArrays(**arrays)
    check_bounds(trie_arrays, vocabulary)
    return NGramTrie(trie_arrays, n, lp)


def check_bounds(arrays: TrieArrays, vocabulary: int) -> None:
    """Raise DamagedFileError unless every index stays inside and every link leads onward.

    Links onward (to larger node numbers) mean that no walk can loop; token bounds mean that no
    draft can hold an id that the model has no embedding for.
    """
    stream, token, count, link, degree = (getattr(arrays, name) for name in ARRAY_NAMES)
    nodes = len(token)
    if not nodes or not (len(count) == len(link) == len(degree) == nodes):
        raise DamagedFileError("arrays of different lengths")
    if len(stream) and stream[-1] != SEPARATOR:
        raise DamagedFileError("the last document has no end")
    if stream.size and (int(stream.min()) < SEPARATOR or int(stream.max()) >= vocabulary):
        raise DamagedFileError("token ids outside the vocabulary")
    if nodes > 1 and (int(token[1:].min()) < 0 or int(token.max()) >= vocabulary):
        raise DamagedFileError("token ids outside the vocabulary")
    if int(count[1:].min(initial=1)) < 1 or int(degree.min()) < 0:
        raise DamagedFileError("negative counts")
    _check_links(len(stream), count, link, degree)


def _check_links(places: int, count: np.ndarray, link: np.ndarray, degree: np.ndarray) -> None:
    once = count == 1
    once[0] = False
    tails = link[once]
    if tails.size and (int(tails.min()) < 0 or int(tails.max()) >= places - 1):
        raise DamagedFileError("a tail outside the text")
    if degree[once].any():
        raise DamagedFileError("children on a tail")
    inner = np.flatnonzero(degree)
    if inner.size and (
        bool((link[inner] <= inner).any())
        or int((link[inner].astype(np.int64) + degree[inner]).max()) > len(count)
    ):
        raise DamagedFileError("children outside the trie")
