"""What a pass of the model over k rows costs, as measured on the device at hand."""

from bisect import bisect, bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.config import CONFIG

Floats = npt.NDArray[np.float64]
SHORT = CONFIG.short_context
_LONGEST = 2**40  # tokens of context: the border of the last curve
_MOST_ROWS = 4096  # of a pass: four times the most draft nodes there can be; derived


class CostCurve:
    """Seconds of a pass by its rows (the root and its nodes), between and beyond what was measured.

    `measured` are the seconds that calibration found, where `seconds` have moved on since. With
    `sizes`, rising, a pass is padded to the next of them and costs what that size does.

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
        self.rows = np.array(sorted(seconds), np.float64)
        self._seconds = _never_falling([seconds[r] for r in sorted(seconds)]).tolist()
        self._known = self.rows.tolist()
        self._seen = [0] * len(self.rows)  # the step at which each size was last passed
        self._step = 0
        self._table = np.zeros(0)
        self._since = 0

    @property
    def seconds(self) -> Floats:
        """Seconds at `rows`; more rows never cost less."""
        return np.array(self._seconds)

    def over(self, rows: npt.NDArray[np.int64]) -> Floats:
        """Seconds of passes over `rows`; beyond the last measured one the last slope goes on."""
        return _over(self._padded(rows), self.rows, self.seconds)

    def _padded(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sizes that passes over `rows` are padded to; those beyond the last are not."""
        return np.array([self._size(row) for row in rows.tolist()], np.int64)

    def _size(self, rows: int) -> int:
        """The same of one number of rows; asked at every step, where numpy takes 50 us for it."""
        at = bisect_left(self.sizes, rows)
        return self.sizes[at] if at < len(self.sizes) else rows

    def filled(self, nodes: int) -> int:
        """The most nodes that a pass has room for at the cost of one over `nodes` and the root."""
        return self._size(nodes + 1) - 1

    def at(self, rows: int) -> float:
        """Seconds of a pass over `rows` rows."""
        return float(self.over(np.array([rows]))[0])

    def table(self, most: int) -> Floats:
        """Seconds of passes over 1 to at least `most` rows; a few steps old at most."""
        if len(self._table) < most or self._step - self._since >= CONFIG.table_age:
            self._table = self.over(np.arange(1, max(most, 65) + 1))
            self._since = self._step
        return self._table

    def table_measured(self, most: int) -> Floats:
        """The same as calibration found them."""
        rising = _never_falling([self.measured[int(r)] for r in self.rows])
        return _over(self._padded(np.arange(1, most + 1)), self.rows, rising)

    def learn(self, rows: int, seconds: float) -> None:
        """Move the costs toward what a pass over `rows` just took.

        Of sizes passed all the time all costs move together, for it is the machine or the context
        that changes; one not passed for long moves by itself, for it is its cost that is unknown.
        """
        self._step += 1
        rows = self._size(rows)
        known, costs = self._known, self._seconds
        above = min(max(bisect(known, rows), 1), len(known) - 1)
        below = max(above - 1, 0)
        share = 1.0  # of the point above, where the size lies between two
        if above > below:
            share = (rows - known[below]) / (known[above] - known[below])
        near = above if share > 0.5 else below
        gap = self._step - self._seen[near]
        self._seen[near] = self._step
        expected = costs[below] + share * (costs[above] - costs[below])
        ratio = min(2.0, max(0.5, seconds / expected))
        own = min(CONFIG.most_own_rate, CONFIG.own_rate * gap)
        common = ratio ** (CONFIG.common_rate / gap)
        costs = self._seconds = [common * cost for cost in costs]
        costs[above] *= ratio ** (own * min(1.0, share))
        costs[below] *= ratio ** (own * max(0.0, 1.0 - share))
        # A pass over more rows is no quicker: the points about this one give way to it.
        for i in range(near):
            costs[i] = min(costs[i], costs[near])
        for i in range(1, len(costs)):
            costs[i] = max(costs[i], costs[i - 1])

    def by_rows(self) -> dict[int, float]:
        """Seconds by rows."""
        return {int(r): float(s) for r, s in zip(self.rows, self.seconds, strict=True)}


def _never_falling(seconds: Sequence[float]) -> Floats:
    """The seconds of rising numbers of rows, each no more than those after it.

    A pass may be padded to more rows, so it costs no more than they do; and what disturbs a
    measurement adds to it. So of two that contradict each other the quicker is right.

    >>> _never_falling([1.0, 9.0, 2.0, 3.0]).tolist()
    [1.0, 2.0, 2.0, 3.0]
    """
    least: Floats = np.minimum.accumulate(np.array(seconds)[::-1])[::-1]
    return least


def _over(rows: npt.NDArray[np.int64], known: Floats, seconds: Floats) -> Floats:
    out: Floats = np.interp(rows, known, seconds)
    if len(known) > 1:
        slope = (seconds[-1] - seconds[-2]) / (known[-1] - known[-2])
        out = out + slope * np.maximum(rows - known[-1], 0)
    return out


def read_points(stored: Any) -> dict[int, float]:
    """Seconds by rows, from JSON of the form {"1": 0.01, "32": 0.02}. Raises ValueError.

    Text, true and false are not numbers here.
    """
    if not isinstance(stored, dict) or not stored:
        raise ValueError("no costs by rows")
    points = {}
    for rows, seconds in stored.items():
        if not (rows.isascii() and rows.isdecimal() and 1 <= int(rows[:9]) <= _MOST_ROWS):
            raise ValueError("rows that are not a number from 1 to 4096")
        if type(seconds) not in (int, float) or not 0 < seconds < 1e9:
            raise ValueError("seconds that are not a number above zero")
        points[int(rows[:9])] = float(seconds)
    return points


class Costs:
    """A curve for each length of context, as a pass over a long one costs more.

    Lengths are sorted into those up to 1,024 tokens, to 4,096, to 16,384, and so on. One that has
    none starts from the nearest curve there is; the steps of its runs move it from there.

    >>> costs = Costs({1024: CostCurve({1: 1.0})})
    >>> costs.at_length(5000).learn(1, 2.0)
    >>> {border: round(curve.at(1), 2) for border, curve in costs.curves.items()}
    {1024: 1.0, 16384: 1.09}
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
            curve = self.curves[nearest]
            self.curves[border] = CostCurve(curve.by_rows(), curve.measured, curve.sizes)
        return self.curves[border]

    def as_json(self) -> dict[str, Any]:
        """What `read_costs` reads."""
        return {
            str(border): {"seconds": curve.by_rows(), "measured": curve.measured}
            for border, curve in self.curves.items()
        }


def read_costs(stored: Any, sizes: tuple[int, ...]) -> Costs:
    """The costs from their JSON, of passes that are padded to `sizes`. Raises ValueError."""
    return Costs({_border(length): _curve(curve, sizes) for length, curve in stored.items()})


def _border(text: str) -> int:
    border = SHORT
    while str(border) != text:
        border *= 4
        if border > _LONGEST:
            raise ValueError("a length of context that is not known")
    return border


def _curve(stored: Any, sizes: tuple[int, ...]) -> CostCurve:
    if not isinstance(stored, dict) or stored.keys() != {"seconds", "measured"}:
        raise ValueError("another form")
    seconds = read_points(stored["seconds"])
    if sorted(seconds.values()) != [seconds[rows] for rows in sorted(seconds)]:
        raise ValueError("more rows that cost less")  # what is stored never falls
    return CostCurve(seconds, read_points(stored["measured"]), sizes)
