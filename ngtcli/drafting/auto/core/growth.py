"""The draft tree, grown best-first by the probability of whole paths, and its layout. Compiled."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.blend import (
    BACKGROUND,
    HEADS,
    PROMPT,
    Candidates,
    advance_path,
    ask,
    blend,
    named,
    query_for,
)
from ngtcli.drafting.auto.core.copies import WAYS
from ngtcli.drafting.guesses import WIDTH
from ngtcli.drafting.origins import DOCUMENT, HEAD, ORIGINS
from ngtcli.drafting.tries.counts import NONE
from ngtcli.system.compiled import njit, unowned

_DOCUMENT, _HEAD = ORIGINS.index(DOCUMENT), ORIGINS.index(HEAD)
# Tokens that one blend can find: those of every order of the sources with counts, of scores, of
# what is copied, and of heads.
_CANDIDATES = (
    CONFIG.orders * (BACKGROUND * CONFIG.scanned + CONFIG.scanned_background)
    + CONFIG.ranks_kept
    + WAYS
    + CONFIG.heads * WIDTH
)
_SLOTS = 1 << _CANDIDATES.bit_length()  # of the hash table: the first power of two above
_MIN_PATH = CONFIG.min_path_probability


class Growth(NamedTuple):
    """Nodes in the order of falling path probability; all arrays have one entry a node.

    `tokens` int32; `parents` int32, indices, -1 for the root; `probabilities` float64, of whole
    paths; `origins` int8, the source with the longest match; `trie_nodes` int32, the node's place
    in the counts of that source, by the longest match that leads there, NONE for scores.
    """

    tokens: npt.NDArray[np.int32]
    parents: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float64]
    origins: npt.NDArray[np.int8]
    trie_nodes: npt.NDArray[np.int32]


@njit()
def grow(
    arrays: Any, match_nodes: Any, escape: Any, budget: int, min_probability: float, children: int
) -> Any:
    """The `budget` likeliest nodes below the matches `match_nodes`, as `advance` keeps them.

    `arrays` are PlainArrays, `escape` is float64 (sources, orders, buckets). Nodes less likely than
    about `min_probability` are not searched, and of each node no more than its `children`
    likeliest: with 1 the tree is a chain. Returns a Growth as a plain tuple.
    """
    tokens, parents = np.empty(budget, np.int32), np.empty(budget, np.int32)
    probabilities, origins = np.empty(budget), np.empty(budget, np.int8)
    trie_nodes = np.empty(budget, np.int32)
    growth = Growth(tokens, parents, probabilities, origins, trie_nodes)
    matches = np.empty((budget + 1, match_nodes.shape[0], match_nodes.shape[1]), np.int32)
    _copy(match_nodes, matches[0])
    candidates = Candidates(
        np.empty(_CANDIDATES, np.int32),
        np.empty(_CANDIDATES),
        np.empty(_CANDIDATES, np.int8),
        np.zeros((_SLOTS, 2), np.int32),
        np.empty(children, np.int32),
    )
    own, query = named(arrays), query_for(match_nodes)
    n = _fill(own, matches, escape, min_probability, query, candidates, growth, children)
    return tokens[:n], parents[:n], probabilities[:n], origins[:n], trie_nodes[:n]


@unowned
def _fill(
    sources: Any, matches: Any, escape: Any, min_probability: float, query: Any, candidates: Any,
    growth: Any, children: int,
) -> int:  # fmt: skip
    """The loop of `grow`; the number of nodes. `matches[i + 1]` are those of node i.

    Behind the nodes that are taken, `growth` holds the likeliest of those that may come next, by
    falling probability, no more than there is still room for.
    """
    used, listed, path = 0, 0, 1.0
    while used < len(growth.tokens):
        least = min_probability / path
        n, _ = ask(sources, matches[used], escape, least, query)
        found = blend(sources, query, n, least, candidates, used + 1)
        listed = _offer(candidates, found, path, used, growth, listed, children)
        if used == listed:
            return used
        path, parent = growth.probabilities[used], growth.parents[used] + 1
        source = growth.origins[used]
        _copy(matches[parent], matches[used + 1])
        advance_path(sources, matches[used + 1], growth.tokens[used])
        growth.trie_nodes[used] = _longest(matches[used + 1, source])
        used += 1
    return used


@njit(inline="always")
def _offer(
    candidates: Any, found: int, path: float, parent: int, growth: Any, listed: int, children: int
) -> int:
    """List the likeliest candidates after node `parent` - 1; how many nodes are listed then."""
    most, probabilities = len(growth.tokens), candidates.probabilities
    least = growth.probabilities[most - 1] / path if listed == most else _MIN_PATH / path
    for i in range(_rank(probabilities, found, least, candidates.best, children)):
        best = candidates.best[i]
        # Counts of a damaged file may list a token several times, and then sum to more than 1.
        probability = path * min(1.0, probabilities[best])
        if listed == most and probability <= growth.probabilities[most - 1]:
            break
        at = min(listed, most - 1)
        while at > parent and growth.probabilities[at - 1] < probability:
            growth.tokens[at], growth.parents[at] = growth.tokens[at - 1], growth.parents[at - 1]
            growth.probabilities[at] = growth.probabilities[at - 1]
            growth.origins[at] = growth.origins[at - 1]
            at -= 1
        growth.tokens[at], growth.parents[at] = candidates.tokens[best], parent - 1
        growth.probabilities[at], growth.origins[at] = probability, candidates.origins[best]
        listed = min(listed + 1, most)
    return listed


@njit(inline="always")
def _rank(probabilities: Any, found: int, least: float, best: Any, most: int) -> int:
    """Put the indices of the highest of `found` probabilities into `best`, falling; how many.

    They are `most` at most, and above `least`. Of equal ones the first is first.
    """
    size = 0
    for i in range(found):
        if probabilities[i] <= least:
            continue
        at = min(size, most - 1)
        while at > 0 and probabilities[best[at - 1]] < probabilities[i]:
            best[at] = best[at - 1]
            at -= 1
        best[at] = i
        size = min(size + 1, most)
        if size == most:
            least = probabilities[best[most - 1]]
    return size


@njit(inline="always")
def _copy(old: Any, new: Any) -> None:
    for s in range(old.shape[0]):  # an assignment of slices takes seconds to compile
        for k in range(old.shape[1]):
            new[s, k] = old[s, k]


@njit(inline="always")
def _longest(nodes: Any) -> Any:
    """The match of the highest order but 0."""
    for k in range(len(nodes) - 1, 0, -1):
        if nodes[k] != NONE:
            return nodes[k]
    return NONE


@njit()
def arrange(
    tokens: Any, parents: Any, origins: Any, trie_nodes: Any, nodes: int, borders: Any
) -> Any:
    """The first `nodes` of a Growth, each followed by its likeliest child's subtree.

    The first four are arrays of it. Returns int32 (4, nodes): tokens, parents, origins as indices
    into ORIGINS, and places in the Growth. Among siblings the one that stands first is the
    likeliest. `borders` are those of `learn_prompt`: a node of the prompt that was first met
    between an even and the next odd one stands in a document.
    """
    order = _depth_first(parents[:nodes])
    place, out = np.empty(nodes, np.int32), np.empty((4, nodes), np.int32)
    for new in range(nodes):
        place[order[new]] = new
    for new in range(nodes):
        old = out[3, new] = order[new]
        out[0, new] = tokens[old]
        out[1, new] = place[parents[old]] if parents[old] >= 0 else -1
        out[2, new] = origins[old] if origins[old] < HEADS else _HEAD
        if origins[old] == PROMPT and _in_document(trie_nodes[old], borders):
            out[2, new] = _DOCUMENT
    return out


@njit(inline="always")
def _in_document(trie_node: int, borders: Any) -> bool:
    inside = False
    for border in borders:
        if border > trie_node:
            break
        inside = not inside
    return inside


@njit()
def _depth_first(parents: Any) -> Any:
    """Node indices, int32 (n,), parent before child, the subtree of the first sibling first."""
    n = len(parents)
    first, following = np.empty(n + 1, np.int32), np.empty(n, np.int32)
    for i in range(n + 1):
        first[i] = -1
    for i in range(n - 1, -1, -1):  # lists of children, built from behind
        following[i] = first[parents[i] + 1]
        first[parents[i] + 1] = i
    order, stack = np.empty(n, np.int32), np.empty(n + 2, np.int32)
    stack[0], high, used = first[0], 1, 0
    while high:
        high -= 1
        node = stack[high]
        if node == -1:
            continue
        order[used] = node
        used += 1
        stack[high], stack[high + 1] = following[node], first[node + 1]
        high += 2
    return order
