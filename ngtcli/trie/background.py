"""Counts of a general text: what often follows what, built once, in one flat array.

It contains the sequences of at most `depth` tokens of the texts, as a CountTrie does, but none that
occur too seldom, and it does not grow: so nodes stand in breadth-first order, the children of a
node adjacent and sorted by token, and a child is found by bisection. A node takes 20 bytes.

The array is read as it stands in a file (background_file.py). Whoever reads it checks every index
and every count (background_search.py): with any content the worst are useless drafts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.trie.ngram import Ints, join, sorted_places

# Columns. Children of a node are the rows from its FIRST to the next row's. RANKED lists these rows
# by falling count. COUNT is of the node, FOLLOWED of all its continuations, the omitted included.
TOKEN, FIRST, COUNT, FOLLOWED, RANKED = range(5)
COLUMNS = 5
# Tokens, a context and what follows. Swept over 0.94 million tokens of English, mean acceptance
# length on odd ids at 32 nodes, with the pool: 2.655 with 7 and with 5, 2.651 with 4; each token
# costs a drafting step about 3 us.
DEPTH = 4
UNIT = 64  # a count of 1 is stored as so much; guess: weights such as log2(5) keep two digits
# Least counts of sequences of 1, 2, … tokens. Swept over 0.94 million tokens of English, mean
# acceptance length on odd ids at 32 nodes, with the pool: 2.655 with all (87 MB), 2.653 with these
# (21 MB), 2.643 with (1, 1, 2) (10 MB), 2.620 with (1, 2) (7 MB).
LEAST = (1.0, 1.0, 1.0, 2.0)
LARGEST = 2**31 - 1  # a stored number; derived: int32


@dataclass(frozen=True, slots=True)
class BackgroundCounts:
    """`nodes`, int32 (nodes + 1, COLUMNS): the root first; the last row only ends the children.

    The root's TOKEN is the size of the vocabulary: ids from it on are not drafted.
    """

    nodes: Ints

    def __len__(self) -> int:
        """How many nodes there are, without the root."""
        return len(self.nodes) - 2

    def count_of(self, sequence: Sequence[int]) -> float:
        """How often `sequence` was counted; 0 where it was omitted."""
        node = 0
        for token in sequence:
            low, high = self.nodes[node : node + 2, FIRST].tolist()
            node = low + int(np.searchsorted(self.nodes[low:high, TOKEN], token))
            if node == high or self.nodes[node, TOKEN] != token:
                return 0.0
        return float(self.nodes[node, COUNT]) / UNIT


def build_counts(
    texts: Iterable[tuple[Sequence[int] | Ints, float]],
    depth: int = DEPTH,
    least: Sequence[float] = LEAST,
) -> BackgroundCounts:
    """The counts of `texts`, pairs of token ids and the weight that one occurrence has.

    A sequence of k tokens is omitted with all that extend it if it weighs less than `least[k - 1]`;
    beyond the end of `least` its last value holds, and without any nothing is omitted.

    >>> counts = build_counts([([1, 2, 3, 1, 2], 1.0), ([1, 2], 0.5)], depth=2, least=(0, 2))
    >>> counts.count_of([1, 2]), counts.count_of([2, 3])
    (2.5, 0.0)
    """
    ids: list[Any] = []
    weights = []
    for text, weight in texts:
        ids.append(np.asarray(text, np.int32))
        weights.append(weight)
    stream, left = join(ids)
    places = sorted_places(stream, left, depth)
    weight_of = np.repeat(np.asarray(weights, np.float64), [len(text) + 1 for text in ids])
    bounds = [*least, *[least[-1] if least else 0.0] * depth][:depth]
    return BackgroundCounts(_levels(stream, left, places, weight_of, bounds))


def with_all_tokens(counts: BackgroundCounts) -> BackgroundCounts:
    """The same counts, with a child of the root for every id up to the largest, of count 0 if new.

    So the child for an id is in the row of that number after the first, found without a search.
    """
    nodes = counts.nodes
    first, end = int(nodes[0, FIRST]), int(nodes[1, FIRST])
    tokens = nodes[first:end, TOKEN]
    if first != 1 or end == first or len(tokens) > (every := int(tokens[-1]) + 1):
        return counts
    shift = every - len(tokens)
    children = np.zeros((every, COLUMNS), np.int32)
    children[:, TOKEN] = np.arange(every)
    children[tokens] = nodes[first:end]
    present = np.append(tokens, every)  # the children of an absent id begin where the next one's do
    begins = np.append(nodes[first:end, FIRST], nodes[end, FIRST])
    children[:, FIRST] = begins[np.searchsorted(present, np.arange(every))]
    ranked = tokens[nodes[first:end, RANKED] - first]
    absent = np.setdiff1d(np.arange(every), tokens)
    children[:, RANKED] = first + np.concatenate([ranked, absent])
    deeper = nodes[end:].copy()
    deeper[:-1, RANKED] += shift
    out = np.concatenate([nodes[:1], children, deeper])
    out[1:, FIRST] += shift
    return BackgroundCounts(out)


def _levels(
    stream: Ints,
    left: Ints,
    places: npt.NDArray[np.int64],
    weight_of: npt.NDArray[np.float64],
    bounds: Sequence[float],
) -> Ints:
    """The rows of all nodes, made depth by depth from the sorted places."""
    levels = [np.array([[LARGEST, 1, 0, 0, 0]], np.int32)]
    parent = np.zeros(len(places), np.int64)  # row of each place's node at the depth before
    begin, end = 0, 1  # rows of the depth before
    for depth, bound in enumerate(bounds, 1):
        inside = left[places] >= depth
        places, parent = places[inside], parent[inside]
        tokens = stream[places + depth - 1]
        is_first = np.ones(len(places), bool)
        is_first[1:] = (tokens[1:] != tokens[:-1]) | (parent[1:] != parent[:-1])
        first = np.flatnonzero(is_first)
        counts = np.add.reduceat(weight_of[places], first) if len(first) else np.zeros(0)
        followed = np.bincount(parent[first] - begin, counts, minlength=end - begin)
        levels[-1][:, FOLLOWED] = _stored(followed)
        kept = counts >= bound
        rows = end + np.cumsum(kept) - 1  # of the kept ones
        levels[-1][:, FIRST] = end + np.searchsorted(parent[first][kept], np.arange(begin, end))
        levels.append(_rows(tokens[first][kept], counts[kept], parent[first][kept], end))
        group = np.cumsum(is_first) - 1
        places, parent = places[kept[group]], rows[group][kept[group]]
        begin, end = end, end + int(kept.sum())
        levels[-1][:, FIRST] = end  # until the next depth has children
    return np.concatenate([*levels, np.array([[0, end, 0, 0, 0]], np.int32)])


def _rows(
    tokens: Ints, counts: npt.NDArray[np.float64], parents: npt.NDArray[np.int64], begin: int
) -> Ints:
    """Rows of a depth, the first of which is row `begin`."""
    rows = np.zeros((len(tokens), COLUMNS), np.int32)
    rows[:, TOKEN], rows[:, COUNT] = tokens, _stored(counts)
    rows[:, RANKED] = begin + np.lexsort((-counts, parents))
    return rows


def _stored(counts: npt.NDArray[Any]) -> Ints:
    stored: Ints = np.minimum(np.rint(counts * UNIT), LARGEST).astype(np.int32)
    return stored
