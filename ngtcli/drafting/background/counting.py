"""Counts of token sequences from counts of phrases, for one tokenizer.

A sequence of tokens that begins in one word and ends in another occurs as often as the phrases from
the one word to the other do. So the counts are those of the text in which the phrases were counted,
except for sequences that were too rare to be a phrase.

Levels, below, are lists with an entry for each depth k: token ids, int64 (sequences, k), and their
counts, int64 (sequences,), in units of 1 / UNIT.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.background.phrases import Ints, Phrases
from ngtcli.drafting.tries.background import DEPTH, UNIT, BackgroundCounts, Level, lay_out
from ngtcli.models.tokenizer import Tokenizer

Wide = npt.NDArray[np.int64]
Counted = tuple[Wide, Wide]
# What a phrase's count is divided by, so that most count about as often as they were seen. Swept on
# odd questions: 1 and 20 give the same acceptance lengths within 0.5%.
WEIGHT = 5
# What a word is encoded after, so that its ids are those in a text: letters after a bracket,
# after which all tokenizers begin a new token, anything else after a letter.
_BEFORE_LETTERS = "("
_BEFORE_OTHERS = "a"


def word_ids(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Return the ids of each word within a text; none if they depend on the text before it."""
    before = [_BEFORE_LETTERS if word[:1].isalnum() else _BEFORE_OTHERS for word in words]
    in_text = [first + word for first, word in zip(before, words, strict=True)]
    encoded = _encode(in_text, tokenizer)
    both = [_BEFORE_LETTERS, _BEFORE_OTHERS]
    marks = dict(zip(both, _encode(both, tokenizer), strict=True))
    control_ids = tokenizer.control.texts.keys()
    ids_of_words = []
    for first, ids in zip(before, encoded, strict=True):
        mark = marks[first]
        is_independent = ids[: len(mark)] == mark and control_ids.isdisjoint(ids)
        ids_of_words.append(ids[len(mark) :] if is_independent else [])
    return ids_of_words


def _encode(texts: list[str], tokenizer: Tokenizer) -> list[list[int]]:
    coded = tokenizer.backend(texts, add_special_tokens=False, return_attention_mask=False)
    ids: list[list[int]] = coded["input_ids"]
    return ids


def phrase_counts(phrases: Phrases, tokenizer: Tokenizer) -> BackgroundCounts:
    """Count all sequences of at most DEPTH tokens in phrases, divided by WEIGHT."""
    ids = word_ids(phrases.words, tokenizer)
    sizes = np.array([len(i) for i in ids], np.int64)
    places = np.concatenate([[0], np.cumsum(sizes)])[:-1]
    flat = np.array([token for i in ids for token in i], np.int64)
    levels: list[list[Counted]] = [[] for _ in range(DEPTH)]
    for rows, weights in phrases.rows:
        able = (sizes[rows] > 0).all(1)
        rows = rows[able]
        counts = weights[able].astype(np.int64) * UNIT // WEIGHT
        stream, starts = _stream(rows, flat, places, sizes)
        for begin, k, of in _spans(starts, sizes[rows]):
            tokens = stream[begin[:, None] + np.arange(k)]
            levels[k - 1].append((tokens, counts[of]))
    return lay_out(_merged(levels))


def _stream(rows: Ints, flat: Wide, places: Wide, sizes: Wide) -> tuple[Wide, Wide]:
    """Return the ids of phrases one after another, and where each phrase begins."""
    of_word = sizes[rows].ravel()
    before = np.concatenate([[0], np.cumsum(of_word)])
    at = np.repeat(places[rows].ravel() - before[:-1], of_word) + np.arange(before[-1])
    return flat[at], before[:-1].reshape(rows.shape)[:, 0]


def _spans(starts: Wide, sizes: Wide) -> Iterator[tuple[Wide, int, Wide]]:
    """Yield the sequences from first to last word of phrases, `sizes` being (phrases, words).

    Yields:
        Where the sequences begin, their number of tokens, and the phrases that they belong to.
    """
    if not len(sizes):
        return
    first = sizes[:, 0]
    last = sizes[:, -1]
    if sizes.shape[1] == 1:
        longest = int(first.max())
        for skipped in range(longest):
            for k in range(1, min(DEPTH, longest - skipped) + 1):
                phrases = np.flatnonzero(first >= skipped + k)
                yield starts[phrases] + skipped, k, phrases
        return
    inner = sizes[:, 1:-1].sum(1)
    for left in range(1, min(DEPTH, int(first.max())) + 1):
        for right in range(1, min(DEPTH, int(last.max())) + 1):
            tokens = np.where((first >= left) & (last >= right), left + inner + right, DEPTH + 1)
            for k in np.unique(tokens[tokens <= DEPTH]).tolist():
                phrases = np.flatnonzero(tokens == k)
                yield starts[phrases] + first[phrases] - left, k, phrases


def _merged(levels: Sequence[Sequence[Counted]]) -> Iterator[Level]:
    """Sum the counts in each level, and add for each sequence the one without its last token."""
    keys: list[Wide] = []  # of a depth's nodes, sorted: the parent's number there and the token
    width = 1 + max((int(t.max()) for level in levels for t, _ in level if t.size), default=0)
    parents_before = 1  # nodes of the depth before
    for level in levels:
        counted_keys = [
            (_key(tokens, keys, width), counts) for tokens, counts in level if len(tokens)
        ]
        if not counted_keys:
            none = np.zeros(0, np.int64)
            yield Level(none, none, none, np.zeros(parents_before, np.int64))
            break
        key, counted = (np.concatenate(parts) for parts in zip(*counted_keys, strict=True))
        known, group = np.unique(key, return_inverse=True)
        counts = np.bincount(group, counted).astype(np.int64)
        parents = known // width
        tokens = known % width
        followed = np.bincount(parents, counts, minlength=parents_before).astype(np.int64)
        yield Level(parents, tokens, counts, followed)
        keys.append(known)
        parents_before = len(known)


def _key(tokens: Wide, keys: Sequence[Wide], width: int) -> Wide:
    """Return the number of each sequence's parent at its depth, and its last token.

    The sequences are int64 (m, k).
    """
    node = np.zeros(len(tokens), np.int64)
    for depth, known in enumerate(keys):
        node = np.searchsorted(known, node * width + tokens[:, depth])
    return node * width + tokens[:, -1]
