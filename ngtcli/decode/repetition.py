"""Whether a growing text has come to repeat itself: its last tokens are one period, many times."""

import numpy as np

LONGEST = 512  # tokens that repeat, at most; guess
# Tokens of all repeats at least. Swept with `Settings.max_repeats` on 805 recorded answers, three
# of which end in a loop, and on 740 texts by people. With 128 tokens, 3 to 8 repeats find in the
# texts two with hundreds of zeros, 3 to 6 find the three loops; with 32 tokens, 6 find 27 texts.
LEAST = 128


class Repetition:
    """Told every token of a text.

    It repeats itself once its last tokens are `repeats` times the same ones in a row, LONGEST at
    most, and in all these are LEAST tokens or more; with fewer than two `repeats` never.
    """

    def __init__(self, repeats: int) -> None:
        periods = np.arange(1, LONGEST + 1)
        self._needed = np.maximum((repeats - 1) * periods, LEAST - periods)
        self._last = np.full(LONGEST, -1)  # the newest first
        self._same = np.zeros(LONGEST, np.int64)  # tokens in a row equal to the one a period before
        self._is_on = repeats > 1

    def push(self, token: int) -> bool:
        """Whether the text repeats itself with this token."""
        if not self._is_on:
            return False
        self._same = (self._same + 1) * (self._last == token)
        self._last[1:] = self._last[:-1]
        self._last[0] = token
        return bool((self._same >= self._needed).any())
