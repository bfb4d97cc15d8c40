"""`auto`: all matches blended, the tree grown best-first, as many nodes as pay.

The continuations of all matches, in the generated text, the prompt with its documents, earlier
answers of the model (the pool), a general text (background) and the model's own runners-up
(scores), are blended into one distribution (blend.py), at the root and again at every node from
that node's own path. The tree grows best-first by the probability of whole paths (growth.py). The
policy chooses how many nodes pay (policy.py). Escape probabilities start from `escapes.json`,
fitted on recorded runs, and every emitted token moves them on.

Of several sequences that one pass serves each has a drafter of its own. The nodes of all of them
compete for the rows of the pass: the likeliest are taken, as many as the policy expects to pay.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.config import CONFIG, Options
from ngtcli.draft.auto.core.blend import HEADS, ORDERS, SCORES
from ngtcli.draft.auto.core.growth import Growth, arrange, grow
from ngtcli.draft.auto.core.learning import PREDICTS
from ngtcli.draft.auto.core.sizes import count_accepted
from ngtcli.draft.auto.escapes import EscapeTallies, fitted_escapes
from ngtcli.draft.auto.policy import Pause, Policy
from ngtcli.draft.auto.sources import PoolCounts, Sources
from ngtcli.draft.costs import SHORT, CostCurve, Costs
from ngtcli.draft.drafter import Context, Drafter, Drafters, DraftSettings, Feedback, Text
from ngtcli.draft.origins import ORIGINS, PolicyReport
from ngtcli.draft.tree import DraftTree

_EMPTY, _SETTINGS, _OPTIONS = DraftTree(), DraftSettings(), Options()
# Rows at which the cost of a pass over several sequences is learned, with those that calibration
# measures over one; a guess.
_ROWS = (96, 128, 192, 256, 384, 512, 1024)


class Auto(Drafter):
    """The drafter. While the policy pauses, emitted tokens wait and nothing is searched or learned.

    Every node counts as paying without costs, and where all passes have the same rows. Without a
    pool nothing outlives an answer but the escape probabilities and what scores taught. `sources`,
    where given, have the pool's answers counted; several drafters may share those counts, and
    `tallies`.
    """

    origins = ORIGINS

    def __init__(
        self,
        settings: DraftSettings = _SETTINGS,
        options: Options = _OPTIONS,
        sources: Sources | None = None,
        tallies: EscapeTallies | None = None,
    ) -> None:
        super().__init__(settings, options)
        costs, self.pool = settings.costs, settings.pool
        self._own_policy = Policy(costs.at_length(0)) if costs is not None else None
        self.heads = settings.heads
        self.sources = sources or Sources(None, settings.background, settings.heads)
        self.tallies = tallies or self._new_tallies()
        if self.pool is not None and sources is None:
            self.sources.earlier.learn(self.pool.answers)
        self._paid = 1024  # nodes that paid last; at first as many as a setting allows
        self._last = 0.0  # usual probability of a full tree's last node
        self._useful = CONFIG.usefulness_start  # share of tokens that scores predicted of late
        self._steps = 0  # in which scores may be read
        self._pace_s, self._pace_tokens = 0.0, 1.0
        self._output: list[int] = []
        self.reset(Context(()))

    def _new_tallies(self) -> EscapeTallies:
        """Those of the pool, or else those that were fitted."""
        tallies = EscapeTallies(fitted_escapes(len(self.sources.guesses.heads)), self.options.trust)
        if self.pool is not None:
            tallies.restore(self.pool.predicted, self.pool.reached)
        return tallies

    @classmethod
    def make(cls, settings: DraftSettings, options: Options) -> Self:
        """By the costs, the pool and the background of the settings."""
        compile_loops()
        return cls(settings, options)

    def reset(self, context: Context) -> None:
        """Start on a new prompt; the answer before it goes to the pool."""
        self.finish()
        free = context.rows is not None and context.rows.are_fixed  # nodes cost nothing
        self.policy = None if free else self._own_policy
        if self.policy is not None and self.settings.costs is not None:
            self.policy.start(self.settings.costs.at_length(len(context.ids)))
            # Of late steps: passes' seconds and tokens emitted, at first those of a plain one.
            self._pace_s, self._pace_tokens = float(self.policy.curve.table(1)[0]), 1.0
        self.sources.start(context)
        self._children = 1 if context.chains else CONFIG.children
        if context.chains:
            # A tree has room for both. Measured on recordings, steps of chains of at most 16:
            # summarization 1% less, the built-in model 3% less, RAG and questions the same.
            self.sources.prefer_first()
        self._prompt = context.ids
        self._unlearned: list[int] = []
        self._growth: Growth | None = None  # what this step's draft was taken from
        self.pause = Pause(context.ids)
        self._skips = False  # whether nothing is drafted in this step
        self._drafting_s = 0.0

    def learn(self, feedback: Feedback) -> None:
        """Learn the model's best tokens after the root and after every node."""
        self.sources.ranks.learn((self.sources.last, *feedback.tree.tokens), feedback.top)

    def finish(self) -> None:
        """End an answer: it joins the pool, with the tallies as they now are."""
        output, self._output = self._output, []
        if self.pool is None or not output:
            return
        self._learn_output()
        self.pool.predicted, self.pool.reached = self.tallies.stored
        self.sources.earlier.add(self.pool.add(output, self._prompt), self.pool)

    def leave(self) -> None:
        """Another drafter goes on with the answer: it does not join the pool from here."""
        self._output = []

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        """The likeliest continuations, at most `budget` nodes and no more than pay."""
        policy = self.policy
        self.top_k = 0
        paused = budget > 0 and policy is not None and self.pauses()
        if policy is not None and paused:
            policy.skip()
        if budget < 1 or paused:
            self.skip()
            return _EMPTY
        clock = time.perf_counter()
        if policy is not None:
            budget = min(budget, policy.curve.filled(self.bound(budget)))
        probabilities = self.search(budget, ids)
        if self.sources.ranks.vocabulary:  # useless scores are read seldom
            self._steps += 1
            useful = self._useful > CONFIG.min_usefulness or self._steps % CONFIG.seldom == 0
            self.top_k = CONFIG.ranks_read if useful else 0
        nodes = len(probabilities)
        if policy is not None:
            nodes, paying = policy.choose(probabilities)
        tree = self.take(nodes, budget)
        if policy is not None:
            policy.stand_downs += self.pause.learn(paying > 0)
        self._drafting_s = time.perf_counter() - clock
        return tree

    def pauses(self) -> bool:
        """Begin a step; whether it is one of a pause."""
        return self.pause.goes_on(self._output)

    def skip(self) -> None:
        """Draft nothing in this step: what is emitted waits to be learned."""
        self._skips, self._growth = True, None

    def bound(self, budget: int) -> int:
        """`budget`, or less where few nodes paid last: so many are worth a search.

        A chain is searched to its end: that costs little.
        """
        if self._children == 1:
            return budget
        return min(budget, max(CONFIG.min_search, CONFIG.search_growth * self._paid))

    def search(self, budget: int, ids: Sequence[int] = ()) -> npt.NDArray[np.float64]:
        """The falling probabilities of the `budget` likeliest nodes; `take` then drafts them.

        Where heads guess, `ids` are the whole text.
        """
        self._skips = False
        self._learn_output()
        if self.sources.guesses.heads:
            return self._search_with_heads(budget, ids)
        return self._grow(budget).probabilities

    def _search_with_heads(self, budget: int, ids: Sequence[int]) -> npt.NDArray[np.float64]:
        """Grow the tree, ask the heads after its likeliest nodes, and grow it again."""
        guesses = self.sources.guesses
        token_s = self._pace_s / self._pace_tokens if self.policy is not None else 0.0
        guessed = guesses.begin(ids, token_s)
        self.sources.take_guesses()
        growth = self._grow(budget)
        while guessed and guesses.extend_below(growth, token_s):
            growth = self._grow(budget)
        return growth.probabilities

    def _grow(self, budget: int) -> Growth:
        escapes, children = self.tallies.escape, self._children
        least = self._last * CONFIG.floor_share if children > 1 else 0.0
        arrays, nodes = self.sources.arrays, self.sources.nodes
        self._growth = Growth(*grow(arrays, nodes, escapes, budget, least, children))
        return self._growth

    def take(self, nodes: int, budget: int) -> DraftTree:
        """The tree of the first `nodes` of those that the last search, for `budget`, found."""
        assert self._growth is not None
        found, parents, probabilities, origins, places, _ = self._growth
        self._paid = nodes
        self._last *= 1 - CONFIG.floor_rate
        if len(probabilities) == budget:
            self._last += CONFIG.floor_rate * probabilities[-1]
        if not nodes:
            return _EMPTY
        rows = arrange(found, parents, origins, places, nodes, self.sources.borders).tolist()
        return DraftTree(tuple(rows[0]), tuple(rows[1]), origins=rows[2], names=self.origins)

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn the tokens that were emitted in a step; while paused they wait."""
        self._output += tokens
        self._unlearned += tokens
        self._pace_tokens = CONFIG.pace_decay * self._pace_tokens + len(tokens)
        if self._skips:
            return
        clock = time.perf_counter()
        if self.policy is not None:
            self.count_accepted(tokens, self.policy)
        self._growth = None
        self._learn_output()
        if self.policy is not None:
            self.policy.learn_drafting(self._drafting_s + time.perf_counter() - clock)

    def retract(self, count: int, ids: Sequence[int]) -> None:
        """Forget tokens; those already counted stay in the counts, as the end of a text."""
        waiting = min(count, len(self._unlearned))
        del self._unlearned[len(self._unlearned) - waiting :]
        del self._output[len(self._output) - count :]
        if count > waiting:
            self.sources.retract(count - waiting, ids)

    def count_accepted(self, tokens: Sequence[int], policy: Policy) -> None:
        """Count in a policy's tally what became of the last draft; `tokens` were emitted."""
        if self._growth is not None:
            nodes, parents, probabilities, *_ = self._growth
            emitted = np.asarray(tokens, np.int32)
            count_accepted(nodes, parents, probabilities, emitted, policy.tally)

    def match_again(self) -> None:
        """Find the end of the text in all sources again, after the pool's counts were cleared."""
        known = len(self._output) - len(self._unlearned)
        self.sources.match([*self._prompt[-ORDERS:], *self._output[:known][-ORDERS:]])

    def _learn_output(self) -> None:
        """Learn the tokens that wait."""
        if not self._unlearned:
            return
        new, self._unlearned = np.asarray(self._unlearned, np.int32), []
        self.tallies.recent[:] = 0.0
        self.sources.learn(new, self.tallies)
        recent = self.tallies.recent.tolist()
        kept = CONFIG.usefulness_decay ** len(new)
        self._useful = kept * self._useful + (1 - kept) * recent[SCORES][PREDICTS] / len(new)
        for use, own in zip(self.sources.guesses.uses, recent[HEADS:], strict=True):
            use.learn(*own)

    def spent(self, rows: int, seconds: float) -> None:
        """Refine the cost of a pass, and what a token takes."""
        if self.policy is not None:
            self.policy.curve.learn(rows, seconds)
            self._pace_s = CONFIG.pace_decay * self._pace_s + seconds

    def report(self) -> PolicyReport | None:
        """What the policy decided in this run."""
        if self.policy is None:
            return None
        return replace(self.policy.report(), heads=self.sources.guesses.report())


class AutoDrafters(Drafters[Auto]):
    """Drafts for many sequences.

    By what passes over one sequence cost; these costs stay as they are, and without them every node
    counts as paying. The pool holds earlier answers and gets those that finish; without one no text
    crosses sequences. `texts`, int32 (tokens,) each, are counted with the pool and stay.
    """

    def __init__(
        self,
        settings: DraftSettings = _SETTINGS,
        options: Options = _OPTIONS,
        texts: Sequence[npt.NDArray[np.int32]] = (),
    ) -> None:
        compile_loops()
        super().__init__(self._new, settings.num_draft)
        self._settings, self._options = replace(settings, costs=None), options
        self.policy: Policy | None = None
        if settings.costs is not None:
            one = settings.costs.at_length(SHORT)
            curve = CostCurve(one.by_rows() | {rows: one.at(rows) for rows in _ROWS})
            self.policy = Policy(curve)
        self._texts = PoolCounts(texts)  # for the sequences without a part in the pool
        self._earlier = PoolCounts(texts)  # for all others together
        if settings.pool is not None:
            self._earlier.learn(settings.pool.answers)
        self._pooled: list[Auto] = []
        self._tallies: EscapeTallies | None = None  # of these together
        self._drafting_s = 0.0

    def start(self, context: Context) -> Auto:
        """A drafter for a sequence that begins; one that is private has no part in the pool."""
        drafter = self._new(not context.private)
        drafter.reset(context)
        if drafter.pool is not None:
            self._pooled.append(drafter)
        return drafter

    def _new(self, pooled: bool = True) -> Auto:
        settings = self._settings if pooled else replace(self._settings, pool=None)
        if settings.pool is None:
            return Auto(settings, self._options, Sources(self._texts, settings.background))
        sources = Sources(self._earlier, settings.background)
        drafter = Auto(settings, self._options, sources, self._tallies)
        self._tallies = drafter.tallies
        return drafter

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
        """The same, of at most these budgets of nodes.

        Where searching costs something, a sequence of which no nodes pay pauses.
        """
        clock, policy = time.perf_counter(), self.policy
        trees = [_EMPTY] * len(drafters)
        found: dict[int, npt.NDArray[np.float64]] = {}
        bounds = [d.bound(b) for d, b in zip(drafters, budgets, strict=True)]
        for i, drafter in enumerate(drafters):
            if budgets[i] < 1 or drafter.pauses():
                drafter.skip()
            else:
                found[i] = drafter.search(bounds[i])
        shares, paying = self._share(list(found.values()), len(drafters))
        cheap = policy is not None and policy.drafts_cheaply(len(drafters))
        for i, nodes, pays in zip(found, shares, paying, strict=True):
            trees[i] = drafters[i].take(nodes, bounds[i])
            if policy is not None:
                policy.stand_downs += drafters[i].pause.learn(cheap or pays > 0)
        self._drafting_s = time.perf_counter() - clock if found else 0.0
        return trees

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
            self.policy.skip()
            return [], []
        owner = np.repeat(np.arange(len(found)), [len(p) for p in found])
        probabilities = np.concatenate(found)
        order = np.argsort(-probabilities, kind="stable")
        sizes = self.policy.choose(probabilities[order], sequences)
        shares, paying = (np.bincount(owner[order[:k]], minlength=len(found)) for k in sizes)
        return shares.tolist(), paying.tolist()

    def observe(self, drafters: Sequence[Auto], emitted: Sequence[Sequence[int]]) -> None:
        """Learn the tokens that each sequence emitted in a step."""
        clock = time.perf_counter()
        for drafter, tokens in zip(drafters, emitted, strict=True):
            if self.policy is not None:
                drafter.count_accepted(tokens, self.policy)
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


@lru_cache(maxsize=1)
def compile_loops() -> None:
    """Compile the inner loops, or load them: seconds once on a machine, then a quarter of one."""
    drafter = Auto(DraftSettings(costs=Costs({SHORT: CostCurve({1: 1.0})})))
    drafter.reset(Context((1, 2, 1, 2), references=((2, 1),), vocabulary=3))
    drafter.propose((), 4)
    drafter.learn(Feedback(_EMPTY, np.zeros((1, CONFIG.ranks_read), np.int64)))
    drafter.observe([1])
    drafter.sources.prefer_first()
