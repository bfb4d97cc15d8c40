"""The numbers of rows of forward passes in exact decoding. Knows no torch."""

from dataclasses import dataclass
from typing import Self

from ngtcli.decoding.sizes import capacity_for, row_size

# Rows that a CPU's kernel of SDPA computes at a time, for each head or for a whole group of heads.
SDPA_BLOCK = 32
# Rows that the last block needs to get the bits of others (measured: one or two rows are multiplied
# by another kernel).
MIN_BLOCK_ROWS = 4


@dataclass(frozen=True, slots=True)
class PassRows:
    """The largest and the smallest number of rows; forward passes with fewer rows are padded.

    Each forward pass has the capacity of one with `max` rows. If both are equal, all forward
    passes have one shape.

    >>> PassRows.fixed(8).padded(3), PassRows(36, 4).padded(3), PassRows(36, 4).padded(5)
    (8, 4, 5)
    """

    max: int
    min: int

    @classmethod
    def fixed(cls, rows: int) -> Self:
        """The same number in every forward pass."""
        return cls(rows, rows)

    @property
    def are_fixed(self) -> bool:
        """Return whether every forward pass has the same number of rows."""
        return self.min == self.max

    def padded(self, rows: int) -> int:
        """The number of rows that a forward pass over `rows` has at least."""
        return max(self.min, rows)

    def size(self, device: str, rows: int) -> int:
        """The size that a forward pass over `rows` rows is padded to on a kind of device.

        >>> [PassRows(36, 1).size("cpu", rows) for rows in (1, 3, 13, 32, 33)]
        [1, 4, 16, 32, 36]
        >>> PassRows.fixed(8).size("cpu", 3)
        8
        """
        return min(self.padded(block_size(device, rows)), self.max)

    def sizes(self, device: str) -> list[int]:
        """All sizes of forward passes, rising."""
        return sorted({self.size(device, rows) for rows in range(1, self.max + 1)})

    def rows_in_place(self, length: int) -> int:
        """Return how many rows of a forward pass, the first at position `length`, may count.

        They are those at whose own position a forward pass would begin with the same capacity.

        >>> [PassRows.fixed(32).rows_in_place(length) for length in (200, 224, 225)]
        [25, 1, 64]
        """
        positions = length + self.max
        return capacity_for(positions) - positions + 1


def block_size(device: str, rows: int) -> int:
    """The size for `rows` rows that leaves no block of SDPA with fewer rows than it needs.

    >>> block_size("cpu", 20), block_size("cpu", 33)
    (24, 36)
    """
    size = row_size(device, rows)
    last_block = size % SDPA_BLOCK
    if size > SDPA_BLOCK and 0 < last_block < MIN_BLOCK_ROWS:
        return size + MIN_BLOCK_ROWS - last_block
    return size


def fixed_size(max_rows: int) -> int:
    """The most rows, up to `max_rows`, that are a power of two or whole blocks of SDPA.

    Other sizes gave other bits (33 rows, in SDPA).

    >>> [fixed_size(rows) for rows in (1, 7, 9, 33, 65, 100)]
    [1, 4, 8, 32, 64, 96]
    """
    if max_rows >= SDPA_BLOCK:
        return max_rows - max_rows % SDPA_BLOCK
    return 1 << (max(1, max_rows).bit_length() - 1)  # the largest power of two
