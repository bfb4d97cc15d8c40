"""Which kernels of a loaded model must not let a row's bits depend on the rows beside it."""

from typing import Any

from ngtcli.decoding.exactness.rows import MIN_BLOCK_ROWS
from ngtcli.decoding.logits import rounds


def min_block_rows(hf: Any) -> int:
    """The fewest rows that attention may compute in a block; 0 if any number will do.

    Only CPUs are promised the same bits in any number of rows, and only rounding shows others.
    """
    return MIN_BLOCK_ROWS if hf.device.type == "cpu" and rounds(hf) else 0
