"""The draft tree: grown best-first by the probability of whole paths, and laid out. Compiled."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.blend import advance_path, ask, blend, new_query
from ngtcli.drafting.auto.core.candidates import new_candidates
from ngtcli.drafting.auto.core.copies import USED
from ngtcli.drafting.auto.core.forms import (
    DOCUMENT,
    ORIGIN,
    longest_matches,
    max_candidates,
    named,
)
from ngtcli.drafting.auto.core.loglinear import FEATURE_COUNT, named_stage, score
from ngtcli.drafting.tries.counts import NONE
from ngtcli.system.compiled import njit, unowned

_MIN_PATH = CONFIG.min_path_probability
_SHARE = CONFIG.stage_share
_CHAIN_SHARE = CONFIG.stage_chain_share


class Growth(NamedTuple):
    """Nodes in descending order of path probability; all arrays have one entry per node.

    Attributes:
        tokens: int32.
        parents: int32, indices, -1 for the root.
        probabilities: float64, of whole paths.
        credited: int8, the source whose longest match predicts the node.
        matches: int32, the longest match of the path to the node in that source, NONE for none.
    """

    tokens: npt.NDArray[np.int32]
    parents: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float64]
    credited: npt.NDArray[np.int8]
    matches: npt.NDArray[np.int32]


@njit()
def grow(
    plain: Any,
    plain_stage: Any,
    root: Any,
    escape: Any,
    budget: int,
    min_probability: float,
    children: int,
) -> Any:
    """Return the `budget` likeliest nodes below the matches `root`, as a Growth in a plain tuple.

    Args:
        plain: PlainTables.
        plain_stage: A Stage as a plain tuple.
        root: int32 (sources, orders), the matches of the end of the text.
        escape: float64 (sources, orders, buckets).
        min_probability: Nodes that are less likely than about this are not searched.
        children: The maximum number of children of a node; with 1 the tree is a chain.
    """
    growth = Growth(
        np.empty(budget, np.int32),
        np.empty(budget, np.int32),
        np.empty(budget),
        np.empty(budget, np.int8),
        np.empty(budget, np.int32),
    )
    matches = np.empty((budget + 1, root.shape[0], root.shape[1]), np.int32)
    _copy(root, matches[0])
    tables = named(plain)
    query = new_query(root)
    candidates = new_candidates(max_candidates(tables), children)
    stage = named_stage(plain_stage)
    cells = np.empty((1, FEATURE_COUNT), np.int32)
    depths = np.zeros(budget + 1, np.int32)
    n = _fill(
        tables,
        stage,
        matches,
        escape,
        min_probability,
        query,
        candidates,
        growth,
        children,
        depths,
        cells,
    )
    tokens, parents, probabilities, credited, longest = growth
    return tokens[:n], parents[:n], probabilities[:n], credited[:n], longest[:n]


@unowned
def _fill(
    tables: Any,
    stage: Any,
    matches: Any,
    escape: Any,
    min_probability: float,
    query: Any,
    candidates: Any,
    growth: Any,
    children: int,
    depths: Any,
    cells: Any,
) -> int:
    """Run the loop of `grow`; return the number of nodes.

    `matches[i + 1]` and `depths[i + 1]` belong to node i; `cells` is a buffer for `score`. After
    the taken nodes, `growth` holds the likeliest candidates for the next ones, in descending order
    of probability, at most as many as there is still room for.
    """
    used = 0
    listed = 0
    path = 1.0
    while used < len(growth.tokens):
        least = min_probability / path
        n, _ = ask(tables, matches[used], escape, least, query)
        size = blend(tables, query, n, least, candidates, used + 1)
        if len(stage.factors) > 0 and size > 0:
            before = growth.tokens[used - 1] if used else _last_token(tables.copies)
            enough = _least_scored(growth, listed, path, least, candidates, size, children)
            longest = longest_matches(tables, matches[used])
            score(
                stage, tables.copies, candidates, size, before, depths[used], longest, enough, cells
            )
        listed = _offer(candidates, size, path, used, growth, listed, children)
        if used == listed:
            return used
        path = growth.probabilities[used]
        parent = growth.parents[used] + 1
        depths[used + 1] = depths[parent] + 1
        _copy(matches[parent], matches[used + 1])
        advance_path(tables, matches[used + 1], growth.tokens[used])
        growth.matches[used] = _longest(matches[used + 1, growth.credited[used]])
        used += 1
    return used


@njit(inline="always")
def _last_token(copies: Any) -> Any:
    used = copies.sizes[USED]
    return copies.text[used - 1] if used else NONE


@njit(inline="always")
def _least_scored(
    growth: Any, listed: int, path: float, least: float, candidates: Any, size: int, children: int
) -> float:
    """Return about the probability by the blend that a candidate needs to enter the tree."""
    capacity = len(growth.tokens)
    if listed == capacity:
        least = max(least, growth.probabilities[capacity - 1] / path)
    min_probability = _SHARE * least
    if children == 1:  # only the likeliest comes into it
        likeliest = 0.0
        for i in range(size):
            likeliest = max(likeliest, candidates.probabilities[i])
        min_probability = max(min_probability, _CHAIN_SHARE * likeliest)
    return min_probability


@njit(inline="always")
def _offer(
    candidates: Any, size: int, path: float, parent: int, growth: Any, listed: int, children: int
) -> int:
    """List the likeliest candidates after node `parent` - 1; return the number of listed nodes."""
    capacity = len(growth.tokens)
    probabilities = candidates.probabilities
    least = growth.probabilities[capacity - 1] / path if listed == capacity else _MIN_PATH / path
    for i in range(_rank(probabilities, size, least, candidates.best, children)):
        best = candidates.best[i]
        # Counts of a damaged file may list a token several times, and then sum to more than 1.
        probability = path * min(1.0, probabilities[best])
        if listed == capacity and probability <= growth.probabilities[capacity - 1]:
            break
        at = min(listed, capacity - 1)
        while at > parent and growth.probabilities[at - 1] < probability:
            growth.tokens[at] = growth.tokens[at - 1]
            growth.parents[at] = growth.parents[at - 1]
            growth.probabilities[at] = growth.probabilities[at - 1]
            growth.credited[at] = growth.credited[at - 1]
            at -= 1
        growth.tokens[at] = candidates.tokens[best]
        growth.parents[at] = parent - 1
        growth.probabilities[at] = probability
        growth.credited[at] = candidates.credited[best]
        listed = min(listed + 1, capacity)
    return listed


@njit(inline="always")
def _rank(probabilities: Any, count: int, least: float, best: Any, max_count: int) -> int:
    """Write the indices of the highest of `count` probabilities to `best`; return how many.

    At most `max_count` are written, in descending order of probabilities above `least`. Equal ones
    keep their order.
    """
    size = 0
    for i in range(count):
        if probabilities[i] <= least:
            continue
        at = min(size, max_count - 1)
        while at > 0 and probabilities[best[at - 1]] < probabilities[i]:
            best[at] = best[at - 1]
            at -= 1
        best[at] = i
        size = min(size + 1, max_count)
        if size == max_count:
            least = probabilities[best[max_count - 1]]
    return size


@njit(inline="always")
def _copy(old: Any, new: Any) -> None:
    for s in range(old.shape[0]):  # an assignment of slices takes seconds to compile
        for k in range(old.shape[1]):
            new[s, k] = old[s, k]


@njit(inline="always")
def _longest(nodes: Any) -> Any:
    """Return the match of the highest order above 0."""
    for k in range(len(nodes) - 1, 0, -1):
        if nodes[k] != NONE:
            return nodes[k]
    return NONE


@njit()
def arrange(
    tokens: Any, parents: Any, credited: Any, matches: Any, nodes: int, spec: Any, borders: Any
) -> Any:
    """Return the first `nodes` of a Growth, each followed by its likeliest child's subtree.

    Among siblings the first is the likeliest.

    Args:
        tokens, parents, credited, matches: Arrays of the Growth.
        spec: As in Tables.
        borders: The result of `learn_prompt`: a node first counted between an even and the next
            odd entry is in a document.

    Returns:
        int32 (4, nodes): tokens, parents, origins as indices into ORIGINS, and indices of the nodes
        in the Growth.
    """
    order = _depth_first(parents[:nodes])
    place = np.empty(nodes, np.int32)
    out = np.empty((4, nodes), np.int32)
    for new in range(nodes):
        place[order[new]] = new
    for new in range(nodes):
        old = out[3, new] = order[new]
        source = credited[old]
        out[0, new] = tokens[old]
        out[1, new] = place[parents[old]] if parents[old] >= 0 else -1
        out[2, new] = spec[source, ORIGIN]
        if spec[source, DOCUMENT] != spec[source, ORIGIN] and _in_document(matches[old], borders):
            out[2, new] = spec[source, DOCUMENT]
    return out


@njit(inline="always")
def _in_document(node: int, borders: Any) -> bool:
    inside = False
    for border in borders:
        if border > node:
            break
        inside = not inside
    return inside


@njit()
def _depth_first(parents: Any) -> Any:
    """Return node indices, int32 (n,), parent before child, first sibling's subtree first."""
    n = len(parents)
    first = np.empty(n + 1, np.int32)
    following = np.empty(n, np.int32)
    for i in range(n + 1):
        first[i] = -1
    for i in range(n - 1, -1, -1):  # lists of children, built from the end
        following[i] = first[parents[i] + 1]
        first[parents[i] + 1] = i
    order = np.empty(n, np.int32)
    stack = np.empty(n + 2, np.int32)
    stack[0] = first[0]
    high = 1
    used = 0
    while high:
        high -= 1
        node = stack[high]
        if node == -1:
            continue
        order[used] = node
        used += 1
        stack[high] = following[node]
        stack[high + 1] = first[node + 1]
        high += 2
    return order
