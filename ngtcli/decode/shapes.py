"""The few shapes that passes have: rows, the root and the draft nodes; and places of the cache.

A pass is padded to the next of these sizes, so that a captured pass, a measured cost and a kernel's
order of summation serve many trees.
"""

from bisect import bisect_left

# Rows of a pass by kind of device; the last kind is for all others. Guess: a GPU multiplies a few
# dozen rows in the time of one, so sizes lie further apart there. 33 are the root and the 32 nodes
# that num_draft is unless set; on a CPU 40 rows take a fifth longer (measured, built-in model).
_ROWS = {
    "cuda": (1, 2, 4, 8, 16, 32, 48, 64, 96, 128),
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


def capacity_for(places: int) -> int:
    """The capacity that holds `places`: 256, 320, 384, 512, 640, 768, 1,024, …

    Each is at most a third more than the one before, so at most a quarter of it is unused.

    >>> [capacity_for(places) for places in (1, 256, 257, 385, 60_000)]
    [256, 256, 320, 512, 65536]
    """
    capacity = _LEAST
    while 2 * capacity < places:
        capacity *= 2
    steps = (capacity, capacity * 5 // 4, capacity * 3 // 2, 2 * capacity)
    return next(step for step in steps if step >= places)


def rows_alike(length: int, rows: int) -> int:
    """How many rows of a pass stand where a pass that begins there would have the same capacity.

    The pass has `rows` rows, the first of them at place `length`.

    >>> rows_alike(200, 32), rows_alike(224, 32), rows_alike(225, 32)
    (25, 1, 64)
    """
    return capacity_for(length + rows) - (length + rows) + 1
