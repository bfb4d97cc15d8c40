"""A learned head: it reads hidden states of the target model and guesses the tokens to follow.

There are two ways: `AtOnce` guesses all depths by one call of its network, `ByPath` goes on from
each node that is drafted. What differs between kinds are the networks and their files (kinds.py).
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ngtcli.decode.scores import guessed
from ngtcli.draft.guesses import Guessed
from ngtcli.heads.files import Target
from ngtcli.heads.rows import Depths, DraftRows, HeadPass, Sight


class Network(Protocol):
    """What every head computes with.

    `reads` are the hidden states that it wants, numbered as transformers numbers `hidden_states`:
    i is what enters layer i, -1 what leaves the last norm. `sights` are what its layers see of the
    rows before; a network without such layers reads the last row of a text alone. `ids`, int64, are
    the tokens of a vocabulary of its own, None: it has the target's.
    """

    reads: tuple[int, ...]
    depth: int
    sights: tuple[Sight, ...]
    ids: Tensor | None

    def read(self, states: Tensor, following: Tensor, given: HeadPass) -> Tensor:
        """Read rows, (rows, len(reads) * hidden size), and the tokens after them, int64 (rows,).

        Returns the state (1, size) that guesses begin with.
        """

    # Of those that guess at once:
    def guess(self, last: Tensor, root: int, rows: DraftRows) -> Tensor:
        """Scores (depth, vocabulary) behind the last token, from the state of its row."""

    # Of those that guess by path, whose states are those of nodes:
    def step(self, states: Tensor, tokens: Tensor, depths: Depths, given: HeadPass) -> Tensor:
        """The states (n, size) at nodes of such depths, reached from states by tokens (n,)."""

    def scores(self, states: Tensor, depths: Depths) -> Tensor:
        """Scores (n, vocabulary) of what follows nodes of such depths."""


class Head:
    """What both ways have; a Guesser (draft/guesses.py). Its network computes for `target`.

    `layers` are the hidden states that it wants. With `reads_all` it wants those of every row of
    the text, else of the last one alone.
    """

    by_path = False

    def __init__(self, kind: str, network: Any, target: Target) -> None:
        self.kind, self.depth, self.layers = kind, network.depth, network.reads
        self.reads_all = bool(network.sights)
        self._target = target
        self.network: Network = network
        self._rows = DraftRows(network.sights, target.device, target.dtype)
        self.reset()

    def reset(self) -> None:
        """A new text begins."""
        self._rows.clear()
        self._last = torch.empty(0)  # (1, size): the state that the network gave for the last row

    @torch.inference_mode()
    def read(self, states: Tensor, following: Tensor, start: int) -> None:
        """Read rows of the text that were accepted.

        `states`, (rows, len(layers) * hidden size), are their hidden states, layer by layer;
        `following`, int64 (rows,), is the token after each; the first row stands at position
        `start`, the others behind it. What stood before may be missing.
        """
        on, given = self._target.device, self._rows.chain(len(states), start)
        own = states.to(on, self._target.dtype)
        self._last = self.network.read(own, following.to(on), given)
        self._rows.keep()

    def first(self, root: int) -> Guessed:
        """As Guesser.first; `root` is the last of `following`."""
        raise NotImplementedError


class AtOnce(Head):
    """Guesses the same for all nodes of a depth."""

    @torch.inference_mode()
    def first(self, root: int) -> Guessed:
        if not len(self._last):
            return _nothing(self.depth)
        return guessed(self.network.guess(self._last, root, self._rows), self.network.ids)


class ByPath(Head):
    """Guesses by the tokens that lead to a node; a node has a state and a depth."""

    by_path = True

    def reset(self) -> None:
        super().reset()
        self._states = self._last

    @torch.inference_mode()
    def first(self, root: int) -> Guessed:
        self._rows.drop()
        self._states, self._depths = self._last, [0]
        return self._guessed(self._states, [0]) if len(self._states) else _nothing(1)

    @torch.inference_mode()
    def below(self, states: Sequence[int], tokens: Sequence[int]) -> Guessed:
        if not len(self._states):
            return _nothing(len(states))
        given = self._rows.tree([state - 1 for state in states])  # state 0 is of a row that is kept
        depths = [self._depths[state] + 1 for state in states]
        ids = torch.tensor(list(tokens), device=self._target.device)
        found = self.network.step(self._states[list(states)], ids, depths, given)
        self._states = torch.cat([self._states, found])
        self._depths += depths
        return self._guessed(found, depths)

    def _guessed(self, states: Tensor, depths: Sequence[int]) -> Guessed:
        return guessed(self.network.scores(states, depths), self.network.ids)


def _nothing(states: int) -> Guessed:
    """The guesses of a head that has read no row."""
    return Guessed(np.empty((states, 0), np.int32), np.empty((states, 0)))
