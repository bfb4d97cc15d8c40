"""The trie of documents: loaded from the cache, or built and saved there."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ngtcli.documents.load import Document
from ngtcli.system.storage import DamagedFileError
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie import store
from ngtcli.trie.listing import TrieReport
from ngtcli.trie.ngram import NGramTrie, build_trie


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
    clock = time.perf_counter()
    if not keep:
        trie = _built(documents, tokenizer, n, lp)
        return trie, TrieReport("built", time.perf_counter() - clock, len(trie))
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
    trie = _built(documents, tokenizer, n, lp)
    path: Path | None = None
    try:
        path = store.save(trie, key, documents)
    except OSError as error:
        warn(f"the trie is not cached: {error.strerror or error}")
    return trie, TrieReport(status, time.perf_counter() - clock, len(trie), path)


def _built(documents: Sequence[Document], tokenizer: Tokenizer, n: int, lp: int) -> NGramTrie:
    return build_trie([tokenizer.encode(d.text.strip()) for d in documents], n, lp)
