"""The index of passages in the cache: one file for a set of documents and a way of cutting.

It holds what was cut of each document, by a hash of the document, so that other sets of documents
of the same folder have only cut what is new to them; and BM25's scores. It is mapped into memory,
and what a question needs of the scores is checked where it is used.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ngtcli.documents.load import Document, common_folder
from ngtcli.documents.passages import Cutting
from ngtcli.system.arrays import Array, ArrayFile, Arrays
from ngtcli.system.storage import DamagedFileError, key_of

FOLDER = "passages"
INDICES = ArrayFile(
    "the index of passages is",
    FOLDER,
    ".index.safetensors",
    format="3",  # of the file, of how documents are cut and of what counts as a word
    most=2**31,  # guess, about 2 million passages
    arrays={
        "digests": Array("uint8", 32, rows="documents"),
        "counts": Array("int32", rows="documents"),
        "starts": Array("int32", rows="passages"),
        "ends": Array("int32", rows="passages"),
        "lengths": Array("int32", rows="passages"),
        "words": Array("int32"),
        "terms": Array("uint64"),
        "data": Array("float32", rows="scores"),
        "indices": Array("int32", rows="scores"),
        "borders": Array("int32"),
    },
)

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Stored:
    """Documents in passages, and BM25's scores of words in them: the arrays of INDICES.

    There are `counts` passages of each document, by `digests` of 32 bytes. `starts` and `ends` are
    the passages' ranges, `lengths` their numbers of words. `words` has the words of all passages in
    a row, as places in `terms`, which are ascending hashes of words. Term t has the scores
    `data[borders[t]:borders[t + 1]]` in the passages `indices` of that range.
    """

    digests: list[bytes]
    counts: Ints
    starts: Ints
    ends: Ints
    lengths: Ints
    words: Ints
    terms: npt.NDArray[np.uint64]
    data: npt.NDArray[np.float32]
    indices: Ints
    borders: Ints

    def arrays(self) -> Arrays:
        """The arrays of a file."""
        digests = np.frombuffer(b"".join(self.digests), np.uint8).reshape(-1, 32)
        return {**{name: getattr(self, name) for name in INDICES.arrays}, "digests": digests}


def digest(document: Document) -> bytes:
    """A hash of all that decides how a document is cut, 32 bytes."""
    about = repr([(s.start, s.heading) for s in document.about.sections])
    suffix = os.path.splitext(document.path)[1].lower()
    return hashlib.sha256("\0".join((suffix, about, document.text)).encode()).digest()


@lru_cache(maxsize=1 << 20)
def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def hashes(found: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Hashes of words, uint64 (words,)."""
    return np.array([_hash(word) for word in found], np.uint64)


def folder_key(documents: Sequence[Document], cutting: Cutting) -> str:
    """What the indices of all documents of a folder, cut in this way, have in common."""
    return key_of(INDICES.format, common_folder(documents), cutting.tokens, cutting.overlap)


def index_path(key: str, digests: Sequence[bytes]) -> Path:
    """The file for these documents, of a folder's key. Raises UsageError as `home`."""
    return INDICES.path(f"{key}.{key_of(*(d.hex() for d in digests))}")


def load(path: Path) -> Stored | None:
    """The index in that file; None without a file. Raises DamagedFileError."""
    try:
        arrays, _ = INDICES.map(path)
    except FileNotFoundError:
        return None
    stored = Stored(**{**arrays, "digests": [row.tobytes() for row in arrays["digests"]]})
    _check(stored)
    return stored


def _check(stored: Stored) -> None:
    """Raise DamagedFileError unless all that is as long as the passages or the terms is right."""
    sums = [
        (int(stored.counts.sum(dtype=np.int64)), len(stored.starts)),
        (int(stored.lengths.sum(dtype=np.int64)), len(stored.words)),
        (len(stored.borders), len(stored.terms) + 1),
        (int(stored.borders[-1:].sum()), len(stored.data)),
    ]
    if any(a != b for a, b in sums):
        raise DamagedFileError("arrays of different lengths")
    least = min(int(a.min(initial=0)) for a in (stored.counts, stored.starts, stored.lengths))
    if least < 0 or bool((stored.ends <= stored.starts).any()):
        raise DamagedFileError("negative numbers")
    if bool((stored.borders[:1] != 0).any()) or bool((np.diff(stored.borders) < 0).any()):
        raise DamagedFileError("scores outside the words")
