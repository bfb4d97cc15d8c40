"""What a pass over k draft nodes costs on this device: a short calibration, kept per model."""

import hashlib
import json
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import torch

from ngtcli import process
from ngtcli.decode.model import TargetModel
from ngtcli.draft.costs import CostCurve, Costs
from ngtcli.draft.tree import chain
from ngtcli.storage import home

ROWS = (1, 2, 4, 8, 16, 32, 64)
TIMES = 7
VERSION = 3


def costs_path(model: TargetModel) -> Path:
    """The file of a model's curves: its name says device, dtype and the model's configuration."""
    if model.device.type == "cuda":
        device = torch.cuda.get_device_name(model.device)
    else:
        device = f"{model.device.type} {torch.get_num_threads()}"
    config = model.config.to_json_string(use_diff=False)
    state = f"{VERSION}|{device}|{model.dtype}|{model.name}|{config}"
    return home("cache") / "costs" / f"{hashlib.sha256(state.encode()).hexdigest()[:32]}.json"


def load_costs(model: TargetModel) -> Costs | None:
    """The stored curves; None where there are none, or none that can be read."""
    try:
        stored = json.loads(costs_path(model).read_text(encoding="utf-8"))
        return Costs(
            {
                int(length): CostCurve(_by_rows(curve["seconds"]), _by_rows(curve["measured"]))
                for length, curve in stored.items()
            }
        )
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None


def _by_rows(stored: dict[str, float]) -> dict[int, float]:
    return {int(rows): float(seconds) for rows, seconds in stored.items()}


def save_costs(model: TargetModel, costs: Costs) -> None:
    """Store curves, atomically; a cache that cannot be written is done without."""
    path = costs_path(model)
    with suppress(OSError), process.unbroken():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(
                    {
                        length: {"seconds": curve.by_rows(), "measured": curve.measured}
                        for length, curve in costs.curves.items()
                    },
                    file,
                )
            os.replace(partial, path)
        finally:
            Path(partial).unlink(missing_ok=True)


def calibrate(model: TargetModel, limit_s: float = 2.0) -> CostCurve:
    """Time passes over 1 to 64 rows behind a short text, for about `limit_s` seconds.

    The sizes take turns and the quickest of their passes counts, so that what else the machine does
    meanwhile spoils little. The model's cache is emptied. What the time does not suffice for is
    left to extrapolation and to the steps of real runs.
    """
    token = max(0, min(model.vocabulary - 1, 17))
    # Reading 512 tokens takes a large model on a CPU half a minute; 64 tell as much there.
    context = min(64 if model.device.type == "cpu" else 512, model.context - max(ROWS) - 1)
    model.start(max(context, 1) + max(ROWS) + 1)
    model.prefill([token] * max(context, 1))
    seconds: dict[int, float] = {}
    clock = time.perf_counter()
    for _ in range(TIMES + 1):
        for rows in [r for r in ROWS if r < model.context]:
            left = limit_s - (time.perf_counter() - clock)
            if left < 2 * seconds.get(rows, 0.0) and len(seconds) > 1:
                return CostCurve(seconds)
            if left < 0 and len(seconds) > 1:
                break
            taken = _seconds_of_a_pass(model, token, rows)
            seconds[rows] = min(taken, seconds.get(rows, taken))
    return CostCurve(seconds)


def _seconds_of_a_pass(model: TargetModel, token: int, rows: int) -> float:
    begin = time.perf_counter()
    scores = model.forward(token, chain([token] * (rows - 1)))
    scores.argmax(-1).tolist()  # waits for the device, as verification does
    return time.perf_counter() - begin
