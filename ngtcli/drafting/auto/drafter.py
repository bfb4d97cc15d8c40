"""`auto`: blends all matches and grows the tree best-first, with as many nodes as pay off.

The continuations of all matches, in the generated text, the prompt with its documents, earlier
answers of the model (the pool), a general text (background) and the model's own runners-up
(scores), are blended into one distribution (blend.py), which a log-linear stage corrects
(loglinear.py), at the root and again at every node from that node's own path. The tree grows
best-first by the probability of whole paths (growth.py). The policy chooses how many nodes pay
(policy.py). Escape probabilities start from `escapes.json` and the weights of the stage from
`stage_weights.json`, both fitted on recorded runs; every emitted token moves them on.

If one forward pass serves several sequences, each has its own drafter. The nodes of all of them
compete for the rows of the pass: the likeliest are taken, as many as the policy expects to pay off.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto import NAME
from ngtcli.drafting.auto.config import CONFIG, Options
from ngtcli.drafting.auto.core.growth import Growth, arrange, grow
from ngtcli.drafting.auto.core.sizes import count_accepted
from ngtcli.drafting.auto.escapes import TallyChanges
from ngtcli.drafting.auto.policy import Pause
from ngtcli.drafting.auto.prompts import PromptCounts
from ngtcli.drafting.auto.shared import Shared, share
from ngtcli.drafting.auto.sources.source import Resources
from ngtcli.drafting.auto.sources.table import ORIGINS, Sources
from ngtcli.drafting.auto.weights import WeightChanges
from ngtcli.drafting.batch import Drafting
from ngtcli.drafting.costs import SHORT, CostCurve, Costs
from ngtcli.drafting.drafter import (
    Context,
    Draft,
    Drafter,
    DraftSettings,
    Outcome,
    Room,
)
from ngtcli.drafting.log import Mark, TokenLog
from ngtcli.drafting.origins import PolicyReport
from ngtcli.drafting.tree import DraftTree
from ngtcli.system.compiled import mark_ready

_EMPTY = DraftTree()
_SETTINGS = DraftSettings()
_OPTIONS = Options()
# Nodes that a step may have before any step has shown how many pay; derived: the largest setting.
_MAX_NODES = 1024
# Steps that may be taken back. Expected tokens are at most as many as a draft has nodes, and each
# step has one or more: so these are the steps of the largest draft.
_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class LearnedStep:
    """Tokens `start` to `end` of the log, which were learned at once, and the state before them.

    `changes` and `weight_changes` are what the tokens taught; `matches` were those of the sources,
    and the other fields those of Auto.
    """

    start: int
    end: int
    matches: npt.NDArray[np.int32]
    changes: TallyChanges
    weight_changes: WeightChanges
    last_probability: float
    nodes_paid: int
    pace_tokens: float


class Auto(Drafter):
    """The drafter of one sequence; `shared` is the state that it shares with other drafters.

    Without a pool only the escape probabilities, the weights of the log-linear stage and the ranks
    learned from scores outlive an answer. With `heads_only`, only the heads in the settings draft.
    """

    origins = ORIGINS

    def __init__(
        self,
        settings: DraftSettings = _SETTINGS,
        options: Options = _OPTIONS,
        shared: Shared | None = None,
        heads_only: bool = False,
    ) -> None:
        super().__init__(settings, options)
        self.shared = shared or Shared(settings, options, single=True)
        self.heads = settings.heads
        self.pool = settings.pool
        resources = Resources(
            answers=self.shared.texts if self.pool is None else self.shared.earlier,
            background=settings.background,
            heads=settings.heads,
            prompts=self.shared.prompts,
        )
        self.tallies = self.shared.tallies_of(settings)
        self.weights = self.shared.weights_of(settings)
        self.sources = Sources(resources, heads_only, self.weights)
        self._log: TokenLog | None = None  # of the sequence, once something was drafted or learned
        self._mark = Mark()
        self._length = 0  # How many tokens of the log are learned.
        self._steps = deque[LearnedStep](maxlen=_REMEMBERED)
        self._growth: Growth | None = None  # The search that this step's draft was taken from.
        self._searched = 0  # The maximum number of nodes of this step's search.
        # The nodes of the last draft, as many as were expected to pay off. Before the first: no
        # bound.
        self._nodes_paid = _MAX_NODES
        # Running mean of the probability of a tree's last node, 0 for a tree that is not full.
        self._last_probability = 0.0
        # Decaying sums over the last steps: the seconds of their forward passes, and the tokens
        # that they emitted. They start as those of one plain step.
        self._pace_s = 0.0
        self._pace_tokens = 1.0
        self._children = CONFIG.children
        self._pause = Pause()

    def begin(self, context: Context) -> None:
        """Start on a new prompt; an answer that was not closed is kept."""
        if self._log is not None:
            self.close()
        self.tallies.bound()
        self.shared.begin(context)
        policy = self.shared.policy
        if policy is not None:
            self._pace_s = float(policy.curve.table(1)[0])
            self._pace_tokens = 1.0
        self.sources.start(context)
        self._children = 1 if context.chains else CONFIG.children
        if context.chains:
            # A chain has room for only one of two equally frequent continuations: this takes the
            # first in the prompt. Measured on recordings with chains of at most 16 nodes: 1% fewer
            # steps for summaries, 3% fewer for the built-in model, as many for RAG and questions.
            self.sources.prompt.prefer_first()
        self._mark = Mark(len(context.ids))
        self._length = len(context.ids)
        self._steps.clear()
        self._growth = None
        self._pause = Pause()

    def propose(self, log: TokenLog, room: Room) -> Draft:
        """Draft the likeliest continuations: at most `room.nodes` nodes, as many as pay off."""
        (draft,) = propose_together([self], [log], [room])
        return draft

    def learn(self, log: TokenLog, outcome: Outcome) -> None:
        """Learn the model's best tokens after the root and every node, then the emitted tokens."""
        if outcome.top is not None:
            scored = np.array((self.sources.last, *outcome.tree.tokens), np.int32)
            self.sources.scores.learn(scored, outcome.top)
        if outcome.seconds is not None:
            self.shared.note_pass(outcome.rows, outcome.seconds)
            self._pace_s = CONFIG.pace_decay * self._pace_s + outcome.seconds
        started = time.perf_counter()
        self.sync(log)
        self.shared.note_learning(time.perf_counter() - started)

    def close(self, keep: bool = True) -> PolicyReport | None:
        """End an answer: it joins the pool, with the current tallies."""
        log = self._log
        self._log = None
        if log is not None:
            self.sync(log)
            self._log = None  # `sync` has set it again.
        self.sources.end()
        if keep and log is not None and log.emitted and self.pool is not None:
            prompt = log.token_ids[: log.prompt_length]
            self.pool.tally_predicted, self.pool.tally_reached = self.tallies.stored
            weights = self.weights.stored
            if weights is not None:  # an answer without the stage leaves what it learned before
                self.pool.factors, self.pool.squares = weights
            pieces = self.pool.add(log.output, prompt, self.settings.background)
            self.shared.earlier.add(pieces, self.pool)
        self.shared.end_step()
        policy = self.shared.policy
        if policy is None:
            return None
        return replace(policy.report(), heads=self.sources.heads.report())

    # --- following the log ---

    def sync(self, log: TokenLog) -> None:
        """Learn the new tokens in `log`, and forget those that were taken back."""
        self._log = log
        unchanged, new = log.since(self._mark)
        self._mark = log.mark
        if unchanged < self._length:
            self._go_back(log, unchanged)
        self._extend(new)

    def _go_back(self, log: TokenLog, length: int) -> None:
        """Forget the tokens after the first `length`, and everything learned from them.

        The state is reset to that before the steps in which they came. The other tokens of the
        first of these steps are learned again.
        """
        self._growth = None
        for use in self.sources.heads.uses:
            use.asked = False
        while self._steps and self._steps[-1].end > length:
            step = self._steps.pop()
            self.tallies.undo(step.changes)
            self.weights.undo(step.weight_changes)
            self._last_probability = step.last_probability
            self._nodes_paid = step.nodes_paid
            self._pace_tokens = step.pace_tokens
            output = log.token_ids[log.prompt_length : step.start]
            self.sources.retract(self._length - step.start, output, step.matches)
            self._length = step.start
        self._extend(log.token_ids[self._length : length])

    def _extend(self, tokens: Sequence[int]) -> None:
        """Count the outcome of the last draft, and learn the tokens that follow in the log."""
        if not tokens:
            return
        start = self._length
        tallies_before = self.tallies.copied()
        weights_before = self.weights.copied()
        matches_before = self.sources.matches.copy()
        pace_tokens_before = self._pace_tokens
        self._length += len(tokens)
        self._pace_tokens = CONFIG.pace_decay * self._pace_tokens + len(tokens)
        new = np.asarray(tokens, np.int32)
        policy = self.shared.policy
        if policy is not None and self._growth is not None:
            nodes, parents, probabilities, *_ = self._growth
            count_accepted(nodes, parents, probabilities, new, policy.tally)
        self._growth = None
        self.tallies.recent.fill(0.0)
        self.sources.learn(new, self.tallies)
        for row, use in enumerate(self.sources.heads.uses, self.tallies.heads):
            use.learn(*self.tallies.recent[row].tolist())
        self._steps.append(
            LearnedStep(
                start,
                self._length,
                matches_before,
                self.tallies.changes_since(tallies_before),
                self.weights.changes_since(weights_before),
                self._last_probability,
                self._nodes_paid,
                pace_tokens_before,
            )
        )

    # --- a draft, as `propose_together` makes it ---

    def search(self, log: TokenLog, room: Room) -> npt.NDArray[np.float64] | None:
        """Find the likeliest nodes; return their descending probabilities.

        Returns None in a pause, or without room.

        If few nodes paid off in the last step, few are searched. A chain is searched to its end,
        which costs little.
        """
        self.sync(log)
        self._growth = None
        if room.nodes < 1:
            return None
        if self._pause.left and self._pause.goes_on(self.sources.repeats):
            return None
        policy = self.shared.policy
        self._searched = room.nodes
        if policy is not None:
            nodes = room.nodes
            if self._children > 1:
                nodes = min(nodes, max(CONFIG.min_search, CONFIG.search_growth * self._nodes_paid))
            self._searched = min(room.nodes, policy.curve.filled(nodes))
        if self.sources.heads.rows:
            token_s = self._pace_s / self._pace_tokens if policy is not None else 0.0
            self.sources.heads.propose(log.token_ids, token_s)
        floor = self._last_probability * CONFIG.floor_share if self._children > 1 else 0.0
        growth = grow(
            self.sources.arrays,
            self.sources.stage.arrays,
            self.sources.matches,
            self.tallies.escape,
            self._searched,
            floor,
            self._children,
        )
        self._growth = Growth(*growth)
        return self._growth.probabilities

    def take(self, nodes: int) -> Draft:
        """Return the tree of the first `nodes` nodes of the last search."""
        assert self._growth is not None
        tokens, parents, probabilities, credited, matches = self._growth
        self._nodes_paid = nodes
        self._last_probability *= 1 - CONFIG.floor_rate
        if len(probabilities) == self._searched:
            self._last_probability += CONFIG.floor_rate * probabilities[-1]
        reads_scores = self.shared.single and self.sources.scores.vocab_size
        top_k = CONFIG.ranks_read if reads_scores else 0
        if not nodes:
            return Draft(_EMPTY, top_k)
        spec = self.sources.spec
        borders = self.sources.prompt.borders
        rows = arrange(tokens, parents, credited, matches, nodes, spec, borders).tolist()
        tree = DraftTree(tuple(rows[0]), tuple(rows[1]), origins=rows[2], names=self.origins)
        return Draft(tree, top_k)

    def note_whether_paid(self, pays: bool) -> bool:
        """Learn whether the last draft paid off; return whether a pause begins."""
        return self._pause.learn(pays)


def propose_together(
    drafters: Sequence[Auto], logs: Sequence[TokenLog], rooms: Sequence[Room]
) -> list[Draft]:
    """Draft for the sequences of one forward pass, together no more nodes than pay off.

    All drafters have the same `Shared`. If searching has a cost, drafting pauses for a sequence if
    none of its nodes pays off.
    """
    if not drafters:
        return []
    started = time.perf_counter()
    shared = drafters[0].shared
    shared.end_step()
    policy = shared.policy
    searches = [
        drafter.search(log, room) for drafter, log, room in zip(drafters, logs, rooms, strict=True)
    ]
    searched = [probabilities for probabilities in searches if probabilities is not None]
    # Each sequence emits a bonus token, and what its grammar forces.
    certain_tokens = len(drafters) + sum(room.forced for room in rooms)
    shares = iter(share(searched, certain_tokens, policy))
    drafts: list[Draft] = []
    for drafter, probabilities in zip(drafters, searches, strict=True):
        if probabilities is None:
            drafts.append(Draft())
            continue
        nodes, paying = next(shares)
        drafts.append(drafter.take(nodes))
        if policy is not None:
            pays = paying > 0 or policy.drafts_cheaply(len(drafters))
            policy.pauses += drafter.note_whether_paid(pays)
    if searched:
        shared.note_search(time.perf_counter() - started)
    return drafts


def batch_drafting(settings: DraftSettings = _SETTINGS, options: Options = _OPTIONS) -> Drafting:
    """Make the drafters of a batch, whose nodes compete for the rows of the forward pass."""
    shared = Shared(settings, options)

    def make(context: Context) -> Auto:
        return Auto(shared.settings_for(settings, context.private), options, shared)

    return Drafting(make, settings.num_draft, propose_together)


@lru_cache(maxsize=1)
def compile_loops() -> None:
    """Compile the inner loops once per machine, or load them in a quarter of a second."""
    drafter = Auto(DraftSettings(costs=Costs({SHORT: CostCurve({1: 1.0})})))
    drafter.begin(Context((1, 2, 1, 2), references=((2, 1),), vocabulary=3))
    log = TokenLog((1, 2, 1, 2))
    drafter.propose(log, Room(4))
    log.emit([1])
    drafter.learn(log, Outcome(top=np.zeros((1, CONFIG.ranks_read), np.int64)))
    drafter.sources.prompt.prefer_first()
    counts = PromptCounts(np.array([1, 2, 1, 2], np.int32), [])
    counts.change_to(np.array([1, 2, 1, 3], np.int32), [])
    mark_ready(NAME)
