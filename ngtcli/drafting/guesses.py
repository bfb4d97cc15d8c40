"""The guesses of learned heads: a few likely tokens after each of some nodes. Without torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

# The likeliest tokens of a head's proposal that are read (guess: growth takes the best of all
# sources.
WIDTH = 16


@dataclass(frozen=True, slots=True)
class Guessed:
    """Likely tokens after each of m nodes of a draft, the root first; the likeliest first.

    Attributes:
        tokens: int32 (m, width), width at most WIDTH.
        probabilities: float64 (m, width), among all tokens that the head knows.
        led: int32 (2, m - 1): for each node but the first, the number of its parent, which comes
            before it, and the token that leads to it. None if guesses do not depend on the tokens
            that lead to a node: then node d represents all nodes of depth d.
    """

    tokens: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float64]
    led: npt.NDArray[np.int32] | None = None


NOTHING = Guessed(np.zeros((0, 0), np.int32), np.zeros((0, 0)))


class Guesser(Protocol):
    """A learned head that has read the accepted tokens. Its guesses are `depth` deep."""

    @property
    def kind(self) -> str:
        """Return the head's kind, which is part of the names of origins."""

    @property
    def depth(self) -> int:
        """Return the maximum depth of a guessed node."""

    def first(self, root: int) -> Guessed:
        """Guess the tokens after the last token, `root`, which follows all rows that were read."""


class StateReader(Protocol):
    """A reader of the hidden states of a sequence's tokens, as these are prefilled or accepted."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Return the hidden states that it reads, as transformers numbers `hidden_states`."""

    @property
    def reads_all(self) -> bool:
        """Return whether it reads the states of every row, not only of the last one."""

    def reset(self, start: int = 0) -> None:
        """Begin a sequence; the hidden states of its first `start` tokens do not come."""

    def add(self, ids: list[int], states: Any) -> None:
        """Read the next tokens: their ids, and a tensor (tokens, layers, hidden size)."""


class Heads(StateReader, Protocol):
    """The heads of a model, and the hidden states that they read."""

    @property
    def guessers(self) -> Sequence[Guesser]:
        """Return the heads."""

    def of_kind(self, kind: str) -> "Heads | None":
        """Return only the heads of one kind; None if there are none."""

    def follow(self, ids: Sequence[int]) -> bool:
        """Let the heads read the waiting rows.

        Args:
            ids: The token ids of prompt and output so far.

        Returns:
            False if the last of them does not follow the last row: then there are no guesses.
        """
