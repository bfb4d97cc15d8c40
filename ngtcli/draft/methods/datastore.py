"""A datastore: an external corpus with its suffix array, to look up continuations of a sequence.

`stream` contains the tokens of all documents, each document followed by -1; `order` lists the
places of all tokens, sorted by the DEPTH tokens that start there, a document's end before any
token. For a sequence and continuation of together at most DEPTH tokens, the order equals that of
the full suffix array.

A datastore has a name and belongs to a tokenizer. Its file is in the folder of tries; its checksum
and all bounds are checked when it is read.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ngtcli.documents.load import Document
from ngtcli.system.files import DamagedFileError, key_of
from ngtcli.trie.files import DATASTORES
from ngtcli.trie.ngram import SEPARATOR, Ints, join, sorted_places
from ngtcli.trie.store import about, check_stream

DEPTH = 32  # tokens by which places are sorted; guess: REST's span of 16 and continuation of 10 fit


class Datastore:
    """Lookup of continuations; `stream` and `order` are int32, one-dimensional."""

    def __init__(self, stream: Ints, order: Ints) -> None:
        self.stream, self.order = stream, order
        # Slices of a memoryview become Python ints without numpy's overhead per element.
        self._stream, self._order = stream.data, order.data

    def __len__(self) -> int:
        """The number of tokens in the corpus."""
        return len(self.order)

    def find(self, sequence: Sequence[int]) -> range:
        """The indices in `order` of the places where `sequence` occurs and has a continuation.

        `sequence` has less than DEPTH tokens.
        """
        size = len(sequence)

        def text(at: int, length: int) -> list[int]:
            place = self._order[at]
            return self._stream[place : place + length].tolist()

        every, needle = range(len(self)), list(sequence)
        low = bisect_left(every, [*needle, 0], key=lambda at: text(at, size + 1))
        return range(low, bisect_right(every, needle, lo=low, key=lambda at: text(at, size)))

    def continuations(self, found: range, skip: int, length: int) -> Ints:
        """The `length` tokens after the first `skip` of each place, int32 (len(found), length).

        Beyond a document's end entries are -1. Rows are in ascending order.
        """
        places = self.order[found.start : found.stop].astype(np.int64) + skip
        columns = places[:, None] + np.arange(length)
        rows = self.stream[np.minimum(columns, len(self.stream) - 1)]
        ended = np.logical_or.accumulate(rows == SEPARATOR, axis=1)
        return np.where(ended, np.int32(SEPARATOR), rows)


def build_datastore(documents: Sequence[Sequence[int]]) -> Datastore:
    """The datastore of `documents`, each a sequence of token ids.

    >>> datastore = build_datastore([[1, 2, 3], [1, 2, 4]])
    >>> datastore.continuations(datastore.find([1, 2]), 2, 2).tolist()
    [[3, -1], [4, -1]]
    """
    stream, left = join(documents)
    return Datastore(stream, sorted_places(stream, left, DEPTH).astype(np.int32))


def datastore_key(name: str, fingerprint: str) -> str:
    """A hash of name, tokenizer and format version; 32 hex digits."""
    return key_of(DATASTORES.format, fingerprint, name)


def save(datastore: Datastore, name: str, fingerprint: str, documents: Sequence[Document]) -> Path:
    """Write the datastore to the cache and return its path; one of the same name is replaced.

    Raises OSError, EFBIG if it is too large.
    """
    key = datastore_key(name, fingerprint)
    arrays = {"stream": datastore.stream, "order": datastore.order}
    metadata = {"key": key, "name": name, "tokens": str(len(datastore)), **about(documents)}
    return DATASTORES.write(DATASTORES.path(key), arrays, metadata)


def load(name: str, fingerprint: str, vocabulary: int) -> Datastore | None:
    """The datastore of that name; None without a file. Raises DamagedFileError.

    `vocabulary` bounds its token ids; 0 leaves them unchecked.
    """
    key = datastore_key(name, fingerprint)
    try:
        arrays, _ = DATASTORES.map(DATASTORES.path(key), {"key": key})
    except FileNotFoundError:
        return None
    stream, order = arrays["stream"], arrays["order"]
    check_stream(stream, vocabulary)
    if (order < 0).any() or (order >= len(stream)).any():
        raise DamagedFileError("places outside the text")
    if len(order) != int((stream != SEPARATOR).sum()) or (stream[order] == SEPARATOR).any():
        raise DamagedFileError("places that are not those of all tokens")
    return Datastore(stream, order)
