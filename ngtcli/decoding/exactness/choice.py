"""Decides for each answer whether it is decoded exactly, and with which rows."""

from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.exactness.rows import MIN_BLOCK_ROWS, PassRows, block_size, fixed_size
from ngtcli.decoding.exactness.trials import is_exact
from ngtcli.decoding.logits import rounds
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.sizes import capacity_for
from ngtcli.errors import ModelError
from ngtcli.models.weights.trials import module_devices
from ngtcli.words import counted


class Exactness:
    """The exact decoding of one model; its trials are made once, when an answer first needs them.

    Args:
        model: The target model; a trial may empty its cache.
    """

    def __init__(self, model: TargetModel) -> None:
        self._model = model
        self._results: dict[tuple[PassRows, int], bool] = {}  # by rows and capacity

    def numerics(self, exact: str, num_draft: int, max_tokens: int) -> Numerics:
        """Return whether an answer is decoded exactly, and with which rows.

        Any number of rows comes first, for it costs nothing. A model that verifies only chains
        decodes plainly when it is to be exact, a row at a time.

        Args:
            exact: "auto", "on" or "off".
            num_draft: The most draft nodes of a forward pass.
            max_tokens: The most tokens of prompt and answer.

        Raises:
            ModelError: It is to be exact ("on") and cannot be.
        """
        model = self._model
        if exact == "off" or not model.takes_drafts or module_devices(model.hf):
            return NOT_EXACT
        is_needed = exact == "on" or model.origin.half_by_rule
        if not model.verifies_trees:
            return _exact(PassRows.fixed(1)) if is_needed else NOT_EXACT
        # On other devices kernels are chosen by the number of rows.
        if model.device.type == "cpu" and (exact == "on" or rounds(model.hf)):
            rows = self.any_number(num_draft, max_tokens)
            if rows is not None:
                return _exact(rows)
        if not is_needed:
            return NOT_EXACT
        rows = PassRows.fixed(fixed_size(num_draft + 1))
        if self._is_exact(rows, capacity_for(max_tokens + rows.max)):
            return _exact(rows)
        if exact == "on":
            raise ModelError(
                f"{model.name} cannot decode exactly here: logits depend on how tokens are grouped"
                " into forward passes",
                hint="Leave out --exact, or try another --dtype, --device or --num-draft.",
            )
        return NOT_EXACT

    def any_number(self, num_draft: int, max_tokens: int) -> PassRows | None:
        """Exact forward passes with as many rows as they need; None if their number shows.

        On some machines it shows for one to three rows alone, which are then padded.
        """
        max_rows = block_size(self._model.device.type, num_draft + 1)
        # Tried once for each power of two, as kernels depend little on the capacity.
        needed = capacity_for(max_tokens + max_rows)
        capacity = min(1 << (needed - 1).bit_length(), capacity_for(self._model.context + max_rows))
        for min_rows in (1, MIN_BLOCK_ROWS):
            rows = PassRows(max(max_rows, min_rows), min_rows)
            if self._is_exact(rows, capacity):
                return rows
        return None

    def _is_exact(self, rows: PassRows, capacity: int) -> bool:
        if (rows, capacity) not in self._results:
            result = is_exact(self._model, rows, capacity)
            self._results[rows, capacity] = result
        return self._results[rows, capacity]


def _exact(rows: PassRows) -> Numerics:
    if rows.are_fixed:
        return Numerics(rows, f"all forward passes had {counted(rows.max, 'row')}")
    return Numerics(rows, "a token's logits do not depend on other tokens of its forward pass")
