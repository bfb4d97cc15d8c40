"""SPACE (Yi et al. 2024, "Generation Meets Verification: Accelerating LLM Inference with Smart
Parallel Auto-Correct Decoding").

The target model itself is tuned to fill mask tokens: below a token with k masks the row of mask i
guesses the token that follows i places after the next one. Guessing and verification share a pass:
a chain of k masks is below the last token and below every drafted one. So whichever drafted token
is the last accepted, the pass has guesses of the tokens after it. Masks are probes: they are
scored, never accepted. If the model itself chooses a mask token, that is a token like others, as in
its own `generate`.

As in the authors' code (github.com/cteant/SPACE) the draft is the chain of each mask's likeliest
token, so that a pass has (k + 1)² rows. This holds with sampling, too: their code draws guesses and
accepts by rejection; here verification decides, because the text must not depend on drafts. The
option `nodes` drafts the likeliest nodes of a tree instead, where the probability of a node is the
product of the probabilities on its path. With `masked`, only the root and that many of the
likeliest nodes have masks below them. If probes share the budget, as in exact passes, as many nodes
have masks as there is room for. After a node without masks the guesses are those of the nearest
node above it that has some.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from ngtcli.drafting.drafter import Context, Draft, Drafter, DraftSettings, Outcome, Room
from ngtcli.drafting.guesses import NOTHING, WIDTH, Guessed
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.options import MethodOptions, option
from ngtcli.drafting.tree import ROOT, DraftTree, depth_first
from ngtcli.errors import UsageError


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """The options.

    Attributes:
        nodes: The maximum number of nodes of a tree; 0: draft a chain, as the authors' code does.
        masked: How many of the likeliest nodes have masks below them; 0: all.
    """

    nodes: int = option(0, 0, 256)
    masked: int = option(0, 0, 256)


class Space(Drafter):
    """The masks and the guesses of the last pass."""

    def __init__(self, settings: DraftSettings, options: Options) -> None:
        super().__init__(settings, options)
        if not settings.masks:
            raise UsageError(
                "the model was not tuned to fill masks",
                hint="Its config.json must have mask_id and mask_num (SPACE).",
            )

    def begin(self, context: Context) -> None:
        self._takes_masks = not context.chains
        self._shares = context.probes_count
        self._guessed = NOTHING

    def propose(self, log: TokenLog, room: Room) -> Draft:
        """Draft the nodes that the masks of the last forward pass guessed, and masks below them."""
        guessed = self._guessed
        self._guessed = NOTHING
        if not self._takes_masks:
            return Draft()
        masks = self.settings.masks
        options = self.options
        nodes = room.nodes
        if self._shares:
            masks = masks[: room.nodes]
            nodes = room.nodes - len(masks)
        if options.nodes:
            nodes = min(options.nodes, nodes)
            width = WIDTH
        else:
            nodes = min(len(masks), nodes)
            width = 1
        tokens, parents, probabilities = likeliest_nodes(guessed, nodes, width)
        masked = min(len(tokens), options.masked) if options.masked else len(tokens)
        if self._shares:
            masked = min(masked, (room.nodes - len(tokens)) // len(masks) - 1)
        order = depth_first(parents, probabilities)
        number_of = {node: i for i, node in enumerate([ROOT, *order], ROOT)}
        tree = DraftTree(tuple(tokens), tuple(parents)).take(order)
        with_mask = [number_of[node] for node in range(ROOT, masked)]
        return Draft(with_masks(tree, with_mask, masks))

    def learn(self, log: TokenLog, outcome: Outcome) -> None:
        """Keep the guesses of the masks after the last accepted token."""
        masks = [] if outcome.stop is None else masks_after(outcome.tree, outcome.stop)
        self._guessed = outcome.after(masks) if masks else NOTHING


def likeliest_nodes(
    guessed: Guessed, nodes: int, width: int
) -> tuple[list[int], list[int], list[float]]:
    """Choose the likeliest nodes, in descending order of the probabilities of their paths.

    Args:
        guessed: The guesses; row d applies to all nodes of depth d, whatever leads to them.
        nodes: The maximum number of nodes.
        width: How many tokens of each row are read.

    Returns:
        The tokens, the parents, and the probabilities of the paths.
    """
    tokens: list[int] = []
    parents: list[int] = []
    probabilities: list[float] = []
    waiting: list[tuple[float, int, int, int]] = []  # (-probability, parent, depth, rank)

    def offer(path: float, parent: int, depth: int, rank: int) -> None:
        if depth < len(guessed.tokens) and rank < min(width, guessed.tokens.shape[1]):
            probability = path * float(guessed.probabilities[depth, rank])
            heappush(waiting, (-probability, parent, depth, rank))

    offer(1.0, ROOT, 0, 0)
    while waiting and len(tokens) < nodes:
        probability, parent, depth, rank = heappop(waiting)
        offer(probabilities[parent] if parent != ROOT else 1.0, parent, depth, rank + 1)
        offer(-probability, len(tokens), depth + 1, 0)
        tokens.append(int(guessed.tokens[depth, rank]))
        parents.append(parent)
        probabilities.append(-probability)
    return tokens, parents, probabilities


def with_masks(tree: DraftTree, nodes: Iterable[int], masks: Sequence[int]) -> DraftTree:
    """Add masks to a tree without probes: a chain of them below each of `nodes`, or below ROOT.

    >>> tree = with_masks(DraftTree((5,), (-1,)), [-1, 0], [9, 9])
    >>> tree.tokens, tree.parents, tree.probes
    ((5, 9, 9, 9, 9), (-1, -1, 1, 0, 3), 4)
    """
    tokens = list(tree.tokens)
    parents = list(tree.parents)
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
    """Return the masks whose rows guess what follows the token that was chosen after node `stop`.

    These masks are below that node, or else below the nearest node above it that has masks. In this
    case the first ones are left out, one for each step up.

    >>> tree = with_masks(DraftTree((5, 6), (-1, 0)), [-1, 0], [9, 9])
    >>> masks_after(tree, -1), masks_after(tree, 0), masks_after(tree, 1)
    ([2, 3], [4, 5], [5])
    """
    levels_up = 0
    masks = _masks_below(tree, stop)
    while not masks and stop != ROOT:
        stop = tree.parents[stop]
        levels_up += 1
        masks = _masks_below(tree, stop)
    return masks[levels_up:]


def _masks_below(tree: DraftTree, node: int) -> list[int]:
    """Return the chain of probes below a node."""
    chain: list[int] = []
    for probe in range(tree.drafts, len(tree)):
        if tree.parents[probe] == node:
            chain.append(probe)
            node = probe
    return chain
