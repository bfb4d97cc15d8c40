"""The corpora in the cache: one file for each set of documents, and datastores by name.

A file's name is its key, a hash of everything the corpus depends on. Its checksum and all bounds
are checked before use: a file that passes can only cause wrong drafts, which verification rejects.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ngtcli.documents.load import Document
from ngtcli.drafting.tries.corpus import SEPARATOR, Corpus, build
from ngtcli.drafting.tries.files import DATASTORES, TRIES, TrieReport
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.system import reporting
from ngtcli.system.arrays import ArrayFile
from ngtcli.system.files import DamagedFileError, key_of
from ngtcli.words import reason_of

DATASTORE_DEPTH = 32  # tokens (guess: REST's span of 16 and continuation of 10 fit)


def document_trie(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    vocabulary: int,
    n: int,
    lp: int,
    *,
    keep: bool = True,
) -> tuple[Corpus, TrieReport]:
    """Return the corpus of documents, from the cache or else built and saved there.

    Each document is encoded separately, so that its n-grams are the same for all prompts. A damaged
    file is made again with a warning; there is also a warning if the cache cannot be written.
    Without `keep` the corpus is built without the cache, for texts that hardly come again. The
    token ids of a cached file must be below `vocabulary`.
    """
    started = time.perf_counter()
    status = "built"
    key = trie_key(tokenizer.fingerprint, documents, n, lp) if keep else ""
    corpus = path = None
    if keep:
        try:
            corpus = load_trie(key, n, lp, vocabulary)
            if corpus is not None:
                status = "cached"
                path = TRIES.path(key)
        except DamagedFileError as error:
            reporting.warn(f"the cached trie is rebuilt: {error}")
            status = "rebuilt"
    if corpus is None:
        corpus = build([tokenizer.encode(d.text.strip()) for d in documents], n)
        if keep:
            try:
                path = TRIES.write(TRIES.path(key), *trie_file(corpus, key, lp, documents))
            except OSError as error:
                reporting.warn(f"the trie is not cached: {reason_of(error)}")
    nodes = corpus.sequences  # counted where it is not known, which takes time as well
    return corpus, TrieReport(status, time.perf_counter() - started, nodes, path)


def trie_key(fingerprint: str, documents: Sequence[Document], n: int, lp: int) -> str:
    """Hash tokenizer, documents' texts in order, n, lp and format version to 32 hex digits."""
    return key_of(TRIES.format, fingerprint, n, lp, *(document.sha256 for document in documents))


def trie_file(
    corpus: Corpus, key: str, lp: int, documents: Sequence[Document]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arrays and the metadata of a trie's file."""
    sizes = {"n": corpus.depth, "lp": lp, "tokens": len(corpus), "nodes": corpus.sequences}
    numbers = {name: str(size) for name, size in sizes.items()}
    return corpus.arrays, {"key": key, **numbers, **about(documents)}


def about(documents: Sequence[Document]) -> dict[str, str]:
    """Return a file's metadata: seconds since 1970, and the names of the first 50 documents."""
    names = json.dumps([d.name for d in documents[:50]])
    return {"created": str(int(time.time())), "documents": names}


def load_trie(key: str, n: int, lp: int, vocabulary: int) -> Corpus | None:
    """Load the cached corpus with a key; return None without a file.

    Raises DamagedFileError, also for token ids that are not below `vocabulary`.
    """
    return _load(TRIES, key, n, vocabulary, n=str(n), lp=str(lp))


def datastore_key(name: str, fingerprint: str) -> str:
    """Hash name, tokenizer and format version to 32 hex digits."""
    return key_of(DATASTORES.format, fingerprint, name)


def save_datastore(
    texts: Sequence[Sequence[int]], name: str, fingerprint: str, documents: Sequence[Document]
) -> tuple[Path, int]:
    """Write the token ids of documents to the cache; return the path, and the number of ids.

    A datastore of the same name is replaced. Raises OSError, EFBIG if it is too large.
    """
    key = datastore_key(name, fingerprint)
    corpus = build(texts, DATASTORE_DEPTH)
    metadata = {"key": key, "name": name, "tokens": str(len(corpus)), **about(documents)}
    return DATASTORES.write(DATASTORES.path(key), corpus.arrays, metadata), len(corpus)


def load_datastore(name: str, fingerprint: str, vocabulary: int) -> Corpus | None:
    """Load the datastore with a name; return None without a file.

    Raises DamagedFileError, also for token ids that are not below `vocabulary`, unless that is 0.
    """
    return _load(DATASTORES, datastore_key(name, fingerprint), DATASTORE_DEPTH, vocabulary)


def _load(file: ArrayFile, key: str, depth: int, vocabulary: int, **expected: str) -> Corpus | None:
    try:
        arrays, metadata = file.map(file.path(key), {"key": key, **expected})
    except FileNotFoundError:
        return None
    stream = arrays["stream"]
    order = arrays["order"]
    if stream.size and stream[-1] != SEPARATOR:
        raise DamagedFileError("the last document has no end")
    if (stream < SEPARATOR).any() or (vocabulary and (stream >= vocabulary).any()):
        raise DamagedFileError("token ids outside the vocabulary")
    if (order < 0).any() or (order >= len(stream)).any():
        raise DamagedFileError("places outside the text")
    if len(order) != int((stream != SEPARATOR).sum()) or (stream[order] == SEPARATOR).any():
        raise DamagedFileError("places that are not those of all tokens")
    try:
        nodes = int(metadata["nodes"]) if "nodes" in metadata else None
    except ValueError:
        raise DamagedFileError("its number of nodes is not a number") from None
    return Corpus(stream, order, depth, nodes)
