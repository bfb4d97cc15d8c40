"""What the model ranked high, and what heads guess in a step, as sources of the blend.

What a head gains decides how often it is asked.
"""

import time
from collections import deque
from collections.abc import Sequence
from statistics import median

import numpy as np

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.tables import (
    ANY_BELOW,
    DEPTH,
    FIRST_BELOW,
    GuessArrays,
    RankArrays,
)
from ngtcli.drafting.auto.policy import Pause
from ngtcli.drafting.guesses import WIDTH, Guessed, Heads
from ngtcli.drafting.origins import HeadReport
from ngtcli.drafting.tries.counts import NONE

_MOST = CONFIG.guess_states


def no_ranks(vocabulary: int) -> RankArrays:
    """The table for a vocabulary of so many tokens, with nothing learned."""
    return RankArrays(
        np.zeros((vocabulary, CONFIG.ranks_kept), np.int32),
        np.zeros((vocabulary, CONFIG.ranks_kept), np.float32),
        np.zeros((vocabulary, 2), np.float32),
    )


class HeadUse:
    """When a head is asked: as often as it pays, and now and then if it does not.

    A guess pays if the tokens that it adds are worth more, at the seconds that one takes of late,
    than the seconds it takes. `asked` says whether the head guessed in this step.

    The first call of a text, and the first after a rest, read all tokens since the call before: a
    whole prompt, it may be. So after a rest the head is asked in two steps, and the time of the
    second counts. The cost of a call is the median of several, since some capture a graph.
    """

    def __init__(self) -> None:
        self.asked = False
        self._was_asked = False  # in the step before
        self._gain = 0.0  # tokens that the head adds in a step in which it is asked
        self._calls_s = deque[float](maxlen=CONFIG.guess_timings)
        self._asks = 0
        self._pause = Pause(patience=1, first=1, longest=CONFIG.guess_rest)

    def report(self) -> HeadReport:
        """What was learned of the head."""
        return HeadReport(self._asks, self._gain, self._first_s)

    @property
    def _first_s(self) -> float:
        """The seconds of a call that reads the tokens of one step; 0.0 if none was timed."""
        return median(self._calls_s) if self._calls_s else 0.0

    def start(self) -> None:
        """Begin a text."""
        self.asked = False

    def wants(self, token_s: float) -> bool:
        """Begin a step; whether to ask. `token_s`: seconds that a token takes, 0.0 if not known."""
        self._was_asked, self.asked = self.asked, not self._pause.goes_on()
        has_read = self.asked and self._was_asked
        if has_read and token_s and self._asks >= CONFIG.guess_trials:
            self._pause.learn(self._gain * token_s > self._first_s)
        return self.asked

    def took(self, seconds: float) -> None:
        """Learn what a call took, if it read the tokens of one step alone."""
        if self._was_asked:
            self._calls_s.append(seconds)

    def learn(self, reached: float, gain: float) -> None:
        """Learn from a step, in which it guessed before so many of its tokens.

        `gain` is by how much it raised the probabilities of the tokens that came.
        """
        if not self.asked or not reached:
            return
        self._asks += 1
        rate = max(CONFIG.guess_rate, 1 / self._asks)
        self._gain += rate * (gain - self._gain)


class Guesses:
    """The guesses of a step. `states`, int32 (heads,), are those of the root, NONE if not asked."""

    def __init__(self, given: Heads | None = None) -> None:
        self._given = given
        self.heads = heads = tuple(given.guessers) if given is not None else ()
        self.uses = [HeadUse() for _ in heads]
        shape = len(heads), _MOST if heads else 1
        self.arrays = GuessArrays(
            np.zeros((*shape, WIDTH), np.int32),
            np.zeros((*shape, WIDTH)),
            np.full((*shape, 5), NONE, np.int32),
        )
        self.states = np.full(len(heads), NONE, np.int32)

    def start(self) -> None:
        """Begin a text."""
        for use in self.uses:
            use.start()

    def report(self) -> dict[str, HeadReport] | None:
        """What was learned of the heads, by their kind, behind its first numbered; or None."""
        found: dict[str, HeadReport] = {}
        for number, (head, use) in enumerate(zip(self.heads, self.uses, strict=True), 1):
            found[f"{head.kind} {number}" if head.kind in found else head.kind] = use.report()
        return found or None

    def begin(self, ids: Sequence[int], token_s: float) -> None:
        """Ask the heads that are to be asked for what follows `ids`; `token_s` as for HeadUse."""
        self.states[:] = NONE
        wanted = [at for at, use in enumerate(self.uses) if use.wants(token_s)]
        clock = time.perf_counter()  # what was accepted is read now: the first asked counts it
        if wanted and self._given is not None and not self._given.follow(ids):
            wanted = []
        for at in wanted:
            found = self.heads[at].first(ids[-1])
            self.uses[at].took(time.perf_counter() - clock)
            self.states[at] = 0
            self._set(at, found)
            clock = time.perf_counter()

    def _set(self, at: int, found: Guessed) -> None:
        """All states of a head, and what leads to them."""
        count, width = min(len(found.tokens), _MOST), found.tokens.shape[1]
        self.arrays.tokens[at, :count, :width] = found.tokens[:count]
        self.arrays.weights[at, :count] = 0.0
        self.arrays.weights[at, :count, :width] = found.probabilities[:count]
        links = self.arrays.links[at, :count]
        links[:] = NONE
        links[:, DEPTH] = range(count)
        if found.led is None:  # each below the one before by any token
            links[:-1, ANY_BELOW] = range(1, count)
            return
        for state, (parent, token) in enumerate(zip(*found.led.tolist(), strict=True), 1):
            links[state] = token, NONE, links[parent, FIRST_BELOW], NONE, links[parent, DEPTH] + 1
            links[parent, FIRST_BELOW] = state
