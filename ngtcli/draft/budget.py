"""How many draft nodes pay: expected tokens against the measured cost of a pass.

A pass over k nodes emits one token and the accepted ones; where a node's chance of being accepted
is known, the best k maximises (1 + sum of the chances of the first k nodes) / c(k). What a pass
costs is measured on the device at hand and refined by every step, not assumed.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.compiled import njit
from ngtcli.draft.costs import CostCurve

Floats = npt.NDArray[np.float64]

PATIENCE = 4  # proposals in a row that do not pay before drafting stops
FIRST_REST, LONGEST_REST = 4, 256  # steps without a look, doubling
LEAST_GAIN = 1.02  # speed-up that is expected of drafts; less is in the noise of what they cost
LOOK_AROUND = 32  # every so many choices another size is tried, to learn what it costs
PLAIN = 200  # steps without drafts after which a look tries some, whatever they seem to cost
BINS = 8  # of chances
_FADE = 0.99  # a step
_NEWS = 0.05  # weight of one more observation of what drafting takes


@njit()
def bin_of(chance: float, bins: int) -> int:
    """Which bin a chance is counted in: from 1 to above 1/2, to above 1/4, …, and the rest."""
    at, edge = 0, 0.5
    while chance <= edge and at < bins - 1:
        at, edge = at + 1, edge / 2
    return at


@njit()
def settle(tokens: Any, parents: Any, chances: Any, emitted: Any, tally: Any) -> None:
    """Add to `tally`, as `trust_of` reads it, how many nodes were accepted and how many expected.

    `tokens`, `parents` and `chances` are of a tree that was verified, parents first.
    """
    node, depth = -1, 0
    for i in range(len(tokens)):
        at = bin_of(chances[i], tally.shape[1])
        tally[1, at] += chances[i]
        if depth < len(emitted) and parents[i] == node and tokens[i] == emitted[depth]:
            tally[0, at] += 1.0
            node, depth = i, depth + 1


@njit()
def trust_of(tally: Any) -> Any:
    """What to multiply chances by, for each bin of them: how far they have come true.

    `tally` has rows (accepted, expected), (2, BINS). A bin with little to say follows all bins, and
    all of them, at first, the drafter.

    >>> trust_of(np.array([[0.0, 0.0], [0.0, 3.0]])).tolist()  # three expected, none came
    [0.25, 0.0625]
    """
    hits, expected, trust = 1.0, 1.0, np.empty(tally.shape[1])
    for i in range(len(trust)):
        hits, expected = hits + tally[0, i], expected + tally[1, i]
    for i in range(len(trust)):
        trust[i] = (tally[0, i] + hits / expected) / (tally[1, i] + 1.0)
    return trust


@njit()
def best_size(chances: Any, costs: Any, drafting_s: float, tally: Any) -> Any:
    """(nodes with the most tokens a second, tokens then expected, speed-up against a plain step).

    `chances` fall; each counts as far as `tally` lets it be trusted.
    """
    best, expected, tokens = 0, 1.0, 1.0
    highest = 1.0 / (costs[0] + drafting_s)
    trust = trust_of(tally)
    for i in range(len(chances)):
        tokens += min(1.0, chances[i] * trust[bin_of(chances[i], len(trust))])
        rate = tokens / (costs[i + 1] + drafting_s)
        if rate > highest:
            best, expected, highest = i + 1, tokens, rate
    return best, expected, highest * costs[0]


class Policy:
    """Chooses the number of nodes of each step, and when not to look for any."""

    def __init__(self, curve: CostCurve) -> None:
        self.drafting_s = 0.0  # what a proposal takes
        self.budgets: Counter[int] = Counter()
        self.stand_downs = 0
        self.why = ""  # what the last step was decided on
        self._choices, self._tries = 0, 0
        self._plain = 0  # steps since one with drafts
        self.start(curve)

    def start(self, curve: CostCurve) -> None:
        """Begin a run: what is known of costs stays, what is known of the text does not."""
        self.curve = curve
        self.budgets.clear()
        self.stand_downs = 0
        self.tally = np.zeros((2, BINS))  # of chances: accepted, expected; fades with the steps
        self._age = 0
        self._poor, self._rest, self._next_rest = 0, 0, FIRST_REST

    def resting(self, repeats: Callable[[], bool]) -> bool:
        """Whether this step goes without a proposal. `repeats`: the text has begun to repeat."""
        if not self._rest:
            return False
        if repeats():
            self._rest = 0
            return False
        self._rest -= 1
        self._age += 1
        self._plain += 1
        self.why = f"resting, {self._rest} more steps"
        self.budgets[0] += 1
        return True

    def choose(self, chances: Floats) -> int:
        """How many nodes pay, of nodes with falling `chances` of being accepted."""
        costs = self.curve.table(len(chances) + 1)
        self.tally *= _FADE ** (self._age + 1)
        self._age = 0
        best, expected, gain = best_size(chances, costs, self.drafting_s, self.tally)
        self.why = f"{best} nodes, {expected:.2f} tokens expected"
        pays = gain > LEAST_GAIN
        size = self._look_around(chances, int(best), pays)
        if pays:
            self._poor, self._next_rest = 0, FIRST_REST
        else:
            self._stand_down()
        self.budgets[size] += 1
        self._plain = 0 if size else self._plain + 1
        return size

    def _look_around(self, chances: Floats, best: int, pays: bool) -> int:
        """`best`, or now and then another size, or a cost once mistaken would stay so.

        Where drafts pay: twice the nodes, what the costs as calibrated would say, or none. Where
        not, at the first look after PLAIN steps: what those costs would say, or 2 to 16 nodes.
        """
        self._choices += 1
        turn, off = divmod(self._choices, LOOK_AROUND)
        due = off == 0 if pays else self._plain >= PLAIN
        if not due:
            return best
        costs = self.curve.table_measured(len(chances) + 1)
        calibrated = int(best_size(chances, costs, self.drafting_s, self.tally)[0])
        if pays:
            size = (0, 2 * best + 2, calibrated, 2 * best + 2)[turn % 4]
        else:
            size = calibrated or 2 << self._tries % 4
            self._tries += 1
        size = min(len(chances), size)
        if size != best:
            self.why = f"{size} nodes, to learn what they cost"
        return size

    def _stand_down(self) -> None:
        """Rest after PATIENCE proposals in a row that did not pay, or one after a rest."""
        self._poor += 1
        if self._poor >= PATIENCE:
            self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, LONGEST_REST)
            self._poor = PATIENCE - 1
            self.stand_downs += 1

    def drafted(self, seconds: float) -> None:
        """Note what a proposal took."""
        if not self.drafting_s:
            self.drafting_s = min(seconds, 2e-4)  # the first is slower than all others
        self.drafting_s += _NEWS * (min(seconds, 4 * self.drafting_s) - self.drafting_s)

    def as_json(self) -> dict[str, Any]:
        """What was decided, and on what grounds."""
        return {
            "budgets": {str(k): self.budgets[k] for k in sorted(self.budgets)},
            "stand_downs": self.stand_downs,
            "came_true": round(float((self.tally[0].sum() + 1) / (self.tally[1].sum() + 1)), 3),
            "trust": [round(float(t), 3) for t in trust_of(self.tally)],
            "drafting_s": round(self.drafting_s, 7),
            "cost_s": {str(rows): round(s, 7) for rows, s in self.curve.by_rows().items()},
        }
