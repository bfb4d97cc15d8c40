"""The few sizes that forward passes are padded to: numbers of rows, and capacities of the cache.

With few sizes one CUDA graph, one measured cost and one kernel's order of summation serve many
draft trees.
"""

from bisect import bisect_left

# Rows of a forward pass by kind of device; the last entry is for all others. A GPU multiplies a few
# dozen rows in the time of one (8B on an H100: 1 row 9.6 ms, 8 rows 10.6, 64 rows 11.4), so its
# sizes lie further apart, and fewer graphs are captured. 33 rows are the root and the 32 nodes of
# the default num_draft; on a CPU 40 rows take a fifth longer (measured, built-in model).
_ROWS = {
    "cuda": (1, 8, 16, 32, 48, 64, 96, 128),
    "": (1, 2, 4, 8, 12, 16, 24, 32, 33, 40, 48, 64, 80, 96, 128),
}
_STEP = 64  # rows: larger forward passes are padded to a multiple of it (guess)
# KV positions: the smallest capacity. Attention to fewer takes no time that counts (guess).
_MIN_CAPACITY = 256


def row_sizes(device: str, max_rows: int) -> tuple[int, ...]:
    """The sizes on a kind of device, up to the first that holds `max_rows` rows.

    >>> row_sizes("cpu", 10)
    (1, 2, 4, 8, 12)
    """
    sizes = list(_ROWS.get(device, _ROWS[""]))
    while sizes[-1] < max_rows:
        sizes.append(sizes[-1] + _STEP)
    return tuple(sizes[: bisect_left(sizes, max_rows) + 1])


def row_size(device: str, rows: int) -> int:
    """The size that a forward pass over `rows` rows is padded to.

    >>> row_size("cpu", 34), row_size("cuda", 34), row_size("cpu", 129)
    (40, 48, 192)
    """
    return row_sizes(device, rows)[-1]


def capacity_for(positions: int, doubled: bool = False) -> int:
    """The capacity that holds so many KV positions: 256, 320, 384, 512, 640, 768, 1,024, …

    Each is at most a third more than the one before, so at most a quarter of it is unused. With
    `doubled` each is twice the one before: more forward passes share a CUDA graph.

    >>> [capacity_for(positions) for positions in (1, 256, 257, 385, 60_000)]
    [256, 256, 320, 512, 65536]
    >>> [capacity_for(positions, doubled=True) for positions in (257, 513)]
    [512, 1024]
    """
    capacity = _MIN_CAPACITY
    while 2 * capacity < positions:
        capacity *= 2
    if doubled:
        return capacity if capacity >= positions else 2 * capacity
    steps = (capacity, capacity * 5 // 4, capacity * 3 // 2, 2 * capacity)
    return next(step for step in steps if step >= positions)
