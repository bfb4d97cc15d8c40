"""The bounds of a draft: its size, and the expected tokens in front of it."""

from dataclasses import dataclass

from ngtcli.decoding.grammar.matcher import Matcher
from ngtcli.decoding.guide import prune
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.drafting.drafter import Room
from ngtcli.drafting.origins import GRAMMAR
from ngtcli.drafting.tree import DraftTree


@dataclass(frozen=True, slots=True)
class DraftBounds:
    """The bounds of a draft that continues after the tokens `front`, which the log expects.

    Attributes:
        max_nodes: The maximum number of nodes of the draft, without probes.
        max_depth: The maximum depth of the draft.
        max_rows: The maximum number of nodes and probes together.
        context_left: How many tokens fit into the context after `front`. The whole tree must fit
            there: some models keep tables with a row for each position in the cache.
        front: The expected tokens; they are in front of the draft, in the same tree.
        origins: The origin of each of these tokens.
        matcher: The state of the grammar after `front`; None if no grammar decides.
        is_chain: Whether the draft must not have branches.
    """

    max_nodes: int
    max_depth: int
    max_rows: int
    context_left: int
    front: tuple[int, ...] = ()
    origins: tuple[str, ...] = ()
    matcher: Matcher | None = None
    is_chain: bool = False

    @property
    def room(self) -> Room:
        """The bounds as the drafter needs them."""
        nodes = self.max_nodes if self.max_depth > 0 else 0
        return Room(max(0, nodes), self.origins.count(GRAMMAR))

    def tree(self, draft: DraftTree) -> DraftTree:
        """Return the tree to verify: `front`, and below it what the bounds leave of a draft."""
        if self.is_chain:
            draft = draft.first_chain()
        draft = draft.cut(
            max(0, self.max_depth), max(0, self.max_nodes), self.context_left, self.max_rows
        )
        if self.matcher is not None:
            draft = prune(
                draft, self.matcher, self.max_depth, min(self.max_nodes, self.context_left)
            )
        return draft.below_chain(self.front, self.origins)


def draft_bounds(sequence: DecodedSequence, max_nodes: int) -> DraftBounds:
    """Let the log of a sequence expect what its grammar forces; return the bounds of its draft."""
    assert sequence.drafter is not None
    log = sequence.log
    max_nodes = min(max_nodes, sequence.context_left)
    front: list[int] = []
    matcher = None
    if sequence.drafter.drafts:
        limit = max(0, min(sequence.max_depth, max_nodes))
        expected = log.expected
        if sequence.guide is not None and sequence.guide.grammar_decides:
            matcher = sequence.guide.matcher.copy()
            if all(map(matcher.follow, expected)):
                forced = matcher.force(limit - len(expected))
                log.expect(forced, [GRAMMAR] * len(forced))
                expected += forced
        front = expected[:limit]

    max_nodes -= len(front)
    context_left = sequence.context_left - len(front)
    return DraftBounds(
        max_nodes=max_nodes,
        max_depth=sequence.max_depth - len(front),
        # In exact passes probes count as nodes.
        max_rows=max_nodes if sequence.numerics.is_exact else context_left,
        context_left=context_left,
        front=tuple(front),
        origins=tuple(log.origins[: len(front)]),
        matcher=matcher,
        is_chain=sequence.context.chains,
    )
