"""Fit the first weights of the log-linear stage: `python -m tests.tools.fit_stage RECORDING…`.

A drafter with a pool follows the recorded answers to questions with odd ids, one recording after
the other, and learns from each token as it does when it drafts. The file gets its factors and a
share of Adagrad's sums. It drafts nothing, so what it learns does not depend on a number of nodes.
The same recordings in the same order give the same file on every machine.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ngtcli.drafting.auto.core.cells import FEATURES, SIZE, STARTS
from ngtcli.drafting.auto.drafter import Auto
from ngtcli.drafting.auto.weights import FITTED, neutral_weights
from ngtcli.drafting.drafter import DraftSettings, Outcome
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.tries.background import BackgroundCounts
from ngtcli.system.files import write_atomically
from tests.tools.measuring.replaying import context_of, recorded_background, select
from tests.tools.measuring.traces import TraceSet, read_traces

Floats = npt.NDArray[np.float64]
STEP = 3  # tokens learned at once, about as many as in a decoding step; escapes change after it
MAX_MB = 4096  # largest recording that is read, in megabytes
# Smaller contributions to a candidate are left out. While an answer waits, many more are left out.
LEAST = 1e-6
DIGITS = 4  # significant digits of a weight in the file


def fit(recordings: Sequence[tuple[TraceSet, BackgroundCounts | None]], passes: int) -> Floats:
    """Factors and Adagrad's sums after `passes` over all recordings, float64 (2, cells)."""
    weights = neutral_weights()
    for _ in range(passes):
        for traces, background in recordings:
            weights = learned_from(traces, background, weights)
    return weights


def learned_from(traces: TraceSet, background: BackgroundCounts | None, weights: Floats) -> Floats:
    """The weights after the answers of one recording, float64 (2, cells)."""
    pool = Pool(factors=weights[0], squares=weights[1])
    drafter = Auto(DraftSettings(pool=pool, background=background))
    drafter.sources.stage.least_learned = LEAST
    for trace in traces.traces:
        drafter.begin(context_of(trace, traces))
        log = TokenLog(trace.prompt_ids)
        for start in range(0, len(trace.output_ids), STEP):
            log.emit(trace.output_ids[start : start + STEP])
            drafter.learn(log, Outcome())
        drafter.close()
    return np.stack([drafter.weights.factors, drafter.weights.squares])


def as_json(weights: Floats, trust: float) -> str:
    """The text of the file; it keeps the share `trust` of Adagrad's sums."""
    lines = []
    for feature, start in zip(FEATURES, STARTS, strict=True):
        cells = slice(start, start + feature.cells)
        entry = {
            "shape": feature.shape,
            "factors": _rounded(weights[0, cells]),
            "squares": _rounded(weights[1, cells] * trust),
        }
        lines.append(f" {json.dumps(feature.name)}: {json.dumps(entry)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _rounded(numbers: Floats) -> list[float]:
    return [float(f"{number:.{DIGITS}g}") for number in numbers.tolist()]


def main(words: Sequence[str] | None = None) -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(description="Fit the first weights of the log-linear stage.")
    parser.add_argument("recordings", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, default=FITTED)
    parser.add_argument("--ids", default="odd", choices=("odd", "even", "all"))
    parser.add_argument("--passes", type=int, default=1, help="over all recordings")
    parser.add_argument("--trust", type=float, default=0.3, help="share of Adagrad's sums kept")
    args = parser.parse_args(words)
    recordings = []
    for folder in args.recordings:
        traces = read_traces(folder, MAX_MB)
        chosen = tuple(select(traces.traces, (), None, args.ids))
        background = recorded_background(traces, "english", print)
        recordings.append((replace(traces, traces=chosen), background))
        print(f"{folder}: {len(chosen)} answers of {traces.model}")
    weights = fit(recordings, args.passes)
    write_atomically(args.output, as_json(weights, args.trust))
    moved = int((np.abs(np.log(weights[0])) > 0.1).sum())
    print(f"{args.output}: {SIZE} weights, {moved} of them above 0.1 or below -0.1")


if __name__ == "__main__":
    main()
