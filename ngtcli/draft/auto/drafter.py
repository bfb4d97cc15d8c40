"""`auto`: all matches blended, the tree grown best-first, as many nodes as pay.

The continuations of all matches, in the generated text, the prompt with its documents, earlier
answers of the model (the pool), a general text (background) and the model's own runners-up
(scores), are blended into one distribution (blend.py), at the root and again at every node from
that node's own path. The tree grows best-first by the probability of whole paths (growth.py). The
policy chooses how many nodes pay (policy.py). Escape probabilities start from `escapes.json`,
fitted on recorded runs (`python -m tests.tools.fit_escapes`), and every emitted token moves
them on.
"""

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.blend import BACKGROUND, ORDERS
from ngtcli.draft.auto.config import CONFIG, Options
from ngtcli.draft.auto.escapes import EscapeTallies, fitted_escapes
from ngtcli.draft.auto.growth import Growth, arrange, grow
from ngtcli.draft.auto.policy import Pause, Policy, Repeats, count_accepted
from ngtcli.draft.auto.ranks import ScoreUsefulness
from ngtcli.draft.auto.sources import Sources
from ngtcli.draft.costs import CostCurve, Costs
from ngtcli.draft.drafter import Context, Drafter, DraftSettings, Feedback
from ngtcli.draft.origins import ORIGINS, PolicyReport
from ngtcli.draft.pool import Pool
from ngtcli.draft.tree import DraftTree
from ngtcli.errors import counted
from ngtcli.trie.background import BackgroundCounts

_EMPTY = DraftTree()


class Auto(Drafter):
    """The drafter. While the policy pauses, emitted tokens wait and nothing is searched or learned.

    Every node counts as paying without `costs`, and where all passes have the same rows. Without
    `pool` nothing outlives an answer but the escape probabilities and what scores taught.
    `background` are counts of a general text. `sources`, where given, take the place of
    `background` and have the pool's answers counted; several drafters may share those counts.
    """

    origins = ORIGINS

    def __init__(
        self,
        options: Options,
        escapes: npt.NDArray[np.float64],
        costs: Costs | None = None,
        pool: Pool | None = None,
        sources: Sources | None = None,
        background: BackgroundCounts | None = None,
    ) -> None:
        self._costs = costs
        self._own_policy = Policy(costs.at_length(0)) if costs is not None else None
        self.policy = self._own_policy
        self.pool = pool
        self.tallies = EscapeTallies(escapes, options.trust)
        self.sources = sources or Sources(None, background)
        self._background = self.sources.background
        self._usefulness, self._search = ScoreUsefulness(), SearchLimits()
        if pool is not None:
            self.tallies.restore(pool.predicted, pool.reached)
            if sources is None:
                self.sources.earlier.learn(pool.answers)
        self._prompt: Sequence[int] = ()
        self._repeats = Repeats(())
        self._output: list[int] = []
        self._unlearned: list[int] = []
        self._growth: Growth | None = None  # what this step's draft was taken from
        self.pause = Pause()
        self._skips = False  # whether nothing is drafted in this step
        self._drafting_s = 0.0
        self.sources.match(())

    @classmethod
    def make(cls, settings: DraftSettings, options: Options) -> Self:
        """By the costs, the pool and the background of the settings."""
        compile_loops()
        background = settings.background
        return cls(options, fitted_escapes(), settings.costs, settings.pool, None, background)

    def reset(self, context: Context) -> None:
        """Start on a new prompt; the answer before it goes to the pool."""
        self.finish()
        self.policy = self._own_policy if context.rows is None else None
        if self.policy is not None and self._costs is not None:
            self.policy.start(self._costs.at_length(len(context.ids)))
        self.sources.background = context.background or self._background
        self.sources.start(context)
        self._prompt, self._repeats = context.ids, Repeats(context.ids)
        self._unlearned, self._growth = [], None
        self.pause, self._skips, self._drafting_s = Pause(), False, 0.0

    def learn(self, feedback: Feedback) -> None:
        """Learn the model's best tokens after the root and after every node."""
        self.sources.ranks.learn((self.sources.last, *feedback.tree.tokens), feedback.top)

    def finish(self) -> None:
        """End an answer: it joins the pool, with the tallies as they now are."""
        pool, output = self.pool, self._output
        self._output = []
        if pool is None or not output:
            return
        self._learn_output()
        pool.predicted = self.tallies.arrays.predicted.copy()
        pool.reached = self.tallies.arrays.reached.copy()
        kept = pool.add(output, self._prompt)
        self.sources.earlier.add(kept, pool)

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        """The likeliest continuations, at most `budget` nodes and no more than pay."""
        policy = self.policy
        self.top_k = 0
        if budget < 1 or self._pauses():
            self.skip()
            return _EMPTY
        clock = time.perf_counter()
        self._learn_output()
        if self.sources.ranks.vocabulary:
            self.top_k = self._usefulness.begin_step()
        if policy is not None:
            budget = min(budget, policy.curve.filled(self.bound(budget)))
        probabilities = self.search(budget)
        nodes = len(probabilities)
        if policy is not None:
            nodes, paying = policy.choose(probabilities)
            policy.stand_downs += self.pause.learn(paying > 0)
        tree = self.take(nodes, budget)
        self._drafting_s = time.perf_counter() - clock
        return tree

    def _pauses(self) -> bool:
        """Begin a step; whether it is one of a pause."""
        if self.policy is None or not self.pause.goes_on(self.has_repeated):
            return False
        self.policy.skip(f"paused, {counted(self.pause.left, 'more step')}")
        return True

    def bound(self, budget: int, children: int = CONFIG.children) -> int:
        """`budget`, or less where few nodes paid last: so many are worth a search.

        A chain is searched to its end: that costs little.
        """
        return budget if children == 1 else self._search.bound(budget)

    def search(self, budget: int, children: int = CONFIG.children) -> npt.NDArray[np.float64]:
        """The falling probabilities of the `budget` likeliest nodes; `take` then drafts them."""
        self._skips = False
        self._learn_output()
        known, tallies = self.sources.familiarity.familiar, self.tallies
        escapes = tallies.arrays.escape if known else tallies.without(BACKGROUND)
        arrays, nodes = self.sources.arrays, self.sources.nodes
        least = self._search.min_probability if children > 1 else 0.0
        self._growth = grow(arrays, nodes, escapes, budget, least, children)
        return self._growth.probabilities

    def take(self, nodes: int, budget: int) -> DraftTree:
        """The tree of the first `nodes` of those that the last search, for `budget`, found."""
        growth = self._growth
        assert growth is not None
        self._search.learn(growth.probabilities, budget, nodes)
        return self._tree(growth, nodes) if nodes else _EMPTY

    def _tree(self, growth: Growth, nodes: int) -> DraftTree:
        """The first nodes of a growth, the likeliest chain first, as verification likes them."""
        tokens, parents, origins = arrange(growth, nodes, self.sources.borders).tolist()
        return DraftTree(tuple(tokens), tuple(parents), origins=origins, names=self.origins)

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn the tokens that were emitted in a step; while paused they wait."""
        self._output += tokens
        self._unlearned += tokens
        if self._skips:
            return
        clock = time.perf_counter()
        if self.policy is not None:
            self.count_accepted(tokens, self.policy.tally)
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
            self.sources.own.end()
            self.sources.match(ids)

    def count_accepted(self, tokens: Sequence[int], tally: npt.NDArray[np.float64]) -> None:
        """Count in a policy's `tally` what became of the last draft; `tokens` were emitted."""
        if self._growth is not None:
            nodes, parents, probabilities, *_ = self._growth
            count_accepted(nodes, parents, probabilities, np.asarray(tokens, np.int32), tally)

    def skip(self) -> None:
        """Draft nothing in this step: what is emitted waits to be learned."""
        self._skips, self._growth = True, None

    def match_again(self) -> None:
        """Find the end of the text in all sources again, after the pool's counts were cleared."""
        known = len(self._output) - len(self._unlearned)
        text = [*self._prompt[-ORDERS:], *self._output[:known][-ORDERS:]]
        self.sources.match(text)

    def _learn_output(self) -> None:
        """Learn the tokens that wait."""
        if not self._unlearned:
            return
        new = np.asarray(self._unlearned, dtype=np.int32)
        self._unlearned = []
        before = self.tallies.predicted_by_scores()
        self.sources.learn(new, self.tallies)
        self._usefulness.learn(self.tallies.predicted_by_scores() - before, len(new))

    def has_repeated(self) -> bool:
        """Whether the last tokens stood in generated text or prompt before."""
        return self._repeats.at_end(self._output)

    def spent(self, rows: int, seconds: float) -> None:
        """Refine the cost of a pass."""
        if self.policy is not None:
            self.policy.curve.learn(rows, seconds)

    def explain(self) -> str:
        """Why the last step had the drafts it had."""
        return self.policy.why if self.policy is not None else "all drafts"

    def report(self) -> PolicyReport | None:
        """What the policy decided in this run."""
        return self.policy.report() if self.policy is not None else None


class SearchLimits:
    """How far the tree is searched: no further than lately paid, and no unlikelier nodes."""

    def __init__(self) -> None:
        self._paid = 1024  # nodes that paid last; at first as many as a setting allows
        self._last = 0.0  # usual probability of a full tree's last node

    @property
    def min_probability(self) -> float:
        """Of a path; less likely ones are not searched."""
        return self._last * CONFIG.floor_share

    def bound(self, budget: int) -> int:
        """`budget`, or less where few nodes paid last."""
        return min(budget, max(CONFIG.min_search, CONFIG.search_growth * self._paid))

    def learn(self, probabilities: npt.NDArray[np.float64], budget: int, pays: int) -> None:
        """A search for `budget` nodes found nodes of these falling probabilities; `pays` paid."""
        self._paid = pays
        self._last *= 1 - CONFIG.floor_rate
        if len(probabilities) == budget:
            self._last += CONFIG.floor_rate * probabilities[-1]


@lru_cache(maxsize=1)
def compile_loops() -> None:
    """Compile the inner loops, or load them: seconds once on a machine, then a quarter of one."""
    costs = Costs({CONFIG.short_context: CostCurve({1: 1.0})})
    drafter = Auto(Options(), fitted_escapes(), costs)
    drafter.reset(Context((1, 2, 1, 2), references=((2, 1),), vocabulary=3))
    drafter.propose((), 4)
    drafter.learn(Feedback(_EMPTY, np.zeros((1, CONFIG.ranks_read), np.int64)))
    drafter.observe([1])
    drafter.sources.prefer_first()
