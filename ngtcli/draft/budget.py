"""How many draft nodes pay: expected tokens against the measured cost of a pass.

A pass over k nodes emits one token and the accepted ones; where a node's chance of being accepted
is known, the best k maximises (1 + sum of the chances of the first k nodes) / c(k). What a pass
costs is measured on the device at hand and refined by every step, not assumed.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PATIENCE = 4  # proposals in a row that do not pay before drafting stops
FIRST_REST, LONGEST_REST = 4, 256  # steps without a look, doubling
LOOK_AROUND = 32  # every so many choices take twice the nodes, to learn what they cost
_STALE = 16  # steps for which a table of costs is used again
_NEWS = 0.05  # weight of one more observation of a cost


class CostCurve:
    """Seconds of a pass by its rows (the root and its nodes), between and beyond what was measured.

    >>> curve = CostCurve({1: 1.0, 3: 2.0})
    >>> curve.at(2), curve.at(5)
    (1.5, 3.0)
    """

    def __init__(self, seconds: Mapping[int, float]) -> None:
        if 1 not in seconds or not all(s > 0 for s in seconds.values()):
            raise ValueError("a cost curve needs the cost of one row, and costs above zero")
        self.rows = np.array(sorted(seconds), np.float64)
        self._seconds = np.array([seconds[int(r)] for r in self.rows], np.float64)
        self._table = np.zeros(0)
        self._news = 0

    @property
    def seconds(self) -> Floats:
        """Seconds at `rows`; more rows never cost less."""
        rising: Floats = np.maximum.accumulate(self._seconds)
        return rising

    def over(self, rows: npt.NDArray[np.int64]) -> Floats:
        """Seconds of passes over `rows`; beyond the last measured one the last slope goes on."""
        known = self.seconds
        out: Floats = np.interp(rows, self.rows, known)
        if len(known) > 1:
            slope = (known[-1] - known[-2]) / (self.rows[-1] - self.rows[-2])
            out = out + slope * np.maximum(rows - self.rows[-1], 0)
        return out

    def at(self, rows: int) -> float:
        """Seconds of a pass over `rows` rows."""
        return float(self.over(np.array([rows]))[0])

    def table(self, most: int) -> Floats:
        """Seconds of passes over 1 to at least `most` rows; a few steps old at most."""
        if len(self._table) < most or self._news >= _STALE:
            self._table = self.over(np.arange(1, max(most, 64) + 1))
            self._news = 0
        return self._table

    def learn(self, rows: int, seconds: float) -> None:
        """Move the nearest measured point toward what a pass over `rows` just took.

        A pass that took over four times what was expected was disturbed, and says little.
        """
        expected = self.at(rows)
        ratio = min(seconds / expected, 4.0)
        near = int(np.argmin(np.abs(np.log(self.rows / rows))))
        self._news += 1
        self._seconds[near] *= 1.0 + _NEWS * (ratio - 1.0)

    def as_json(self) -> dict[str, float]:
        """Seconds by rows."""
        return {str(int(r)): float(s) for r, s in zip(self.rows, self.seconds, strict=True)}


class Policy:
    """Chooses the number of nodes of each step, and when not to look for any."""

    def __init__(self, curve: CostCurve) -> None:
        self.curve = curve
        self.drafting_s = 0.0  # what a proposal takes
        self.budgets: Counter[int] = Counter()
        self.stand_downs = 0
        self.why = ""
        self._choices = 0
        self.start()

    def start(self) -> None:
        """Begin a run: what is known of costs stays, what is known of the text does not."""
        self.budgets.clear()
        self.stand_downs = 0
        self._poor, self._rest, self._next_rest = 0, 0, FIRST_REST

    def resting(self, repeats: bool) -> bool:
        """Whether this step goes without a proposal. `repeats`: the text has begun to repeat."""
        if self._rest and repeats:
            self._rest, self._next_rest, self._poor = 0, FIRST_REST, 0
        if not self._rest:
            return False
        self._rest -= 1
        self.budgets[0] += 1
        self.why = f"resting, {self._rest} more steps"
        return True

    def choose(self, chances: Floats) -> int:
        """How many nodes pay, of nodes with falling `chances` of being accepted."""
        costs = self.curve.table(len(chances) + 1)
        tokens = np.ones(len(chances) + 1)
        np.cumsum(chances, out=tokens[1:])
        tokens[1:] += 1.0
        rates = tokens / (costs[: len(tokens)] + self.drafting_s)
        best = int(rates.argmax())
        self._choices += 1
        if self._choices % LOOK_AROUND == 0:  # or a cost once measured too high would stay so
            best = min(len(chances), 2 * best + 2)
        self.why = f"{best} nodes, {tokens[best]:.2f} tokens expected"
        if rates[best] * costs[0] > 1.0:
            self._poor, self._next_rest = 0, FIRST_REST
        else:
            self._poor += 1
            if self._poor >= PATIENCE:
                self._rest, self._next_rest = (
                    self._next_rest,
                    min(self._next_rest * 2, LONGEST_REST),
                )
                self._poor = PATIENCE - 1  # one look after the rest
                self.stand_downs += 1
        self.budgets[best] += 1
        return best

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
            "drafting_s": round(self.drafting_s, 7),
            "cost_s": {k: round(v, 7) for k, v in self.curve.as_json().items()},
        }
