"""How many rows the passes of an answer have, if it is to be decoded exactly (exact.py)."""

from collections.abc import Callable
from copy import copy

import torch

from ngtcli.decode.exact_check import Exactness, find_exactness
from ngtcli.decode.model import TargetModel
from ngtcli.decode.shapes import capacity_for
from ngtcli.draft.costs import SHORT, Costs
from ngtcli.errors import ModelError

# With --exact auto, a pass over all rows may take this many times as long as one over a single row.
# Guess: two measurements on a machine in use differ by more.
_MOST_COST = 1.05
_BLOCK = 32  # rows that attention kernels take at once; other sizes gave other bits (33, in SDPA)


def block_rows(most: int) -> int:
    """The most rows, up to `most`, that are a power of two or a multiple of a kernel's block.

    >>> [block_rows(most) for most in (1, 7, 9, 33, 65, 100)]
    [1, 4, 8, 32, 64, 96]
    """
    return most // _BLOCK * _BLOCK or 1 << (max(1, most).bit_length() - 1)


class ExactRows:
    """Decides for each answer. `costs` gives what passes cost as they were measured, or None."""

    def __init__(
        self,
        model: TargetModel,
        costs: Callable[[], Costs | None],
        progress: Callable[[str], None],
    ) -> None:
        self._model, self._costs, self._progress = model, costs, progress
        self._known: dict[tuple[int, int, str], Exactness] = {}

    def with_costs(self, costs: Callable[[], Costs | None]) -> "ExactRows":
        """The same model by other costs; what was found of it is shared."""
        other = copy(self)
        other._costs = costs
        return other

    def choose(self, wanted: str, num_draft: int, tokens: int) -> int | None:
        """The rows of every pass, drafts of up to `num_draft` nodes among them; None: not exact.

        `wanted` is "auto", "on" or "off", `tokens` the most of prompt and answer. Raises ModelError
        where decoding is to be exact and cannot be.
        """
        model, rows = self._model, block_rows(num_draft + 1)
        if wanted == "off" or model.plain_reason:
            return None
        if wanted == "auto" and not self._costs_nothing(rows):
            return None
        reason = self._found(rows, capacity_for(tokens + rows)).reason
        if reason and wanted == "on":
            raise ModelError(
                f"{model.name} cannot decode exactly here: {reason}, with eager attention as well",
                "Leave out --exact, or try another --dtype, --device or --num-draft.",
            )
        return None if reason else rows

    def _costs_nothing(self, rows: int) -> bool:
        """Whether a pass over `rows` rows was measured to take no longer than one over one row."""
        model = self._model
        if model.device.type == "cpu" and model.dtype == torch.float32:
            return False
        costs = self._costs()
        if costs is None:
            return False
        table = costs.at_length(SHORT).table_measured(rows)
        return bool(table[rows - 1] <= _MOST_COST * table[0])

    def _found(self, rows: int, places: int) -> Exactness:
        key = (rows, places, self._model.attention)
        if key not in self._known:
            self._known[key] = find_exactness(self._model, rows, places, self._progress)
        return self._known[key]
