"""The passages of a set of documents, and how well each matches a question, by BM25.

BM25 is that of Lucene: S. Robertson and H. Zaragoza, The Probabilistic Relevance Framework, 2009;
C. Kamphuis and others, Which BM25 Do You Mean?, 2020. It is computed for the words of a question
alone. The passages of a document are cached under its text and the way it is cut.
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
Bools = npt.NDArray[np.bool_]

K1 = 1.5  # of BM25; this and B are within the usual ranges
B = 0.75
# Weight of the words of an earlier question; swept from 0.1 to 1. Measured on newwiki-qa (1,581
# paragraphs), how often the right passage comes first, with this weight and with 0: of 2,999
# questions that follow one to three on the same paragraph 89% and 77%, of 1,000 that follow two on
# another paragraph 71% and 73.5%.
EARLIER = 0.2
_FORMAT = 4  # of stored passages; to be raised if cutting or `words` changes
_RANGE_BYTES = 12  # of a row of `_CutDocument.ranges`
_DOCUMENTS_AT_ONCE = 200  # cut between two status lines, and stored together (guess)
_LOW_HASHES = 1 << 16  # the number of values of a uint16


class _CutDocument(NamedTuple):
    """The passages of a document, as bytes of arrays.

    Attributes:
        ranges: The start, the end and the number of words of each passage: int32 (passages, 3).
        words: The hashes of the words of all passages, in order: uint64 (words,).
    """

    ranges: bytes
    words: bytes


PASSAGES = Kind("passages", _CutDocument)


class _WordWeights(NamedTuple):
    """The passages that have a word, and what the word adds to their scores for a question."""

    passages: Ints
    weights: Floats


class Index:
    """The passages of documents in order, and their scores for questions.

    Attributes:
        status: How the index was made: "cached", "built", or "updated" where only some documents
            were cut.
        cut: The number of different documents that were cut for it.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        cut_documents: Sequence[_CutDocument],
        status: str,
        cut: int,
    ) -> None:
        """Make an index of documents and their passages."""
        self.status = status
        self.cut = cut
        self._documents = documents
        ranges = np.frombuffer(b"".join(document.ranges for document in cut_documents), np.int32)
        self._starts, self._ends, self._lengths = ranges.reshape(-1, 3).T
        counts = [len(document.ranges) // _RANGE_BYTES for document in cut_documents]
        self._document_of = np.repeat(np.arange(len(cut_documents)), counts)  # (passages,)
        self._word_hashes = np.frombuffer(
            b"".join(document.words for document in cut_documents), np.uint64
        )
        # Where the words of each passage end in `_word_hashes`.
        self._word_ends = np.cumsum(self._lengths, dtype=np.int64)
        self._word_weights: dict[str, _WordWeights] = {}  # of the words of earlier questions

    def __len__(self) -> int:
        """Return the number of passages."""
        return len(self._document_of)

    def place(self, passage: int) -> Excerpt:
        """Return the place of a passage in its document."""
        document = int(self._document_of[passage])
        return Excerpt(document, int(self._starts[passage]), int(self._ends[passage]))

    def text(self, passage: int) -> str:
        """Return the text of a passage."""
        place = self.place(passage)
        return self._documents[place.document].text[place.start : place.end]

    def scores(self, question: str, earlier: Sequence[str] = ()) -> Floats:
        """Return the score of each passage: float32 (passages,), 0 without a word of a question.

        Args:
            question: Its words count fully.
            earlier: The earlier questions of a conversation; their words count by `EARLIER`.
        """
        scores = np.zeros(len(self), np.float32)
        counts = Counter(words(question))
        self._look_up(list(counts))
        for word, count in counts.items():
            passages, weights = self._word_weights[word]
            scores[passages] += count * weights
        for earlier_question in earlier:
            scores = scores + np.float32(EARLIER) * self.scores(earlier_question)
        return scores

    def having(self, forms: Sequence[str]) -> Bools:
        """Return which passages have a word, in their text or their document's name.

        Args:
            forms: The forms of the word, any of which counts.

        Returns:
            bool (passages,)
        """
        self._look_up(forms)
        in_text = np.zeros(len(self), bool)
        for form in forms:
            in_text[self._word_weights[form].passages] = True
        is_named = [not name_words.isdisjoint(forms) for name_words in self._name_words]
        in_name: Bools = np.array(is_named, bool)[self._document_of]
        return in_text | in_name

    def of_same_documents(self, passages: Bools) -> Bools:
        """Return which passages are of a document that one of `passages` is of."""
        documents = np.zeros(len(self._documents), bool)
        documents[self._document_of[passages]] = True
        return documents[self._document_of]

    @cached_property
    def _name_words(self) -> list[frozenset[str]]:
        """The words of each document's name."""
        return [frozenset(words(document.name)) for document in self._documents]

    def _look_up(self, wanted: Sequence[str]) -> None:
        """Find the passages of words, all in one pass over the words of the passages."""
        new_words = [word for word in wanted if word not in self._word_weights]
        if not new_words:
            return
        hashes = np.array([_hash(word) for word in new_words], np.uint64)
        order = np.argsort(hashes)
        hashes = hashes[order]

        # The low bits of a hash rule out nearly all words; only the rest are searched for.
        is_low_hash = np.zeros(_LOW_HASHES, bool)
        is_low_hash[hashes % _LOW_HASHES] = True
        candidates = np.flatnonzero(is_low_hash[self._word_hashes.astype(np.uint16)])
        nearest = np.searchsorted(hashes, self._word_hashes[candidates])
        nearest = nearest.clip(max=len(hashes) - 1)
        is_equal = hashes[nearest] == self._word_hashes[candidates]
        occurrences = candidates[is_equal]
        word_of = nearest[is_equal]

        passage_of = np.searchsorted(self._word_ends, occurrences, side="right")
        grouped = passage_of[np.argsort(word_of, kind="stable")]
        counts = np.bincount(word_of, minlength=len(hashes))
        groups = np.split(grouped, np.cumsum(counts)[:-1])
        for number, word_passages in zip(order, groups, strict=True):
            self._word_weights[new_words[number]] = self._weigh(word_passages)

    def _weigh(self, occurrences: Ints) -> _WordWeights:
        """Return what a word adds to scores.

        Args:
            occurrences: The passage of each occurrence of the word.
        """
        passages, counts = np.unique(occurrences, return_counts=True)
        if not len(passages):
            return _WordWeights(passages, np.empty(0, np.float32))
        other_passages = len(self) - len(passages)
        idf = np.float32(math.log(1 + (other_passages + 0.5) / (len(passages) + 0.5)))
        lengths = self._lengths[passages] / self._lengths.mean()
        saturation = K1 * (1 - B + B * lengths)
        weights = (idf * (counts / (counts + saturation))).astype(np.float32)
        return _WordWeights(passages, weights)

    def rank(
        self, question: str, max_passages: int | None = None, earlier: Sequence[str] = ()
    ) -> list[tuple[int, float]]:
        """Return the best passages with their scores, the best first, ties in order.

        Args:
            question: The question.
            max_passages: The maximum number of passages; None for all that score above 0.
            earlier: The earlier questions of a conversation.
        """
        scores = self.scores(question, earlier)
        matching = np.flatnonzero(scores > 0)
        count = len(matching) if max_passages is None else max_passages
        order = matching[highest(scores[matching], count)]
        return list(zip(order.tolist(), scores[order].tolist(), strict=True))


def highest(scores: Floats, count: int) -> Ints:
    """Return the indices of the `count` highest scores, the highest first, ties in order.

    >>> highest(np.array([1, 3, 2, 3], np.float32), 3).tolist()
    [1, 3, 2]
    """
    indices = np.arange(len(scores))
    if count < len(scores):
        indices = np.flatnonzero(scores >= np.partition(scores, -count)[-count])
    return indices[np.argsort(-scores[indices], kind="stable")][:count]


def index_of(documents: Sequence[Document], cutting: Cutting, use_cache: bool = True) -> Index:
    """Return the index of documents; only those that are not in the cache are cut.

    Args:
        documents: The documents.
        cutting: How they are cut into passages.
        use_cache: Whether passages are read from the cache, and stored there.
    """
    keys = [_key(document, cutting) for document in documents]
    pieces = PASSAGES.get_many(set(keys)) if use_cache else {}
    if all(key in pieces for key in keys):
        status = "cached"
    elif pieces:
        status = "updated"
    else:
        status = "built"

    new = {
        key: document for key, document in zip(keys, documents, strict=True) if key not in pieces
    }
    for first in range(0, len(new), _DOCUMENTS_AT_ONCE):
        reporting.status(f"Cutting into passages: {first} of {len(new)} documents …")
        batch = islice(new.items(), first, first + _DOCUMENTS_AT_ONCE)
        new_pieces = {key: _cut(document, cutting) for key, document in batch}
        pieces |= new_pieces
        if use_cache:
            PASSAGES.put_many(new_pieces)
    return Index(documents, [pieces[key] for key in keys], status, len(new))


def _key(document: Document, cutting: Cutting) -> str:
    """Return a hash of all that decides how a document is cut."""
    headings = [(section.start, section.heading) for section in document.about.sections]
    suffix = os.path.splitext(document.path)[1].lower()
    return key_of(_FORMAT, cutting.tokens, cutting.overlap, suffix, headings, document.text)


def _cut(document: Document, cutting: Cutting) -> _CutDocument:
    """Cut a document into passages, and those into words."""
    ranges: list[tuple[int, int, int]] = []
    hashes: list[int] = []
    hash_of: dict[str, int] = {}
    for passage in passages(document, cutting):
        passage_words = words(document.text[passage.start : passage.end])
        ranges.append((passage.start, passage.end, len(passage_words)))
        for word in passage_words:
            if word not in hash_of:
                hash_of[word] = _hash(word)
            hashes.append(hash_of[word])
    return _CutDocument(np.array(ranges, np.int32).tobytes(), np.array(hashes, np.uint64).tobytes())


def _hash(word: str) -> int:
    """Return a hash of 64 bits."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


_ACCENTS = re.compile(r"[\u0300-\u036f]")
_APOSTROPHES = re.compile(r"(?<=\w)['’](?=\w)")  # within a word, such as "don't"
_ASCII_WORDS = re.compile(r"[a-z0-9_]+")


def words(text: str) -> list[str]:
    """Return the words of a text in order, in lower case and without accents.

    Of a script without spaces between words, each pair of neighbouring characters is a word; so is
    a single character on its own.

    >>> words("The Café's 3 tides, 潮位表")
    ['the', 'cafes', '3', 'tides', '潮位', '位表']
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        text = unicodedata.normalize("NFC", _ACCENTS.sub("", text))
    all_words: list[str] = []
    pattern = _ASCII_WORDS if text.isascii() else _word_pattern()
    for match in pattern.finditer(_APOSTROPHES.sub("", text.casefold())):
        word = match.group()
        if match.lastgroup == "unspaced" and len(word) > 1:
            all_words += [word[i : i + 2] for i in range(len(word) - 1)]
        else:
            all_words.append(word)
    return all_words


@cache
def _word_pattern() -> re.Pattern[str]:
    """Return the pattern of a word: letters and digits with their marks, which `\\w` leaves out."""
    marks = "".join(
        c for c in map(chr, range(0x300, 0xD800)) if unicodedata.category(c).startswith("M")
    )
    spaced = rf"(?:(?![{UNSPACED}])[\w{re.escape(marks)}])+"
    return re.compile(rf"(?P<unspaced>[{UNSPACED}]+)|{spaced}")
