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
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.compiling import NAME
from ngtcli.drafting.auto.config import CONFIG, Options
from ngtcli.drafting.auto.core.blend import HEADS
from ngtcli.drafting.auto.core.growth import Growth, arrange, grow
from ngtcli.drafting.auto.core.sizes import count_accepted
from ngtcli.drafting.auto.core.tables import learn_ranks
from ngtcli.drafting.auto.escapes import EscapeTallies, TallyChanges, fitted_escapes
from ngtcli.drafting.auto.policy import Pause, Policy
from ngtcli.drafting.auto.prompts import PromptCounts, PromptMemory
from ngtcli.drafting.auto.sources import PoolCounts, Sources
from ngtcli.drafting.costs import SHORT, CostCurve, Costs
from ngtcli.drafting.drafter import Context, Drafter, Drafters, DraftSettings, Feedback, Text
from ngtcli.drafting.origins import ORIGINS, PolicyReport
from ngtcli.drafting.tree import DraftTree
from ngtcli.system.compiled import mark_ready

Floats = npt.NDArray[np.float64]
_EMPTY, _SETTINGS, _OPTIONS = DraftTree(), DraftSettings(), Options()
# Rows at which the cost of a pass over several sequences is learned, with those that calibration
# measures over one; a guess.
_ROWS = (96, 128, 192, 256, 384, 512, 1024)
# Observations that may be taken back. Expected tokens are at most as many as a draft has nodes, and
# each observation has one or more: so 1,024 are those of the largest draft.
_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class Observed:
    """Tokens that were observed at once, `start` to `end` of the output, and all as it was before.

    `nodes` are the matches, `changes` what the tokens taught; the others are Auto's own.
    """

    start: int
    end: int
    nodes: npt.NDArray[np.int32]
    changes: TallyChanges
    last: float
    paid: int
    pace_tokens: float


class Auto(Drafter):
    """The drafter of one text. What it shares with texts beside it is in `joint`.

    Without a pool nothing outlives an answer but the escape probabilities and what scores taught.
    """

    origins = ORIGINS

    def __init__(
        self,
        settings: DraftSettings = _SETTINGS,
        options: Options = _OPTIONS,
        joint: "AutoDrafters | None" = None,
    ) -> None:
        super().__init__(settings, options)
        self.joint = joint or AutoDrafters(settings, options, alone=True)
        self.heads, self.pool = settings.heads, settings.pool
        earlier = self.joint.texts if self.pool is None else self.joint.earlier
        self.sources = Sources(
            earlier, settings.background, settings.heads, prompts=self.joint.prompts
        )
        self.tallies = self.joint.tallies_of(settings)
        self._paid = 1024  # nodes that paid last; at first as many as a setting allows
        self._last = 0.0  # usual probability of a full tree's last node
        self._pace_s, self._pace_tokens = 0.0, 1.0
        self._output: list[int] = []
        self._observed = deque[Observed](maxlen=_REMEMBERED)
        self.reset(Context(()))

    @classmethod
    def prepare(cls) -> None:
        """Compile the inner loops, or load them."""
        compile_loops()

    @property
    def policy(self) -> Policy | None:
        """What decides the number of nodes; None where every node counts as paying."""
        return self.joint.policy

    def reset(self, context: Context) -> None:
        """Start on a new prompt; the answer before it goes to the pool."""
        self.finish()
        self.tallies.bound()
        self.joint.begin(context)
        if self.policy is not None:
            # Of late steps: passes' seconds and tokens emitted, at first those of a plain one.
            self._pace_s, self._pace_tokens = float(self.policy.curve.table(1)[0]), 1.0
        self.sources.start(context)
        self._children = 1 if context.chains else CONFIG.children
        if context.chains:
            # A tree has room for both. Measured on recordings, steps of chains of at most 16:
            # summarization 1% less, the built-in model 3% less, RAG and questions the same.
            self.sources.prefer_first()
        self._prompt = self._ids = context.ids
        self._growth: Growth | None = None  # what this step's draft was taken from
        self._observed.clear()
        self.pause = Pause()

    def finish(self) -> None:
        """End an answer: it joins the pool, with the tallies as they now are."""
        output, self._output = self._output, []
        self.sources.end()
        if self.pool is not None and output:
            self.pool.predicted, self.pool.reached = self.tallies.stored
            kept = self.pool.add(output, self._prompt, self.settings.background)
            self.joint.earlier.add(kept, self.pool)

    def leave(self) -> None:
        """Another drafter goes on with the answer: it does not join the pool from here."""
        self._output = []

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        """The likeliest continuations, at most `budget` nodes and no more than pay."""
        self._ids = ids
        (tree,) = self.joint.propose_within([self], [budget])
        reads_scores = self._growth is not None and len(self.sources.ranks.tokens)
        self.top_k = CONFIG.ranks_read if reads_scores else 0
        return tree

    def observe(self, tokens: Sequence[int]) -> None:
        """As Drafter.observe."""
        self.joint.learn_tokens([self], [tokens])

    def learn(self, feedback: Feedback) -> None:
        """Learn the model's best tokens after the root and after every node."""
        scored = np.array((self.sources.last, *feedback.tree.tokens), np.int32)
        learn_ranks(scored, feedback.top, self.sources.ranks)

    def retract(self, count: int, ids: Sequence[int]) -> None:
        """Forget tokens, and what they taught: all is as before the steps in which they came.

        What else was observed in the first of these steps is learned again.
        """
        length = len(self._output) - count
        if length < 0:  # another drafter goes on with the answer
            return
        again: list[int] = []
        self._growth = None
        for use in self.sources.guesses.uses:
            use.asked = False
        while self._observed and self._observed[-1].end > length:
            step = self._observed.pop()
            self.tallies.undo(step.changes)
            self._last, self._paid, self._pace_tokens = step.last, step.paid, step.pace_tokens
            again = self._output[step.start : length]
            forgotten, self._output = len(self._output) - step.start, self._output[: step.start]
            self.sources.retract(forgotten, self._output, step.nodes)
        self.extend(again)

    def spent(self, rows: int, seconds: float) -> None:
        """Refine the cost of a pass, and what a token takes."""
        self.joint.spent(rows, seconds)
        self._pace_s = CONFIG.pace_decay * self._pace_s + seconds

    def report(self) -> PolicyReport | None:
        """What the policy decided in this run."""
        if self.policy is None:
            return None
        return replace(self.policy.report(), heads=self.sources.guesses.report())

    # --- a step, as `AutoDrafters` does it ---

    def begin(self, budget: int) -> int:
        """Begin a step: how many nodes are worth a search, 0 in a pause.

        Where few nodes paid last they are few; a chain is searched to its end: that costs little.
        """
        self._growth = None
        if budget < 1 or (self.pause.left and self.pause.goes_on(self.sources.repeats)):
            return 0
        if self.policy is None or self._children == 1:
            return budget
        return min(budget, max(CONFIG.min_search, CONFIG.search_growth * self._paid))

    def search(self, budget: int) -> Floats:
        """The falling probabilities of the `budget` likeliest nodes; `take` then drafts them."""
        guesses = self.sources.guesses
        if guesses.heads:
            token_s = self._pace_s / self._pace_tokens if self.policy is not None else 0.0
            guesses.begin(self._ids, token_s)
            self.sources.take_guesses()
        escapes, children = self.tallies.escape, self._children
        least = self._last * CONFIG.floor_share if children > 1 else 0.0
        arrays, nodes = self.sources.arrays, self.sources.nodes
        self._growth = Growth(*grow(arrays, nodes, escapes, budget, least, children))
        return self._growth.probabilities

    def take(self, nodes: int, budget: int) -> DraftTree:
        """The tree of the first `nodes` of those that the last search, for `budget`, found."""
        assert self._growth is not None
        found, parents, probabilities, origins, places = self._growth
        self._paid = nodes
        self._last *= 1 - CONFIG.floor_rate
        if len(probabilities) == budget:
            self._last += CONFIG.floor_rate * probabilities[-1]
        if not nodes:
            return _EMPTY
        rows = arrange(found, parents, origins, places, nodes, self.sources.borders).tolist()
        return DraftTree(tuple(rows[0]), tuple(rows[1]), origins=rows[2], names=self.origins)

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on with `tokens`: count what became of the last draft, and learn them."""
        if not tokens:
            return
        start, before = len(self._output), self.tallies.copied()
        nodes, pace_tokens = self.sources.nodes.copy(), self._pace_tokens
        self._output += tokens
        self._pace_tokens = CONFIG.pace_decay * self._pace_tokens + len(tokens)
        new = np.asarray(tokens, np.int32)
        if self.policy is not None and self._growth is not None:
            nodes, parents, probabilities, *_ = self._growth
            count_accepted(nodes, parents, probabilities, new, self.policy.tally)
        self._growth = None
        self.tallies.recent.fill(0.0)
        self.sources.learn(new, self.tallies)
        for at, use in enumerate(self.sources.guesses.uses, HEADS):
            use.learn(*self.tallies.recent[at].tolist())
        changes, end = self.tallies.changes_since(before), len(self._output)
        own = self._last, self._paid, pace_tokens
        self._observed.append(Observed(start, end, nodes, changes, *own))


class AutoDrafters(Drafters[Auto]):
    """Drafts for the texts that one pass serves, and what they share: policy, tallies, the pool.

    With `alone` there is one text at a time, whose passes refine the costs that are kept, and heads
    guess. The costs of several start from those of one and are not kept. Without costs every node
    counts as paying, and so where all passes have the same rows. The pool holds earlier answers
    and gets those that finish; without one no text crosses sequences, nor to or from one that is
    private. `texts`, int32 (tokens,) each, are counted with the pool and stay.
    """

    def __init__(
        self,
        settings: DraftSettings = _SETTINGS,
        options: Options = _OPTIONS,
        texts: Sequence[npt.NDArray[np.int32]] = (),
        alone: bool = False,
    ) -> None:
        super().__init__(self._new, settings.num_draft)
        self.policy: Policy | None = None
        self._costs = settings.costs
        if settings.costs is not None:
            curve = settings.costs.at_length(0)
            if not alone:
                curve = CostCurve(curve.by_rows() | {rows: curve.at(rows) for rows in _ROWS})
            self.policy = Policy(curve)
        self._usual, self._is_alone = self.policy, alone
        self._settings, self._options = settings, options
        if not alone:
            self._settings = replace(settings, costs=None, heads=None)
        pool = settings.pool
        self.texts = PoolCounts(texts)  # for the sequences without a part in the pool
        self.earlier = PoolCounts(texts, pool.answers if pool else ())  # for all others together
        self._tallies: EscapeTallies | None = None  # of these together
        self.prompts = PromptMemory()
        self._drafting_s = 0.0

    def tallies_of(self, settings: DraftSettings) -> EscapeTallies:
        """For a text with such settings: the pool's, which all share, or else those fitted."""
        pool, heads = settings.pool, len(settings.heads.guessers) if settings.heads else 0
        if pool is not None and self._tallies is not None:
            return self._tallies
        tallies = EscapeTallies(fitted_escapes(heads), self._options.trust)
        if pool is not None:
            tallies.restore(pool.predicted, pool.reached)
            self._tallies = tallies
        return tallies

    def begin(self, context: Context) -> None:
        """A text begins: if it is alone the policy begins with it, by the costs of its length."""
        if not self._is_alone:
            return
        self.policy = None if context.free_nodes else self._usual
        if self.policy is not None and self._costs is not None:
            self.policy.start(self._costs.at_length(len(context.ids)))

    def start(self, context: Context) -> Auto:
        """A drafter for a sequence that begins."""
        drafter = self._new(context.private)
        drafter.reset(context)
        return drafter

    def _new(self, private: bool = False) -> Auto:
        settings = replace(self._settings, pool=None) if private else self._settings
        return Auto(settings, self._options, self)

    def propose(self, drafters: Sequence[Auto], texts: Sequence[Text]) -> list[DraftTree]:
        """A tree for each text; together no more nodes than pay."""
        places = [
            self._behind(drafter, text, min(self.most, text.left))
            for drafter, text in zip(drafters, texts, strict=True)
        ]
        budgets = [place.room if place.depth > 0 else 0 for place in places]
        trees = self.propose_within(drafters, budgets)
        return [
            place.whole(tree.cut(max(0, place.depth), budget))
            for tree, place, budget in zip(trees, places, budgets, strict=True)
        ]

    def propose_within(self, drafters: Sequence[Auto], budgets: Sequence[int]) -> list[DraftTree]:
        """The same, of at most these budgets of nodes.

        Where searching costs something, a sequence of which no nodes pay pauses.
        """
        clock, policy = time.perf_counter(), self.policy
        trees, rows = [_EMPTY] * len(drafters), len(drafters)
        searched, found = list[tuple[int, int]](), list[Floats]()  # place and bound; probabilities
        for i, drafter in enumerate(drafters):
            rows += drafter.sure
            if bound := drafter.begin(budgets[i]):
                filled = bound if policy is None else policy.curve.filled(bound)
                searched.append((i, bound := min(budgets[i], filled)))
                found.append(drafter.search(bound))
        for (i, bound), nodes, pays in zip(searched, *self._share(found, rows), strict=True):
            trees[i] = drafters[i].take(nodes, bound)
            if policy is not None:
                pays_off = pays > 0 or policy.drafts_cheaply(len(drafters))
                policy.stand_downs += drafters[i].pause.learn(pays_off)
        self._drafting_s = time.perf_counter() - clock if found else 0.0
        return trees

    def _share(self, found: Sequence[Floats], sequences: int) -> tuple[list[int], list[int]]:
        """How many nodes each sequence gets, of nodes with falling probabilities `found`.

        And how many of each pay, which are others where a number of nodes is tried. What is drafted
        for sure counts as `sequences` do: a row, and a token.
        """
        if self.policy is None:
            every = [len(probabilities) for probabilities in found]
            return every, every
        if not found:
            self.policy.skip()
            return [], []
        if len(found) == 1:
            size, pays = self.policy.choose(found[0], sequences)
            return [size], [pays]
        owner = np.repeat(np.arange(len(found)), [len(p) for p in found])
        probabilities = np.concatenate(found)
        order = np.argsort(-probabilities, kind="stable")
        sizes = self.policy.choose(probabilities[order], sequences)
        shares, paying = (np.bincount(owner[order[:k]], minlength=len(found)) for k in sizes)
        return shares.tolist(), paying.tolist()

    def observe(self, drafters: Sequence[Auto], emitted: Sequence[Sequence[int]]) -> None:
        """Learn the tokens that each sequence emitted in a step."""
        pairs = zip(drafters, emitted, strict=True)
        self.learn_tokens(drafters, [self._unknown(drafter, new) for drafter, new in pairs])

    def learn_tokens(self, drafters: Sequence[Auto], tokens: Sequence[Sequence[int]]) -> None:
        """Let each drafter learn the next tokens of its text, emitted or expected."""
        clock = time.perf_counter()
        for drafter, new in zip(drafters, tokens, strict=True):
            drafter.extend(new)
        if self.policy is not None and self._drafting_s:  # something was searched
            self.policy.learn_drafting(self._drafting_s + time.perf_counter() - clock)
            self._drafting_s = 0.0  # what is observed before the next search is no part of this one

    def spent(self, rows: int, seconds: float) -> None:
        """A pass over `rows` rows, of all sequences together, took `seconds`."""
        if self.policy is not None:
            self.policy.curve.learn(rows, seconds)


@lru_cache(maxsize=1)
def compile_loops() -> None:
    """Compile the inner loops, or load them: seconds once on a machine, then a quarter of one."""
    drafter = Auto(DraftSettings(costs=Costs({SHORT: CostCurve({1: 1.0})})))
    drafter.reset(Context((1, 2, 1, 2), references=((2, 1),), vocabulary=3))
    drafter.propose((), 4)
    drafter.learn(Feedback(_EMPTY, np.zeros((1, CONFIG.ranks_read), np.int64)))
    drafter.observe([1])
    drafter.sources.prefer_first()
    counts = PromptCounts(np.array([1, 2, 1, 2], np.int32), [])
    counts.change_to(np.array([1, 2, 1, 3], np.int32), [])
    mark_ready(NAME)
