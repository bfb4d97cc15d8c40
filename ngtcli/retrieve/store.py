"""The index of passages in the cache: one file for a folder and a way of cutting.

It holds what was cut of each document, by a hash of the document, so that after a change only what
changed is cut again; and BM25's scores. It is mapped into memory, and what a question needs of the
scores is checked where it is used.
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
from ngtcli.system.arrays import write_arrays
from ngtcli.system.mapped import map_arrays
from ngtcli.system.storage import DamagedFileError, home, key_of

_FORMAT = 1  # of the file, of how documents are cut and of what counts as a word
MOST = 2**31  # bytes of an index's file; guess, about 2 million passages
_CUT = ("counts", "starts", "ends", "lengths", "words")
_NAMES = ("digests", *_CUT, "terms", "data", "indices", "borders")

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Cut:
    """Documents in passages: `counts` passages of each document, by `digests` of 32 bytes.

    `starts` and `ends` are the passages' ranges, `lengths` their numbers of words. `words` has the
    words of all passages in a row, as places in `terms`, which are ascending hashes of words.
    """

    digests: list[bytes]
    counts: Ints
    starts: Ints
    ends: Ints
    lengths: Ints
    words: Ints
    terms: npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Scores:
    """BM25's score of each word in each passage that has it.

    Term t has the scores `data[borders[t]:borders[t + 1]]` in the passages `indices` of that range.
    """

    data: npt.NDArray[np.float32]
    indices: Ints
    borders: Ints


@dataclass(frozen=True, slots=True)
class Stored:
    """All that the file holds."""

    cut: Cut
    scores: Scores


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


def index_path(documents: Sequence[Document], cutting: Cutting) -> Path:
    """The file for the folder that all documents have in common. Raises UsageError as `home`."""
    key = key_of(_FORMAT, common_folder(documents), cutting.tokens, cutting.overlap)
    return index_folder() / f"{key}.safetensors"


def index_folder() -> Path:
    """Where indices lie. Raises UsageError as `home`."""
    return home("cache") / "passages"


def save(path: Path, stored: Stored) -> None:
    """Write an index. Raises OSError, EFBIG beyond MOST bytes."""
    cut, scores = stored.cut, stored.scores
    arrays = {
        "digests": np.frombuffer(b"".join(cut.digests), np.int32),
        **{name: getattr(cut, name) for name in _CUT},
        "terms": cut.terms.view(np.int32),
        "data": scores.data.view(np.int32),
        "indices": scores.indices,
        "borders": scores.borders,
    }
    write_arrays(path, arrays, {"format": str(_FORMAT)}, MOST)


def load(path: Path) -> Stored | None:
    """The index in that file, None if there is none. Raises DamagedFileError."""
    if not path.is_file():
        return None
    arrays, _ = map_arrays(path, _NAMES, {"format": str(_FORMAT)}, MOST)
    digests, terms = arrays["digests"], arrays["terms"]
    if len(digests) % 8 or len(terms) % 2:
        raise DamagedFileError("arrays of odd lengths")
    raw = digests.tobytes()
    own = [raw[i : i + 32] for i in range(0, len(raw), 32)]
    counts, starts, ends, lengths, words = (arrays[name] for name in _CUT)
    data = arrays["data"].view(np.float32)
    stored = Stored(
        Cut(own, counts, starts, ends, lengths, words, terms.view(np.uint64)),
        Scores(data, arrays["indices"], arrays["borders"]),
    )
    _check(stored)
    return stored


def _check(stored: Stored) -> None:
    """Raise DamagedFileError unless all that is as long as the passages or the terms is right."""
    cut, scores = stored.cut, stored.scores
    passages, terms = len(cut.starts), len(cut.terms)
    sums = [
        (len(cut.digests), len(cut.counts)), (int(cut.counts.sum(dtype=np.int64)), passages),
        (len(cut.ends), passages), (len(cut.lengths), passages),
        (int(cut.lengths.sum(dtype=np.int64)), len(cut.words)), (len(scores.borders), terms + 1),
        (len(scores.indices), len(scores.data)), (int(scores.borders[-1:].sum()), len(scores.data)),
    ]  # fmt: skip
    if any(a != b for a, b in sums):
        raise DamagedFileError("arrays of different lengths")
    least = min(int(a.min(initial=0)) for a in (cut.counts, cut.starts, cut.lengths))
    if least < 0 or bool((cut.ends <= cut.starts).any()):
        raise DamagedFileError("negative numbers")
    if bool((scores.borders[:1] != 0).any()) or bool((np.diff(scores.borders) < 0).any()):
        raise DamagedFileError("words out of range")
