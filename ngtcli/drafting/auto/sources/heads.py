"""The proposals of learned heads in a step; each head is called as often as it pays off."""

import time
from collections import deque
from collections.abc import Sequence
from statistics import median

import numpy as np

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.forms import (
    ANY_BELOW,
    FIRST_BELOW,
    LED_BY,
    NEXT_BESIDE,
    ROW,
    ROW_BUCKET,
    ROW_TOTAL,
    RowArrays,
)
from ngtcli.drafting.auto.policy import Pause
from ngtcli.drafting.auto.sources.source import (
    BUCKETS,
    ORDERS,
    Floats,
    Ints,
    Resources,
    Source,
)
from ngtcli.drafting.drafter import Context
from ngtcli.drafting.guesses import WIDTH, Guessed
from ngtcli.drafting.origins import HEAD, HeadReport
from ngtcli.drafting.tries.counts import NONE

_MAX_STATES = CONFIG.guess_states
_SURE = CONFIG.guess_sure


class HeadUse:
    """The schedule of a head's calls: as often as they pay off, and rarely if they do not.

    A call pays off if the tokens that it adds, at the recent time per token, are worth more than
    the time of the call. `asked` says whether the head was called in this step.

    The first call of a sequence, and the first after a rest, read all tokens since the last call,
    which may be a whole prompt. So after a rest the head is called in two steps, and the time of
    the second counts. The cost of a call is the median of several, because some capture a graph.
    """

    def __init__(self) -> None:
        self.asked = False
        self._was_asked = False  # in the step before
        self._gain = 0.0  # tokens that the head adds in a step in which it is asked
        self._calls_s = deque[float](maxlen=CONFIG.guess_timings)
        self._asks = 0
        self._pause = Pause(patience=1, first=1, longest=CONFIG.guess_rest)

    def report(self) -> HeadReport:
        """Return a report on the head's calls and gains."""
        return HeadReport(self._asks, self._gain, self._first_s)

    @property
    def _first_s(self) -> float:
        """Return the seconds of a call that reads the tokens of one step; 0.0 if none was timed."""
        return median(self._calls_s) if self._calls_s else 0.0

    def start(self) -> None:
        """Begin a sequence."""
        self.asked = False

    def wants(self, token_s: float) -> bool:
        """Begin a step; return whether to call the head.

        Args:
            token_s: The seconds that a token takes; 0.0 if unknown.
        """
        self._was_asked = self.asked
        self.asked = not self._pause.goes_on()
        has_read = self.asked and self._was_asked
        if has_read and token_s and self._asks >= CONFIG.guess_trials:
            self._pause.learn(self._gain * token_s > self._first_s)
        return self.asked

    def took(self, seconds: float) -> None:
        """Learn the seconds of a call, if it read only the tokens of one step."""
        if self._was_asked:
            self._calls_s.append(seconds)

    def learn(self, reached: float, gain: float) -> None:
        """Learn from a step.

        Args:
            reached: The number of its tokens for which the head had a proposal.
            gain: By how much it raised the probabilities of the emitted tokens.
        """
        if not self.asked or not reached:
            return
        self._asks += 1
        rate = max(CONFIG.guess_rate, 1 / self._asks)
        self._gain += rate * (gain - self._gain)


class HeadSource(Source):
    """The proposals of the model's learned heads in a step: a row of escapes for each head.

    Their states share one table: each head has `guess_states` rows of it, the first of which is the
    end of the text. A copied token leads to a state like a proposed one, if the head was called for
    its continuation.
    """

    origin = HEAD
    form = ROW
    orders = 1, 1
    root = NONE

    def __init__(self, resources: Resources) -> None:
        self._reader = resources.heads
        self.heads = tuple(self._reader.guessers) if self._reader is not None else ()
        self.uses = [HeadUse() for _ in self.heads]
        self.rows = len(self.heads)
        states = max(1, self.rows * _MAX_STATES)
        self.arrays = RowArrays(
            np.zeros((states, WIDTH), np.int32),
            np.zeros((states, WIDTH), np.float32),
            np.zeros((states, 2), np.float32),
            np.full((states, 4), NONE, np.int32),
        )
        self.table = tuple(self.arrays)

    @classmethod
    def first_escapes(cls) -> Floats:
        """Return guessed escapes, by the length of the longest match beside a proposal."""
        by_order = np.asarray(CONFIG.guess_escapes)[:, None]
        return np.broadcast_to(by_order, (1, ORDERS, BUCKETS))

    def begin(self, context: Context) -> None:
        """Begin with no proposals."""
        for use in self.uses:
            use.start()

    def report(self) -> dict[str, HeadReport] | None:
        """Return reports on the heads by their kind; None without heads.

        If there are several heads of a kind, all but the first have a number after it.
        """
        reports: dict[str, HeadReport] = {}
        for number, (head, use) in enumerate(zip(self.heads, self.uses, strict=True), 1):
            name = f"{head.kind} {number}" if head.kind in reports else head.kind
            reports[name] = use.report()
        return reports or None

    def propose(self, token_ids: Sequence[int], token_s: float) -> None:
        """Call the heads that pay off for continuations of `token_ids` in this step.

        `token_s` is as for `HeadUse.wants`.
        """
        self.forget()
        asked = [head for head, use in enumerate(self.uses) if use.wants(token_s)]
        # The heads read the accepted tokens now: that counts as time of the first that is asked.
        clock = time.perf_counter()
        if asked and self._reader is not None and not self._reader.follow(token_ids):
            return
        for head in asked:
            proposed = self.heads[head].first(token_ids[-1])
            self.uses[head].took(time.perf_counter() - clock)
            self.matches[head, 1] = head * _MAX_STATES
            self._set(head, proposed)
            clock = time.perf_counter()

    def forget(self) -> None:
        """Remove all matches, because proposals are valid for one step."""
        self.matches[:] = NONE

    def retract(self, count: int, output: Sequence[int]) -> None:
        """Remove the proposals of a step that is taken back."""
        self.forget()

    def _set(self, head: int, proposed: Guessed) -> None:
        """Fill the rows of a head with its states and the tokens that lead to them."""
        count = min(len(proposed.tokens), _MAX_STATES)
        width = proposed.tokens.shape[1]
        first = head * _MAX_STATES
        rows = slice(first, first + count)
        self.arrays.tokens[rows, :width] = proposed.tokens[:count]
        self.arrays.weights[rows] = 0.0
        self.arrays.weights[rows, :width] = proposed.probabilities[:count]
        depths = self._link(first, count, proposed)
        top = self.arrays.weights[rows, 0]
        self.arrays.facts[rows, ROW_TOTAL] = top > 0.0  # weights are probabilities already
        # How sure the head is, and whether it has read the last token or proposed that itself.
        levels = (proposed.probabilities[:count, :1] < _SURE).sum(axis=1) if width else 0
        self.arrays.facts[rows, ROW_BUCKET] = levels + np.where(depths > 0, len(_SURE) + 1, 0)

    def _link(self, first: int, count: int, proposed: Guessed) -> Ints:
        """Link the rows from `first` on to their parents; return their depths, int32 (count,)."""
        links = self.arrays.links[first : first + count]
        links[:] = NONE
        depths = np.arange(count, dtype=np.int32)
        if proposed.led is None:  # each below the one before by any token
            links[:-1, ANY_BELOW] = np.arange(first + 1, first + count)
            return depths
        for state, (parent, token) in enumerate(zip(*proposed.led.tolist(), strict=True), 1):
            links[state, LED_BY] = token
            links[state, NEXT_BESIDE] = links[parent, FIRST_BELOW]
            links[parent, FIRST_BELOW] = first + state
            depths[state] = depths[parent] + 1
        return depths
