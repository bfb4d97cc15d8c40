"""The n-gram trie of the documents: built once with numpy, in flat arrays, immutable.

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

Layout: nodes in breadth-first order, the children of a node adjacent, the most frequent first
(ties: the earliest in the text). A node of count 1 has no stored children: it points into the
tokens, and the text that follows there is its tail. -1 separates documents, and no window crosses
it.
"""

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]

SEPARATOR = -1
ROOT = 0


class NGramTrie:
    """Lookup over flat arrays. A node is an int; a node inside a tail is negative.

    `~place` is the tail node whose token is at `place` in the stream. `arrays`, all int32, are
    those of its file: `stream`, (tokens + documents,), has the tokens of all documents, each
    document followed by -1. The others are (nodes,), the root first: `token`, `count` (places),
    `link` (first child, or for count 1 the place of the node's token in `stream`), `degree`
    (children; 0 for count 1).
    """

    def __init__(self, arrays: Mapping[str, Ints], n: int, lp: int) -> None:
        self.arrays, self.n, self.lp = arrays, n, lp
        self._token = arrays["token"]
        # Indexing a memoryview gives a Python int in a third of the time numpy takes.
        names = ("token", "count", "link", "degree", "stream")
        self._tokens, self._count, self._link, self._degree, self._stream = (
            arrays[name].data for name in names
        )

    def __len__(self) -> int:
        return len(self._count)

    @property
    def tokens(self) -> int:
        """The number of tokens indexed, without separators."""
        return int((self.arrays["stream"] != SEPARATOR).sum())

    def count(self, node: int) -> int:
        """The number of places at which the node's sequence occurs."""
        return 1 if node < 0 else self._count[node]

    def token(self, node: int) -> int:
        """The last token of the node's sequence."""
        return self._stream[~node] if node < 0 else self._tokens[node]

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` for `token`, or None. The caller stays within depth n."""
        if node < 0 or not self._degree[node]:
            following = self._tail(node)
            return following if following is not None and self.token(following) == token else None
        first = self._link[node]
        hits = (self._token[first : first + self._degree[node]] == token).nonzero()[0]
        return first + int(hits[0]) if len(hits) else None

    def children(self, node: int) -> Iterator[int]:
        """The children of `node`, the most frequent first. The caller stays within depth n."""
        if node >= 0 and self._degree[node]:
            first = self._link[node]
            yield from range(first, first + self._degree[node])
        elif (following := self._tail(node)) is not None:
            yield following

    def _tail(self, node: int) -> int | None:
        if node >= 0:
            if self._count[node] != 1 or node == ROOT:
                return None
            place = self._link[node] + 1
        else:
            place = ~node + 1
        return ~place if self._stream[place] >= 0 else None

    def match(self, sequence: Sequence[int]) -> int | None:
        """The node of `sequence`, at most n tokens, or None."""
        node: int | None = ROOT
        for token in sequence:
            if node is None:
                return None
            node = self.child(node, token)
        return node

    def most_frequent(self, depth: int, most: int) -> list[tuple[list[int], int]]:
        """The `most` most frequent sequences of `depth` tokens, as (sequence, count), in order."""
        heap: list[tuple[int, int, list[int], int]] = [(-self.count(ROOT), 0, [], ROOT)]
        found: list[tuple[list[int], int]] = []
        pushed = 0
        while heap and len(found) < most:
            _, _, sequence, node = heappop(heap)
            if len(sequence) == depth:
                found.append((sequence, self.count(node)))
                continue
            for child in self.children(node):
                pushed += 1
                entry = [*sequence, self.token(child)]
                heappush(heap, (-self.count(child), pushed, entry, child))
        return found


def build_trie(documents: Sequence[Sequence[int]], n: int, lp: int) -> NGramTrie:
    """The trie of `documents`, each a sequence of token ids. Raises ValueError unless 1 <= lp < n.

    >>> trie = build_trie([[1, 2, 3, 1, 2]], n=3, lp=2)
    >>> trie.count(trie.match([1, 2])), [trie.token(c) for c in trie.children(trie.match([2]))]
    (2, [3])
    """
    if not 1 <= lp < n:
        raise ValueError(f"lp must be at least 1 and below n, not {lp} with n={n}")
    stream, left = join(documents)
    return NGramTrie(_levels(stream, sorted_places(stream, left, n), left, n), n, lp)


def join(documents: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """The stream, and per place the number of tokens from it to its document's end, at least 0."""
    parts: list[Any] = []
    lefts: list[Any] = []
    for ids in documents:
        parts += [np.asarray(ids, dtype=np.int32), np.array([SEPARATOR], dtype=np.int32)]
        lefts.append(np.arange(len(ids), -1, -1, dtype=np.int32))
    if not parts:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    return np.concatenate(parts), np.concatenate(lefts)


def sorted_places(stream: Ints, left: Ints, n: int) -> npt.NDArray[np.int64]:
    """Places sorted by the n tokens that start there, by prefix doubling (Manber & Myers 1990).

    `stream` and `left` are those of `join`. Returns int64 (tokens,): a sequence that ends with its
    document precedes its extensions, equal ones keep the text's order, separators are left out.
    """
    places = np.arange(len(stream))
    rank = stream.astype(np.int64) + 1  # 0: the separator, which sorts before every token
    width = 1
    while width < n:
        step = min(width, n - width)  # the second half may overlap the first
        second = np.zeros_like(rank)
        second[: max(len(rank) - step, 0)] = rank[step:]
        second[left <= step] = 0  # beyond the document's end nothing follows
        key = rank * (int(rank.max(initial=0)) + 1) + second
        order = np.argsort(key)
        sorted_key = key[order]
        is_first = np.ones(len(order), dtype=np.int64)
        is_first[1:] = sorted_key[1:] != sorted_key[:-1]
        rank = np.empty_like(rank)
        rank[order] = np.cumsum(is_first)
        rank[left == 0] = 0
        width += step
    return places[np.argsort(rank, kind="stable")][int((left == 0).sum()) :]


def _levels(stream: Ints, places: npt.NDArray[np.int64], left: Ints, n: int) -> dict[str, Ints]:
    """The trie's arrays, made depth by depth from the sorted places."""
    token, count, link, degree = ([np.array([v], np.int32)] for v in (SEPARATOR, len(places), 1, 0))
    parent = np.zeros(len(places), dtype=np.int64)  # node of each place at the depth before
    total = 1
    for depth in range(1, n + 1):
        inside = left[places] >= depth
        places, parent = places[inside], parent[inside]
        if not len(places):
            break
        ends = stream[places + depth - 1]
        is_first = np.ones(len(places), dtype=bool)
        is_first[1:] = (ends[1:] != ends[:-1]) | (parent[1:] != parent[:-1])
        first = np.flatnonzero(is_first)
        counts = np.diff(first, append=len(places))
        earliest = np.minimum.reduceat(places, first)
        parent_of = parent[first]
        order = np.lexsort((earliest, -counts, parent_of))
        ids = np.empty(len(order), dtype=np.int64)
        ids[order] = np.arange(total, total + len(order))
        token.append(ends[first][order].astype(np.int32))
        count.append(counts[order].astype(np.int32))
        unique = counts[order] == 1
        link.append(np.where(unique, earliest[order] + depth - 1, 0).astype(np.int32))
        degree.append(np.zeros(len(order), dtype=np.int32))
        parents, starts, sizes = np.unique(parent_of[order], return_index=True, return_counts=True)
        previous = total - len(token[-2])
        link[-2][parents - previous] = (total + starts).astype(np.int32)
        degree[-2][parents - previous] = sizes.astype(np.int32)
        total += len(order)
        group = np.cumsum(is_first) - 1
        repeated = counts[group] > 1  # a sequence that occurs once has no stored children
        places, parent = places[repeated], ids[group[repeated]]
    parts = {"token": token, "count": count, "link": link, "degree": degree}
    return {"stream": stream, **{name: np.concatenate(part) for name, part in parts.items()}}
