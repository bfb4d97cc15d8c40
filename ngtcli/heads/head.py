"""A learned head: it reads hidden states of the target model and guesses the tokens to follow."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ngtcli.decode.scores import highest
from ngtcli.draft.guesses import WIDTH, Guessed


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


def guessed(scores: Tensor, ids: Tensor | None = None) -> Guessed:
    """The likeliest tokens by scores (m, vocabulary).

    `ids`, int64 (vocabulary,), are the tokens of a vocabulary of the head's own.
    """
    values, found = highest(scores.float(), WIDTH)
    probabilities = (values - scores.float().logsumexp(-1, keepdim=True)).exp()
    tokens = found if ids is None else ids[found]
    return Guessed(tokens.to("cpu", torch.int32).numpy(), probabilities.double().cpu().numpy())


def nothing(states: int) -> Guessed:
    """The guesses of a head that has read no row."""
    return Guessed(np.empty((states, 0), np.int32), np.empty((states, 0)))
