"""What a pass over a draft tree is given: its shape, its inputs, and its attention masks.

Passes have few shapes: their rows, which are the root and the draft nodes, and the places of the
cache. A pass is padded to the next of these sizes, so that a captured pass, a measured cost and a
kernel's order of summation serve many trees. The inputs are one tensor of integers, sent to the
device at once, where a GPU reads them by itself; the additive masks are made of them there.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngtcli.drafting.drafter import PassRows
from ngtcli.drafting.tree import DraftTree

# Rows of a pass by kind of device; the last kind is for all others. A GPU multiplies a few dozen
# rows in the time of one (8B on an H100: 1 row 9.6 ms, 8 rows 10.6, 64 rows 11.4), so sizes lie
# further apart there, and fewer are captured. 33 are the root and the 32 nodes
# that num_draft is unless set; on a CPU 40 rows take a fifth longer (measured, built-in model).
_ROWS = {
    "cuda": (1, 8, 16, 32, 48, 64, 96, 128),
    "": (1, 2, 4, 8, 12, 16, 24, 32, 33, 40, 48, 64, 80, 96, 128),
}
_MANY = 64  # rows: larger passes are padded to a multiple of it; a guess
# Places of the cache: the smallest capacity. Below it attention takes no time that counts; a guess.
_LEAST = 256


def row_sizes(device: str, most: int) -> tuple[int, ...]:
    """The sizes on a kind of device, up to the first that holds `most` rows.

    >>> row_sizes("cpu", 10)
    (1, 2, 4, 8, 12)
    """
    sizes = list(_ROWS.get(device, _ROWS[""]))
    while sizes[-1] < most:
        sizes.append(sizes[-1] + _MANY)
    return tuple(sizes[: bisect_left(sizes, most) + 1])


def row_size(device: str, rows: int) -> int:
    """The size that a pass over `rows` rows is padded to.

    >>> row_size("cpu", 34), row_size("cuda", 34), row_size("cpu", 129)
    (40, 48, 192)
    """
    return row_sizes(device, rows)[-1]


# Rows that SDPA's kernel on a CPU computes at a time, of each head or of a whole group, and the
# fewest in the last block that get the bits of others (measured: one or two have another product).
BLOCK, LEAST = 32, 4


def exact_size(device: str, rows: int, wanted: PassRows) -> int:
    """The size that an exact pass over `rows` rows is padded to, at most `wanted.most`.

    >>> [exact_size("cpu", rows, PassRows(36, 1)) for rows in (1, 3, 13, 32, 33)]
    [1, 4, 16, 32, 36]
    >>> exact_size("cpu", 3, PassRows.fixed(8))
    8
    """
    return min(wanted.padded(most_rows(device, rows)), wanted.most)


def most_rows(device: str, rows: int) -> int:
    """The size of a pass over `rows` rows where no size leaves few of them for the last block.

    >>> most_rows("cpu", 20), most_rows("cpu", 33)
    (24, 36)
    """
    size = row_size(device, rows)
    return size + LEAST - size % BLOCK if size > BLOCK and 0 < size % BLOCK < LEAST else size


def capacity_for(places: int, doubled: bool = False) -> int:
    """The capacity that holds `places`: 256, 320, 384, 512, 640, 768, 1,024, …

    Each is at most a third more than the one before, so at most a quarter of it is unused. Of
    `doubled` ones each is twice as large: as many passes as can be have one that is captured.

    >>> [capacity_for(places) for places in (1, 256, 257, 385, 60_000)]
    [256, 256, 320, 512, 65536]
    >>> [capacity_for(places, doubled=True) for places in (257, 513)]
    [512, 1024]
    """
    capacity = _LEAST
    while 2 * capacity < places:
        capacity *= 2
    if doubled:
        return capacity if capacity >= places else 2 * capacity
    steps = (capacity, capacity * 5 // 4, capacity * 3 // 2, 2 * capacity)
    return next(step for step in steps if step >= places)


def rows_alike(length: int, rows: int) -> int:
    """How many rows of a pass stand where a pass that begins there would have the same capacity.

    The pass has `rows` rows, the first of them at place `length`.

    >>> rows_alike(200, 32), rows_alike(224, 32), rows_alike(225, 32)
    (25, 1, 64)
    """
    return capacity_for(length + rows) - (length + rows) + 1


_WORD = 8  # bytes of an int64
_NUMBERS = 5  # of a row of `Inputs`
Root = tuple[int, DraftTree]  # what a pass does for a sequence: its last token, the draft below it


@dataclass(frozen=True, slots=True)
class Span:
    """A sequence in a pass: its `rows`, which attend to `length` places from `start` on."""

    rows: slice
    start: int
    length: int

    @property
    def count(self) -> int:
        """How many rows it has; they are written at the last of its places."""
        return int(self.rows.stop - self.rows.start)

    @property
    def own(self) -> slice:
        """The places of these rows, counted from `start`."""
        return slice(self.length - self.count, self.length)


@dataclass(frozen=True, slots=True)
class Layout:
    """The inputs of a pass over sequences: `ids` of each root and its nodes, padded to `rows` rows.

    Each sequence attends to the first `capacity` places of its own region. `packed` holds what
    `unpack` reads, on the host; it is empty for a model with a cache of its own.
    """

    ids: list[int]
    spans: tuple[Span, ...]
    rows: int
    capacity: int
    packed: Tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """The rows of a pass, on the device; int64 (rows,) but for the last.

    Row i has token `ids[i]` at `positions[i]` and is written at place `slots[i]`. Its region begins
    at place `begins[i]`, of which it sees `reach[i]`, and the rows where `ancestors[i]`, bool
    (rows, rows).
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    reach: Tensor
    begins: Tensor
    ancestors: Tensor


def pack(roots: Sequence[Root], spans: Sequence[Span], rows: int) -> Tensor:
    """The inputs of a pass over the `roots`, of a sequence each, as one int64 tensor.

    Padding rows, from a sequence's rows to those of the next, have its root's token and position,
    which every model takes, see themselves only, and are written behind the others.
    """
    packed = np.zeros(_NUMBERS * rows + -(-rows * rows // _WORD), np.int64)
    ids, positions, slots, reach, begins = packed[: _NUMBERS * rows].reshape(_NUMBERS, rows)
    ancestors = packed[_NUMBERS * rows :].view(np.uint8)[: rows * rows].reshape(rows, rows)
    stops = [*(span.rows.start for span in spans[1:]), rows]
    for (token, tree), span, stop in zip(roots, spans, stops, strict=True):
        length, at = span.own.start, span.rows
        ids[at] = (token, *tree.tokens)
        positions[at] = [length, *(length + depth for depth in tree.depths())]
        slots[at] = np.arange(span.start + length, span.start + span.length)
        reach[at], begins[at.start : stop] = length, span.start
        ancestors[at, at] = tree.ancestors()
        used, end = at.stop, span.start + span.length
        ids[used:stop], positions[used:stop] = token, length
        slots[used:stop] = np.arange(end, end + stop - used)
        np.fill_diagonal(ancestors[used:stop, used:stop], 1)
    return torch.from_numpy(packed)


def unpack(packed: Tensor, rows: int) -> Inputs:
    """What `pack` packed, as views where they can be."""
    ancestors = packed[_NUMBERS * rows :].view(torch.bool)[: rows * rows].view(rows, rows)
    ids, positions, slots, reach, begins = packed[: _NUMBERS * rows].view(_NUMBERS, rows).unbind()
    return Inputs(ids, positions, slots, reach, begins, ancestors)


class Masks:
    """Makes masks for one model; 0 where a row attends, else the lowest number of `dtype`.

    `window`: how many positions sliding layers attend to; None: all. `mixed`: the model has full
    and sliding layers, and takes a dict with a mask for each kind.
    """

    def __init__(
        self, dtype: torch.dtype, device: torch.device, window: int | None, mixed: bool
    ) -> None:
        self.window, self._mixed, self._device = window, mixed, device
        # Made once: a number from the host would be sent at each use, which no CUDA graph can.
        self._zero = torch.zeros((), dtype=dtype, device=device)
        self._lowest = torch.full_like(self._zero, torch.finfo(dtype).min)
        self._places: dict[int, Tensor] = {}  # by number; kept, as captured passes read them

    def of_tree(self, inputs: Inputs, capacity: int, near: Tensor | None = None) -> Any:
        """Masks (1, 1, rows, capacity) of a pass over trees (paper, eq. 6), each in its region.

        Nothing of them depends on what a text has in its region but what `inputs` say. Where it is
        given, `near` is the mask of sliding layers, bool (rows, places), as `of_window` gives it.
        """
        if near is not None and not self._mixed:
            return self.of_seen(near)
        at, among = self._arange(capacity), inputs.ancestors
        before, own = at < inputs.reach[:, None], (inputs.slots - inputs.begins).expand(among.shape)

        def joined(before: Tensor, among: Tensor) -> Tensor:  # no row of another text adds to one
            added = before.view(torch.uint8).scatter_add(1, own, among.view(torch.uint8))
            return added.view(torch.bool)

        seen, positions = joined(before, among), inputs.positions
        if self.window is None or near is not None:
            return self.of_seen(seen, near)
        among = among & self._is_near(positions, positions)
        return self.of_seen(seen, joined(before & self._is_near(at, positions), among))

    def of_window(self, inputs: Inputs, before: Tensor) -> Tensor:
        """What sliding rows see of their text's places `before` and of its rows, in this order.

        `before` is int64 (texts, places), for texts with as many rows each; the mask is bool
        (rows, places + rows of a text). None sees a place before the first.
        """
        rows, texts = len(inputs.positions), len(before)
        each, positions = rows // texts, inputs.positions
        at = before.repeat_interleave(each, 0)
        seen = (at >= 0) & (at < inputs.reach[:, None]) & self._is_near(at, positions)
        place = self._arange(rows)
        own = (place - place % each)[:, None] + self._arange(each)
        among = inputs.ancestors.gather(1, own) & self._is_near(positions[own], positions)
        return torch.cat([seen, among], 1)

    def window_before(self, inputs: Inputs, texts: int) -> Tensor:
        """The places within the window of each text's root, int64 (texts, window - 1).

        Some are negative near the beginning of a text. The texts have as many rows each.
        """
        most = (self.window or 1) - 1
        roots = inputs.positions.view(texts, -1)[:, :1]
        return roots - most + self._arange(most)

    def _arange(self, count: int) -> Tensor:
        """0, 1, 2, … on the device."""
        if count not in self._places:
            self._places[count] = torch.arange(count, device=self._device)
        return self._places[count]

    def of_chunk(self, start: int, rows: int, first: int) -> Any:
        """Masks of `rows` tokens of a prompt from position `start` on, which lie in a row.

        (1, 1, rows, start + rows); (1, 1, rows, start + rows - first) for sliding layers, whose
        keys begin at place `first`.
        """
        begin = 0 if self._mixed else first
        at = torch.arange(begin, start + rows, device=self._device)
        positions = at[start - begin :]
        seen = at <= positions[:, None]
        if self.window is None:
            return self.of_seen(seen)
        return self.of_seen(seen, (seen & self._is_near(at, positions))[:, first - begin :])

    def _is_near(self, at: Tensor, positions: Tensor) -> Tensor:
        """Whether sliding rows at `positions` see what lies `at` others, bool (rows, others).

        `at` has the others of all rows, or of each.
        """
        return at > positions[:, None] - (self.window or 0)

    def of_seen(self, seen: Tensor, near: Tensor | None = None) -> Any:
        """Masks of rows that see the places where `seen`, bool (rows, places), is true.

        In sliding layers they see those that are `near`.
        """

        def additive(one: Tensor) -> Tensor:
            return torch.where(one, self._zero, self._lowest)[None, None]

        if near is None or not self._mixed:
            return additive(seen if near is None else near)
        return {"full_attention": additive(seen), "sliding_attention": additive(near)}
