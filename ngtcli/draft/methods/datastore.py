"""A datastore: an external corpus with its suffix array, to find what followed a sequence in it.

The stream holds the tokens of all documents, each followed by -1; the order lists the places of all
tokens, sorted by the DEPTH tokens that start there, a document's end before any token. Sequences
and continuations of DEPTH tokens together are thus found in the order of the full suffix array.

A datastore has a name and belongs to a tokenizer. Its file lies among the tries and follows their
rules (store.py): checksummed, bounds-checked, renamed into place.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ngtcli.documents.load import Document
from ngtcli.storage import DamagedFileError, key_of, read_arrays, write_arrays
from ngtcli.trie import store
from ngtcli.trie.listing import DATASTORE_ARRAYS, DATASTORE_SUFFIX, trie_folder
from ngtcli.trie.ngram import SEPARATOR, Ints, join, sorted_places

FORMAT = 2  # 2: text that looks like a control token is encoded as text
DEPTH = 32
MOST = 2**34  # bytes of a file: two arrays of as many int32 as an int32 can number


class Datastore:
    """Lookup of continuations."""

    def __init__(self, stream: Ints, order: Ints) -> None:
        self.stream, self.order = stream, order
        # Slices of a memoryview make Python ints without numpy's overhead for each.
        self._stream, self._order = stream.data, order.data

    def __len__(self) -> int:
        """Tokens of the corpus."""
        return len(self.order)

    def find(self, sequence: Sequence[int]) -> range:
        """Where in the order the places stand that start with `sequence` and go on after it.

        The sequence has less than DEPTH tokens.
        """
        size = len(sequence)

        def text(at: int, length: int) -> list[int]:
            place = self._order[at]
            return self._stream[place : place + length].tolist()

        every, needle = range(len(self)), list(sequence)
        low = bisect_left(every, [*needle, 0], key=lambda at: text(at, size + 1))
        return range(low, bisect_right(every, needle, lo=low, key=lambda at: text(at, size)))

    def continuations(self, found: range, skip: int, length: int) -> Ints:
        """A row for each place of `found`: the `length` tokens after its first `skip`.

        Behind a document's end rows hold -1. Rows are in ascending order.
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
    """Hash of name, tokenizer and format version; 32 hex digits."""
    return key_of(FORMAT, fingerprint, name)


def datastore_path(key: str) -> Path:
    return trie_folder() / f"{key}{DATASTORE_SUFFIX}"


def save(datastore: Datastore, name: str, fingerprint: str, documents: Sequence[Document]) -> Path:
    """Write the datastore to the cache, over one of the same name. Raises OSError."""
    key = datastore_key(name, fingerprint)
    arrays = {"stream": datastore.stream, "order": datastore.order}
    metadata = {"format": str(FORMAT), "key": key, "name": name, "tokens": str(len(datastore))}
    return write_arrays(datastore_path(key), arrays, {**metadata, **store.about(documents)}, MOST)


def load(name: str, fingerprint: str, vocabulary: int) -> Datastore | None:
    """The datastore of that name; None where there is none. Raises DamagedFileError.

    With a vocabulary of 0 its token ids are not checked against the model's.
    """
    key = datastore_key(name, fingerprint)
    path = datastore_path(key)
    if not path.is_file():
        return None
    arrays = read_arrays(path, DATASTORE_ARRAYS, {"format": str(FORMAT), "key": key}, MOST)
    check_bounds(arrays["stream"], arrays["order"], vocabulary)
    return Datastore(arrays["stream"], arrays["order"])


def check_bounds(stream: Ints, order: Ints, vocabulary: int) -> None:
    """Raise DamagedFileError unless every place is a token's and every token the model's."""
    if stream.size and stream[-1] != SEPARATOR:
        raise DamagedFileError("the last document has no end")
    if stream.size and int(stream.min()) < SEPARATOR:
        raise DamagedFileError("negative token ids")
    if vocabulary and int(stream.max(initial=0)) >= vocabulary:
        raise DamagedFileError("token ids outside the vocabulary")
    if order.size and not 0 <= int(order.min()) <= int(order.max()) < len(stream):
        raise DamagedFileError("places outside the text")
    if len(order) != int((stream != SEPARATOR).sum()) or (stream[order] == SEPARATOR).any():
        raise DamagedFileError("places that are no tokens")
