"""The passages of a set of documents, and how well each matches a question, by BM25.

BM25 is that of Lucene, computed by `bm25s`: S. Robertson and H. Zaragoza, The Probabilistic
Relevance Framework, 2009; X. H. Lù, BM25S, 2024.

The index lies in the cache, one file for a set of documents and a way of cutting. It has what was
cut of each document, by a hash of the document, so that other sets of documents of the same folder
have only cut what is new to them. It is mapped into memory; what a question needs of the scores is
checked where it is used.
"""

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.documents.load import Document, common_folder
from ngtcli.documents.passages import Cutting, passages
from ngtcli.documents.text import UNSPACED
from ngtcli.errors import NgtError
from ngtcli.retrieve.ranking import Status
from ngtcli.retrieve.selection import Excerpt
from ngtcli.system.arrays import Array, ArrayFile, Arrays
from ngtcli.system.cache import renew
from ngtcli.system.files import DamagedFileError, key_of

Ints = npt.NDArray[np.int32]

K1, B = 1.5, 0.75  # of BM25; the defaults of bm25s, within the usual ranges
# Weight of the words of an earlier question; swept from 0.1 to 1. Of 2,999 questions on one of
# 1,581 paragraphs (newwiki-qa) after one to three others on it, the first passage found is the
# right one for 89% instead of 77%; of 1,000 after two on another one for 71% instead of 73.5%.
EARLIER = 0.2
FOLDER = "passages"
_EVERY = 200  # documents cut between two status lines; guess


def _check_sums(arrays: Arrays) -> None:
    """Raise DamagedFileError unless all that is as long as the passages or the terms is right."""
    borders = arrays["borders"]
    sums = [
        (int(arrays["counts"].sum(dtype=np.int64)), len(arrays["starts"])),
        (int(arrays["lengths"].sum(dtype=np.int64)), len(arrays["words"])),
        (len(borders), len(arrays["terms"]) + 1),
        (int(borders[-1:].sum()), len(arrays["data"])),
    ]
    if any(a != b for a, b in sums):
        raise DamagedFileError("arrays of different lengths")
    least = min(int(arrays[name].min(initial=0)) for name in ("counts", "starts", "lengths"))
    if least < 0 or bool((arrays["ends"] <= arrays["starts"]).any()):
        raise DamagedFileError("negative numbers")
    if borders[0] != 0 or bool((np.diff(borders) < 0).any()):
        raise DamagedFileError("scores outside the words")


# There are `counts` passages of each document, by `digests`. `starts` and `ends` are the passages'
# ranges, `lengths` their numbers of words. `words` has the words of all passages in a row, as
# places in `terms`, which are ascending hashes of words. Term t has the scores
# `data[borders[t]:borders[t + 1]]` in the passages `indices` of that range.
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
    check=_check_sums,
)


class Index:
    """The passages of documents in order, and their scores for questions.

    `status` is how it was made: "cached", "built", "updated" or "rebuilt" (its file was damaged);
    `cut` is the number of documents that were cut for it; `key` names their folder and the cutting.
    """

    def __init__(
        self, documents: Sequence[Document], arrays: Arrays, key: str, status: str, cut: int = 0
    ) -> None:
        self._documents, self._arrays = documents, arrays
        self.key, self.status, self.cut = key, status, cut
        counts = arrays["counts"]
        self._document = np.repeat(np.arange(len(counts), dtype=np.int64), counts)

    def __len__(self) -> int:
        """The number of passages."""
        return len(self._document)

    @property
    def fingerprint(self) -> str:
        """A hash of all documents and passages, in order."""
        return key_of(self.key, self._arrays["digests"].tobytes().hex())

    def place(self, passage: int) -> Excerpt:
        """Where that passage stands."""
        start, end = self._arrays["starts"][passage], self._arrays["ends"][passage]
        return Excerpt(int(self._document[passage]), int(start), int(end))

    def text(self, passage: int) -> str:
        """The text of that passage."""
        at = self.place(passage)
        return self._documents[at.document].text[at.start : at.end]

    def scores(self, question: str) -> npt.NDArray[np.float32]:
        """The score of each passage, float32 (passages,); 0 without a word of the question.

        Raises NgtError where the file has other scores: it may be changed as it is read.
        """
        terms = self._arrays["terms"]
        wanted = _hashes(words(question))
        at = np.minimum(np.searchsorted(terms, wanted), max(len(terms) - 1, 0))
        known = at[terms[at] == wanted].tolist() if len(terms) else []
        if not known:
            return np.zeros(len(self), np.float32)
        data, indices, borders = (self._arrays[name] for name in ("data", "indices", "borders"))
        for term in known:
            own = slice(borders[term], borders[term + 1])
            numbers = indices[own]
            inside = not len(numbers) or 0 <= numbers.min() <= numbers.max() < len(self)
            if not (inside and np.isfinite(data[own]).all()):
                what = "the cached index of passages is damaged"
                raise NgtError(what, "Run: ngt cache clear passages")
        bm25 = _bm25()
        bm25.nonoccurrence_array = None
        bm25.scores = {"data": data, "indices": indices, "indptr": borders, "num_docs": len(self)}
        found: npt.NDArray[np.float32] = bm25.get_scores_from_ids(known)
        return found

    def scores_in_turn(self, question: str, earlier: Sequence[str]) -> npt.NDArray[np.float32]:
        """As `scores`, where words of the `earlier` questions of a conversation count a little."""
        scores = self.scores(question)
        for text in earlier:
            scores = scores + np.float32(EARLIER) * self.scores(text)
        return scores

    def ranked(
        self, question: str, most: int | None = None, earlier: Sequence[str] = ()
    ) -> list[tuple[int, float]]:
        """The `most` best passages with scores above 0, the best first; ties in order."""
        scores = self.scores_in_turn(question, earlier)
        found = np.flatnonzero(scores > 0)
        if most is not None and most < len(found):
            found = found[scores[found] >= np.partition(scores[found], -most)[-most]]
        order = found[np.argsort(-scores[found], kind="stable")][:most]
        return [(int(i), float(scores[i])) for i in order]


def index_of(
    documents: Sequence[Document],
    cutting: Cutting,
    status: Status = lambda _: None,
    warn: Status = lambda _: None,
    keep: bool = True,
) -> Index:
    """The index of these documents, from the cache where it is that of them.

    Documents that are in other indices of their folder are not cut again. A damaged file is
    replaced; `warn` gets a line about that, and if the cache cannot be written. Without `keep` no
    file is read or written.
    """
    key = key_of(INDICES.format, common_folder(documents), cutting.tokens, cutting.overlap)
    digests = [_digest(document) for document in documents]
    path = INDICES.path(f"{key}.{key_of(b''.join(digests).hex())}")
    how = "built"

    def warn_damaged(line: str) -> None:
        nonlocal how
        how = "rebuilt"
        warn(line)

    before = INDICES.find(path, warn_damaged) if keep else None
    if before is not None and before[0]["digests"].tobytes() == b"".join(digests):
        renew(path)
        return Index(documents, before[0], key, "cached")
    known = _known(key, digests) if keep else {}
    missing = sum(d not in known for d in digests)
    parts: list[_Part] = []
    for i, (document, digest) in enumerate(zip(documents, digests, strict=True)):
        if i % _EVERY == 0:
            status(f"Cutting into passages: {i} of {len(documents)} documents …")
        parts.append(known[digest] if digest in known else _cut(document, cutting))
    arrays = _build(digests, parts, status)
    if keep:
        INDICES.keep(path, arrays, {}, warn)
    return Index(documents, arrays, key, "updated" if missing < len(digests) else how, missing)


class _Part(NamedTuple):
    """A document's passages: ranges, numbers of words, and the hashes of all words in a row."""

    starts: Ints
    ends: Ints
    lengths: Ints
    hashes: npt.NDArray[np.uint64]


def _known(key: str, digests: Sequence[bytes]) -> dict[bytes, _Part]:
    """What the indices of a folder have of these documents."""
    known: dict[bytes, _Part] = {}
    wanted = set(digests)
    for path in INDICES.others(key):
        if len(known) == len(wanted):
            break
        if found := INDICES.find(path):
            known |= _parts(found[0], wanted)
    return known


def _parts(arrays: Arrays, wanted: set[bytes]) -> Iterator[tuple[bytes, _Part]]:
    """What an index has of wanted documents; nothing where it has words outside its terms."""
    numbers, terms = arrays["words"], arrays["terms"]
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(terms):
        return
    ranges = [arrays[name] for name in ("starts", "ends", "lengths")]
    at = np.concatenate([[0], np.cumsum(arrays["lengths"], dtype=np.int64)])
    rows = pairwise(accumulate(arrays["counts"].tolist(), initial=0))
    for row, (first, last) in zip(arrays["digests"], rows, strict=True):
        if (digest := row.tobytes()) in wanted:
            starts, ends, lengths = (array[first:last] for array in ranges)
            yield digest, _Part(starts, ends, lengths, terms[numbers[at[first] : at[last]]])


def _cut(document: Document, cutting: Cutting) -> _Part:
    found = passages(document, cutting)
    of_each = [words(document.text[p.start : p.end]) for p in found]
    return _Part(
        np.array([p.start for p in found], np.int32),
        np.array([p.end for p in found], np.int32),
        np.array([len(own) for own in of_each], np.int32),
        _hashes([word for own in of_each for word in own]),
    )


def _build(digests: Sequence[bytes], parts: Sequence[_Part], status: Status) -> Arrays:
    """The passages of all documents in a row, and BM25's score of each word in each passage."""

    def joined(name: str, dtype: type = np.int32) -> Any:
        return np.concatenate([np.zeros(0, dtype), *(getattr(part, name) for part in parts)])

    terms, numbers = np.unique(joined("hashes", np.uint64), return_inverse=True)
    lengths = joined("lengths")
    status(f"Indexing {len(lengths)} passages …")
    scores: dict[str, Any] = {"data": np.zeros(0), "indices": np.zeros(0), "indptr": np.zeros(1)}
    if len(numbers):
        borders = pairwise(accumulate(lengths.tolist(), initial=0))
        rows = [numbers[first:last].tolist() for first, last in borders]
        ids = list(range(len(terms)))
        scores = _bm25().build_index_from_ids(ids, rows, show_progress=False)
    return {
        "digests": np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32),
        "counts": np.array([len(part.starts) for part in parts], np.int32),
        "starts": joined("starts"),
        "ends": joined("ends"),
        "lengths": lengths,
        "words": numbers.astype(np.int32),
        "terms": terms,
        "data": scores["data"].astype(np.float32),
        "indices": scores["indices"].astype(np.int32),
        "borders": scores["indptr"].astype(np.int32),
    }


def _bm25() -> Any:
    import bm25s  # here: it takes a third of a second

    return bm25s.BM25(k1=K1, b=B, method="lucene")


def _digest(document: Document) -> bytes:
    """A hash of all that decides how a document is cut, 32 bytes."""
    about = repr([(s.start, s.heading) for s in document.about.sections])
    suffix = os.path.splitext(document.path)[1].lower()
    return hashlib.sha256("\0".join((suffix, about, document.text)).encode()).digest()


@lru_cache(maxsize=1 << 20)
def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def _hashes(found: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Hashes of words, uint64 (words,)."""
    return np.array([_hash(word) for word in found], np.uint64)


_ACCENTS = re.compile(r"[\u0300-\u036f]")
_INNER = re.compile(r"(?<=\w)['’](?=\w)")  # of "don't"
_ASCII_WORDS = re.compile(r"[a-z0-9_]+")


def words(text: str) -> list[str]:
    """The words of a text, in its order, without case and accents.

    A script without spaces between words gives each two characters in a row; a single one stands
    for itself.

    >>> words("The Café's 3 tides, 潮位表")
    ['the', 'cafes', '3', 'tides', '潮位', '位表']
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        text = unicodedata.normalize("NFC", _ACCENTS.sub("", text))
    found: list[str] = []
    pattern = _ASCII_WORDS if text.isascii() else _all_words()
    for match in pattern.finditer(_INNER.sub("", text.casefold())):
        word = match.group()
        if match.lastgroup == "unspaced" and len(word) > 1:
            found += [word[i : i + 2] for i in range(len(word) - 1)]
        else:
            found.append(word)
    return found


@cache
def _all_words() -> re.Pattern[str]:
    """Letters and digits with the marks that stand on them, which `\\w` leaves out."""
    marks = "".join(
        c for c in map(chr, range(0x300, 0xD800)) if unicodedata.category(c).startswith("M")
    )
    spaced = rf"(?:(?![{UNSPACED}])[\w{re.escape(marks)}])+"
    return re.compile(rf"(?P<unspaced>[{UNSPACED}]+)|{spaced}")
