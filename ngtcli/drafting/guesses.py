"""What a learned head guesses: a few likely tokens after each of some nodes. Knows no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

WIDTH = 16  # likeliest tokens of a guess that are read; guess: growth takes the best of all sources


@dataclass(frozen=True, slots=True)
class Guessed:
    """What may follow each of m nodes of a draft, the root first; the likeliest first.

    `tokens` int32 and `probabilities` float64 are (m, width), width at most WIDTH; a probability is
    that among all tokens the head knows. `led`, int (2, m - 1), has of each node but the first the
    number of its parent, which comes before it, and the token that leads to it. Where a guess does
    not depend on the tokens that lead to a node it is None: node d stands for all of depth d.
    """

    tokens: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float64]
    led: npt.NDArray[np.int32] | None = None


NOTHING = Guessed(np.zeros((0, 0), np.int32), np.zeros((0, 0)))


class Guesser(Protocol):
    """A learned head that has read what was accepted so far. Its guesses are `depth` deep."""

    @property
    def kind(self) -> str:
        """The head's kind, which origins name."""

    @property
    def depth(self) -> int:
        """Return how deep a guessed node can be."""

    def first(self, root: int) -> Guessed:
        """All that it guesses behind `root`, the last token, which follows all rows read."""


class StateReader(Protocol):
    """What is given the hidden states of a text's rows, as they are read or kept."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The hidden states that it wants, as transformers numbers `hidden_states`."""

    @property
    def reads_all(self) -> bool:
        """Return whether it wants those of every row, else of the last alone."""

    def reset(self, start: int = 0) -> None:
        """A new text, whose rows before `start` are not given."""

    def add(self, ids: list[int], states: Any) -> None:
        """The text's next rows: their tokens, and a tensor (rows, layers, hidden size)."""


class Heads(StateReader, Protocol):
    """The heads of a model, and what they read."""

    @property
    def guessers(self) -> Sequence[Guesser]:
        """The heads."""

    def of_kind(self, kind: str) -> "Heads | None":
        """Those of one kind alone; None if there are none."""

    def follow(self, ids: Sequence[int]) -> bool:
        """Let the heads read what waits; `ids` are those of prompt and output so far.

        False where the last of them does not follow the last row: then there are no guesses.
        """
