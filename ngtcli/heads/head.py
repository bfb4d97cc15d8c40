"""A learned head: it reads hidden states of the target model and guesses the tokens to follow."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ngtcli.decode.scores import guessed
from ngtcli.draft.guesses import Guessed

__all__ = ["Head", "guessed", "nothing"]


class Head:
    """What every kind of head has; a Guesser (draft/guesses.py).

    `layers` are the hidden states that it wants, numbered as transformers numbers `hidden_states`:
    i is what enters layer i, -1 what leaves the last norm. With `reads_all` it wants those of every
    row of the text, else of the last one alone.
    """

    kind = ""
    by_path = False
    reads_all = False
    depth = 1
    layers: tuple[int, ...] = (-1,)

    def reset(self) -> None:
        """A new text begins."""

    def read(self, states: Tensor, following: Tensor, start: int) -> None:
        """Read rows of the text that were accepted.

        `states`, (rows, len(layers) * hidden size), are their hidden states, layer by layer;
        `following`, int64 (rows,), is the token after each; the first row stands at position
        `start`, the others behind it. What stood before may be missing.
        """
        raise NotImplementedError

    def first(self, root: int) -> Guessed:
        """As Guesser.first; `root` is the last of `following`."""
        raise NotImplementedError

    def below(self, states: Sequence[int], tokens: Sequence[int]) -> Guessed:
        """As Guesser.below."""
        raise NotImplementedError


def nothing(states: int) -> Guessed:
    """The guesses of a head that has read no row."""
    return Guessed(np.empty((states, 0), np.int32), np.empty((states, 0)))
