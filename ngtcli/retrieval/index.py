"""The passages of a set of documents, and how well each matches a question, by BM25.

BM25 is that of Lucene: S. Robertson and H. Zaragoza, The Probabilistic Relevance Framework, 2009;
C. Kamphuis and others, Which BM25 Do You Mean?, 2020. It is computed for a question's words alone.
What is cut of a document is a piece of the store, by its text and the way of cutting.
"""

import hashlib
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache, cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.documents.load import Document
from ngtcli.documents.passages import Cutting, passages
from ngtcli.documents.selection import Excerpt
from ngtcli.documents.text import UNSPACED
from ngtcli.system import reporting
from ngtcli.system.files import key_of
from ngtcli.system.store import Kind

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

K1, B = 1.5, 0.75  # of BM25; within the usual ranges
# Weight of the words of an earlier question; swept from 0.1 to 1. Of 2,999 questions on one of
# 1,581 paragraphs (newwiki-qa) after one to three others on it, the first passage found is the
# right one for 89% instead of 77%; of 1,000 after two on another one for 71% instead of 73.5%.
EARLIER = 0.2
_FORMAT = 4  # of how documents are cut and of what counts as a word
_RANGE = 12  # bytes of a row of ranges
_AT_ONCE = 200  # documents that are cut between two status lines, and stored together; guess


class _Pieces(NamedTuple):
    """What is cut of a document, as bytes of arrays.

    `ranges` has the start, the end and the number of words of each passage, int32 (passages, 3);
    `words` the hashes of the words of all passages in a row, uint64 (words,).
    """

    ranges: bytes
    words: bytes


PASSAGES = Kind("passages", _Pieces)
_LIKE = 1 << 16  # as many numbers as a uint16 has


class _Weights(NamedTuple):
    """The passages that have a word, and what it adds to their scores for a question."""

    passages: Ints
    weights: Floats


class Index:
    """The passages of documents in order, and their scores for questions.

    `cut` is the number of different documents that were cut for it; `status` says how it was made:
    "cached", "built", or "updated" where only some documents were cut.
    """

    def __init__(
        self, documents: Sequence[Document], pieces: Sequence[_Pieces], status: str, cut: int
    ) -> None:
        self._documents, self.status, self.cut = documents, status, cut
        ranges = np.frombuffer(b"".join(piece.ranges for piece in pieces), np.int32)
        self._starts, self._ends, self._lengths = ranges.reshape(-1, 3).T
        counts = [len(piece.ranges) // _RANGE for piece in pieces]
        self._document = np.repeat(np.arange(len(pieces)), counts)
        self._words = np.frombuffer(b"".join(piece.words for piece in pieces), np.uint64)
        self._last = np.cumsum(self._lengths, dtype=np.int64)  # where a passage's words end
        self._weights: dict[str, _Weights] = {}  # of the words that were asked for

    def __len__(self) -> int:
        """The number of passages."""
        return len(self._document)

    def place(self, passage: int) -> Excerpt:
        """Where that passage stands."""
        start, end = self._starts[passage], self._ends[passage]
        return Excerpt(int(self._document[passage]), int(start), int(end))

    def text(self, passage: int) -> str:
        """The text of that passage."""
        at = self.place(passage)
        return self._documents[at.document].text[at.start : at.end]

    def scores(self, question: str, earlier: Sequence[str] = ()) -> Floats:
        """The score of each passage, float32 (passages,); 0 without a word of the question.

        Words of the `earlier` questions of a conversation count a little.
        """
        scores = np.zeros(len(self), np.float32)
        counts = Counter(words(question))
        self._find([word for word in counts if word not in self._weights])
        for word, count in counts.items():
            found = self._weights[word]
            scores[found.passages] += count * found.weights
        for text in earlier:
            scores = scores + np.float32(EARLIER) * self.scores(text)
        return scores

    def having(self, forms: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which passages have any of these words, or are of a document whose name has one."""
        self._find([form for form in forms if form not in self._weights])
        having = np.zeros(len(self), bool)
        for form in forms:
            having[self._weights[form].passages] = True
        is_named = [not self._name_words[i].isdisjoint(forms) for i in range(len(self._documents))]
        named: npt.NDArray[np.bool_] = np.array(is_named, bool)[self._document]
        return having | named

    def of_same_documents(self, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which passages are of a document that a chosen one is of."""
        documents = np.zeros(len(self._documents), bool)
        documents[self._document[chosen]] = True
        return documents[self._document]

    @cached_property
    def _name_words(self) -> list[frozenset[str]]:
        """The words of each document's name."""
        return [frozenset(words(document.name)) for document in self._documents]

    def _find(self, wanted: Sequence[str]) -> None:
        """Find these words, all in one pass over those of the passages."""
        if not wanted:
            return
        hashes = np.array([_hash(word) for word in wanted], np.uint64)
        order = np.argsort(hashes)
        hashes = hashes[order]
        # The low bits of a hash leave out nearly all words, and the search is for the others.
        is_like = np.zeros(_LIKE, bool)
        is_like[hashes % _LIKE] = True
        at = np.flatnonzero(is_like[self._words.astype(np.uint16)])
        which = np.searchsorted(hashes, self._words[at]).clip(max=len(hashes) - 1)
        same = hashes[which] == self._words[at]
        passages = np.searchsorted(self._last, at[same], side="right")
        of_each = np.bincount(which[same], minlength=len(hashes))
        grouped = passages[np.argsort(which[same], kind="stable")]
        for place, own in zip(order, np.split(grouped, np.cumsum(of_each)[:-1]), strict=True):
            self._weights[wanted[place]] = self._weighed(own)

    def _weighed(self, at: Ints) -> _Weights:
        """What a word adds to scores that stands in the passages `at`, in some several times."""
        passages, counts = np.unique(at, return_counts=True)
        count, having = len(self), len(passages)
        if not having:
            return _Weights(passages, np.empty(0, np.float32))
        idf = np.float32(math.log(1 + (count - having + 0.5) / (having + 0.5)))
        lengths = self._lengths[passages] / self._lengths.mean()
        saturation = K1 * (1 - B + B * lengths)
        return _Weights(passages, (idf * (counts / (counts + saturation))).astype(np.float32))

    def ranked(
        self, question: str, most: int | None = None, earlier: Sequence[str] = ()
    ) -> list[tuple[int, float]]:
        """The `most` best passages with scores above 0, the best first; ties in order."""
        scores = self.scores(question, earlier)
        found = np.flatnonzero(scores > 0)
        order = found[best(scores[found], len(found) if most is None else most)]
        return list(zip(order.tolist(), scores[order].tolist(), strict=True))


def best(scores: Floats, most: int) -> Ints:
    """The places of the `most` highest scores, the highest first; ties in order.

    >>> best(np.array([1, 3, 2, 3], np.float32), 3).tolist()
    [1, 3, 2]
    """
    found = np.arange(len(scores))
    if most < len(scores):
        found = np.flatnonzero(scores >= np.partition(scores, -most)[-most])
    return found[np.argsort(-scores[found], kind="stable")][:most]


def index_of(
    documents: Sequence[Document],
    cutting: Cutting,
    keep: bool = True,
) -> Index:
    """The index of these documents; only those are cut of which the store has no pieces.

    Without `keep` the store is neither read nor written.
    """
    keys = [_key(document, cutting) for document in documents]
    pieces = PASSAGES.get_many(set(keys)) if keep else {}
    new = {k: d for k, d in zip(keys, documents, strict=True) if k not in pieces}
    how = "cached" if not new else "updated" if pieces else "built"
    for first in range(0, len(new), _AT_ONCE):
        reporting.status(f"Cutting into passages: {first} of {len(new)} documents …")
        some = islice(new.items(), first, first + _AT_ONCE)
        made = {key: _cut(document, cutting) for key, document in some}
        pieces |= made
        if keep:
            PASSAGES.put_many(made)
    return Index(documents, [pieces[key] for key in keys], how, len(new))


def _key(document: Document, cutting: Cutting) -> str:
    """A hash of all that decides how a document is cut."""
    about = [(section.start, section.heading) for section in document.about.sections]
    suffix = os.path.splitext(document.path)[1].lower()
    return key_of(_FORMAT, cutting.tokens, cutting.overlap, suffix, about, document.text)


def _cut(document: Document, cutting: Cutting) -> _Pieces:
    found = passages(document, cutting)
    of_each = [words(document.text[p.start : p.end]) for p in found]
    ranges = [(p.start, p.end, len(own)) for p, own in zip(found, of_each, strict=True)]
    known = {word: _hash(word) for word in {word for own in of_each for word in own}}
    hashes = [known[word] for own in of_each for word in own]
    return _Pieces(np.array(ranges, np.int32).tobytes(), np.array(hashes, np.uint64).tobytes())


def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


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
