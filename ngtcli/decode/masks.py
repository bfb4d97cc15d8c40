"""The additive attention mask of a draft tree: which rows of a pass may look at which."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngtcli.draft.tree import DraftTree


@dataclass(frozen=True, slots=True)
class TreeMasks:
    """Makes masks for one model. `window`: how many positions sliding layers see, None: all.

    `mixed`: the model has full and sliding layers, and takes a mask for each.
    """

    dtype: torch.dtype
    device: torch.device
    window: int | None
    mixed: bool

    def make(self, tree: DraftTree, positions: Sequence[int], length: int) -> Any:
        """Mask (1, 1, k + 1, length + k + 1), 0 where a row may look (paper, eq. 6).

        `positions` are those of the root and the k nodes; `length` rows lie in the cache. A dict
        of one mask for each kind of layer where the model mixes full and sliding attention.
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
        """Hide what lies `window` or more before each row, in place.

        Only the last `window` kept rows are near enough for any row: the rest is hidden from all.
        """
        assert self.window is not None
        lowest = torch.finfo(self.dtype).min
        first = max(0, length - self.window + 1)
        mask[..., :first] = lowest
        at = torch.tensor(positions, dtype=torch.int32)
        seen = torch.cat([torch.arange(first, length, dtype=torch.int32), at])
        mask[..., first:].masked_fill_(at[:, None] - seen[None, :] >= self.window, lowest)
        return mask
