"""The state that the drafters of `auto` for the sequences of one forward pass share."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import Options
from ngtcli.drafting.auto.escapes import EscapeTallies
from ngtcli.drafting.auto.policy import Policy
from ngtcli.drafting.auto.pool_counts import PoolCounts
from ngtcli.drafting.auto.prompts import PromptMemory
from ngtcli.drafting.auto.sources.table import first_escapes
from ngtcli.drafting.auto.weights import StageWeights, first_weights
from ngtcli.drafting.costs import CostCurve
from ngtcli.drafting.drafter import Context, DraftSettings

Floats = npt.NDArray[np.float64]
# Rows at which the cost of a pass over several sequences is learned, with those that calibration
# measures over one (guess).
_ROWS = (96, 128, 192, 256, 384, 512, 1024)


class Shared:
    """Policy, tallies, counts of earlier answers and of prompts, for one or several drafters.

    With `single` there is one sequence at a time, whose passes refine the stored costs. The costs
    of several sequences start from those of one and are not stored. Every node counts as paying off
    if there are no costs, or if all passes have the same number of rows.

    Attributes:
        policy: Decides the number of nodes; None if every node counts as paying off.
        texts: Counts of texts that stay, for sequences that do not use the pool.
        earlier: Counts of these texts and of the pool, for all other sequences together.
        prompts: Counts of earlier prompts.
    """

    def __init__(
        self,
        settings: DraftSettings,
        options: Options,
        texts: Sequence[npt.NDArray[np.int32]] = (),
        single: bool = False,
    ) -> None:
        self.single = single
        self._options = options
        self._costs = settings.costs
        self.policy: Policy | None = None
        if settings.costs is not None:
            curve = settings.costs.at_length(0)
            if not single:
                curve = CostCurve(curve.by_rows() | {rows: curve.at(rows) for rows in _ROWS})
            self.policy = Policy(curve)
        self._policy_with_costs = self.policy
        pool = settings.pool
        self.texts = PoolCounts(texts)
        self.earlier = PoolCounts(texts, pool.answers if pool else ())
        self.prompts = PromptMemory()
        self._tallies: EscapeTallies | None = None  # of all sequences that use the pool
        self._weights: StageWeights | None = None  # of the same
        self._drafting_s = 0.0  # of this step
        self._pass: tuple[int, float] | None = None  # rows and seconds of this step's pass

    def settings_for(self, settings: DraftSettings, private: bool) -> DraftSettings:
        """Return the settings of one drafter of a batch.

        They have no heads, which read a single sequence, and no costs, which are shared. Those of
        a private sequence have no pool either.
        """
        settings = replace(settings, costs=None, heads=None)
        return replace(settings, pool=None) if private else settings

    def tallies_of(self, settings: DraftSettings) -> EscapeTallies:
        """Return the tallies of a sequence: those of the pool, which are shared, or fitted ones."""
        pool = settings.pool
        heads = len(settings.heads.guessers) if settings.heads else 0
        if pool is not None and self._tallies is not None:
            return self._tallies
        tallies = EscapeTallies(first_escapes(heads), self._options.trust, heads)
        if pool is not None:
            tallies.restore(pool.tally_predicted, pool.tally_reached)
            self._tallies = tallies
        return tallies

    def weights_of(self, settings: DraftSettings) -> StageWeights:
        """Return the weights of a sequence's log-linear stage: the pool's, or its own."""
        pool = settings.pool
        if pool is not None and self._weights is not None:
            return self._weights
        weights = StageWeights(first_weights() if self._options.loglinear else None)
        if pool is not None:
            weights.restore(pool.factors, pool.squares)
            self._weights = weights
        return weights

    def begin(self, context: Context) -> None:
        """Begin a sequence; the policy of a single one begins with it, by the costs of its length.

        If all passes have the same number of rows, a node costs nothing, and there is no policy.
        """
        self.end_step()
        if not self.single:
            return
        self.policy = None if context.free_nodes else self._policy_with_costs
        if self.policy is not None and self._costs is not None:
            self.policy.start(self._costs.at_length(len(context.ids)))

    def use_costs(self, curve: CostCurve) -> None:
        """Decide by the costs of a curve from now on."""
        self.policy = self._policy_with_costs = Policy(curve)

    def note_search(self, seconds: float) -> None:
        """Note the seconds that the drafts of this step took."""
        self._drafting_s = seconds

    def note_learning(self, seconds: float) -> None:
        """Note the seconds that learning from this step took, if it had drafts."""
        if self._drafting_s:
            self._drafting_s += seconds

    def note_pass(self, rows: int, seconds: float) -> None:
        """Note the seconds of this step's forward pass. Each of its sequences may do so."""
        self._pass = rows, seconds

    def end_step(self) -> None:
        """Learn from the times noted since the last step."""
        drafting_s = self._drafting_s
        timed = self._pass
        self._drafting_s = 0.0
        self._pass = None
        if self.policy is None:
            return
        if drafting_s:
            self.policy.learn_drafting(drafting_s)
        if timed is not None:
            self.policy.curve.learn(*timed)


def share(
    searched: Sequence[Floats], sequences: int, policy: Policy | None
) -> list[tuple[int, int]]:
    """Share the nodes of a forward pass among sequences: the likeliest nodes win.

    Args:
        searched: For each sequence, the probabilities that its nodes are accepted, in descending
            order.
        sequences: The number of tokens that the pass yields without drafts, each of which takes a
            row: one for each sequence, and those that are certain.
        policy: Decides how many nodes pay off; None if all do.

    Returns:
        For each sequence, how many of its first nodes to draft, and how many of them pay off. These
        differ if the policy tries another number of nodes.
    """
    if policy is None:
        return [(len(probabilities), len(probabilities)) for probabilities in searched]
    if not searched:
        policy.skip()
        return []
    if len(searched) == 1:
        return [policy.choose(searched[0], sequences)]
    count = len(searched)
    owner = np.repeat(np.arange(count), [len(probabilities) for probabilities in searched])
    probabilities = np.concatenate(searched)
    order = np.argsort(-probabilities, kind="stable")
    drafted, paying = policy.choose(probabilities[order], sequences)
    drafted_of = np.bincount(owner[order[:drafted]], minlength=count)
    paying_of = np.bincount(owner[order[:paying]], minlength=count)
    return list(zip(drafted_of.tolist(), paying_of.tolist(), strict=True))
