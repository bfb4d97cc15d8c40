"""The tries of documents in the cache: one file per trie, checked in full before use.

A file's name is its key, a hash of everything the trie depends on. Bounds checks make manipulated
files harmless: a file that passes can only cause wrong drafts, which verification rejects.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ngtcli.documents.load import Document
from ngtcli.system.files import DamagedFileError, key_of
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.files import TRIES
from ngtcli.trie.ngram import SEPARATOR, Ints, NGramTrie, build_trie
from ngtcli.trie.report import TrieReport


def document_trie(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    vocabulary: int,
    n: int,
    lp: int,
    warn: Callable[[str], None],
    *,
    keep: bool = True,
) -> tuple[NGramTrie, TrieReport]:
    """The trie of these documents, from the cache or else built and saved there.

    Without `keep` it is built and the cache left alone: for texts that hardly come again. Each
    document is encoded by itself, so that its trie is the same for all prompts. `vocabulary` bounds
    the token ids of a cached trie. A damaged file is rebuilt; `warn` gets a line about that, and if
    the cache cannot be written. Raises ValueError unless 1 <= lp < n.
    """
    clock, status = time.perf_counter(), "built"
    key = trie_key(tokenizer.fingerprint, documents, n, lp) if keep else ""
    trie = path = None
    if keep:
        try:
            if (trie := load(key, n, lp, vocabulary)) is not None:
                status, path = "cached", TRIES.path(key)
        except DamagedFileError as error:
            warn(f"the cached trie is rebuilt: {error}")
            status = "rebuilt"
    if trie is None:
        trie = build_trie([tokenizer.encode(d.text.strip()) for d in documents], n, lp)
        if keep and TRIES.keep(TRIES.path(key), *stored(trie, key, documents), warn):
            path = TRIES.path(key)
    return trie, TrieReport(status, time.perf_counter() - clock, len(trie), path)


def trie_key(fingerprint: str, documents: Sequence[Document], n: int, lp: int) -> str:
    """A hash of tokenizer, documents' texts in order, n, lp and format version; 32 hex digits."""
    return key_of(TRIES.format, fingerprint, n, lp, *(document.sha256 for document in documents))


def stored(
    trie: NGramTrie, key: str, documents: Sequence[Document]
) -> tuple[Mapping[str, Ints], dict[str, str]]:
    """The arrays and the metadata of a trie's file."""
    numbers = {"n": str(trie.n), "lp": str(trie.lp), "tokens": str(trie.tokens)}
    return trie.arrays, {"key": key, **numbers, **about(documents)}


def about(documents: Sequence[Document]) -> dict[str, str]:
    """Metadata of a file: time in seconds since 1970, and the names of the first 50 documents."""
    names = json.dumps([d.name for d in documents[:50]])
    return {"created": str(int(time.time())), "documents": names}


def load(key: str, n: int, lp: int, vocabulary: int) -> NGramTrie | None:
    """The cached trie with that key; None without a file. Raises DamagedFileError.

    `vocabulary` bounds its token ids.
    """
    try:
        arrays, _ = TRIES.map(TRIES.path(key), {"key": key, "n": str(n), "lp": str(lp)})
    except FileNotFoundError:
        return None
    check_bounds(arrays, vocabulary)
    return NGramTrie(arrays, n, lp)


def check_bounds(arrays: Mapping[str, Ints], vocabulary: int) -> None:
    """Raise DamagedFileError unless all indices are in bounds and all links lead to later nodes.

    Since links lead to larger node numbers, no walk can loop. Since ids are below `vocabulary`, no
    draft contains one for which the model has no embedding.
    """
    stream, token, count, link, degree = (arrays[name] for name in TRIES.arrays)
    if not len(token):
        raise DamagedFileError("a trie without a root")
    check_stream(stream, vocabulary)
    if (token[1:] < 0).any() or (token >= vocabulary).any():
        raise DamagedFileError("token ids outside the vocabulary")
    if (count[1:] < 1).any() or (degree < 0).any():
        raise DamagedFileError("negative counts")
    unique = count == 1
    unique[0] = False
    if (link[unique] < 0).any() or (link[unique] >= len(stream) - 1).any():
        raise DamagedFileError("a tail outside the text")
    if degree[unique].any():
        raise DamagedFileError("children on a tail")
    inner = np.flatnonzero(degree)
    ends = link[inner].astype(np.int64) + degree[inner]
    if (link[inner] <= inner).any() or (ends > len(count)).any():
        raise DamagedFileError("children outside the trie")


def check_stream(stream: Ints, vocabulary: int) -> None:
    """Raise DamagedFileError unless documents have ends and their ids are below `vocabulary`.

    With 0 any ids are.
    """
    if stream.size and stream[-1] != SEPARATOR:
        raise DamagedFileError("the last document has no end")
    if (stream < SEPARATOR).any() or (vocabulary and (stream >= vocabulary).any()):
        raise DamagedFileError("token ids outside the vocabulary")
