"""What a pass over a draft tree is given: one tensor of integers, sent to the device at once."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ngtcli.draft.tree import DraftTree

_WORD = 8  # bytes of an int64


@dataclass(frozen=True, slots=True)
class Layout:
    """The inputs of a pass: `ids` of the root and the k nodes, padded to `rows` rows.

    The pass attends to the cache's first `capacity` places, of which `length` are valid. `packed`
    holds on the device what `unpack` reads; it is empty for a model that decodes plainly.
    """

    ids: list[int]
    rows: int
    capacity: int
    length: int
    packed: Tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """The rows of a pass, on the device; int64 (rows,) but for the last.

    Row i has token `ids[i]` at `positions[i]` and is written at place `slots[i]`. It sees the
    first `reach[i]` places of the cache, and the rows where `ancestors[i]`, bool (rows, rows).
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    reach: Tensor
    ancestors: Tensor


def pack(token: int, tree: DraftTree, length: int, rows: int) -> Tensor:
    """The inputs of a pass over `token`, the tree's root, and the tree, as one int64 tensor.

    `length` places of the cache are valid. Padding rows have the root's token and position, which
    every model takes, see themselves only, and are written behind the others.
    """
    used = len(tree) + 1
    packed = np.zeros(4 * rows + -(-rows * rows // _WORD), np.int64)
    ids, positions, slots, reach = packed[: 4 * rows].reshape(4, rows)
    ids[:used], ids[used:] = (token, *tree.tokens), token
    positions[:] = length
    positions[1:used] = [length + depth for depth in tree.depths()]
    slots[:] = np.arange(length, length + rows)
    reach[:used] = length
    ancestors = packed[4 * rows :].view(np.uint8)[: rows * rows].reshape(rows, rows)
    ancestors[:used, :used] = tree.ancestors()
    np.fill_diagonal(ancestors, 1)
    return torch.from_numpy(packed)


def unpack(packed: Tensor, rows: int) -> Inputs:
    """What `pack` packed, as views where they can be."""
    ids, positions, slots, reach = packed[: 4 * rows].view(4, rows).unbind()
    ancestors = packed[4 * rows :].view(torch.bool)[: rows * rows].view(rows, rows)
    return Inputs(ids, positions, slots, reach, ancestors)
