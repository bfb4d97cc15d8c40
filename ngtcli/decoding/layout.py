"""The inputs of a forward pass over draft trees: its size, its rows, and its attention masks.

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


_INT64_BYTES = 8
_ROWS_OF_INT64 = 6  # rows of integers in front of the packed ancestors
Root = tuple[int, DraftTree]  # of a sequence: its last token, and the draft below it


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence in a forward pass.

    Attributes:
        rows: Its rows of the forward pass.
        start: The first KV position of its slot.
        length: The KV positions that it has with these rows, counted from `start`.
        window_origin: Where its first token is in the buffers of sliding layers, or would be.
    """

    rows: slice
    start: int
    length: int
    window_origin: int = 0

    @property
    def count(self) -> int:
        """The number of its rows; they are written at the last of its KV positions."""
        return int(self.rows.stop - self.rows.start)

    @property
    def own(self) -> slice:
        """The KV positions of these rows, counted from `start`."""
        return slice(self.length - self.count, self.length)


@dataclass(frozen=True, slots=True)
class Layout:
    """The inputs of a forward pass over draft trees.

    Attributes:
        ids: The token ids of each root and its nodes, without padding.
        spans: The sequences.
        rows: With padding.
        capacity: KV positions of its own slot that each sequence attends to, under a mask.
        packed: What `unpack` reads, on the host; empty for a model with a cache of its own.
    """

    ids: list[int]
    spans: tuple[Span, ...]
    rows: int
    capacity: int
    packed: Tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """The rows of a forward pass, on the device; int64 (rows,) except for the last.

    Attributes:
        ids: Token ids.
        positions: Of the tokens in their sequences.
        slots: The KV positions where the rows are written.
        window_slots: The same in the buffers of sliding layers.
        reach: How many KV positions before the tree each row sees.
        begins: The first KV position of each row's slot.
        ancestors: bool (rows, rows): which rows each row sees.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    window_slots: Tensor
    reach: Tensor
    begins: Tensor
    ancestors: Tensor


def pack(roots: Sequence[Root], spans: Sequence[Span], rows: int) -> Tensor:
    """Pack the inputs of a forward pass into one int64 tensor.

    The rows of each sequence are followed by padding rows. Padding has the token and the position
    of the root, which are valid for every model. It attends to itself only, and its KV entries are
    written after those of the other rows.

    Args:
        roots: The root of each sequence.
        spans: The span of each sequence.
        rows: The number of query tokens, padding included.
    """
    integers = _ROWS_OF_INT64 * rows
    packed = np.zeros(integers + -(-rows * rows // _INT64_BYTES), np.int64)
    ids, positions, slots, window_slots, reach, begins = packed[:integers].reshape(
        _ROWS_OF_INT64, rows
    )
    ancestors = packed[integers:].view(np.uint8)[: rows * rows].reshape(rows, rows)
    stops = [*(span.rows.start for span in spans[1:]), rows]
    for (token, tree), span, stop in zip(roots, spans, stops, strict=True):
        own_rows = span.rows
        length = span.own.start
        ids[own_rows] = (token, *tree.tokens)
        positions[own_rows] = [length, *(length + depth for depth in tree.depths())]
        slots[own_rows] = np.arange(span.start + length, span.start + span.length)
        reach[own_rows] = length
        begins[own_rows.start : stop] = span.start
        ancestors[own_rows, own_rows] = tree.ancestors()

        padding = slice(own_rows.stop, stop)
        end = span.start + span.length
        ids[padding] = token
        positions[padding] = length
        slots[padding] = np.arange(end, end + stop - own_rows.stop)
        with_padding = slice(own_rows.start, stop)
        window_slots[with_padding] = slots[with_padding] - span.start + span.window_origin
        np.fill_diagonal(ancestors[padding, padding], 1)
    return torch.from_numpy(packed)


def unpack(packed: Tensor, rows: int) -> Inputs:
    """Unpack what `pack` packed, as views where they can be."""
    integers = _ROWS_OF_INT64 * rows
    by_row = packed[:integers].view(_ROWS_OF_INT64, rows)
    ids, positions, slots, window_slots, reach, begins = by_row.unbind()
    ancestors = packed[integers:].view(torch.bool)[: rows * rows].view(rows, rows)
    return Inputs(ids, positions, slots, window_slots, reach, begins, ancestors)


class Masks:
    """Makes the additive attention masks of one model: 0 where a row attends, else the minimum.

    Args:
        dtype: Of the masks.
        device: Where they are made.
        window: How many positions sliding layers attend to; None: all.
        mixed: The model has full and sliding layers, and takes a dict with a mask for each kind.
    """

    def __init__(
        self, dtype: torch.dtype, device: torch.device, window: int | None, mixed: bool
    ) -> None:
        self.window = window
        self._mixed = mixed
        self._device = device
        # Made once: a number from the host would be sent at each use, which no CUDA graph can.
        self._zero = torch.zeros((), dtype=dtype, device=device)
        self._min = torch.full_like(self._zero, torch.finfo(dtype).min)
        self._ranges: dict[int, Tensor] = {}  # by size; kept, as CUDA graphs read them

    def of_tree(self, inputs: Inputs, capacity: int, near: Tensor | None = None) -> Any:
        """Make the masks (1, 1, rows, capacity) of draft trees, each in its slot.

        They are those of "N-Gram Trie Speculative Decoding", eq. 6.

        Args:
            inputs: The inputs of the forward pass; the masks depend on nothing else in the cache.
            capacity: The number of KV positions of a slot.
            near: The mask of sliding layers from `of_window`, bool (rows, keys); None: they get all
                keys.
        """
        if near is not None and not self._mixed:
            return self.of_seen(near)
        keys = self._arange(capacity)
        ancestors = inputs.ancestors
        prefix = keys < inputs.reach[:, None]
        written = (inputs.slots - inputs.begins).expand(ancestors.shape)

        def joined(prefix: Tensor, ancestors: Tensor) -> Tensor:
            # No row of another sequence adds to one.
            seen = prefix.view(torch.uint8).scatter_add(1, written, ancestors.view(torch.uint8))
            return seen.view(torch.bool)

        seen = joined(prefix, ancestors)
        if self.window is None or near is not None:
            return self.of_seen(seen, near)
        positions = inputs.positions
        near_prefix = prefix & self._is_near(keys, positions)
        near_ancestors = ancestors & self._is_near(positions, positions)
        return self.of_seen(seen, joined(near_prefix, near_ancestors))

    def of_window(self, inputs: Inputs, before: Tensor) -> Tensor:
        """Make the mask of sliding layers over some KV positions and the rows themselves.

        Args:
            inputs: Of sequences with the same number of rows.
            before: int64 (sequences, keys), positions in each sequence; negative ones are not seen.

        Returns:
            bool (rows, keys + rows of a sequence), in this order.
        """
        rows = len(inputs.positions)
        rows_each = rows // len(before)
        positions = inputs.positions
        keys = before.repeat_interleave(rows_each, 0)
        seen = (keys >= 0) & (keys < inputs.reach[:, None]) & self._is_near(keys, positions)
        row = self._arange(rows)
        same_sequence = (row - row % rows_each)[:, None] + self._arange(rows_each)
        ancestors = inputs.ancestors.gather(1, same_sequence)
        near = self._is_near(positions[same_sequence], positions)
        return torch.cat([seen, ancestors & near], 1)

    def window_before(self, inputs: Inputs, sequences: int) -> Tensor:
        """List the positions within the window of each root, int64 (sequences, window - 1).

        Some are negative near the beginning of a sequence. All have the same number of rows.
        """
        count = (self.window or 1) - 1
        roots = inputs.positions.view(sequences, -1)[:, :1]
        return roots - count + self._arange(count)

    def _arange(self, count: int) -> Tensor:
        """0, 1, 2, … on the device."""
        if count not in self._ranges:
            self._ranges[count] = torch.arange(count, device=self._device)
        return self._ranges[count]

    def of_chunk(self, start: int, rows: int, first: int) -> Any:
        """Make the masks of `rows` tokens of a prompt, a chunk of its prefill.

        Args:
            start: The position of the first token.
            rows: The number of tokens.
            first: The first key that sliding layers get.

        Returns:
            (1, 1, rows, start + rows); for sliding layers (1, 1, rows, start + rows - first).
        """
        begin = 0 if self._mixed else first
        keys = torch.arange(begin, start + rows, device=self._device)
        positions = keys[start - begin :]
        seen = keys <= positions[:, None]
        if self.window is None:
            return self.of_seen(seen)
        near = seen & self._is_near(keys, positions)
        return self.of_seen(seen, near[:, first - begin :])

    def _is_near(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Return whether keys are within the window of rows at `positions`, bool (rows, keys).

        `keys` are the positions of those that all rows have, or of those of each row.
        """
        return keys > positions[:, None] - (self.window or 0)

    def of_seen(self, seen: Tensor, near: Tensor | None = None) -> Any:
        """Make the masks of rows that see the keys where `seen`, bool (rows, keys), is true.

        In sliding layers they see those where `near` is true.
        """

        def additive(is_seen: Tensor) -> Tensor:
            return torch.where(is_seen, self._zero, self._min)[None, None]

        if near is None or not self._mixed:
            return additive(seen if near is None else near)
        return {"full_attention": additive(seen), "sliding_attention": additive(near)}
