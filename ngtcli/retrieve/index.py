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
from ngtcli.documents.passages import Cutting, Passage, passages
from ngtcli.documents.text import UNSPACED
from ngtcli.errors import NgtError
from ngtcli.retrieve import store
from ngtcli.retrieve.store import Cut, Ints, Scores, Stored
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
        counts = stored.cut.counts
        self._document = np.repeat(np.arange(len(counts), dtype=np.int64), counts)

    def __len__(self) -> int:
        """The number of passages."""
        return len(self._stored.cut.starts)

    @property
    def fingerprint(self) -> str:
        """A hash of all documents and passages, in order."""
        return key_of(self.key, *(digest.hex() for digest in self._stored.cut.digests))

    def place(self, passage: int) -> Place:
        """Where that passage stands."""
        cut = self._stored.cut
        document = int(self._document[passage])
        return Place(document, int(cut.starts[passage]), int(cut.ends[passage]))

    def scores(self, question: str) -> npt.NDArray[np.float32]:
        """The score of each passage, float32 (passages,); 0 without a word of the question."""
        terms = self._stored.cut.terms
        wanted = store.hashes(words(question))
        at = np.minimum(np.searchsorted(terms, wanted), max(len(terms) - 1, 0))
        known = at[terms[at] == wanted] if len(terms) else at[:0]
        if not len(known):
            return np.zeros(len(self), np.float32)
        return _scores(self._stored.scores, len(self), known.tolist())

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
        if before is not None and before.cut.digests == digests:
            renew(path)
            return Index(before, key, "cached")
    except DamagedFileError as error:
        warn(f"the index of passages is built again: {error}")
        how = "rebuilt"
    known = _known_of(key, digests)
    new = _cut(documents, digests, known, cutting, status)
    status(f"Indexing {len(new.starts)} passages …")
    stored = Stored(new, _build(new))
    if store.INDICES.keep(path, store.arrays_of(stored), {}, warn):
        store.INDICES.keep_last(key)
    missing = sum(d not in known for d in digests)
    return Index(stored, key, "updated" if missing < len(digests) else how, missing)


@dataclass(frozen=True, slots=True)
class _Part:
    """A document's passages, the number of words of each, and the words' hashes in a row."""

    passages: Sequence[Passage]
    lengths: Ints
    hashes: npt.NDArray[np.uint64]


def _known_of(key: str, digests: Sequence[bytes]) -> dict[bytes, Callable[[], _Part]]:
    """What the indices of a folder have of these documents."""
    known: dict[bytes, Callable[[], _Part]] = {}
    for path in store.INDICES.others(key):
        if all(digest in known for digest in digests):
            break
        with suppress(DamagedFileError, OSError):
            found = store.load(path)
            known |= _known(found.cut) if found else {}
    return known


def _known(cut: Cut) -> dict[bytes, Callable[[], _Part]]:
    """What an index has of each document; nothing where it has words outside its terms."""
    words = cut.words
    if len(words) and not 0 <= int(words.min()) <= int(words.max()) < len(cut.terms):
        return {}
    rows = list(accumulate(cut.counts.tolist(), initial=0))
    at = np.concatenate([[0], np.cumsum(cut.lengths, dtype=np.int64)])

    def part(first: int, last: int) -> Callable[[], _Part]:
        return lambda: _Part(
            [Passage(int(a), int(b)) for a, b in
             zip(cut.starts[first:last], cut.ends[first:last], strict=True)],
            cut.lengths[first:last],
            cut.terms[cut.words[at[first] : at[last]]],
        )  # fmt: skip

    return {d: part(*rows) for d, rows in zip(cut.digests, pairwise(rows), strict=True)}


def _cut(
    documents: Sequence[Document],
    digests: list[bytes],
    known: dict[bytes, Callable[[], _Part]],
    cutting: Cutting,
    status: Status,
) -> Cut:
    """All documents cut, those that are `known` taken over."""
    parts: list[_Part] = []
    for i, (document, digest) in enumerate(zip(documents, digests, strict=True)):
        if i % _EVERY == 0:
            status(f"Cutting into passages: {i} of {len(documents)} documents …")
        parts.append(known[digest]() if digest in known else _part(document, cutting))
    every = np.concatenate([np.zeros(0, np.uint64), *(p.hashes for p in parts)])
    terms, numbers = np.unique(every, return_inverse=True)
    found = [passage for part in parts for passage in part.passages]
    return Cut(
        digests,
        np.array([len(p.passages) for p in parts], np.int32),
        np.array([p.start for p in found], np.int32),
        np.array([p.end for p in found], np.int32),
        np.concatenate([np.zeros(0, np.int32), *(p.lengths for p in parts)]),
        numbers.astype(np.int32),
        terms,
    )


def _part(document: Document, cutting: Cutting) -> _Part:
    found = passages(document, cutting)
    of_each = [words(document.text[p.start : p.end]) for p in found]
    hashes = store.hashes([word for of_one in of_each for word in of_one])
    return _Part(found, np.array([len(of_one) for of_one in of_each], np.int32), hashes)


def _rows(cut: Cut) -> Iterator[list[int]]:
    """The numbers of the words of each passage."""
    for first, last in pairwise(accumulate(cut.lengths.tolist(), initial=0)):
        yield cut.words[first:last].tolist()


def _build(cut: Cut) -> Scores:
    """BM25's score of each word in each passage, as a matrix of sparse columns."""
    if not len(cut.words):
        empty = np.zeros(0, np.int32)
        return Scores(np.zeros(0, np.float32), empty, np.zeros(1, np.int32))
    built = _bm25().build_index_from_ids(
        list(range(len(cut.terms))), list(_rows(cut)), show_progress=False
    )
    return Scores(
        built["data"].astype(np.float32),
        built["indices"].astype(np.int32),
        built["indptr"].astype(np.int32),
    )


def _scores(scores: Scores, count: int, terms: list[int]) -> npt.NDArray[np.float32]:
    for first, last in ((scores.borders[term], scores.borders[term + 1]) for term in terms):
        _check(scores.indices[first:last], scores.data[first:last], count)
    bm25 = _bm25()
    bm25.nonoccurrence_array = None
    bm25.scores = {"data": scores.data, "indices": scores.indices, "indptr": scores.borders,
                   "num_docs": count}  # fmt: skip
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
