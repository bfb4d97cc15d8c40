"""The tokens of one sequence, shared by everything that works on it.

A log holds the prompt, the tokens emitted after it, and the tokens expected next. Emitted tokens
stay. Expected ones come before the draft of the next step: tokens that a grammar forces, or that an
exact forward pass chose in a branch, where its logits do not count yet. The next step verifies
them: each is emitted later, or taken back.

Nothing else keeps a copy of the sequence. An index, a sampler or a drafter keeps a mark instead,
and uses it to ask what has changed since:

>>> log = TokenLog([1, 2])
>>> mark = log.mark
>>> log.expect([3, 4], ["grammar", "grammar"])
>>> log.since(mark)
(2, [3, 4])
>>> mark = log.mark
>>> log.emit([3, 5])
>>> log.since(mark)
(3, [5])
>>> log.output, log.expected
([3, 5], [])
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """What its holder knows of a log: its first `length` tokens, as they were after `cuts` cuts.

    The holder of `Mark()` knows nothing. The holder of `Mark(length)` knows the first tokens of a
    log that was never cut, such as the tokens of its prompt.
    """

    length: int = 0
    cuts: int = 0


class TokenLog:
    """The token ids of a sequence: prompt, emitted tokens, expected tokens.

    Attributes:
        token_ids: The ids of all tokens. Only the methods of the log may change this list.
        prompt_length: The number of tokens of the prompt.
        emitted: The number of tokens emitted after the prompt.
        origins: For each expected token, the name of its origin.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self.token_ids = list(prompt)
        self.prompt_length = len(self.token_ids)
        self.emitted = 0
        self.origins: list[str] = []
        # The cuts that still matter: the serial number of each, and the length that it left. A cut
        # to the same or a smaller length makes earlier ones irrelevant, so that both lists ascend.
        self._cuts = 0
        self._cut_numbers: list[int] = []
        self._cut_lengths: list[int] = []

    def __len__(self) -> int:
        """Return the number of all tokens."""
        return len(self.token_ids)

    @property
    def settled(self) -> int:
        """Return the number of prompt and emitted tokens, which are never taken back."""
        return self.prompt_length + self.emitted

    @property
    def output(self) -> list[int]:
        """Return the emitted tokens, as a new list."""
        return self.token_ids[self.prompt_length : self.settled]

    @property
    def expected(self) -> list[int]:
        """Return the expected tokens, as a new list."""
        return self.token_ids[self.settled :]

    @property
    def mark(self) -> Mark:
        """Return the mark of a holder that knows the current log."""
        return Mark(len(self.token_ids), self._cuts)

    def emit(self, tokens: Sequence[int]) -> None:
        """Append emitted tokens.

        Expected tokens that equal them become emitted tokens. The first one that differs, and all
        after it, are taken back.
        """
        confirmed = _common_prefix(self.expected, tokens)
        if confirmed < len(tokens):
            self.take_back(confirmed)
        self.token_ids += tokens[confirmed:]
        self.emitted += len(tokens)
        del self.origins[: len(tokens)]

    def expect(self, tokens: Sequence[int], origins: Sequence[str]) -> None:
        """Append expected tokens, which come from `origins`, after those expected already."""
        if len(tokens) != len(origins):
            raise ValueError(f"{len(tokens)} expected tokens have {len(origins)} origins")
        self.token_ids += tokens
        self.origins += origins

    def take_back(self, keep: int = 0) -> None:
        """Drop all expected tokens but the first `keep`."""
        length = self.settled + keep
        if length >= len(self.token_ids):
            return
        del self.token_ids[length:]
        del self.origins[keep:]
        self._cuts += 1
        while self._cut_lengths and self._cut_lengths[-1] >= length:
            self._cut_lengths.pop()
            self._cut_numbers.pop()
        self._cut_lengths.append(length)
        self._cut_numbers.append(self._cuts)

    def since(self, mark: Mark) -> tuple[int, list[int]]:
        """Return what has changed for the holder of `mark`.

        Returns:
            How many of the first tokens are as the holder knows them, and the tokens after them,
            which are new to it. A token that was taken back and added again is new.
        """
        first_later_cut = bisect_right(self._cut_numbers, mark.cuts)
        unchanged = mark.length
        if first_later_cut < len(self._cut_lengths):
            unchanged = min(unchanged, self._cut_lengths[first_later_cut])
        return unchanged, self.token_ids[unchanged:]


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens both begin with."""
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length
