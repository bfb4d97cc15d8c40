"""The passages of a set of documents, and how well each matches a question, by BM25.

BM25 is that of Lucene, computed by `bm25s`: S. Robertson and H. Zaragoza, The Probabilistic
Relevance Framework, 2009; X. H. Lù, BM25S, 2024. The index lies in the cache, one file for each
set of documents and way of cutting (store.py).
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.documents.load import Document
from ngtcli.documents.passages import Cutting, passages
from ngtcli.documents.text import UNSPACED
from ngtcli.errors import NgtError
from ngtcli.retrieve import store
from ngtcli.retrieve.store import Ints, Stored
from ngtcli.system.cache import renew
from ngtcli.system.storage import DamagedFileError, key_of

K1, B = 1.5, 0.75  # of BM25; the defaults of bm25s, within the usual ranges
_EVERY = 200  # documents cut between two status lines; guess
Status = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Place:
    """A passage: the index of its document, and its range in that text."""

    document: int
    start: int
    end: int


class Index:
    """The passages of documents in order, and their scores for questions.

    `status` is how it was made: "cached", "built", "updated" or "rebuilt" (its file was damaged);
    `cut` is the number of documents that were cut for it; `key` names their folder and the cutting.
    """

    def __init__(self, stored: Stored, key: str, status: str = "built", cut: int = 0) -> None:
        self._stored, self.key, self.status, self.cut = stored, key, status, cut
        counts = stored.counts
        self._document = np.repeat(np.arange(len(counts), dtype=np.int64), counts)

    def __len__(self) -> int:
        """The number of passages."""
        return len(self._stored.starts)

    @property
    def fingerprint(self) -> str:
        """A hash of all documents and passages, in order."""
        return key_of(self.key, *(digest.hex() for digest in self._stored.digests))

    def place(self, passage: int) -> Place:
        """Where that passage stands."""
        start, end = self._stored.starts[passage], self._stored.ends[passage]
        return Place(int(self._document[passage]), int(start), int(end))

    def scores(self, question: str) -> npt.NDArray[np.float32]:
        """The score of each passage, float32 (passages,); 0 without a word of the question."""
        terms = self._stored.terms
        wanted = store.hashes(words(question))
        at = np.minimum(np.searchsorted(terms, wanted), max(len(terms) - 1, 0))
        known = at[terms[at] == wanted] if len(terms) else at[:0]
        if not len(known):
            return np.zeros(len(self), np.float32)
        return _scores(self._stored, known.tolist())

    def ranked(self, question: str, most: int | None = None) -> list[tuple[int, float]]:
        """The `most` best passages with scores above 0, the best first; ties in order."""
        scores = self.scores(question)
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
) -> Index:
    """The index of these documents, from the cache where it is that of them.

    Documents that are in other indices of their folder are not cut again. A damaged file is
    replaced; `warn` gets a line about that, and if the cache cannot be written.
    """
    key = store.folder_key(documents, cutting)
    digests = [store.digest(document) for document in documents]
    path, how = store.index_path(key, digests), "built"
    try:
        before = store.load(path)
        if before is not None and before.digests == digests:
            renew(path)
            return Index(before, key, "cached")
    except DamagedFileError as error:
        warn(f"the index of passages is built again: {error}")
        how = "rebuilt"
    known = _known_of(key, digests)
    parts = list(_cut(documents, digests, known, cutting, status))
    stored = _build(digests, parts, status)
    if store.INDICES.keep(path, stored.arrays(), {}, warn):
        store.INDICES.keep_last(key)
    missing = sum(d not in known for d in digests)
    return Index(stored, key, "updated" if missing < len(digests) else how, missing)


@dataclass(frozen=True, slots=True)
class _Part:
    """A document's passages: ranges, numbers of words, and the hashes of all words in a row."""

    starts: Ints
    ends: Ints
    lengths: Ints
    hashes: npt.NDArray[np.uint64]


def _known_of(key: str, digests: Sequence[bytes]) -> dict[bytes, _Part]:
    """What the indices of a folder have of these documents."""
    known: dict[bytes, _Part] = {}
    wanted = set(digests)
    for path in store.INDICES.others(key):
        if len(known) == len(wanted):
            break
        with suppress(DamagedFileError, OSError):
            if (found := store.load(path)) is not None:
                known |= _known(found, wanted)
    return known


def _known(stored: Stored, wanted: set[bytes]) -> Iterator[tuple[bytes, _Part]]:
    """What an index has of wanted documents; nothing where it has words outside its terms."""
    numbers = stored.words
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(stored.terms):
        return
    rows = pairwise(accumulate(stored.counts.tolist(), initial=0))
    at = np.concatenate([[0], np.cumsum(stored.lengths, dtype=np.int64)])
    for digest, (first, last) in zip(stored.digests, rows, strict=True):
        if digest in wanted:
            own = stored.starts[first:last], stored.ends[first:last], stored.lengths[first:last]
            yield digest, _Part(*own, stored.terms[numbers[at[first] : at[last]]])


def _cut(
    documents: Sequence[Document],
    digests: list[bytes],
    known: dict[bytes, _Part],
    cutting: Cutting,
    status: Status,
) -> Iterator[_Part]:
    """The passages of each document, those that are `known` taken over."""
    for i, (document, digest) in enumerate(zip(documents, digests, strict=True)):
        if i % _EVERY == 0:
            status(f"Cutting into passages: {i} of {len(documents)} documents …")
        if digest in known:
            yield known[digest]
            continue
        found = passages(document, cutting)
        of_each = [words(document.text[p.start : p.end]) for p in found]
        yield _Part(
            np.array([p.start for p in found], np.int32),
            np.array([p.end for p in found], np.int32),
            np.array([len(own) for own in of_each], np.int32),
            store.hashes([word for own in of_each for word in own]),
        )


def _build(digests: list[bytes], parts: Sequence[_Part], status: Status) -> Stored:
    """The passages of all documents in a row, and BM25's score of each word in each passage."""
    no_numbers, no_hashes = np.zeros(0, np.int32), np.zeros(0, np.uint64)
    terms, numbers = np.unique(
        np.concatenate([no_hashes, *(part.hashes for part in parts)]), return_inverse=True
    )
    starts, ends, lengths = (
        np.concatenate([no_numbers, *(getattr(part, name) for part in parts)])
        for name in ("starts", "ends", "lengths")
    )
    status(f"Indexing {len(starts)} passages …")
    scores: dict[str, Any] = {
        "data": np.zeros(0),
        "indices": no_numbers,
        "indptr": np.zeros(1),
    }
    if len(numbers):
        borders = pairwise(accumulate(lengths.tolist(), initial=0))
        rows = [numbers[first:last].tolist() for first, last in borders]
        ids = list(range(len(terms)))
        scores = _bm25().build_index_from_ids(ids, rows, show_progress=False)
    return Stored(
        digests,
        np.array([len(part.starts) for part in parts], np.int32),
        starts,
        ends,
        lengths,
        numbers.astype(np.int32),
        terms,
        scores["data"].astype(np.float32),
        scores["indices"].astype(np.int32),
        scores["indptr"].astype(np.int32),
    )


def _scores(stored: Stored, terms: list[int]) -> npt.NDArray[np.float32]:
    count, data, indices = len(stored.starts), stored.data, stored.indices
    for first, last in ((stored.borders[term], stored.borders[term + 1]) for term in terms):
        _check(indices[first:last], data[first:last], count)
    bm25 = _bm25()
    bm25.nonoccurrence_array = None
    numbers = {"data": data, "indices": indices, "indptr": stored.borders, "num_docs": count}
    bm25.scores = numbers
    found: npt.NDArray[np.float32] = bm25.get_scores_from_ids(terms)
    return found


def _check(indices: Ints, data: npt.NDArray[np.float32], count: int) -> None:
    """Raise NgtError unless these are scores of passages: the file may be changed as it is read."""
    known = not len(indices) or 0 <= int(indices.min()) <= int(indices.max()) < count
    if not (known and bool(np.isfinite(data).all())):
        raise NgtError("the cached index of passages is damaged", "Run: ngt cache clear passages")


def _bm25() -> Any:
    import bm25s  # here: it takes a third of a second

    return bm25s.BM25(k1=K1, b=B, method="lucene")


_ACCENTS = re.compile(r"[\u0300-\u036f]")
_INNER = re.compile(r"(?<=\w)['’](?=\w)")  # of "don't"


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
    pattern = _ascii_words() if text.isascii() else _all_words()
    for match in pattern.finditer(_INNER.sub("", text.casefold())):
        word = match.group()
        if match.lastgroup == "unspaced" and len(word) > 1:
            found += [word[i : i + 2] for i in range(len(word) - 1)]
        else:
            found.append(word)
    return found


@cache
def _ascii_words() -> re.Pattern[str]:
    return re.compile(r"[a-z0-9_]+")


@cache
def _all_words() -> re.Pattern[str]:
    """Letters and digits with the marks that stand on them, which `\\w` leaves out."""
    marks = "".join(
        c for c in map(chr, range(0x300, 0xD800)) if unicodedata.category(c).startswith("M")
    )
    spaced = rf"(?:(?![{UNSPACED}])[\w{re.escape(marks)}])+"
    return re.compile(rf"(?P<unspaced>[{UNSPACED}]+)|{spaced}")
