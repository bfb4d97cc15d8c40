"""Counts of texts as a background has them, and how often tries and backgrounds counted what."""

from collections.abc import Iterator, Sequence

import numpy as np

from ngtcli.drafting.tries.background import (
    COUNT,
    DEPTH,
    FIRST,
    ROW,
    TOKEN,
    UNIT,
    BackgroundCounts,
    Level,
    lay_out,
)
from ngtcli.drafting.tries.corpus import Ints, join
from ngtcli.drafting.tries.counts import COUNT as COUNTED
from ngtcli.drafting.tries.counts import NONE, CountTrie, find


def count_of(counts: CountTrie | BackgroundCounts, sequence: Sequence[int]) -> float:
    """0 where the sequence was not counted, or was omitted."""
    node = 0
    for token in sequence:
        if isinstance(counts, CountTrie):
            node = find(counts.arrays.slots, node, token)
            if node == NONE:
                return 0
        else:
            low, high = counts.nodes[node : node + 2, FIRST].tolist()
            at = low + int(np.searchsorted(counts.by_token[low:high, TOKEN], token))
            if at == high or counts.by_token[at, TOKEN] != token:
                return 0.0
            node = int(counts.by_token[at, ROW])
    if isinstance(counts, CountTrie):
        return float(counts.arrays.counts[node, COUNTED])
    return float(counts.nodes[node, COUNT]) / UNIT


def build_counts(
    texts: Sequence[Sequence[int] | Ints], depth: int = DEPTH, least: Sequence[int] = (1, 1, 1, 2)
) -> BackgroundCounts:
    """The counts of `texts`, each a sequence of token ids.

    A sequence of k tokens is omitted with all that extend it if it occurs less than `least[k - 1]`
    times; beyond the end of `least` its last value holds, and without any nothing is omitted.

    >>> counts = build_counts([[1, 2, 3, 1, 2], [1, 2]], depth=2, least=(0, 2))
    >>> (counts.nodes[5:-1, COUNT] / UNIT).tolist()  # of (1, 2); (2, 3) and (3, 1) occur once
    [3.0]
    """
    bounds = [*least, *[least[-1] if least else 0] * depth][:depth]
    return lay_out(_levels(*join(texts), bounds))


def _levels(stream: Ints, left: Ints, bounds: Sequence[int]) -> Iterator[Level]:
    """The nodes of each depth; `stream` and `left` are those of `join`."""
    places = np.flatnonzero(left)
    parent, before = np.zeros(len(places), np.int64), 1  # of each place, and how many there are
    wide = int(stream.max(initial=0)) + 1
    for depth, bound in enumerate(bounds, 1):
        inside = left[places] >= depth
        places, parent = places[inside], parent[inside]
        key = parent * wide + stream[places + depth - 1]
        known, group = np.unique(key, return_inverse=True)
        counts = np.bincount(group, minlength=len(known))
        followed = np.bincount(parent, minlength=before)
        kept = counts >= bound
        at = known[kept]
        yield Level(at // wide, at % wide, counts[kept] * UNIT, followed * UNIT)
        number = np.cumsum(kept) - 1  # of the kept ones
        places, parent = places[kept[group]], number[group][kept[group]]
        before = len(at)
