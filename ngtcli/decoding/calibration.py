"""Measures the time of a forward pass by its draft nodes, once for each model and device."""

import time
from collections.abc import Sequence

from ngtcli.config import SETTINGS
from ngtcli.decoding.captured import USES
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.sizes import row_sizes
from ngtcli.drafting.costs import CostCurve, StoredCurve
from ngtcli.drafting.tree import chain
from ngtcli.models.weights.trials import model_fingerprint
from ngtcli.system.trials import Trial

MOST_ROWS = 64  # of a pass that calibration times (guess)
TIMES = 7
LEAST_TIMES = 3  # passes of each of the fewest sizes: one alone may be disturbed (guess)
FEWEST = 4  # sizes that are timed if `LONGEST_S` allows: 1, 4, 16 and 64 rows (guess)
LONGEST_S = 10.0  # seconds that a large model's first calibration may take (guess)


def remembered_costs(model: TargetModel) -> Trial[dict[int, StoredCurve]]:
    """Return the stored calibration of a model: its curves by their lengths of context."""
    depends_on = *model_fingerprint(model.hf), model.passes.kind, model.name
    return Trial("costs", model.device, depends_on, dict[int, StoredCurve], timed=True)


def _sizes(model: TargetModel) -> tuple[int, ...]:
    """All sizes of a pass that a setting allows."""
    return row_sizes(model.device.type, int(SETTINGS["num_draft"].within[1]) + 1)


def padded(model: TargetModel) -> tuple[int, ...]:
    """The sizes that passes are padded to; chains are not."""
    return _sizes(model) if model.verifies_trees else ()


def calibrate(model: TargetModel, limit_s: float = 2.0, longest_s: float = LONGEST_S) -> CostCurve:
    """Time passes of the sizes up to 64 rows after a short prompt, for about `limit_s` seconds.

    A large model, or a busy machine, may take `longest_s`, until `FEWEST` sizes are timed
    `LEAST_TIMES` each. The sizes take turns and the quickest pass of each counts, so that other
    work of the machine changes little. Empties the model's cache. Sizes that the time does not
    suffice for lie between others or are extrapolated, and learned from the steps of real runs.
    """
    token = max(0, min(model.vocabulary - 1, 17))
    # A large model on a CPU reads 512 tokens in half a minute; 64 give the same costs there.
    context = min(64 if model.device.type == "cpu" else 512, model.context - MOST_ROWS - 1)
    model.start(max(context, 1) + MOST_ROWS + 1)
    model.prefill([token] * max(context, 1))
    sizes = _sizes(model)
    timed = _coarse_first([r for r in sizes if r <= MOST_ROWS and r < model.context])
    for rows in timed * (USES + 1) if model.passes.captures else ():
        seconds_of_a_pass(model, token, rows)  # capturing it is not part of its cost
    seconds: dict[int, float] = {}
    clock = time.perf_counter()

    def time_one(rows: int) -> None:
        if rows not in seconds:
            seconds_of_a_pass(model, token, rows)  # the first of a size allocates and prepares
        taken = seconds_of_a_pass(model, token, rows)
        seconds[rows] = min(taken, seconds.get(rows, taken))

    for turn in range(LEAST_TIMES):
        for rows in timed[:FEWEST]:
            spent_s = time.perf_counter() - clock
            if spent_s >= longest_s and (turn > 0 or len(seconds) >= 2):
                return CostCurve(seconds, sizes=padded(model))
            time_one(rows)
    for rows in timed * TIMES:
        spent_s = time.perf_counter() - clock
        if spent_s + 2 * seconds.get(rows, 0.0) > limit_s:
            break
        time_one(rows)
    return CostCurve(seconds, sizes=padded(model))


def _coarse_first(sizes: Sequence[int]) -> list[int]:
    """The sizes in an order whose beginning says most: powers of four, of two, and the others.

    >>> _coarse_first([1, 2, 4, 8, 12, 16])
    [1, 4, 16, 2, 8, 12]
    """
    return sorted(sizes, key=lambda size: (size & (size - 1) > 0, size.bit_length() % 2 == 0, size))


def seconds_of_a_pass(model: TargetModel, token: int, rows: int) -> float:
    """Of one pass over `rows` rows, as a run makes them; a chain before it is taken back."""
    begin = time.perf_counter()
    logits = model.forward(token, chain([token] * (rows - 1)))
    logits.argmax(-1).tolist()  # waits for the device, as verification does
    return time.perf_counter() - begin
