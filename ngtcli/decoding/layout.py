"""What a forward pass over a draft tree is given: its size, its inputs, and its attention masks.

A forward pass is padded to one of a few sizes (sizes.py): its rows, which are the root and the
draft nodes, and the capacity of the cache. The inputs are one tensor of integers, sent to the
device at once, where a GPU reads them by itself; the additive masks are made of them there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngtcli.decoding.exactness.numerics import Numerics
from ngtcli.decoding.sizes import capacity_for, row_size
from ngtcli.drafting.tree import DraftTree


@dataclass(frozen=True, slots=True)
class PassSize:
    """The size of a forward pass over one sequence.

    Attributes:
        rows: With padding.
        reserved: KV positions that the cache must have for it.
        capacity: KV positions that its rows attend to, under a mask.
    """

    rows: int
    reserved: int
    capacity: int


def pass_size(
    used: int, length: int, numerics: Numerics, *, device: str, context: int, doubled: bool
) -> PassSize:
    """The size of a forward pass over `used` rows of one sequence.

    Args:
        length: KV positions before the rows.
        numerics: What exact decoding asks of it.
        device: The kind of device.
        context: The most positions of the model: beyond it nothing is padded.
        doubled: Whether capacities are further apart, as more forward passes then share a graph.

    Raises:
        ValueError: More rows than exact forward passes have.
    """
    exact = numerics.rows
    if exact is None:
        rows = row_size(device, used)
        if length + rows > context:
            rows = used
        reserved = length + rows
        return PassSize(rows, reserved, capacity_for(reserved, doubled))
    if used > exact.max:
        raise ValueError(f"{used} rows in a pass of {exact.max}")
    reserved = length + exact.max
    return PassSize(exact.size(device, used), reserved, capacity_for(reserved))


def capacity_of_sequence(tokens: int, numerics: Numerics, *, spare: int, context: int) -> int:
    """The KV positions of a sequence of `tokens`, drafts included, and of its padding.

    Exact forward passes are padded beyond the context, too.
    """
    if numerics.rows is None:
        return min(capacity_for(tokens + spare), context)
    return capacity_for(tokens + numerics.rows.max)


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
