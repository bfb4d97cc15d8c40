"""The place that is being copied, in prompt and answer, also across edits. Compiled.

The tries know the last few tokens (blend.py). A copy of hundreds of tokens is likelier to go on
than a match of six, and where an answer departs from what it copies it mostly comes back to it a
few tokens later, where no match of several tokens can say so. One place in the text is followed:

    text    … a b c d e f g …
    answer  a b c          copied: d is next, the likelier the longer this has come true
    answer  a b c x        departed: e is next if x replaced d, or d if x was put in
    answer  a b c x e      copied again, from f on, as if after e or after a token left out

A node of the tree has a place of its own, so that a chain is drafted across edits.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.tries.counts import NONE
from ngtcli.system.compiled import njit, unowned

Ints = npt.NDArray[np.int32]
# Columns of a state, int32. PLACE: index in the text of what is copied next, NONE where nothing is;
# HELD: tokens in a row that it gave; DEPARTED: tokens since it last did not, 0 while it does;
# BROKEN: index of the token that did not come then, NONE if all have come; BEFORE: tokens in a row
# until then; BEHIND: tokens from the place to the end of the text.
PLACE, HELD, DEPARTED, BROKEN, BEFORE, BEHIND = range(6)
# Of `sizes`: tokens of the text, and where in it answer and prompt begin; what the answer is said
# to be like stands before the prompt.
USED, ANSWER, PROMPTED = range(3)
WAYS = 2  # to go on after a departure
_KEY, _WINDOW, _FIRM = CONFIG.copy_key, CONFIG.copy_window, CONFIG.copy_firm
_COMPARED, _LONGEST_EDIT = CONFIG.copy_compared, CONFIG.copy_edit
_ROOM = 1 << 10  # tokens that a new text has room for; guess
_SPREAD = 0x9E3779B97F4A7C15  # as in trie/counts.py


class CopyArrays(NamedTuple):
    """`text` int32 with room behind; `sizes` int64 (3,); `places` int32 (2^n,).

    `places` is a hash table from a few last tokens to the index behind where they last stood,
    without keys: what is found is compared with the text.
    """

    text: Ints
    sizes: npt.NDArray[np.int64]
    places: Ints


@unowned
def follow(copies: Any, state: Any, token: int) -> None:
    """Move a state on by one token of the answer, or of a path of the tree, in place."""
    place = state[PLACE]
    if place == NONE:
        return
    if state[DEPARTED] == 0:
        if copies.text[place] == token:
            state[HELD] += 1
            _put(copies, state, place + 1)
            return
        if state[HELD] >= _FIRM or state[BROKEN] == NONE:
            state[BROKEN], state[BEFORE] = place, state[HELD]
    state[HELD], state[DEPARTED] = 0, state[DEPARTED] + 1
    for at in range(state[BROKEN], min(state[BROKEN] + _WINDOW, copies.sizes[USED])):
        if copies.text[at] == token:
            state[HELD], state[DEPARTED] = 1, 0
            _put(copies, state, at + 1)
            return
    if state[DEPARTED] > _LONGEST_EDIT:
        state[PLACE] = NONE


@njit(inline="always")
def _put(copies: Any, state: Any, place: int) -> None:
    """Behind the end of the text stands the path, which is what was copied before: a loop."""
    state[PLACE] = place if place < copies.sizes[USED] else place - state[BEHIND]


@unowned
def extend_text(copies: Any, state: Any, token: int) -> None:
    """The text, which has room, goes on with `token`: follow it, or find a longer match.

    In a loop shorter than the window a token that is new there is found as itself: the loop goes on
    from where it was. Without that, recorded answers take up to 0.7% more steps.
    """
    copies.text[copies.sizes[USED]] = token
    copies.sizes[USED] += 1
    follow(copies, state, token)
    end = copies.sizes[USED]
    if end >= _KEY:
        slot = _slot(copies, end)
        found = copies.places[slot]
        copies.places[slot] = end
        if found != NONE and found < end and found != state[PLACE]:  # others were taken back
            held = _common(copies.text, found, end)
            if held >= _KEY and (state[PLACE] == NONE or held > state[HELD]):
                state[PLACE], state[HELD], state[DEPARTED] = found, held, 0
                state[BROKEN], state[BEFORE] = NONE, 0
    if state[PLACE] != NONE:
        state[BEHIND] = end - state[PLACE]


@njit(inline="always")
def _slot(copies: Any, end: int) -> Any:
    """Of the tokens before index `end`."""
    mixed = np.uint64(0)
    for at in range(end - _KEY, end):
        mixed = (mixed + np.uint64(copies.text[at] + 2)) * np.uint64(_SPREAD)
    return np.int64(mixed >> np.uint64(20)) & (len(copies.places) - 1)


@njit(inline="always")
def _common(text: Any, one: int, other: int) -> Any:
    """How many tokens before two indices are the same, as far as is compared."""
    count, most = 0, min(one, _COMPARED)
    while count < most and text[one - 1 - count] == text[other - 1 - count]:
        count += 1
    return count


@njit()
def _extend(arrays: Any, state: Any, ids: Any) -> None:
    copies = CopyArrays(arrays[0], arrays[1], arrays[2])
    for token in ids:
        extend_text(copies, state, token)


@njit()
def _shorten(arrays: Any, length: int) -> None:
    """Forget the tokens behind the first `length`: places are those of before them again."""
    copies = CopyArrays(arrays[0], arrays[1], arrays[2])
    for end in range(max(length + 1, _KEY), copies.sizes[USED] + 1):
        copies.places[_slot(copies, end)] = NONE
    copies.sizes[USED] = length
    for end in range(length, _KEY - 1, -1):  # only slots that were cleared are free now
        slot = _slot(copies, end)
        if copies.places[slot] == NONE:
            copies.places[slot] = end


@njit(inline="always")
def copied_token(copies: Any, state: Any, way: int) -> Any:
    """What is copied next, NONE if nothing: after a departure, way 0 as if as many tokens had been
    replaced, way 1 as if they had been put in; else way 0 alone."""
    if state[PLACE] == NONE or (state[DEPARTED] == 0 and way > 0):
        return NONE
    if state[DEPARTED] == 0:
        return copies.text[state[PLACE]]
    at = state[BROKEN] + (state[DEPARTED] if way == 0 else 0)
    return copies.text[at] if at < copies.sizes[USED] else NONE


@njit(inline="always")
def copy_order(state: Any) -> Any:
    """The class, 0 to 6, of how long a copy has held or, after a departure, how long that is."""
    if state[DEPARTED] > 0:
        count = state[DEPARTED]
        return count - 1 if count < 5 else 4 if count < 7 else 5 if count < 10 else 6
    count = state[HELD]
    if count < 3:
        return count - 1
    return 2 if count < 6 else 3 if count < 12 else 4 if count < 24 else 5 if count < 48 else 6


@njit(inline="always")
def copy_bucket(state: Any, distinct: int, way: int) -> int:
    """The class, 0 to 11, of how long a copy held before a departure, and of either the `distinct`
    continuations of the longest match or the way to go on."""
    before = 0 if state[BROKEN] == NONE else 1 if state[BEFORE] < 8 else 2
    if before == 2 and state[BEFORE] >= 24:
        before = 3
    varied = way if state[DEPARTED] > 0 else max(0, min(2, distinct - 1))
    return before * 3 + varied


class Copies:
    """The text so far: what stands before the answer, and the answer."""

    def __init__(self) -> None:
        self._allocate(_ROOM)

    def _allocate(self, room: int) -> None:
        """`room` is a power of two."""
        self.arrays = CopyArrays(
            np.full(room, NONE, np.int32), np.zeros(3, np.int64), np.full(2 * room, NONE, np.int32)
        )

    def start(self, ids: Ints, state: Ints, prompted: int = 0) -> None:
        """Begin with what stands before the answer; NONE ends a text in it.

        The first `prompted` tokens are of what the answer is said to be like.
        """
        self._allocate(max(_ROOM, 1 << len(ids).bit_length()))
        self._read(ids, state)
        self.arrays.sizes[ANSWER:] = len(ids), prompted

    def _read(self, ids: Ints, state: Ints) -> None:
        state[:] = NONE
        _extend(tuple(self.arrays), state, ids)

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` more; this may replace `arrays`."""
        text, sizes, _ = self.arrays
        used = int(sizes[USED])
        if used + tokens > len(text):
            self._allocate(1 << (used + tokens).bit_length())
            self._read(text[:used], np.empty(BEHIND + 1, np.int32))
            self.arrays.sizes[:] = sizes

    def retract(self, tokens: int) -> None:
        """Forget the last tokens."""
        _shorten(tuple(self.arrays), int(self.arrays.sizes[USED]) - tokens)
