"""The place in the text that is being copied, also across edits. Compiled.

The tries know the last few tokens (blend.py). A copy of hundreds of tokens is likelier to continue
than a match of six, and where an answer departs from what it copies it mostly comes back to it a
few tokens later, where no match of several tokens can say so. One position in the text is followed:

    text    … a b c d e f g …
    answer  a b c          copied: d is next, the likelier the longer this has come true
    answer  a b c x        departed: e is next if x replaced d, or d if x was inserted
    answer  a b c x e      copied again, from f on, as if after e or after a token left out

The text has three segments: the predicted answer, the prompt, and the answer so far. Each node of
the tree has a separate state, so that a chain is drafted across edits.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.tries.counts import NONE
from ngtcli.system.compiled import njit, unowned

Ints = npt.NDArray[np.int32]
# Columns of a state, int32.
# PLACE: the index in the text of the token that is copied next; NONE if nothing is copied.
# HELD: how many tokens in a row were as the copy predicted.
# DEPARTED: how many tokens came since the answer departed from the text; 0 while it follows it.
# BROKEN: the index of the text's token that did not come at the last departure; NONE before one.
# BEFORE: HELD just before that departure.
# BEHIND: how many tokens the text has from the place to its end.
PLACE, HELD, DEPARTED, BROKEN, BEFORE, BEHIND = range(6)
# Columns of `sizes`: the number of tokens of the text, and the indices at which the answer and the
# prompt begin in it.
USED, ANSWER, PROMPTED = range(3)
PREDICTED_SEGMENT, PROMPT_SEGMENT, ANSWER_SEGMENT = range(3)
WAYS = 2  # Ways to continue after a departure: tokens were replaced, or inserted.
_KEY = CONFIG.copy_key
_WINDOW = CONFIG.copy_window
_FIRM = CONFIG.copy_firm
_COMPARED = CONFIG.copy_compared
_LONGEST_EDIT = CONFIG.copy_edit
_SPREAD = 0x9E3779B97F4A7C15  # as in tries/counts.py


class CopyArrays(NamedTuple):
    """The text that may be copied.

    Attributes:
        text: int32, with room for more tokens after those in use.
        sizes: int64 (3,).
        places: int32 (power of two,), a hash table from the last `copy_key` tokens to the index
            after their last occurrence. It has no keys: each result is compared with the text.
    """

    text: Ints
    sizes: npt.NDArray[np.int64]
    places: Ints


@unowned
def follow(copies: Any, state: Any, token: int) -> None:
    """Advance a state in place by one token of the answer, or of a path of the tree."""
    place = state[PLACE]
    if place == NONE:
        return
    if state[DEPARTED] == 0:
        if copies.text[place] == token:
            state[HELD] += 1
            _move_to(copies, state, place + 1)
            return
        if state[HELD] >= _FIRM or state[BROKEN] == NONE:
            state[BROKEN] = place
            state[BEFORE] = state[HELD]
    state[HELD] = 0
    state[DEPARTED] += 1
    for index in range(state[BROKEN], min(state[BROKEN] + _WINDOW, copies.sizes[USED])):
        if copies.text[index] == token:
            state[HELD] = 1
            state[DEPARTED] = 0
            _move_to(copies, state, index + 1)
            return
    if state[DEPARTED] > _LONGEST_EDIT:
        state[PLACE] = NONE


@njit(inline="always")
def _move_to(copies: Any, state: Any, place: int) -> None:
    """Move to a place; one past the end of the text wraps around, because the copy is a loop."""
    state[PLACE] = place if place < copies.sizes[USED] else place - state[BEHIND]


@unowned
def extend_text(copies: Any, state: Any, token: int) -> None:
    """Append `token` to the text, which has room, and follow it, or find a longer match.

    In a loop shorter than the window, a token that is new there is found as itself: the loop
    continues where it was. Without this rule, recorded answers take up to 0.7% more steps.
    """
    copies.text[copies.sizes[USED]] = token
    copies.sizes[USED] += 1
    follow(copies, state, token)
    end = copies.sizes[USED]
    if end >= _KEY:
        slot = _slot(copies, end)
        earlier = copies.places[slot]
        copies.places[slot] = end
        # The table may still hold the ends of tokens that were taken back.
        if earlier != NONE and earlier < end and earlier != state[PLACE]:
            length = _common_length(copies.text, earlier, end)
            if length >= _KEY and (state[PLACE] == NONE or length > state[HELD]):
                state[PLACE] = earlier
                state[HELD] = length
                state[DEPARTED] = 0
                state[BROKEN] = NONE
                state[BEFORE] = 0
    if state[PLACE] != NONE:
        state[BEHIND] = end - state[PLACE]


@njit(inline="always")
def _slot(copies: Any, end: int) -> Any:
    """Return the slot in `places` of the tokens before index `end`."""
    mixed = np.uint64(0)
    for index in range(end - _KEY, end):
        mixed = (mixed + np.uint64(copies.text[index] + 2)) * np.uint64(_SPREAD)
    return np.int64(mixed >> np.uint64(20)) & (len(copies.places) - 1)


@njit(inline="always")
def _common_length(text: Any, first: int, second: int) -> Any:
    """Return the number of equal tokens before two indices, within the compared length."""
    length = 0
    longest = min(first, _COMPARED)
    while length < longest and text[first - 1 - length] == text[second - 1 - length]:
        length += 1
    return length


@njit()
def extend_by_all(plain: Any, state: Any, token_ids: Any) -> None:
    """Extend the text by all of `token_ids`; `plain` are CopyArrays as a plain tuple."""
    copies = CopyArrays(plain[0], plain[1], plain[2])
    for token in token_ids:
        extend_text(copies, state, token)


@njit()
def shorten(plain: Any, length: int) -> None:
    """Remove the tokens after the first `length`, and index the ones before them again."""
    copies = CopyArrays(plain[0], plain[1], plain[2])
    for end in range(max(length + 1, _KEY), copies.sizes[USED] + 1):
        copies.places[_slot(copies, end)] = NONE
    copies.sizes[USED] = length
    for end in range(length, _KEY - 1, -1):  # only slots that were cleared are free now
        slot = _slot(copies, end)
        if copies.places[slot] == NONE:
            copies.places[slot] = end


@njit(inline="always")
def copied_token(copies: Any, state: Any, way: int) -> Any:
    """Return the token that is copied next, or NONE.

    After a departure there are two: way 0 assumes that the tokens since then replaced as many
    others, way 1 that they were inserted. Otherwise there is only way 0.
    """
    if state[PLACE] == NONE or (state[DEPARTED] == 0 and way > 0):
        return NONE
    if state[DEPARTED] == 0:
        return copies.text[state[PLACE]]
    index = state[BROKEN] + (state[DEPARTED] if way == 0 else 0)
    return copies.text[index] if index < copies.sizes[USED] else NONE


@njit(inline="always")
def segment_of(copies: Any, state: Any) -> int:
    """Return the segment that is copied from."""
    if state[PLACE] >= copies.sizes[ANSWER]:
        return ANSWER_SEGMENT
    return PREDICTED_SEGMENT if state[PLACE] < copies.sizes[PROMPTED] else PROMPT_SEGMENT


@njit(inline="always")
def copy_order(state: Any) -> Any:
    """Return the class, 0 to 6, of the length of a copy or, after a departure, of the departure."""
    if state[DEPARTED] > 0:
        count = state[DEPARTED]
        return count - 1 if count < 5 else 4 if count < 7 else 5 if count < 10 else 6
    count = state[HELD]
    if count < 3:
        return count - 1
    return 2 if count < 6 else 3 if count < 12 else 4 if count < 24 else 5 if count < 48 else 6


@njit(inline="always")
def copy_bucket(state: Any, distinct: int, way: int) -> int:
    """Return the class, 0 to 11, of a copy's length before its last departure and of a second fact.

    The second fact is the number of `distinct` continuations of the longest match or, after a
    departure, the `way` to continue.
    """
    before = 0 if state[BROKEN] == NONE else 1 if state[BEFORE] < 8 else 2
    if before == 2 and state[BEFORE] >= 24:
        before = 3
    varied = way if state[DEPARTED] > 0 else max(0, min(2, distinct - 1))
    return before * 3 + varied
