"""The keys and values of several sequences, each in a region of its own of the same buffers."""

from collections.abc import Sequence

import torch

from ngtcli.decode.kv_cache import RollbackCache


class Regions(RollbackCache):
    """`size` regions of `places` places each, one behind the other; region 0 begins at place 0.

    Which places of a region are valid its user knows.
    """

    def __init__(self, layers: int, size: int, places: int) -> None:
        super().__init__([False] * layers, size * places)
        self.size, self.places = size, places

    def resized(self, size: int, places: int, used: Sequence[int]) -> "Regions":
        """Others, with the first `used[i]` places of each region i, by a copy."""
        other = Regions(len(self.layers), size, places)
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            if not mine.is_initialized:
                continue
            theirs.lazy_initialization(mine.keys, mine.values)
            for region, length in enumerate(used):
                to, start = region * places, region * self.places
                theirs.keys[:, :, to : to + length] = mine.keys[:, :, start : start + length]
                theirs.values[:, :, to : to + length] = mine.values[:, :, start : start + length]
        return other

    def fill(self, region: int, sequence: RollbackCache) -> None:
        """Copy the valid rows of a single sequence to the beginning of a region."""
        start, length = region * self.places, sequence.length
        for mine, theirs in zip(self.layers, sequence.layers, strict=True):
            if theirs.is_initialized and length:
                if not mine.is_initialized:
                    mine.lazy_initialization(theirs.keys, theirs.values)
                mine.keys[:, :, start : start + length] = theirs.keys[:, :, :length]
                mine.values[:, :, start : start + length] = theirs.values[:, :, :length]

    def copy(self, sources: Sequence[int], to: Sequence[int]) -> None:
        """Copy the rows at the places `sources` to the places `to`, all read before any written."""
        if not len(sources):
            return
        read, written = (torch.tensor(p, device=self.slots.device) for p in (sources, to))
        for layer in self._filled():
            layer.keys.index_copy_(2, written, layer.keys.index_select(2, read))
            layer.values.index_copy_(2, written, layer.values.index_select(2, read))

    def move(self, source: int, to: int, length: int) -> None:
        """Copy the first `length` rows of region `source` to region `to`, which is another."""
        a, b = source * self.places, to * self.places
        for layer in self._filled():
            layer.keys[:, :, b : b + length] = layer.keys[:, :, a : a + length]
            layer.values[:, :, b : b + length] = layer.values[:, :, a : a + length]

    def clear(self, region: int) -> None:
        """Zeros: a NaN must not outlive its sequence."""
        start = region * self.places
        for layer in self._filled():
            layer.keys[:, :, start : start + self.places] = 0
            layer.values[:, :, start : start + self.places] = 0
