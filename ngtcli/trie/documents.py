"""The cached trie of documents: read, or built and stored."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngtcli.documents.load import Document
from ngtcli.storage import DamagedFileError
from ngtcli.tokens import Tokenizer
from ngtcli.trie import store
from ngtcli.trie.ngram import NGramTrie, build_trie


@dataclass(frozen=True, slots=True)
class TrieReport:
    """The documents' trie: "cached", "built", "rebuilt" (its file was bad) or "none"."""

    status: str
    seconds: float = 0.0
    nodes: int = 0
    path: Path | None = None

    def as_json(self) -> dict[str, Any]:
        return {"status": self.status, "seconds": round(self.seconds, 6), "nodes": self.nodes}


def document_trie(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    vocabulary: int,
    n: int,
    lp: int,
    warn: Callable[[str], None],
) -> tuple[NGramTrie, TrieReport]:
    """The cached trie of these documents, built and stored where there is none.

    The documents' ids are those of their text alone, so that one trie serves every prompt over
    them. A bad file is rebuilt and a cache that cannot be written is done without; `warn` says so.
    """
    clock = time.perf_counter()
    key = store.trie_key(tokenizer.fingerprint, documents, n, lp)
    status = "built"
    try:
        cached = store.load(key, n, lp, vocabulary)
        if cached is not None:
            seconds = time.perf_counter() - clock
            return cached, TrieReport("cached", seconds, len(cached), store.trie_path(key))
    except DamagedFileError as error:
        warn(f"the cached trie is rebuilt: {error}")
        status = "rebuilt"
    trie = build_trie([tokenizer.encode(d.text.strip()) for d in documents], n, lp)
    path: Path | None = None
    try:
        path = store.save(trie, key, documents)
    except OSError as error:
        warn(f"the trie is not cached: {error.strerror or error}")
    return trie, TrieReport(status, time.perf_counter() - clock, len(trie), path)
