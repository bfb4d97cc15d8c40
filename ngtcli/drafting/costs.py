"""The cost of a forward pass over k rows, as measured on the device."""

from bisect import bisect, bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG

Floats = npt.NDArray[np.float64]
SHORT = CONFIG.short_context


class CostCurve:
    """Seconds of a pass by its rows (the root and its nodes), interpolated and extrapolated.

    `measured` are the seconds of the calibration, while `seconds` are updated later. With `sizes`,
    ascending, a pass is padded to the next size and costs as much as that.

    >>> curve = CostCurve({1: 1.0, 3: 2.0})
    >>> curve.at(2), curve.at(5)
    (1.5, 3.0)
    >>> CostCurve({1: 1.0, 3: 2.0}, sizes=(1, 3)).at(2)
    2.0
    """

    def __init__(
        self,
        seconds: Mapping[int, float],
        measured: Mapping[int, float] | None = None,
        sizes: tuple[int, ...] = (),
    ) -> None:
        if 1 not in seconds or not all(0 < s < 1e9 for s in seconds.values()):
            raise ValueError("a cost curve needs the cost of one row, and costs above zero")
        self.measured = dict(measured or seconds)
        if self.measured.keys() != seconds.keys() or min(self.measured.values()) <= 0:
            raise ValueError("the costs measured are of other rows")
        self.sizes = sizes
        self.rows = sorted(seconds)
        self._seconds = _never_falling([seconds[r] for r in self.rows])
        self._seen = [0] * len(self.rows)  # the step at which each size was last passed
        self._slower: dict[int, list[float]] = {}  # by rows: surprises of slow passes in a row
        self._step = 0
        self._table = np.zeros(0)
        self._since = 0

    def _size(self, rows: int) -> int:
        """Return the size to which a pass over `rows` is padded; `rows` beyond the last size."""
        index = bisect_left(self.sizes, rows)
        return self.sizes[index] if index < len(self.sizes) else rows

    def filled(self, nodes: int) -> int:
        """Return the maximum number of nodes with the same padded cost as `nodes`."""
        return self._size(nodes + 1) - 1

    def _over(self, rows: Iterable[int], seconds: Sequence[float]) -> Floats:
        """Interpolate the seconds of passes over `rows`; beyond the last point the slope continues.

        Args:
            rows: The numbers of rows of the passes.
            seconds: The seconds at the points `self.rows`.
        """
        sizes = np.array([self._size(count) for count in rows], np.int64)
        points = self.rows
        interpolated: Floats = np.interp(sizes, points, seconds)
        if len(points) > 1:
            slope = (seconds[-1] - seconds[-2]) / (points[-1] - points[-2])
            interpolated = interpolated + slope * np.maximum(sizes - points[-1], 0)
        return interpolated

    def at(self, rows: int) -> float:
        """Return the seconds of a pass over `rows` rows."""
        return float(self._over([rows], self._seconds)[0])

    def table(self, max_rows: int) -> Floats:
        """Return the seconds of passes over 1 to at least `max_rows` rows.

        The values may be a few steps old.
        """
        if len(self._table) < max_rows or self._step - self._since >= CONFIG.table_age:
            self._table = self._over(range(1, max(max_rows, 65) + 1), self._seconds)
            self._since = self._step
        return self._table

    def table_measured(self, max_rows: int) -> Floats:
        """Return the seconds of passes over 1 to `max_rows` rows by the calibration."""
        measured = _never_falling([self.measured[rows] for rows in self.rows])
        return self._over(range(1, max_rows + 1), measured)

    def learn(self, rows: int, seconds: float) -> None:
        """Move the costs towards the time that a pass over `rows` has just taken.

        For sizes in constant use all costs move together, because the machine or the context has
        changed; a size not used for long moves alone, because only its cost is unknown. Other work
        of the machine can only slow a pass down. So costs rise only if several passes of a size in
        a row were slower, and then by the smallest difference.
        """
        self._step += 1
        rows = self._size(rows)
        points = self.rows
        costs = self._seconds
        above = min(max(bisect(points, rows), 1), len(points) - 1)
        below = max(above - 1, 0)
        share = 1.0  # of the point above, where the size lies between two
        if above > below:
            share = (rows - points[below]) / (points[above] - points[below])
        near = above if share > 0.5 else below
        gap = self._step - self._seen[near]
        self._seen[near] = self._step
        expected = costs[below] + share * (costs[above] - costs[below])
        ratio = min(2.0, max(0.5, seconds / expected))
        slower = self._slower.setdefault(rows, [])
        if ratio <= 1:
            slower.clear()
        else:
            slower.append(ratio)
            if len(slower) < CONFIG.slow_passes:
                return
            ratio = min(slower)
            slower.clear()
        local_rate = min(CONFIG.most_own_rate, CONFIG.own_rate * gap)
        common = ratio ** (CONFIG.common_rate / gap)
        costs = self._seconds = [common * cost for cost in costs]
        costs[above] *= ratio ** (local_rate * min(1.0, share))
        costs[below] *= ratio ** (local_rate * max(0.0, 1.0 - share))
        # A pass over more rows is no quicker: the points about this one give way to it.
        for i in range(near):
            costs[i] = min(costs[i], costs[near])
        for i in range(1, len(costs)):
            costs[i] = max(costs[i], costs[i - 1])

    def quickest(self, seconds: Mapping[int, float]) -> "CostCurve":
        """Return a curve with the lower of two costs at each size: its own, and that in `seconds`.

        Args:
            seconds: The other costs in seconds, by rows.
        """
        lower = {rows: min(cost, seconds.get(rows, cost)) for rows, cost in self.by_rows().items()}
        return CostCurve(lower, sizes=self.sizes)

    def by_rows(self) -> dict[int, float]:
        """Return the seconds by rows; more rows never cost less."""
        return dict(zip(self.rows, self._seconds, strict=True))


def _never_falling(seconds: Sequence[float]) -> list[float]:
    """Lower the seconds of ascending numbers of rows, so that none is above a later one.

    A pass may be padded to more rows, so it costs no more than they do; and disturbances only
    lengthen a measurement. So of two contradictory measurements the shorter one is right.

    >>> _never_falling([1.0, 9.0, 2.0, 3.0])
    [1.0, 2.0, 2.0, 3.0]
    """
    return list(accumulate(reversed(seconds), min))[::-1]


@dataclass(frozen=True, slots=True)
class StoredCurve:
    """Seconds by rows, and those of the calibration. Raises ValueError as `CostCurve` does."""

    seconds: Mapping[int, float]
    measured: Mapping[int, float]

    def __post_init__(self) -> None:
        CostCurve(self.seconds, self.measured)


class Costs:
    """A curve for each length of context, as a pass over a long one costs more.

    Lengths are grouped into up to 1,024 tokens, 4,096, 16,384, and so on. A group without a curve
    starts from the nearest existing one, and the steps of its runs update it from there.

    >>> costs = Costs({1024: CostCurve({1: 1.0})})
    >>> for _ in range(3):
    ...     costs.at_length(5000).learn(1, 2.0)
    >>> {border: round(curve.at(1), 2) for border, curve in costs.curves.items()}
    {1024: 1.0, 16384: 1.09}
    """

    def __init__(self, curves: dict[int, CostCurve]) -> None:
        if not curves:
            raise ValueError("there must be a curve")
        self.curves = curves

    def at_length(self, tokens: int) -> CostCurve:
        """Return the curve for a context of `tokens` tokens."""
        border = SHORT
        while border < tokens:
            border *= 4
        if border not in self.curves:
            nearest = min(self.curves, key=lambda length: max(length, border) / min(length, border))
            curve = self.curves[nearest]
            self.curves[border] = CostCurve(curve.by_rows(), curve.measured, curve.sizes)
        return self.curves[border]

    def stored(self) -> dict[int, StoredCurve]:
        """Return the curves to store, by lengths of context."""
        return {
            border: StoredCurve(curve.by_rows(), curve.measured)
            for border, curve in self.curves.items()
        }


def costs_of(stored: Mapping[int, StoredCurve], sizes: tuple[int, ...]) -> Costs:
    """Return costs from stored curves, for passes that are padded to `sizes`."""
    curves = {
        length: CostCurve(curve.seconds, curve.measured, sizes) for length, curve in stored.items()
    }
    return Costs(curves)
