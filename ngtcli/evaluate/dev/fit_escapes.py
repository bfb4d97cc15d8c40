"""Fit the escapes of `auto` to recorded runs: `python -m ngtcli.evaluate.dev.fit_escapes DIR`.

Expectation maximisation over every emitted token of the questions with odd ids: for each, which
source would have given it and which would have passed. The even ids are left for reporting. The
pool holds the answers to the questions before.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.attribution import Tallies, attribute
from ngtcli.draft.auto.blend import SCORES
from ngtcli.draft.auto.config import CONFIG, Options
from ngtcli.draft.auto.drafter import Auto
from ngtcli.draft.auto.escapes import ESCAPES, SHAPE
from ngtcli.draft.auto.pool import Pool
from ngtcli.draft.drafter import Context
from ngtcli.evaluate.replay.traces import Trace, is_odd, read_traces

_SMOOTH = 3.0  # observations that an order's mean over its buckets weighs


def fit(traces: Sequence[Trace], rounds: int) -> tuple[npt.NDArray[np.float64], list[float]]:
    """Escape probabilities, float64 (source, order, bucket), and each round's mean negative log
    probability a token."""
    escapes = np.full(SHAPE, 0.5)
    losses = []
    for _ in range(rounds):
        tallies = Tallies(escapes, np.zeros(SHAPE), np.zeros(SHAPE))
        logs: list[float] = []
        drafter = Auto(Options(trust=1e6), escapes, pool=Pool())
        for trace in traces:
            drafter.reset(Context(trace.prompt_ids))
            for token in trace.output_ids:
                if is_odd(trace.id):
                    probability = attribute(
                        drafter.sources.arrays, drafter.matches.nodes, token, tuple(tallies)
                    )
                    logs.append(-float(np.log(probability)))
                drafter.observe([token])
        predicted, reached = tallies.predicted, tallies.reached
        mean = (predicted.sum(2, keepdims=True) + 1) / (reached.sum(2, keepdims=True) + 2)
        escapes = 1 - (predicted + _SMOOTH * mean) / (reached + _SMOOTH)
        escapes = np.clip(escapes, CONFIG.min_escape, 1 - CONFIG.min_escape)
        losses.append(sum(logs) / len(logs))
        print(f"{losses[-1]:.4f} nats a token", file=sys.stderr)
    return escapes, losses


def main() -> None:
    """Fit, and write the table that `auto` starts from."""
    parser = argparse.ArgumentParser(description="Fit the escapes of auto to recorded runs.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", default="", help="with commas; all by default")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=ESCAPES)
    args = parser.parse_args()
    found = read_traces(args.folder)
    tasks = [t for t in args.tasks.split(",") if t]
    traces = [t for t in found.traces if not tasks or t.task in tasks]
    escapes, losses = fit(traces, args.rounds)
    table = {
        "about": "Shares that sources of auto pass on; rows are sources, orders and buckets.",
        "fitted_on": f"{found.model}, odd ids, {', '.join(tasks) or 'all tasks'}",
        "nats_per_token": round(losses[-1], 4),
        "escapes": [[[round(float(v), 4) for v in o] for o in s] for s in escapes[:SCORES]],
    }
    args.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
