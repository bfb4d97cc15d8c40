"""Counts of token sequences from counts of phrases, for the tokenizer at hand.

A sequence of tokens that begins in one word and ends in another occurs as often as the phrases from
the one word to the other do. So the counts are those of the text that the phrases were counted in,
but for what was too seldom to be a phrase.

Levels, below, are lists with an entry for each depth k: token ids, int64 (sequences, k), their
counts and the counts of what followed them, int64 (sequences,), in units of 1 / UNIT.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ngtcli.background.phrases import Ints, Phrases
from ngtcli.system.files import DamagedFileError
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import (
    COUNT,
    DEPTH,
    FIRST,
    FOLLOWED,
    TOKEN,
    UNIT,
    BackgroundCounts,
    Level,
    lay_out,
)

Wide = npt.NDArray[np.int64]
Counted = tuple[Wide, Wide, Wide]
# What a phrase's count is divided by, so that most count about as often as they were seen. Swept on
# odd questions: 1 and 20 give the same acceptance lengths within 0.5%.
WEIGHT = 5
# What a word is encoded behind, so that its ids are those in a text: letters behind a bracket,
# after which all tokenizers begin a new token, anything else behind a letter.
_BEFORE_LETTERS, _BEFORE_OTHERS = "(", "a"


def word_ids(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The ids of each word as it stands in a text; none where they depend on what is before it."""
    before = [_BEFORE_LETTERS if word[:1].isalnum() else _BEFORE_OTHERS for word in words]
    coded = _encode([b + word for b, word in zip(before, words, strict=True)], tokenizer)
    both = [_BEFORE_LETTERS, _BEFORE_OTHERS]
    marks = dict(zip(both, _encode(both, tokenizer), strict=True))
    found = []
    for b, ids in zip(before, coded, strict=True):
        mark = marks[b]
        parted = ids[: len(mark)] == mark and tokenizer.control.texts.keys().isdisjoint(ids)
        found.append(ids[len(mark) :] if parted else [])
    return found


def _encode(texts: list[str], tokenizer: Tokenizer) -> list[list[int]]:
    coded = tokenizer.backend(texts, add_special_tokens=False, return_attention_mask=False)
    ids: list[list[int]] = coded["input_ids"]
    return ids


def phrase_counts(phrases: Phrases, tokenizer: Tokenizer) -> BackgroundCounts:
    """The counts of all token sequences of at most DEPTH tokens in phrases, divided by WEIGHT."""
    ids = word_ids(phrases.words, tokenizer)
    sizes = np.array([len(i) for i in ids], np.int64)
    places = np.concatenate([[0], np.cumsum(sizes)])[:-1]
    flat = np.array([token for i in ids for token in i], np.int64)
    found: list[list[Counted]] = [[] for _ in range(DEPTH)]
    for rows, weights in phrases.rows:
        able = (sizes[rows] > 0).all(1)
        rows, counts = rows[able], weights[able].astype(np.int64) * UNIT // WEIGHT
        stream, starts = _stream(rows, flat, places, sizes)
        for begin, k, of in _spans(starts, sizes[rows]):
            tokens = stream[begin[:, None] + np.arange(k)]
            found[k - 1].append((tokens, counts[of], np.zeros_like(of)))  # no more than longer ones
    return lay_out(_merged(found))


def joined(parts: Sequence[BackgroundCounts]) -> BackgroundCounts:
    """The sums of several counts. Raises DamagedFileError: they may be of files not checked."""
    found: list[list[Counted]] = [[] for _ in range(DEPTH)]
    for part in parts:
        for levels, level in zip(found, _levels(part.nodes), strict=False):
            levels.append(level)
    return lay_out(_merged(found, sum(int(part.nodes[0, FOLLOWED]) for part in parts)))


def _levels(nodes: Ints) -> Iterator[Counted]:
    """The sequences of each depth, from the rows of BackgroundCounts."""
    paths, begin, end = np.zeros((1, 0), np.int64), 0, 1
    while begin < end:
        firsts = nodes[begin : end + 1, FIRST].astype(np.int64)
        children = firsts[1:] - firsts[:-1]
        begin, end = end, end + int(children.sum())
        tokens = nodes[begin:end, TOKEN].astype(np.int64)
        if end >= len(nodes) or children.min() < 0 or tokens.min(initial=0) < 0:
            raise DamagedFileError("its rows are damaged")
        if tokens.max(initial=0) >= nodes[0, TOKEN]:  # each below the largest takes a row
            raise DamagedFileError("ids beyond the vocabulary")
        paths = np.column_stack([np.repeat(paths, children, axis=0), tokens])
        if begin < end:
            counts, followed = nodes[begin:end, [COUNT, FOLLOWED]].astype(np.int64).T
            yield paths, counts, followed


def _stream(rows: Ints, flat: Wide, places: Wide, sizes: Wide) -> tuple[Wide, Wide]:
    """The ids of phrases one after the other, and where each begins."""
    of_word = sizes[rows].ravel()
    before = np.concatenate([[0], np.cumsum(of_word)])
    at = np.repeat(places[rows].ravel() - before[:-1], of_word) + np.arange(before[-1])
    return flat[at], before[:-1].reshape(rows.shape)[:, 0]


def _spans(starts: Wide, sizes: Wide) -> Iterator[tuple[Wide, int, Wide]]:
    """Of phrases of `sizes` tokens, (phrases, words), the sequences from first word to last.

    Yields (where they begin, their tokens, the phrases that they are of).
    """
    if not len(sizes):
        return
    first, last = sizes[:, 0], sizes[:, -1]
    if sizes.shape[1] == 1:
        longest = int(first.max())
        for skipped in range(longest):
            for k in range(1, min(DEPTH, longest - skipped) + 1):
                own = np.flatnonzero(first >= skipped + k)
                yield starts[own] + skipped, k, own
        return
    inner = sizes[:, 1:-1].sum(1)
    for left in range(1, min(DEPTH, int(first.max())) + 1):
        for right in range(1, min(DEPTH, int(last.max())) + 1):
            tokens = np.where((first >= left) & (last >= right), left + inner + right, DEPTH + 1)
            for k in np.unique(tokens[tokens <= DEPTH]).tolist():
                own = np.flatnonzero(tokens == k)
                yield starts[own] + first[own] - left, k, own


def _merged(found: Sequence[Sequence[Counted]], all_tokens: int = 0) -> Iterator[Level]:
    """The sums of the counts in levels; with each sequence stands the one without its last.

    `all_tokens` is the least that the root's FOLLOWED is: tokens may be in no level.
    """
    keys: list[Wide] = []  # of a depth's nodes, sorted: the parent's number there and the token
    wide = 1 + max((int(t.max()) for level in found for t, _, _ in level if t.size), default=0)
    least = np.array([all_tokens])  # of what followed the nodes of the depth before
    for level in found:
        made = [(_key(tokens, keys, wide), *counts) for tokens, *counts in level if len(tokens)]
        if not made:
            none = np.zeros(0, np.int64)
            yield Level(none, none, none, least)
            break
        key, *counted = (np.concatenate(parts) for parts in zip(*made, strict=True))
        known, group = np.unique(key, return_inverse=True)
        counts, follow = (np.bincount(group, part).astype(np.int64) for part in counted)
        parents, tokens = known // wide, known % wide
        followed = np.bincount(parents, counts, minlength=len(least)).astype(np.int64)
        yield Level(parents, tokens, counts, np.maximum(followed, least))
        keys.append(known)
        least = follow


def _key(tokens: Wide, keys: Sequence[Wide], wide: int) -> Wide:
    """Of sequences, int64 (m, k): the number of the parent at its depth, and the last token."""
    node = np.zeros(len(tokens), np.int64)
    for depth, known in enumerate(keys):
        node = np.searchsorted(known, node * wide + tokens[:, depth])
    return node * wide + tokens[:, -1]
