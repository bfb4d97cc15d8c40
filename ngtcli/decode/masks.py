"""The additive attention mask of a draft tree: which rows of a pass attend to which."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngtcli.draft.tree import DraftTree


@dataclass(frozen=True, slots=True)
class TreeMasks:
    """Makes masks for one model.

    `window`: how many positions sliding layers attend to; None: all. `mixed`: the model has full
    and sliding layers, and takes a mask for each kind.
    """

    dtype: torch.dtype
    device: torch.device
    window: int | None
    mixed: bool

    def make(self, tree: DraftTree, positions: Sequence[int], length: int) -> Any:
        """Mask (1, 1, k + 1, length + k + 1), 0 where a row attends (paper, eq. 6).

        `positions` are those of the root and the k nodes; `length` rows lie in the cache. Returns
        a dict with a mask for each kind of layer where the model mixes full and sliding attention.
        """
        rows, lowest = len(tree) + 1, torch.finfo(self.dtype).min
        full = torch.zeros((1, 1, rows, length + rows), dtype=self.dtype)
        full[..., length:] = torch.from_numpy(np.where(tree.ancestors(), 0.0, lowest))
        if self.window is None:
            return full.to(self.device)
        near = self._narrow(full.clone() if self.mixed else full, positions, length)
        if not self.mixed:
            return near.to(self.device)
        return {
            "full_attention": full.to(self.device),
            "sliding_attention": near.to(self.device),
        }

    def _narrow(self, mask: Tensor, positions: Sequence[int], length: int) -> Tensor:
        """Mask, in place, what lies `window` or more positions before each row.

        Cached rows before the last `window` are too far from every row and are masked for all.
        """
        assert self.window is not None
        lowest = torch.finfo(self.dtype).min
        first = max(0, length - self.window + 1)
        mask[..., :first] = lowest
        at = torch.tensor(positions, dtype=torch.int32)
        seen = torch.cat([torch.arange(first, length, dtype=torch.int32), at])
        mask[..., first:].masked_fill_(at[:, None] - seen[None, :] >= self.window, lowest)
        return mask
