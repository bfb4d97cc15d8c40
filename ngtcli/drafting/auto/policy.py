"""How many draft nodes pay off: expected tokens against the measured cost of a forward pass.

A pass over k nodes emits one token and the accepted ones. With p_i the probability that node i is
accepted and c(r) the seconds of a pass over r rows, the best k maximises

    (1 + p_1 + … + p_k) / (c(1 + k) + seconds of drafting)

If one pass serves s sequences, their nodes compete for its rows: with p_1, p_2, … the descending
probabilities of the nodes of all of them, s replaces each 1.

The probabilities are corrected by how often nodes of such a probability were accepted recently. The
cost of a pass is measured on the device at hand and refined by every step (costs.py). Passes are
padded to a few sizes, so that a k which fills its size is the best one that needs this size.

After several proposals in a row that did not pay off, drafting pauses until some steps have passed,
or the sequence repeats itself or its prompt.
"""

from collections import Counter

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.sizes import best_size, trust_of
from ngtcli.drafting.costs import CostCurve
from ngtcli.drafting.origins import PolicyReport

Floats = npt.NDArray[np.float64]


def averaged(average: float, seconds: float, rate: float) -> float:
    """Return a moving average with the last seconds, clipped to four times the average."""
    return average + rate * (min(seconds, 4 * average) - average) if average else seconds


class Policy:
    """The choice of the number of nodes of each step.

    `drafting_s` is the average time of a proposal in seconds; `tally` counts accepted and expected
    nodes and decays with each step.
    """

    def __init__(self, curve: CostCurve) -> None:
        self.drafting_s = 0.0
        self._proposals = 0
        self._trials = 0
        self._plain = 0  # steps since the last one that had drafts
        self.start(curve)

    def start(self, curve: CostCurve) -> None:
        """Begin a run: keep the costs, and forget the counts of the previous sequence."""
        self.curve = curve
        self.budgets: Counter[int] = Counter()
        self.pauses = 0  # pauses that have begun
        self.tally = np.zeros((2, CONFIG.bins))
        self._age = 0  # steps since the tally faded

    def skip(self) -> None:
        """Count a step in which nothing is searched."""
        self._age += 1
        self._plain += 1
        self.budgets[0] += 1

    def choose(self, probabilities: Floats, sequences: int = 1) -> tuple[int, int]:
        """Choose how many nodes to draft.

        Args:
            probabilities: The probabilities that nodes are accepted, of all sequences together, in
                descending order.
            sequences: The number of sequences that a forward pass serves.

        Returns:
            How many nodes to draft, and how many pay off. These differ if another number is tried.
        """
        costs = self.curve.table(len(probabilities) + sequences)
        self.tally *= CONFIG.trust_decay ** (self._age + 1)
        self._age = 0
        best, _, speedup = best_size(probabilities, costs, self.drafting_s, self.tally, sequences)
        pays = speedup > CONFIG.min_speedup
        size = self._explore(probabilities, int(best), pays, sequences)
        self.budgets[size] += 1
        self._plain = 0 if size else self._plain + 1
        return size, int(best) if pays else 0

    def drafts_cheaply(self, sequences: int) -> bool:
        """Return whether proposals take so little of a pass that pauses would save nothing."""
        plain = float(self.curve.table(sequences)[sequences - 1])
        return self.drafting_s < CONFIG.cheap_drafting * plain

    def _explore(self, probabilities: Floats, best: int, pays: bool, sequences: int) -> int:
        """Return `best`, or sometimes another size, to discover a wrongly measured cost.

        If drafts pay off, every few proposals try in turn no nodes, about twice `best`, and the
        best number by the calibrated costs. Otherwise, after many plain steps, one tries the best
        number by those costs, or 2 to 16 nodes.
        """
        self._proposals += 1
        turn, off = divmod(self._proposals, CONFIG.exploration)
        due = off == 0 if pays else self._plain >= CONFIG.plain_trial
        if not due:
            return best
        costs = self.curve.table_measured(len(probabilities) + sequences)
        calibrated = int(best_size(probabilities, costs, self.drafting_s, self.tally, sequences)[0])
        if pays:
            size = (0, 2 * best + 2, calibrated, 2 * best + 2)[turn % 4]
        else:
            size = calibrated or 2 << self._trials % 4
            self._trials += 1
        return min(len(probabilities), self.curve.filled(size) if size else 0)

    def learn_drafting(self, seconds: float) -> None:
        """Learn the seconds that a proposal took; the first one is slower than the others."""
        before = self.drafting_s or min(seconds, CONFIG.first_drafting_s)
        self.drafting_s = averaged(before, seconds, CONFIG.drafting_rate)

    def report(self) -> PolicyReport:
        """Return a report of the decisions and their grounds."""
        accepted, expected = self.tally.sum(axis=1)
        return PolicyReport(
            budgets=dict(self.budgets),
            stand_downs=self.pauses,
            came_true=float((accepted + 1) / (expected + 1)),
            trust=tuple(map(float, trust_of(self.tally))),
            drafting_s=self.drafting_s,
            cost_s=self.curve.by_rows(),
        )


class Pause:
    """Pauses in drafting, each twice as long as the last one until a proposal pays off.

    A pause begins after `patience` proposals in a row that did not. `left` is the number of steps
    that remain of the current pause; a repetition ends it.
    """

    def __init__(
        self,
        patience: int = CONFIG.patience,
        first: int = CONFIG.first_pause,
        longest: int = CONFIG.longest_pause,
    ) -> None:
        self.left = 0
        self._patience = patience
        self._first = first
        self._longest = longest
        self._next = first
        self._unpaid = 0  # proposals in a row that did not pay

    def goes_on(self, repeats: bool = False) -> bool:
        """Begin a step; return whether it is part of a pause.

        Args:
            repeats: Whether the sequence repeats itself, which ends a pause.
        """
        if repeats or not self.left:
            self.left = 0
            return False
        self.left -= 1
        return True

    def learn(self, pays: bool) -> bool:
        """Learn whether a proposal paid off; return whether a pause begins.

        A proposal that does not pay off begins a pause if it is the first after a pause, or the
        last of several in a row.
        """
        if pays:
            self._unpaid = 0
            self._next = self._first
            return False
        self._unpaid += 1
        if self._unpaid < self._patience:
            return False
        self.left = self._next
        self._next = min(2 * self._next, self._longest)
        self._unpaid = self._patience - 1
        return True
