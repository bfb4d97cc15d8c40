"""Mask tokens below nodes of a draft, which a model tuned by SPACE fills in the pass over it.

Masks stand below a node in a chain of probes: each at the position of a token of a continuation,
and each sees the node's path and the masks before it. The model chooses the token after the node by
the node's own row; the row of mask i (1, 2, …) guesses the one that follows i tokens later.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ngtcli.draft.tree import ROOT, DraftTree


def with_masks(tree: DraftTree, nodes: Iterable[int], masks: Sequence[int]) -> DraftTree:
    """A tree without probes, with a chain of `masks` below each of the nodes, or the root.

    >>> tree = with_masks(DraftTree((5,), (-1,)), [-1, 0], [9, 9])
    >>> tree.tokens, tree.parents, tree.probes
    ((5, 9, 9, 9, 9), (-1, -1, 1, 0, 3), 4)
    """
    tokens, parents = list(tree.tokens), list(tree.parents)
    for above in nodes:
        for mask in masks:
            parents.append(above)
            above = len(tokens)
            tokens.append(mask)
    probes = len(tokens) - len(tree)
    origins = [*tree.origins, *[0] * probes] if len(tree.origins) else ()
    return replace(
        tree, tokens=tuple(tokens), parents=tuple(parents), probes=probes, origins=origins
    )


def masks_after(tree: DraftTree, stop: int) -> list[int]:
    """The masks whose rows guess the tokens behind the one chosen after node `stop`, in order.

    They hang below that node, or else below the nearest above it that has some; as many of those as
    there are nodes between are left out.

    >>> tree = with_masks(DraftTree((5, 6), (-1, 0)), [-1, 0], [9, 9])
    >>> masks_after(tree, -1), masks_after(tree, 0), masks_after(tree, 1)
    ([2, 3], [4, 5], [5])
    """
    passed = 0
    while not (found := _below(tree, stop)) and stop != ROOT:
        stop, passed = tree.parents[stop], passed + 1
    return found[passed:]


def _below(tree: DraftTree, node: int) -> list[int]:
    """The chain of probes below a node."""
    found: list[int] = []
    for probe in range(tree.drafts, len(tree)):
        if tree.parents[probe] == node:
            found.append(probe)
            node = probe
    return found
