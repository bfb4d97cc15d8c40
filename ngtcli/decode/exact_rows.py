"""Which rows the passes of an exact answer have, if it is to be exact."""

from collections.abc import Callable
from copy import copy

import torch

from ngtcli.decode.exact_check import find_exactness
from ngtcli.decode.layout import BLOCK, LEAST, capacity_for, most_rows
from ngtcli.decode.model import TargetModel
from ngtcli.decode.scores import rounds
from ngtcli.draft.costs import SHORT, Costs
from ngtcli.draft.drafter import PassRows
from ngtcli.errors import ModelError
from ngtcli.weights.trials import places_of

# With --exact auto, a pass over all rows may take this many times as long as one over a single row.
# Guess: two measurements on a machine in use differ by more.
_MOST_COST = 1.05


def block_rows(most: int) -> int:
    """The most rows, up to `most`, that are a power of two or a multiple of a kernel's block.

    Other sizes gave other bits (33 rows, in SDPA).

    >>> [block_rows(most) for most in (1, 7, 9, 33, 65, 100)]
    [1, 4, 8, 32, 64, 96]
    """
    return most // BLOCK * BLOCK or 1 << (max(1, most).bit_length() - 1)


class ExactRows:
    """Decides for each answer. `costs` gives what passes cost as they were measured, or None."""

    def __init__(
        self, model: TargetModel, costs: Callable[[], Costs | None], progress: Callable[[str], None]
    ) -> None:
        self._model, self._costs, self._progress = model, costs, progress
        self._reasons: dict[tuple[PassRows, int, str], str] = {}  # by rows, places and attention

    def with_costs(self, costs: Callable[[], Costs | None]) -> "ExactRows":
        """The same model by other costs; what was found of it is shared."""
        other = copy(self)
        other._costs = costs
        return other

    def choose(self, wanted: str, num_draft: int, tokens: int) -> PassRows | None:
        """The rows of passes, drafts of up to `num_draft` nodes among them; None: not exact.

        `wanted` is "auto", "on" or "off", `tokens` the most of prompt and answer. Passes of any
        number of rows come first, for they cost nothing. Raises ModelError where decoding is to be
        exact and cannot be. A model that takes chains alone then decodes plainly, by single rows.
        """
        model, on_cpu = self._model, self._model.device.type == "cpu"
        if wanted == "off" or model.plain_reason or places_of(model.hf):
            return None
        # Half precision that was chosen for being exact stays so, at the price of rows.
        is_chosen = model.dtype != torch.float32 and bool(model.dtype_reason)
        if model.tree_reason:
            return PassRows.fixed(1) if wanted == "on" or is_chosen else None
        # Elsewhere kernels are chosen by the number of rows.
        if on_cpu and (wanted == "on" or rounds(model.hf)):
            found = self.of_any_number(num_draft, tokens)
            if found is not None:
                return found
        rows = PassRows.fixed(block_rows(num_draft + 1))
        if wanted == "auto" and not is_chosen and not self._costs_nothing(rows.most):
            return None
        reason = self._reason(rows, capacity_for(tokens + rows.most))
        if reason and wanted == "on":
            raise ModelError(
                f"{model.name} cannot decode exactly here: {reason}, with eager attention as well",
                "Leave out --exact, or try another --dtype, --device or --num-draft.",
            )
        return None if reason else rows

    def of_any_number(self, num_draft: int, tokens: int) -> PassRows | None:
        """Rows of passes that have as many as they need; None where a row's bits show how many.

        On some machines it does for one to three rows alone, which are padded then.
        """
        most = most_rows(self._model.device.type, num_draft + 1)
        # Checked once for each power of two, as kernels depend little on the capacity.
        needed = capacity_for(tokens + most)
        places = min(1 << (needed - 1).bit_length(), capacity_for(self._model.context + most))
        for least in (1, LEAST):
            rows = PassRows(max(most, least), least)
            if not self._reason(rows, places):
                return rows
        return None

    def _reason(self, rows: PassRows, places: int) -> str:
        """Why passes of such rows are not exact; "" if they are."""
        key = rows, places, self._model.attention
        if key not in self._reasons:
            found = find_exactness(self._model, rows, places, self._progress)
            self._reasons[key] = found.reason
        return self._reasons[key]

    def _costs_nothing(self, rows: int) -> bool:
        """Whether a pass over `rows` rows was measured to take no longer than one over one row."""
        single = self._model.device.type == "cpu" and self._model.dtype == torch.float32
        if single or (costs := self._costs()) is None:
            return False
        table = costs.at_length(SHORT).table_measured(rows)
        return bool(table[rows - 1] <= _MOST_COST * table[0])
