"""The guesses of learned heads: a few likely tokens after each of some nodes. Knows no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

WIDTH = (
    16  # likeliest tokens of a guess that are read; a guess: growth takes the best of all sources
)


@dataclass(frozen=True, slots=True)
class Guessed:
    """Likely tokens after each of m nodes of a draft, the root first; the likeliest first.

    Attributes:
        tokens: int32 (m, width), width at most WIDTH.
        probabilities: float64 (m, width), among all tokens that the head knows.
        led: int32 (2, m - 1): of each node but the first the number of its parent, which comes
            before it, and the token that leads to it. None where guesses do not depend on the
            tokens that lead to a node: then node d stands for all nodes of depth d.
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
        """Guess what follows the last token, `root`, which follows all rows read."""


class StateReader(Protocol):
    """Reads the hidden states of a sequence's tokens, as they are prefilled or accepted."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The hidden states that it wants, as transformers numbers `hidden_states`."""

    @property
    def reads_all(self) -> bool:
        """Return whether it wants those of every row, else of the last alone."""

    def reset(self, start: int = 0) -> None:
        """Begin a sequence; the hidden states of its first `start` tokens do not come."""

    def add(self, ids: list[int], states: Any) -> None:
        """Read the next tokens: their ids, and a tensor (tokens, layers, hidden size)."""


class Heads(StateReader, Protocol):
    """The heads of a model, and what they read."""

    @property
    def guessers(self) -> Sequence[Guesser]:
        """The heads."""

    def of_kind(self, kind: str) -> "Heads | None":
        """Return the heads of one kind alone; None if there are none."""

    def follow(self, ids: Sequence[int]) -> bool:
        """Let the heads read what waits.

        Args:
            ids: The token ids of prompt and output so far.

        Returns:
            False where the last of them does not follow the last row: then there are no guesses.
        """
