"""How often tries and backgrounds counted a sequence, read slowly: what the tests compare."""

from collections.abc import Sequence

import numpy as np

from ngtcli.trie.background import COUNT, FIRST, ROW, TOKEN, UNIT, BackgroundCounts
from ngtcli.trie.counts import COUNT as COUNTED
from ngtcli.trie.counts import NONE, CountTrie, find


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
