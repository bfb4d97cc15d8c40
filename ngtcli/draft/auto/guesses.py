"""What the model ranked high, and what heads guess in a step, as sources of the blend.

How much either predicts decides how often it is read.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.config import CONFIG
from ngtcli.draft.auto.core.tables import (
    ANY_BELOW,
    DEPTH,
    FIRST_BELOW,
    GuessArrays,
    RankArrays,
    learn_ranks,
)
from ngtcli.draft.auto.policy import Pause, averaged
from ngtcli.draft.guesses import WIDTH, Guessed, Heads
from ngtcli.draft.origins import HeadReport
from ngtcli.trie.counts import NONE

_MOST = CONFIG.guess_states


class Ranks:
    """The table for a vocabulary of so many tokens.

    >>> ranks = Ranks(9)
    >>> ranks.learn([3], np.array([[7, 5]]))
    >>> ranks.of(3)
    {7: 1.0, 5: 0.5}
    """

    def __init__(self, vocabulary: int) -> None:
        self.arrays = RankArrays(
            np.zeros((vocabulary, CONFIG.ranks_kept), np.int32),
            np.zeros((vocabulary, CONFIG.ranks_kept), np.float32),
            np.zeros((vocabulary, 2), np.float32),
        )

    @property
    def vocabulary(self) -> int:
        """How many tokens it has rows for."""
        return len(self.arrays.weights)

    def learn(self, tokens: Any, tops: npt.NDArray[np.int64]) -> None:
        """Learn a row of ids, best first, for each of `tokens`."""
        learn_ranks(np.asarray(tokens, np.int32), tops, self.arrays)

    def of(self, token: int) -> dict[int, float]:
        """What may follow `token`, with weights."""
        row = zip(
            self.arrays.tokens[token].tolist(), self.arrays.weights[token].tolist(), strict=True
        )
        return {successor: weight for successor, weight in row if weight > 0}


class HeadUse:
    """When a head is asked: as often as it pays, and now and then if it does not.

    A guess pays if the tokens that it adds are worth more, at the seconds that one takes of late,
    than the seconds it takes. `asked` says whether the head guessed in this step.
    """

    def __init__(self) -> None:
        self.asked = False
        self._gain = 0.0  # tokens that the head adds in a step in which it is asked
        self._share = 0.0  # of the tokens before which it guessed
        self._first_s = self._below_s = 0.0  # a call's seconds
        self._asks = 0
        self._pause = Pause(patience=1, first=1, longest=CONFIG.guess_rest)

    def report(self) -> HeadReport:
        """What was learned of the head."""
        return HeadReport(self._asks, self._gain, self._first_s, self._below_s)

    @property
    def gain(self) -> float | None:
        """Tokens that the head adds in a step in which it is asked; None if not known yet."""
        return self._gain if self._asks >= CONFIG.guess_trials else None

    def wants(self, token_s: float) -> bool:
        """Begin a step; whether to ask. `token_s`: seconds that a token takes, 0.0 if not known."""
        self.asked = not self._pause.goes_on()
        if self.asked and token_s and self._asks >= CONFIG.guess_trials:
            self._pause.learn(self._gain * token_s > self._first_s)
        return self.asked

    def goes_on(self, probability: float, token_s: float) -> bool:
        """Whether to ask after nodes of which one is reached with such a probability."""
        known = token_s and self._asks >= CONFIG.guess_trials
        return not known or probability * self._share * token_s > self._below_s

    def took(self, seconds: float, is_first: bool) -> None:
        """Learn what a call took."""
        if is_first:
            self._first_s = averaged(self._first_s, seconds, CONFIG.guess_rate)
        else:
            self._below_s = averaged(self._below_s, seconds, CONFIG.guess_rate)

    def learn(self, predicted: float, reached: float, gain: float) -> None:
        """Learn from a step: tokens expected to be its own, of those before which it guessed.

        `gain` is by how much it raised the probabilities of the tokens that came.
        """
        if not self.asked or not reached:
            return
        self._asks += 1
        rate = max(CONFIG.guess_rate, 1 / self._asks)
        self._gain += rate * (gain - self._gain)
        self._share += rate * (min(1.0, predicted / reached) - self._share)


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
        self._used = [0] * len(heads)  # states of each head
        self._planned = [False] * len(heads)  # whether those are all that it says

    def report(self) -> dict[str, HeadReport] | None:
        """What was learned of the heads, by their kind, behind its first numbered; or None."""
        found: dict[str, HeadReport] = {}
        for number, (head, use) in enumerate(zip(self.heads, self.uses, strict=True), 1):
            found[f"{head.kind} {number}" if head.kind in found else head.kind] = use.report()
        return found or None

    def begin(self, ids: Sequence[int], token_s: float) -> bool:
        """Ask the heads that are to be asked for what follows `ids`; False if none guesses.

        `token_s` is as for HeadUse.
        """
        self.states[:] = NONE
        wanted = [at for at, use in enumerate(self.uses) if use.wants(token_s)]
        clock = time.perf_counter()  # what was accepted is read now: the first asked counts it
        if wanted and self._given is not None and not self._given.follow(ids):
            wanted = []
        for at in wanted:
            found = self.heads[at].first(ids[-1])
            self.uses[at].took(time.perf_counter() - clock, True)
            self.states[at], self._used[at] = 0, 0
            self._add(at, found)
            self._planned[at] = found.led is not None
            if found.led is not None:
                self._link(at, 1, *found.led.tolist())
            clock = time.perf_counter()
        return bool(wanted)

    def extend_below(self, growth: Any, token_s: float) -> bool:
        """Ask every head after the likeliest nodes of a Growth where it has not guessed.

        False where none is asked.
        """
        asked = False
        for at, head in enumerate(self.heads):
            if head.by_path and self.states[at] != NONE and not self._planned[at]:
                nodes = self._below(at, growth)
                probability = float(growth.probabilities[nodes].sum())
                if nodes and self.uses[at].goes_on(probability, token_s):
                    parents = [self._state(at, growth, growth.parents[node]) for node in nodes]
                    asked |= self._extend(at, parents, growth.tokens[nodes].tolist())
        return asked

    def _state(self, at: int, growth: Any, node: int) -> int:
        """The state of a head after a node."""
        return int(self.states[at] if node < 0 else growth.states[node, at])

    def _below(self, at: int, growth: Any) -> list[int]:
        """The likeliest nodes after which a head has not guessed and can."""
        nodes, deepest = [], self.heads[at].depth - 1
        for node in np.flatnonzero(growth.states[:, at] == NONE).tolist():
            parent = self._state(at, growth, growth.parents[node])
            if parent != NONE and self.arrays.links[at, parent, DEPTH] < deepest:
                nodes.append(node)
                if len(nodes) == CONFIG.guess_batch:
                    break
        return nodes

    def _extend(self, at: int, parents: Sequence[int], tokens: Sequence[int]) -> bool:
        """Ask head `at` after the nodes that `tokens` lead to from the states `parents`.

        False where there is no room for more.
        """
        first = self._used[at]
        if first + len(parents) > _MOST:
            return False
        clock = time.perf_counter()
        found = self.heads[at].below(parents, tokens)
        self.uses[at].took(time.perf_counter() - clock, False)
        self._add(at, found)
        self._link(at, first, parents, tokens)
        return True

    def _link(self, at: int, first: int, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """Say which states and tokens lead to those from `first` on."""
        links = self.arrays.links[at]
        for state, (parent, token) in enumerate(zip(parents, tokens, strict=True), first):
            links[state] = token, NONE, links[parent, FIRST_BELOW], NONE, links[parent, DEPTH] + 1
            links[parent, FIRST_BELOW] = state

    def _add(self, at: int, found: Guessed) -> None:
        """The states that a head has just made, each below the one before by any token."""
        first, width = self._used[at], found.tokens.shape[1]
        count = min(len(found.tokens), _MOST - first)
        rows = slice(first, first + count)
        self._used[at] = first + count
        self.arrays.tokens[at, rows, :width] = found.tokens[:count]
        self.arrays.weights[at, rows] = 0.0
        self.arrays.weights[at, rows, :width] = found.probabilities[:count]
        links = self.arrays.links[at, rows]
        links[:] = NONE
        links[:, DEPTH] = range(count)
        if found.led is None:
            links[:-1, ANY_BELOW] = range(first + 1, first + count)
