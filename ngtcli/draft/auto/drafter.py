"""`auto`: every match counts, the tree goes where it is worth most, and is as large as pays.

Continuations of all matched lengths, in the generated text, in the prompt with its documents, and
in earlier answers of the model (the pool), are blended into one distribution, by escapes as
in PPM (`blend.py`), at the root and again at every node of the tree from that node's own path. The
tree grows best-first by path probability. Escapes start from `escapes.json`, fitted on recorded
runs (`python -m ngtcli.evaluate.dev.fit_escapes`), and are moved on by every emitted token.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.blend import ORDERS, SCORES, SOURCES, advance, follow
from ngtcli.draft.auto.costs import SHORT, CostCurve, Costs
from ngtcli.draft.auto.escapes import SHAPE, fitted_escapes
from ngtcli.draft.auto.growth import arrange, grow
from ngtcli.draft.auto.policy import Policy, settle
from ngtcli.draft.auto.pool import Pool
from ngtcli.draft.auto.ranks import Ranks
from ngtcli.draft.auto.repeats import Repeats
from ngtcli.draft.drafter import (
    Context,
    Drafter,
    DraftSettings,
    Feedback,
    check_range,
    read_options,
)
from ngtcli.draft.tree import DraftTree
from ngtcli.trie.counts import NONE, CountTrie, learn_prompt

Ints = npt.NDArray[Any]
_PROMPT = SOURCES.index("prompt")
_FLOOR = 0.15  # of the usual chance of a tree's last node: less likely nodes are not looked for
_LEAST = 8  # nodes that are always looked for
RANKED = 3  # of the model's choices after a token are learned
_WORTH, _SELDOM = 0.02, 8  # tokens foretold below which scores are asked every so many steps
_FADE = 0.97  # a token
_EMPTY = DraftTree()
DOCUMENT = "document"  # of the prompt's tokens, those that stand in a document


@dataclass(frozen=True, slots=True)
class AutoOptions:
    """`trust` is how many observations the fitted escapes weigh against those made since."""

    trust: float = 100.0

    def __post_init__(self) -> None:
        check_range("trust", self.trust, 1.0, 1e6)


class Auto:
    """Holds what each source is asked of, and where each of them is matched.

    While the policy rests nothing is looked up, scored or learned: tokens wait until drafting is
    taken up again.
    """

    origins = (*SOURCES, DOCUMENT)

    def __init__(
        self,
        options: AutoOptions,
        escapes: npt.NDArray[np.float64],
        costs: Costs | None = None,
        pool: Pool | None = None,
    ) -> None:
        self._costs = costs
        self.policy = Policy(costs.at_length(0)) if costs is not None else None
        self.stops = (1.0 - escapes) * options.trust
        self.visits = np.full(SHAPE, options.trust)
        self.pool = pool
        self._earlier = CountTrie(ORDERS)
        self._ranks = Ranks(0)
        if pool is not None:
            self._recall(pool, options.trust)
        self.escapes = np.clip(1.0 - self.stops / self.visits, 0.001, 0.999)
        self._ids: Sequence[int] = ()
        self._output: list[int] = []
        self._floor, self._paid = 0.0, 1024
        self._worth, self._asked = 0.3, 0  # share of tokens that scores foretold, of late
        self.reset(Context(()))

    def _recall(self, pool: Pool, trust: float) -> None:
        """Take up what earlier sessions left; their tallies count as `trust` observations."""
        stops, visits = pool.stops, pool.visits
        if stops is not None and visits is not None and stops.size == self.stops.size:
            visits = visits.reshape(SHAPE)
            weight = np.minimum(1.0, trust / np.maximum(visits, 1e-9))
            self.stops = stops.reshape(SHAPE) * weight
            self.visits = np.maximum(visits * weight, 1e-3)
        for answer in pool.answers:
            self._earlier.end()
            self._earlier.extend(answer)

    def reset(self, context: Context) -> None:
        """Start on a new prompt; the answer before it goes to the pool."""
        self.finish()
        if self.policy is not None and self._costs is not None:
            self.policy.start(self._costs.at_length(len(context.ids)))
        self._own, self._prompt = CountTrie(ORDERS), CountTrie(ORDERS)
        if len(self._ranks.weights) != context.vocabulary:
            self._ranks = Ranks(context.vocabulary)
        self._ids = context.ids
        self._repeats = Repeats(context.ids)
        ids = np.asarray(context.ids, dtype=np.int32)
        self._documents = learn_prompt(self._prompt, ids, context.references)
        self._gather()
        self._at = np.full(SHAPE[:2], NONE, np.int32)
        self._at[:, 0] = 0
        self._last = int(ids[-1]) if len(ids) else 0
        for token in ids[-ORDERS:]:
            advance(self._held, self._at, token)
        self._waiting: list[int] = []
        self._grown: Sequence[Ints] = ()
        self._drafting_s = 0.0
        self._resting = False

    def _gather(self) -> None:
        tries = (self._own.arrays, self._prompt.arrays, self._earlier.arrays)
        self._held = (tries, self._ranks.arrays)

    @property
    def top_k(self) -> int:
        """How many of the model's next best choices are wanted.

        None while the policy rests, and seldom where they hardly ever foretell a token.
        """
        if self._resting or not len(self._ranks.weights):
            return 0
        self._asked += 1
        return RANKED if self._worth > _WORTH or self._asked % _SELDOM == 0 else 0

    def learn(self, feedback: Feedback) -> None:
        """Take the model's next best choices after every scored token for further guesses."""
        self._ranks.learn((self._last, *feedback.tree.tokens), feedback.top)

    def finish(self) -> None:
        """End an answer: it joins the pool, with the tallies as they now are."""
        pool, output = self.pool, self._output
        self._output = []
        if pool is None or not output:
            return
        self._catch_up()
        pool.stops, pool.visits = self.stops.copy(), self.visits.copy()
        kept = pool.add(output, self._ids)
        if self._earlier.tokens + sum(map(len, kept)) > 2 * pool.limit:
            self._earlier.clear()
            kept = pool.answers
        for answer in kept:
            self._earlier.end()
            self._earlier.extend(answer)

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        """The likeliest continuations, at most `budget` nodes and no more than pay."""
        policy = self.policy
        self._resting = budget < 1 or (policy is not None and policy.resting(self._repeat))
        if self._resting:
            return _EMPTY
        clock = time.perf_counter()
        self._catch_up()
        if policy is not None:  # no more than twice what paid last
            budget = min(budget, max(_LEAST, 2 * self._paid))
        grown = grow(self._held, self._at, self.escapes, budget, self._floor * _FLOOR)
        chances = grown[2]
        self._floor *= 0.8
        if len(chances) == budget:
            self._floor += 0.2 * chances[-1]
        pays = self._paid = len(chances) if policy is None else policy.choose(chances)
        tree = _EMPTY
        if pays:
            parts = [part[:pays] for part in grown]
            self._grown = parts[:3]
            tree = self._tree(*parts)
        self._drafting_s = time.perf_counter() - clock
        return tree

    def _tree(
        self, tokens: Ints, parents: Ints, chances: Ints, origins: Ints, standing: Ints
    ) -> DraftTree:
        """The same nodes with the likeliest chain first, as verification likes them."""
        new = arrange(
            tokens, parents, origins, standing, self._documents, _PROMPT, len(SOURCES)
        ).tolist()
        return DraftTree(tuple(new[0]), tuple(new[1]), origins=new[2], names=self.origins)

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn the tokens that were emitted in a step, later where the policy rests."""
        self._output += tokens
        self._waiting += tokens
        if self._resting:
            return
        clock = time.perf_counter()
        if self._grown and self.policy is not None:
            nodes, parents, chances = self._grown
            new = np.asarray(tokens, np.int32)
            settle(nodes, parents, chances, new, self.policy.tally)
        self._grown = ()
        self._catch_up()
        if self.policy is not None:
            self.policy.drafted(self._drafting_s + time.perf_counter() - clock)

    def _catch_up(self) -> None:
        """Learn the tokens that wait."""
        if not self._waiting:
            return
        new = np.asarray(self._waiting, dtype=np.int32)
        self._waiting = []
        self._own.reserve(len(new))
        self._gather()
        before = self.stops[SCORES].sum()
        self._own.used = follow(
            self._held, self._at, new, self.escapes, self.stops, self.visits, self._own.open,
            self._own.used,
        )  # fmt: skip
        fading = _FADE ** len(new)
        self._worth = fading * self._worth + (1 - fading) * (
            self.stops[SCORES].sum() - before
        ) / len(new)
        self._own.tokens += len(new)
        self._last = int(new[-1])

    def _repeat(self) -> bool:
        """Whether the last tokens stood in generated text or prompt before."""
        return self._repeats.at_end(self._output)

    def spent(self, rows: int, seconds: float) -> None:
        """Refine the cost of a pass."""
        if self.policy is not None:
            self.policy.curve.learn(rows, seconds)

    def explain(self) -> str:
        """Why the last step had the drafts it had."""
        return self.policy.why if self.policy is not None else "no costs known: all drafts"

    def report(self) -> dict[str, Any]:
        """What the policy did in this run, JSON-ready."""
        return self.policy.as_json() if self.policy is not None else {}


@lru_cache(maxsize=1)
def _compile() -> None:
    """Compile the inner loops, or load them: seconds once on a machine, then a quarter of one."""
    drafter = Auto(AutoOptions(), fitted_escapes(), Costs({SHORT: CostCurve({1: 1.0})}))
    drafter.reset(Context((1, 2, 1, 2), references=((2, 1),), vocabulary=3))
    drafter.propose((), 4)
    drafter.learn(Feedback(_EMPTY, np.zeros((1, RANKED), np.int64)))
    drafter.observe([1])


def make(settings: DraftSettings, options: Mapping[str, str]) -> Drafter:
    wanted = read_options(AutoOptions(), options)
    _compile()
    return Auto(wanted, fitted_escapes(), settings.costs, settings.pool)
