"""Texts in one stream with the order of their suffixes, to find and count continuations.

`stream` has the tokens of all documents, each document followed by -1; `order` lists the places of
all tokens, sorted by the `depth` tokens that start there, a document's end before any token. The
places of a sequence of at most `depth` tokens thus are beside each other: a range of the order is
a node of the trie of all sequences, its length the node's count, its children are the runs in it.

The trie of "N-Gram Trie Speculative Decoding" (EMNLP 2025, section 3.1, eq. 1-4, Algorithm 1)
inserts, for every window of n tokens, its prefix of L_p tokens without its first 0 to L_p - 1
tokens, followed by its suffix. A sequence that starts at some place is thus inserted by the window
that starts there and, shortened, by up to L_p - 1 windows before it. So one trie of all windows,
each inserted once and cut at depth n, has the same nodes, and Algorithm 1's frequency of a node
at depth d is

    frequency = count * min(L_p, n - d + 1)

where `count` is the number of places at which the node's sequence occurs. This is exact except at
the two ends of a document: windows that reach over an end are indexed here, cut off at it, while
Algorithm 1 starts with the first and stops with the last full window.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
SEPARATOR = -1
NOWHERE = range(0)
_ZERO = np.zeros(1, np.int64)
_MAX_CACHED = 4096  # sequences of many places whose continuations are cached (guess)
_FEW = 32  # places that are looked at one by one (guess: numpy takes 20 us for any number)


class Corpus:
    """Lookup over a stream of documents.

    With an order that is not that of the suffixes, as a manipulated file may have it, results are
    wrong, but consist of tokens of the stream.

    Args:
        stream: int32, one-dimensional, as in the module's docstring.
        order: int32, one-dimensional, as well.
        depth: The tokens by which the places are sorted.
        sequences: The number of different sequences of at most `depth` tokens; None: not counted.

    >>> corpus = build([[1, 2, 3], [1, 2, 4]], depth=3)
    >>> [(token, len(found)) for token, _, found in corpus.below(corpus.find([1]), 1)]
    [(2, 2)]
    """

    def __init__(self, stream: Ints, order: Ints, depth: int, sequences: int | None = None) -> None:
        self.stream = stream
        self.order = order
        self.depth = depth
        self._sequences = sequences
        # Slices of a memoryview become Python ints without numpy's overhead per element.
        self._stream = stream.data
        self._order = order.data
        # Continuations of sequences with many places, by their range and depth.
        self._many: dict[tuple[int, int, int], list[tuple[int, int, range]]] = {}

    def __len__(self) -> int:
        """Return the number of tokens, without separators."""
        return len(self.order)

    def find(self, sequence: Sequence[int]) -> range:
        """Find where a sequence occurs and has a continuation.

        Args:
            sequence: Fewer than `depth` token ids.

        Returns:
            The range of the indices in `order` of these places: the node of the sequence.
        """
        size = len(sequence)
        needle = list(sequence)

        def text(index: int, length: int) -> list[int]:
            place = self._order[index]
            return self._stream[place : place + length].tolist()

        indices = range(len(self.order))
        low = bisect_left(indices, [*needle, 0], key=lambda index: text(index, size + 1))
        high = bisect_right(indices, needle, lo=low, key=lambda index: text(index, size))
        return range(low, high)

    def child(self, node: range, depth: int, token: int) -> range:
        """Return the child of a node for a token; an empty range if there is none.

        Args:
            node: The node of a sequence, as `find` returns it.
            depth: The number of tokens of the sequence.
            token: The token that follows it.
        """
        last = len(self._stream) - 1

        def following(index: int) -> int:
            return self._stream[min(self._order[index] + depth, last)]

        low = bisect_left(node, token, key=following)
        return node[low : bisect_right(node, token, lo=low, key=following)]

    def below(self, node: range, depth: int) -> Iterator[tuple[int, int, range]]:
        """Yield the children of a node, the most frequent first, then the earliest.

        Args:
            node: The node of a sequence, as `find` returns it.
            depth: The number of tokens of the sequence.

        Yields:
            The token, the first place of the sequence with that token after it, and its node.
        """
        if not node:
            return
        places = self._order[node.start : node.stop]
        last = len(self._stream) - 1
        token = self._stream[min(places[0] + depth, last)]
        if len(node) == 1 and token != SEPARATOR:
            yield token, places[0], node
        elif len(node) > _FEW:  # such sequences come again and again
            key = node.start, node.stop, depth
            children = self._many.get(key)
            if children is None:
                if len(self._many) >= _MAX_CACHED:
                    self._many.clear()
                children = self._many[key] = self._below_many(node, depth)
            yield from children
        elif token == self._stream[min(places[-1] + depth, last)] != SEPARATOR:
            yield token, min(places), node  # sorted, so all are the same
        else:
            yield from self._below_few(places.tolist(), node.start, depth)

    def _below_few(
        self, places: Sequence[int], start: int, depth: int
    ) -> Iterator[tuple[int, int, range]]:
        """Yield the same as `below`, in plain Python; `start` is the start of the node."""
        runs: list[tuple[int, int, int, int]] = []  # (-count, first place, index, token)
        last = len(self._stream) - 1
        tokens = [self._stream[min(place + depth, last)] for place in places]
        begin = 0
        for end in range(1, len(tokens) + 1):
            if end == len(tokens) or tokens[end] != tokens[begin]:
                if tokens[begin] != SEPARATOR:
                    runs.append((begin - end, min(places[begin:end]), begin, tokens[begin]))
                begin = end
        for count, first, begin, token in sorted(runs):
            yield token, first, range(start + begin, start + begin - count)

    def _below_many(self, node: range, depth: int) -> list[tuple[int, int, range]]:
        """Yield the same as `below`, with numpy."""
        places = self.order[node.start : node.stop]
        tokens = self.stream.take(places + depth, mode="clip")
        begins = np.concatenate([_ZERO, np.flatnonzero(tokens[1:] != tokens[:-1]) + 1])
        counts = np.concatenate([begins[1:], [len(tokens)]]) - begins
        firsts = np.minimum.reduceat(places, begins)
        tokens = tokens[begins]
        order = np.argsort(counts * -(1 << 32) + firsts)  # by falling count, then by first place
        begins += node.start
        rows = (row[order].tolist() for row in (tokens, firsts, begins, begins + counts))
        return [
            (token, first, range(begin, end))
            for token, first, begin, end in zip(*rows, strict=True)
            if token != SEPARATOR
        ]

    def most_frequent(self, size: int, limit: int) -> list[tuple[list[int], int]]:
        """List the most frequent sequences of `size` tokens, at most `limit`, with their counts."""
        heap: list[tuple[int, int, list[int], range]] = [(0, 0, [], range(len(self)))]
        frequent: list[tuple[list[int], int]] = []
        pushed = 0
        while heap and len(frequent) < limit:
            _, _, sequence, node = heappop(heap)
            if len(sequence) == size:
                frequent.append((sequence, len(node)))
                continue
            for token, _, child in self.below(node, len(sequence)):
                pushed += 1
                heappush(heap, (-len(child), pushed, [*sequence, token], child))
        return frequent

    @property
    def arrays(self) -> dict[str, Ints]:
        """Return the arrays of a file."""
        return {"stream": self.stream, "order": self.order}

    @property
    def sequences(self) -> int:
        """Return how many different sequences of at most `depth` tokens there are."""
        if self._sequences is None:
            self._sequences = self._count_sequences()
        return self._sequences

    def _count_sequences(self) -> int:
        total = 0
        places = self.order.astype(np.int64)
        differs = np.zeros(len(places), bool)  # from the one before, within the tokens looked at
        differs[:1] = True
        inside = np.ones(len(places), bool)
        for offset in range(self.depth):
            tokens = self.stream[np.minimum(places + offset, len(self.stream) - 1)]
            inside &= tokens != SEPARATOR
            differs[1:] |= tokens[1:] != tokens[:-1]
            total += int((differs & inside).sum())
        return total


def build(documents: Sequence[Sequence[int] | Ints], depth: int) -> Corpus:
    """Build the corpus of documents, each a sequence of token ids, sorted by `depth` tokens."""
    stream, tokens_left = join(documents)
    return Corpus(stream, sorted_places(stream, tokens_left, depth).astype(np.int32), depth)


def join(documents: Sequence[Sequence[int] | Ints]) -> tuple[Ints, Ints]:
    """Join documents, each a sequence of token ids.

    Returns:
        The stream, and for each of its places the number of tokens from it to the end of its
        document, 0 at a separator; int32 both.
    """
    parts: list[Any] = []
    counts: list[Any] = []
    for ids in documents:
        parts += [np.asarray(ids, dtype=np.int32), np.array([SEPARATOR], dtype=np.int32)]
        counts.append(np.arange(len(ids), -1, -1, dtype=np.int32))
    if not parts:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    return np.concatenate(parts), np.concatenate(counts)


def sorted_places(stream: Ints, tokens_left: Ints, n: int) -> npt.NDArray[np.int64]:
    """Sort places by the n tokens that start there, by prefix doubling (Manber & Myers 1990).

    Args:
        stream: The stream, as `join` returns it.
        tokens_left: The numbers of tokens, as `join` returns them.
        n: The number of tokens to sort by.

    Returns:
        int64 (tokens,). A sequence that ends with its document precedes its extensions, equal ones
        keep the text's order, separators are left out.
    """
    places = np.arange(len(stream))
    rank = stream.astype(np.int64) + 1  # 0: the separator, which sorts before every token
    width = 1
    while width < n:
        step = min(width, n - width)  # the second half may overlap the first
        second = np.zeros_like(rank)
        second[: max(len(rank) - step, 0)] = rank[step:]
        second[tokens_left <= step] = 0  # beyond the document's end nothing follows
        key = rank * (int(rank.max(initial=0)) + 1) + second
        order = np.argsort(key)
        sorted_key = key[order]
        is_first = np.ones(len(order), dtype=np.int64)
        is_first[1:] = sorted_key[1:] != sorted_key[:-1]
        rank = np.empty_like(rank)
        rank[order] = np.cumsum(is_first)
        rank[tokens_left == 0] = 0
        width += step
    return places[np.argsort(rank, kind="stable")][int((tokens_left == 0).sum()) :]
