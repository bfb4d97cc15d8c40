"""Masks of a model tuned by SPACE as a source of `auto`: which nodes of a draft they hang below.

Masks below a node guess, for the next step, what follows if verification stops there. With p_i the
probability that node i is accepted, it stops at a node with p_i less the p of its drafted children.
Masks hang below the nodes where it is likeliest to stop, below as many as pay: of k masks a node,
the g nodes that maximise, with e the tokens that guesses gain a step,

    (1 + p_1 + … + p_n + e * probability to stop at one of them) / c(1 + n + g * k)

where c(r) are the seconds of a pass over r rows. Without costs every node gets some.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.config import CONFIG
from ngtcli.draft.costs import CostCurve
from ngtcli.draft.drafter import Feedback
from ngtcli.draft.guesses import NOTHING, Guessed
from ngtcli.draft.masks import masks_after
from ngtcli.draft.tree import ROOT

Floats = npt.NDArray[np.float64]


class MaskGuesses:
    """A Guesser by depth: what the masks of the last pass guess. `ready`: they guess something.

    Where no masks pay they are tried again at growing intervals.
    """

    kind, by_path = "space", False

    def __init__(self, masks: Sequence[int]) -> None:
        self.masks, self.depth = tuple(masks), len(masks)
        self._guessed = NOTHING
        self._wait = self._next = 0

    @property
    def ready(self) -> bool:
        """Whether there are guesses for this step."""
        return len(self._guessed.tokens) > 0

    def first(self, root: int) -> Guessed:
        """As Guesser.first; they hold for one step."""
        guessed, self._guessed = self._guessed, NOTHING
        return guessed

    def below(self, states: Sequence[int], tokens: Sequence[int]) -> Guessed:
        """Guesses are by depth."""
        raise NotImplementedError

    def forget(self) -> None:
        """What was guessed does not follow the text."""
        self._guessed = NOTHING

    def read(self, feedback: Feedback) -> None:
        """Read what the masks of a pass guess."""
        found = [] if feedback.stop is None else masks_after(feedback.tree, feedback.stop)
        self._guessed = feedback.after(found) if found else NOTHING

    def below_which(
        self,
        parents: npt.NDArray[np.int32],
        probabilities: Floats,
        gain: float | None,
        curve: CostCurve | None,
        room: int | None,
    ) -> tuple[int, list[int]]:
        """(How many nodes stay, below which of them and of the root masks hang).

        `parents` and `probabilities` are those of a Growth, `gain` are the tokens that guesses are
        worth a step. With `room` there is that much for nodes and masks together, and the last
        nodes give way to masks that are worth more.
        """
        nodes, gain = len(probabilities), CONFIG.mask_gain if gain is None else gain
        stops = stop_probabilities(parents[:nodes], probabilities)
        order = np.argsort(-stops, kind="stable")[: CONFIG.masked_nodes]
        count = len(order)
        if curve is not None:
            tokens = 1.0 + float(probabilities.sum())
            count = self._paying(tokens, gain * stops[order], nodes, curve)
        if room is not None:
            nodes, count = self._fitted(probabilities, gain * stops[order[:count]], room)
        below = [int(at) + ROOT for at in order[:count]]
        return nodes, [node for node in below if node < nodes]

    def _paying(self, tokens: float, worth: Floats, nodes: int, curve: CostCurve) -> int:
        """Below how many nodes masks pay, or are to be tried; `worth` in tokens, falling."""
        in_all = tokens + np.append(0.0, np.cumsum(worth))
        rows = nodes + self.depth * np.arange(len(in_all))  # but the root's
        costs = curve.table(int(rows[-1]) + 1)
        count = int((in_all / costs[rows]).argmax())
        if count:
            self._wait = self._next = 0
            return count
        if self._wait:
            self._wait -= 1
            return 0
        self._next = min(CONFIG.guess_rest, 2 * self._next + 1)
        self._wait = self._next
        return 1

    def _fitted(self, probabilities: Floats, worth: Floats, room: int) -> tuple[int, int]:
        """(Nodes, those with masks) that fit the room together."""
        nodes = len(probabilities)
        for count, each in enumerate(worth):
            left = min(nodes, room - self.depth * (count + 1))
            if left < 0 or float(probabilities[left:nodes].sum()) >= each:
                return nodes, count
            nodes = left
        return nodes, len(worth)


def stop_probabilities(parents: npt.ArrayLike, probabilities: Floats) -> Floats:
    """Where verification stops: at the root, then at each of k nodes, float64 (k + 1,).

    >>> stop_probabilities((-1, 0, -1), np.array([0.5, 0.25, 0.125])).tolist()
    [0.375, 0.25, 0.25, 0.125]
    """
    stops = np.append(1.0, np.minimum(1.0, probabilities))
    np.subtract.at(stops, np.asarray(parents, np.int64) + 1, stops[1:].copy())
    return stops.clip(0.0)
