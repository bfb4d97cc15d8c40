"""The source that follows the copied place: in a predicted text, the prompt or the answer."""

from collections.abc import Sequence

import numpy as np

from ngtcli.drafting.auto.core.copies import (
    ANSWER,
    BEHIND,
    PROMPTED,
    USED,
    CopyArrays,
    extend_by_all,
    shorten,
)
from ngtcli.drafting.auto.core.forms import COPY_ROWS, ROW
from ngtcli.drafting.auto.sources.predicted import predicted_ids
from ngtcli.drafting.auto.sources.source import Floats, Ints, Resources, Source, fitted
from ngtcli.drafting.drafter import Context
from ngtcli.drafting.origins import PROMPT
from ngtcli.drafting.tries.counts import NONE

_ROOM = 1 << 10  # tokens that a new text has room for (guess)


class CopySource(Source):
    """The text so far; it predicts one token, or two after a departure.

    It has two rows of escape probabilities: of a copy that continues, and after a departure. The
    first row of its matches holds the state of the copy (core/copies.py). Its tokens are credited
    to the source that counts the segment from which they are copied.
    """

    origin = PROMPT
    form = ROW
    rows = COPY_ROWS

    def __init__(self, resources: Resources) -> None:
        self._allocate(_ROOM)

    def _allocate(self, room: int) -> None:
        """Make room for `room` tokens, a power of two."""
        self.arrays = CopyArrays(
            np.full(room, NONE, np.int32), np.zeros(3, np.int64), np.full(2 * room, NONE, np.int32)
        )

    @classmethod
    def first_escapes(cls) -> Floats:
        """Return the fitted escapes."""
        return fitted("copies")

    def begin(self, context: Context) -> None:
        """Begin with the predicted text and the prompt, with NONE between them."""
        like = predicted_ids(context)
        border = [NONE] if len(like) else []
        before = np.array([*like, *border, *context.ids], np.int32)
        self._allocate(max(_ROOM, 1 << len(before).bit_length()))
        self._read(before, self.matches[0])
        self.arrays.sizes[ANSWER] = len(before)
        self.arrays.sizes[PROMPTED] = len(like)

    def _read(self, text: Ints, state: Ints) -> None:
        state[:] = NONE
        extend_by_all(tuple(self.arrays), state, text)

    def start_matching(self) -> None:
        """Stay at the place that was found in `begin`."""

    def refresh(self, tokens: int) -> bool:
        """Make room in the text."""
        text, sizes, _ = self.arrays
        used = int(sizes[USED])
        if used + tokens <= len(text):
            return False
        self._allocate(1 << (used + tokens).bit_length())
        self._read(text[:used], np.empty(BEHIND + 1, np.int32))
        self.arrays.sizes[:] = sizes
        return True

    def retract(self, count: int, output: Sequence[int]) -> None:
        """Remove the last tokens of the text."""
        shorten(tuple(self.arrays), int(self.arrays.sizes[USED]) - count)
