"""What heads guess in a step, as sources of the blend, and how often each head is asked. Compiled.

The guesses of all heads stand in one table, a row for each state (draft/guesses.py). A head's match
is the state of the node, kept in its row of the matches at order 1: a copied token leads to a state
as a guessed one does, if the head was asked there.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.config import CONFIG
from ngtcli.draft.guesses import WIDTH, Guessed, Heads
from ngtcli.draft.origins import HeadReport
from ngtcli.system.compiled import njit
from ngtcli.trie.counts import NONE

LED_BY, FIRST_BELOW, NEXT_BESIDE, ANY_BELOW, DEPTH = range(5)  # columns of `links`
_MOST = CONFIG.guess_states
_SURE = CONFIG.guess_sure


class GuessArrays(NamedTuple):
    """By state: `tokens` int32 and `probabilities` float64 (states, WIDTH), falling, 0.0 for none.

    `links`, int32 (states, 5): the token that leads there, the first state below, the next one with
    the same parent, the state below by any token, NONE where there is none, and the depth.
    """

    tokens: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float64]
    links: npt.NDArray[np.int32]


@njit(inline="always")
def state_below(guesses: Any, state: int, token: int) -> Any:
    """The state that `token` leads to, NONE if no guess was made there."""
    if state == NONE or guesses.links[state, ANY_BELOW] != NONE:
        return NONE if state == NONE else guesses.links[state, ANY_BELOW]
    below = guesses.links[state, FIRST_BELOW]
    while below != NONE and guesses.links[below, LED_BY] != token:
        below = guesses.links[below, NEXT_BESIDE]
    return below


@njit(inline="always")
def guesses_here(guesses: Any, state: int) -> bool:
    """Whether there is a guess after a node of this state."""
    return state != NONE and guesses.probabilities[state, 0] > 0.0


@njit(inline="always")
def guess_bucket(guesses: Any, state: int) -> int:
    """The bucket of a guess: how sure it is, and whether its head has read the last token."""
    top, level = guesses.probabilities[state, 0], 0
    while level < len(_SURE) and top < _SURE[level]:
        level += 1
    deeper = guesses.links[state, DEPTH] > 0
    return level + (len(_SURE) + 1 if deeper else 0)


@njit(inline="always")
def guess_of(guesses: Any, state: int, token: int) -> Any:
    """The probability that a guess gives `token`."""
    for i in range(guesses.tokens.shape[1]):
        if guesses.tokens[state, i] == token:
            return guesses.probabilities[state, i]
    return 0.0


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
        self._asks = self._wait = self._next = 0

    def report(self) -> HeadReport:
        """What was learned of the head."""
        return HeadReport(self._asks, self._gain, self._first_s, self._below_s)

    @property
    def gain(self) -> float | None:
        """Tokens that the head adds in a step in which it is asked; None if not known yet."""
        return self._gain if self._asks >= CONFIG.guess_trials else None

    def wants(self, token_s: float) -> bool:
        """Begin a step; whether to ask. `token_s`: seconds that a token takes, 0.0 if not known."""
        self.asked = self._wait == 0
        if not self.asked:
            self._wait -= 1
        elif token_s and self._asks >= CONFIG.guess_trials:
            pays = self._gain * token_s > self._first_s
            self._next = 0 if pays else min(CONFIG.guess_rest, 2 * self._next + 1)
            self._wait = self._next
        return self.asked

    def goes_on(self, probability: float, token_s: float) -> bool:
        """Whether to ask after nodes of which one is reached with such a probability."""
        known = token_s and self._asks >= CONFIG.guess_trials
        return not known or probability * self._share * token_s > self._below_s

    def took(self, seconds: float, is_first: bool) -> None:
        """Learn what a call took; one is counted as four times the average at most."""
        before = self._first_s if is_first else self._below_s
        after = seconds
        if before:
            after = before + CONFIG.guess_rate * (min(seconds, 4 * before) - before)
        if is_first:
            self._first_s = after
        else:
            self._below_s = after

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
        most = _MOST if heads else 1
        self.arrays = GuessArrays(
            np.zeros((most, WIDTH), np.int32),
            np.zeros((most, WIDTH)),
            np.full((most, 5), NONE, np.int32),
        )
        self.states = np.full(len(heads), NONE, np.int32)
        self._own: list[list[int]] = [[] for _ in heads]  # of each head's states, their rows
        self._number = [0] * most  # of each row, the number that its head gave the state
        self._used = 0

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
        self._used = 0
        self.states[:] = NONE
        wanted = [at for at, use in enumerate(self.uses) if use.wants(token_s)]
        clock = time.perf_counter()  # what was accepted is read now: the first asked counts it
        if wanted and self._given is not None and not self._given.follow(ids):
            wanted = []
        for at in wanted:
            self._own[at] = []
            found = self.heads[at].first(ids[-1])
            self.uses[at].took(time.perf_counter() - clock, True)
            self.states[at] = self._add(at, found, NONE, ())
            clock = time.perf_counter()
        return bool(wanted)

    def extend_below(self, growth: Any, token_s: float) -> bool:
        """Ask every head after the likeliest nodes of a Growth where it has not guessed.

        False where none is asked.
        """
        asked = False
        for at, head in enumerate(self.heads):
            if head.by_path and self.states[at] != NONE:
                nodes = self._below(at, growth)
                probability = float(growth.probabilities[nodes].sum())
                if nodes and self.uses[at].goes_on(probability, token_s):
                    parents = [self._state(at, growth, growth.parents[node]) for node in nodes]
                    asked |= self._extend(at, parents, growth.tokens[nodes].tolist())
        return asked

    def _state(self, at: int, growth: Any, node: int) -> int:
        """The row of the guess that a head made after a node."""
        return int(self.states[at] if node < 0 else growth.states[node, at])

    def _below(self, at: int, growth: Any) -> list[int]:
        """The likeliest nodes after which a head has not guessed and can."""
        nodes, deepest = [], self.heads[at].depth - 1
        for node in np.flatnonzero(growth.states[:, at] == NONE).tolist():
            parent = self._state(at, growth, growth.parents[node])
            if parent != NONE and self.arrays.links[parent, DEPTH] < deepest:
                nodes.append(node)
                if len(nodes) == CONFIG.guess_batch:
                    break
        return nodes

    def _extend(self, at: int, parents: Sequence[int], tokens: Sequence[int]) -> bool:
        """Ask head `at` after the nodes that `tokens` lead to from the states `parents`, rows.

        False where there is no room for more.
        """
        if self._used + len(parents) > len(self._number):
            return False
        clock = time.perf_counter()
        found = self.heads[at].below([self._number[row] for row in parents], tokens)
        self.uses[at].took(time.perf_counter() - clock, False)
        for i, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
            one = Guessed(found.tokens[i : i + 1], found.probabilities[i : i + 1])
            self._add(at, one, parent, (token,))
        return True

    def _add(self, at: int, found: Guessed, parent: int, led_by: Sequence[int]) -> int:
        """Rows for the states that a head has just made; the first, NONE where none has room."""
        first, links, width = self._used, self.arrays.links, found.tokens.shape[1]
        count = min(len(found.tokens), len(self._number) - first)
        self._used += count
        rows = slice(first, first + count)
        self.arrays.tokens[rows, :width] = found.tokens[:count]
        self.arrays.probabilities[rows] = 0.0
        self.arrays.probabilities[rows, :width] = found.probabilities[:count]
        links[rows] = NONE
        for i in range(count):
            row, depth = first + i, i
            self._number[row] = len(self._own[at])
            self._own[at].append(row)
            if parent != NONE:
                depth = links[parent, DEPTH] + 1
                links[row, LED_BY] = led_by[0]
                links[row, NEXT_BESIDE] = links[parent, FIRST_BELOW]
                links[parent, FIRST_BELOW] = row
            elif i:
                links[row - 1, ANY_BELOW] = row
            links[row, DEPTH] = depth
        return first if count else NONE
