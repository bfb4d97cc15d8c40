"""Counts of all documents that were given, which `auto` drafts from in addition to the prompt's.

The token ids of each document are pieces of the store, so that only what is new is encoded. The
counts of a set of documents are an array file, and so are these joined with the background.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from ngtcli.background.counting import joined
from ngtcli.documents.load import Document
from ngtcli.system.arrays import ArrayFile
from ngtcli.system.files import DamagedFileError, key_of
from ngtcli.system.store import Kind
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import TOKEN, BackgroundCounts, build_counts, load_counts
from ngtcli.trie.files import BACKGROUNDS, TOKENIZER
from ngtcli.trie.ngram import Ints

FOLDER = "folders"
TOKENS = 4_000_000  # counted at most; guess: they take 1 GB of memory and some 25 s
LEAST = (1, 2)  # how often a token, and a longer sequence, occurs at least to be counted; guess
IDS = Kind("ids", bytes)  # int32 in the machine's order, by a document's text and the tokenizer
COUNTS = replace(
    BACKGROUNDS, what="the documents' counts are", folder=FOLDER, suffix=".counts.safetensors"
)
JOINED = replace(COUNTS, suffix=".joined.safetensors")
_FORMAT = 1  # of what is counted
_EVERY = 200  # documents encoded between two status lines; guess
Status = Callable[[str], None]


class FolderCounts:
    """Keeps the counts that it gave last."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, status: Status, warn: Status) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._status, self._warn = status, warn
        self._last: tuple[str, BackgroundCounts] | None = None
        self._hashed: tuple[BackgroundCounts | None, str] = None, ""

    def of(
        self, documents: Sequence[Document], background: BackgroundCounts | None
    ) -> BackgroundCounts:
        """The counts of the documents, at most TOKENS of them, joined with the background.

        `warn` gets a line for what was left out, and where the cache cannot be written.
        """
        texts = key_of(*(document.sha256 for document in documents))
        whole = texts + self._hash(background)
        last = self._last  # other threads may replace it
        if last is None or last[0] != whole:

            def both() -> BackgroundCounts:
                own = self._had(COUNTS, texts, lambda: self._counted(documents))
                try:
                    return joined([own] if background is None else [background, own])
                except DamagedFileError as error:
                    self._warn(f"the documents' counts are not joined with others: {error}")
                    return own

            last = self._last = whole, self._had(JOINED, whole, both)
        return last[1]

    def _hash(self, background: BackgroundCounts | None) -> str:
        """A hash of the counts, made once: they may be 2 GB."""
        if background is None:
            return ""
        hashed = self._hashed
        if background is not hashed[0]:
            content = hashlib.sha256(background.nodes[1:].data)
            content.update(background.by_token.data)
            hashed = self._hashed = background, content.hexdigest()
        return hashed[1]

    def _had(
        self, file: ArrayFile, content: str, make: Callable[[], BackgroundCounts]
    ) -> BackgroundCounts:
        """The counts in a file with that content, or else made and stored there."""
        path = file.path(key_of(_FORMAT, self._tokenizer.fingerprint, content))
        about = {TOKENIZER: self._tokenizer.fingerprint, "content": content}
        with suppress(FileNotFoundError, DamagedFileError):
            return load_counts(file, path, self._vocabulary, about)
        counts = make()
        file.keep(path, counts.arrays, about, self._warn)
        counts.nodes[0, TOKEN] = self._vocabulary
        return counts

    def _counted(self, documents: Sequence[Document]) -> BackgroundCounts:
        """The counts of the documents alone."""
        ids = self._ids(documents)
        self._status(f"Counting {sum(map(len, ids))} tokens of the documents …")
        return build_counts([(one, 1.0) for one in ids], least=LEAST)

    def _ids(self, documents: Sequence[Document]) -> list[Ints]:
        """The token ids of each of the first documents that have at most TOKENS together."""
        found: list[Ints] = []
        for first in range(0, len(documents), _EVERY):
            self._status(f"Encoding the documents to draft from: {first} of {len(documents)} …")
            some = documents[first : first + _EVERY]
            found += self._encoded(some, TOKENS - sum(map(len, found)))
            if len(found) < first + len(some):
                told = f"the first {len(found)} of {len(documents)} documents"
                self._warn(f"drafts come from {told}")
                break
        return found

    def _encoded(self, documents: Sequence[Document], most: int) -> list[Ints]:
        """The same of `most` tokens; what is new is stored."""
        keys = [key_of(self._tokenizer.fingerprint, document.sha256) for document in documents]
        stored, new, found = IDS.get_many(keys), dict[str, bytes](), list[Ints]()
        for key, document in zip(keys, documents, strict=True):
            data = stored.get(key, b"")
            ids = np.frombuffer(data, np.int32, len(data) // 4)
            if not len(ids) or not 0 <= int(ids.min()) <= int(ids.max()) < self._vocabulary:
                ids = np.array(self._tokenizer.encode(document.text.strip()), np.int32)
                new[key] = ids.tobytes()
            most -= len(ids)
            if most < 0:
                break
            found.append(ids)
        IDS.put_many(new)
        return found
