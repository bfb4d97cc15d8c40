"""Where the text is being copied from: the place that goes on, and what comes after an edit. Compiled.

The tries know the last few tokens only (blend.py). A copy of hundreds of tokens is likelier to go
on than a match of six, and after an edit it mostly goes on close to where it broke off, where no
match of several tokens can say so. One place is followed in the text so far, prompt and answer:

    text      … a b c d e f g h …          the place: at d, `a b c` were copied
    answer    a b c                        copied: d follows, with a probability by how long it held
    answer    a b c x                      edited: e (x stands for d) or d (x was put in) may follow
    answer    a b c x e                    found again behind e; also if f came (e was left out)

The place is a node's state in the tree too: so a chain is drafted over several edits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.config import CONFIG
from ngtcli.system.compiled import njit, unowned
from ngtcli.trie.counts import NONE

Ints = npt.NDArray[np.int32]
# Columns of a state, int32: the next token's index in the text, NONE where nothing is copied; how
# many tokens it gave in a row; how many came since it failed; the index of the token where it
# failed; how many it had given in a row before; how far it is behind the text's end.
PLACE, HELD, EDITED, BROKEN, BEFORE, BEHIND = range(6)
_KEY = CONFIG.copy_key
_WINDOW = CONFIG.copy_window
_LONGEST = CONFIG.copy_longest
_MOST_EDITED = CONFIG.copy_edited
_FIRM = CONFIG.copy_firm
_SPREAD = 0x9E3779B97F4A7C15  # as in trie/counts.py


class CopyArrays(NamedTuple):
    """`text` int32 with room behind; `used` int64 (1,), its length; `places` int32 (2^n,).

    `places` is a hash table from the last tokens to the index behind their last occurrence, without
    keys: what is found is compared with the text.
    """

    text: Ints
    used: npt.NDArray[np.int64]
    places: Ints


@njit(inline="always")
def _slot(copies: Any, end: int) -> Any:
    """Of the tokens that end before index `end`."""
    mixed = np.uint64(0)
    for i in range(end - _KEY, end):
        mixed = (mixed + np.uint64(copies.text[i] + 2)) * np.uint64(_SPREAD)
    return np.int64(mixed >> np.uint64(20)) & (len(copies.places) - 1)


@unowned
def follow(copies: Any, state: Any, token: int) -> None:
    """Move a state on by one token of the answer, or of a path of the tree, in place."""
    place, used = state[PLACE], copies.used[0]
    if place == NONE:
        return
    if state[EDITED] == 0:
        if copies.text[place] == token:
            state[PLACE], state[HELD] = _wrapped(place + 1, used, state), state[HELD] + 1
            return
        if state[HELD] >= _FIRM or state[BROKEN] == NONE:
            state[BROKEN], state[BEFORE] = place, state[HELD]
    state[HELD], state[EDITED] = 0, state[EDITED] + 1
    for at in range(state[BROKEN], min(state[BROKEN] + _WINDOW, used)):
        if copies.text[at] == token:
            state[PLACE], state[HELD], state[EDITED] = _wrapped(at + 1, used, state), 1, 0
            return
    if state[EDITED] > _MOST_EDITED:
        state[PLACE] = NONE


@njit(inline="always")
def _wrapped(place: int, used: int, state: Any) -> int:
    """Behind the end of the text stand the tokens of the path: those that were copied before."""
    return place if place < used else place - state[BEHIND]


@unowned
def extend_copy(copies: Any, state: Any, token: int) -> None:
    """The answer goes on with `token`, for which there is room: follow, or find a longer match."""
    end = copies.used[0]
    copies.text[end] = token
    copies.used[0] = end + 1
    follow(copies, state, token)
    end += 1
    if end < _KEY:
        return
    slot = _slot(copies, end)
    found = copies.places[slot]
    copies.places[slot] = end
    if found != NONE and (state[PLACE] == NONE or found != state[PLACE]):
        held = 0
        while held < min(found, _LONGEST) and copies.text[found - 1 - held] == copies.text[end - 1 - held]:
            held += 1
        if held >= _KEY and (state[PLACE] == NONE or held > state[HELD]):
            state[PLACE], state[HELD], state[EDITED] = found, held, 0
            state[BROKEN], state[BEFORE] = NONE, 0
    if state[PLACE] != NONE:
        state[BEHIND] = end - state[PLACE]


@njit()
def extend_copies(arrays: Any, state: Any, ids: Any) -> None:
    """The same with several tokens; `arrays` are CopyArrays in a plain tuple."""
    copies = CopyArrays(arrays[0], arrays[1], arrays[2])
    for token in ids:
        extend_copy(copies, state, token)


@njit(inline="always")
def held_class(held: int) -> int:
    """Of 1, 2, 3, … tokens in a row: 0 to 6."""
    if held < 3:
        return held - 1
    return 2 if held < 6 else 3 if held < 12 else 4 if held < 24 else 5 if held < 48 else 6


@njit(inline="always")
def before_class(state: Any) -> int:
    """Of what was copied before the last edit: 0 to 3."""
    if state[BROKEN] == NONE:
        return 0
    return 1 if state[BEFORE] < 8 else 2 if state[BEFORE] < 24 else 3


@njit(inline="always")
def edit_class(edited: int) -> int:
    """Of 1, 2, 3, … tokens since an edit began: 0 to 6."""
    if edited < 5:
        return edited - 1
    return 4 if edited < 7 else 5 if edited < 10 else 6


@njit(inline="always")
def after_edit(copies: Any, state: Any, way: int) -> Any:
    """The token that follows an edit, NONE if none does: way 0 as if it replaced as many tokens, 1
    as if it was put in."""
    at = state[BROKEN] + (state[EDITED] if way == 0 else 0)
    return copies.text[at] if at < copies.used[0] else NONE


class Copies:
    """The text so far, its places, and the state at its end."""

    def __init__(self) -> None:
        self._reserve(1 << 10)

    def _reserve(self, room: int) -> None:
        self.arrays = CopyArrays(
            np.full(room, NONE, np.int32), np.zeros(1, np.int64), np.full(2 * room, NONE, np.int32)
        )

    def start(self, ids: Sequence[int] | Ints, state: Ints) -> None:
        """Begin with a prompt."""
        room = 1 << (len(ids) + 1024).bit_length()
        self._reserve(room)
        state[:] = NONE
        extend_copies(tuple(self.arrays), state, np.asarray(ids, np.int32))

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` more; this may replace `arrays`."""
        used = int(self.arrays.used[0])
        if used + tokens <= len(self.arrays.text):
            return
        text, scratch = self.arrays.text[:used].copy(), np.full(7, NONE, np.int32)
        self._reserve(2 * (used + tokens))
        extend_copies(tuple(self.arrays), scratch, text)

    def retract(self, tokens: int, state: Ints) -> None:
        """Forget the last tokens; nothing is copied then."""
        self.arrays.used[0] -= tokens
        state[:] = NONE
