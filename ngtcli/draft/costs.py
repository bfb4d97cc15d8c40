"""What a pass of the model over k rows costs, as measured on the device at hand."""

from bisect import bisect
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SHORT = 1024  # tokens: the first length of context with a curve of its own
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
        self._borders = np.sqrt(self.rows[1:] * self.rows[:-1]).tolist()
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
            self._table = self.over(np.arange(1, max(most, 65) + 1))
            self._news = 0
        return self._table

    def learn(self, rows: int, seconds: float) -> None:
        """Move the nearest measured point toward what a pass over `rows` just took.

        A pass that took over four times what was expected was disturbed, and says little.
        """
        ratio = min(seconds / self.table(rows)[rows - 1], 4.0)
        self._news += 1
        self._seconds[bisect(self._borders, rows)] *= 1.0 + _NEWS * (ratio - 1.0)

    def by_rows(self) -> dict[int, float]:
        """Seconds by rows."""
        return {int(r): float(s) for r, s in zip(self.rows, self.seconds, strict=True)}


class Costs:
    """A curve for each length of context, as a pass over a long one costs more.

    Lengths are sorted into those up to 1,024 tokens, to 4,096, to 16,384, and so on. One that has
    none starts from the nearest curve there is; the steps of its runs move it from there.

    >>> costs = Costs({1024: CostCurve({1: 1.0})})
    >>> costs.at_length(5000).learn(1, 2.0)
    >>> {border: round(curve.at(1), 2) for border, curve in costs.curves.items()}
    {1024: 1.0, 16384: 1.05}
    """

    def __init__(self, curves: dict[int, CostCurve]) -> None:
        if not curves:
            raise ValueError("there must be a curve")
        self.curves = curves

    def at_length(self, tokens: int) -> CostCurve:
        """The curve for a context of `tokens`."""
        border = SHORT
        while border < tokens:
            border *= 4
        if border not in self.curves:
            nearest = min(self.curves, key=lambda known: max(known, border) / min(known, border))
            self.curves[border] = CostCurve(self.curves[nearest].by_rows())
        return self.curves[border]
