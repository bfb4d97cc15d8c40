"""`auto` for several sequences that one pass serves: one pool, one policy, shared rows.

Each sequence has a drafter of its own. The nodes of all of them compete for the rows of the pass:
the likeliest are taken, as many as the policy expects to pay (policy.py).
"""

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.config import CONFIG, Options
from ngtcli.draft.auto.drafter import Auto, compile_loops
from ngtcli.draft.auto.escapes import fitted_escapes
from ngtcli.draft.auto.policy import Policy
from ngtcli.draft.auto.sources import PoolCounts, Sources
from ngtcli.draft.costs import SHORT, CostCurve
from ngtcli.draft.drafter import Context, Drafters, DraftSettings, Text
from ngtcli.draft.origins import PolicyReport
from ngtcli.draft.pool import Pool
from ngtcli.draft.tree import DraftTree
from ngtcli.trie.background import BackgroundCounts

_EMPTY, _SETTINGS, _OPTIONS = DraftTree(), DraftSettings(), Options()
# Rows at which the cost of a pass over several sequences is learned, with those that calibration
# measures over one; a guess.
_ROWS = (96, 128, 192, 256, 384, 512, 1024)


class AutoDrafters(Drafters[Auto]):
    """Drafts for many sequences. `children` is the most of a node: with 1 drafts are chains.

    `curve` is the cost of a pass by all its rows; without one every node counts as paying. `pool`
    holds earlier answers and gets those that finish; without one no text crosses sequences.
    `texts`, int32 (tokens,) each, are counted with the pool and stay. `background` are counts of a
    general text.
    """

    def __init__(
        self,
        curve: CostCurve | None = None,
        pool: Pool | None = None,
        children: int = CONFIG.children,
        texts: Sequence[npt.NDArray[np.int32]] = (),
        background: BackgroundCounts | None = None,
        most: int = _SETTINGS.num_draft,
        options: Options = _OPTIONS,
    ) -> None:
        compile_loops()
        super().__init__(self._new, most)
        self._options = options
        self.policy = Policy(curve) if curve is not None else None
        self.pool, self._children = pool, children
        self._background = background
        self._texts = PoolCounts(texts)  # for the sequences without a part in the pool
        self._earlier = PoolCounts(texts)  # for all others together
        if pool is not None:
            self._earlier.learn(pool.answers)
        self._pooled: list[Auto] = []
        self._drafting_s = 0.0

    def start(self, context: Context, pooled: bool = True) -> Auto:
        """A drafter for a sequence that begins; unless `pooled` it has no part in the pool."""
        drafter = self._new(pooled)
        drafter.reset(context)
        if self._children == 1:
            # A tree has room for both. Measured on recordings, steps of chains of at most 16:
            # summarization 1% less, the built-in model 3% less, RAG and questions the same.
            drafter.sources.prefer_first()
        if drafter.pool is not None:
            self._pooled.append(drafter)
        return drafter

    def _new(self, pooled: bool = True) -> Auto:
        pool = self.pool if pooled else None
        sources = Sources(self._texts if pool is None else self._earlier, self._background)
        return Auto(self._options, fitted_escapes(), pool=pool, sources=sources)

    def finish(self, drafter: Auto) -> None:
        """A sequence has ended: what it said joins the pool, if it has a part in it."""
        before = self._earlier.cleared
        drafter.finish()
        self._pooled = [other for other in self._pooled if other is not drafter]
        if self._earlier.cleared > before:
            for other in self._pooled:
                other.match_again()

    def propose(self, drafters: Sequence[Auto], texts: Sequence[Text]) -> list[DraftTree]:
        """A tree for each text; together no more nodes than pay."""
        budgets = [min(self.most, text.left) if text.depth > 0 else 0 for text in texts]
        trees = self.propose_within(drafters, budgets)
        return [
            tree.cut(max(0, text.depth), budget)
            for tree, text, budget in zip(trees, texts, budgets, strict=True)
        ]

    def propose_within(self, drafters: Sequence[Auto], budgets: Sequence[int]) -> list[DraftTree]:
        """The same, of at most these budgets of nodes."""
        clock = time.perf_counter()
        trees = [_EMPTY] * len(drafters)
        drafting = self._drafting(drafters, budgets)
        bounds = [drafters[i].bound(budgets[i], self._children) for i in drafting]
        found = [
            drafters[i].search(bound, self._children)
            for i, bound in zip(drafting, bounds, strict=True)
        ]
        shares, paying = self._share(found, len(drafters))
        for i, nodes, bound in zip(drafting, shares, bounds, strict=True):
            trees[i] = drafters[i].take(nodes, bound)
        self._learn_pauses([drafters[i] for i in drafting], paying, len(drafters))
        self._drafting_s = time.perf_counter() - clock if drafting else 0.0
        return trees

    def _drafting(self, drafters: Sequence[Auto], budgets: Sequence[int]) -> list[int]:
        """Those that are drafted for: they have a budget and do not pause."""
        found = []
        for i, drafter in enumerate(drafters):
            if budgets[i] < 1 or drafter.pause.goes_on(drafter.has_repeated):
                drafter.skip()
            else:
                found.append(i)
        return found

    def _share(
        self, found: Sequence[npt.NDArray[np.float64]], sequences: int
    ) -> tuple[list[int], list[int]]:
        """How many nodes each sequence gets, of nodes with falling probabilities `found`.

        And how many of each pay, which are others where a number of nodes is tried.
        """
        if self.policy is None:
            every = [len(probabilities) for probabilities in found]
            return every, every
        if not found:
            self.policy.skip("paused")
            return [], []
        owner = np.repeat(np.arange(len(found)), [len(p) for p in found])
        probabilities = np.concatenate(found)
        order = np.argsort(-probabilities, kind="stable")
        sizes = self.policy.choose(probabilities[order], sequences)
        shares, paying = (np.bincount(owner[order[:k]], minlength=len(found)) for k in sizes)
        return shares.tolist(), paying.tolist()

    def _learn_pauses(
        self, drafters: Sequence[Auto], paying: Sequence[int], sequences: int
    ) -> None:
        """Where searching costs something, one of which no nodes pay pauses."""
        policy = self.policy
        if policy is None:
            return
        cheap = policy.drafts_cheaply(sequences)
        for drafter, nodes in zip(drafters, paying, strict=True):
            policy.stand_downs += drafter.pause.learn(cheap or nodes > 0)

    def observe(self, drafters: Sequence[Auto], emitted: Sequence[Sequence[int]]) -> None:
        """Learn the tokens that each sequence emitted in a step."""
        clock = time.perf_counter()
        for drafter, tokens in zip(drafters, emitted, strict=True):
            if self.policy is not None:
                drafter.count_accepted(tokens, self.policy.tally)
            drafter.observe(tokens)
        if self.policy is not None and self._drafting_s:  # something was searched
            self.policy.learn_drafting(self._drafting_s + time.perf_counter() - clock)

    def spent(self, rows: int, seconds: float) -> None:
        """A pass over `rows` rows, of all sequences together, took `seconds`."""
        if self.policy is not None:
            self.policy.curve.learn(rows, seconds)

    def report(self, drafter: Auto) -> PolicyReport | None:
        """The decisions so far, which are those for all sequences together."""
        return self.policy.report() if self.policy is not None else None


def make_many(settings: DraftSettings, options: Options) -> AutoDrafters:
    """By what passes over one sequence cost; these costs stay as they are."""
    curve = None
    if settings.costs is not None:
        one = settings.costs.at_length(SHORT)
        curve = CostCurve(one.by_rows() | {rows: one.at(rows) for rows in _ROWS})
    return AutoDrafters(
        curve,
        settings.pool,
        background=settings.background,
        most=settings.num_draft,
        options=options,
    )
