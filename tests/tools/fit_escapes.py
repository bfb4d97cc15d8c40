"""Fit the escapes of `auto` to recorded runs: `python -m tests.tools.fit_escapes DIR`.

Expectation maximisation over every emitted token of the questions with odd ids: for each, which
source would have given it and which would have passed. The even ids are left for reporting. The
pool holds the answers to the questions before. First all sources without a background are fitted,
then the background beside them:

    python -m tests.tools.fit_escapes DIR
    python -m tests.tools.fit_escapes DIR --background english --background NAME
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.blend import BACKGROUND, OWN, POOL, PROMPT, SCORES, named
from ngtcli.draft.auto.config import CONFIG
from ngtcli.draft.auto.drafter import Auto
from ngtcli.draft.auto.escapes import (
    ESCAPES,
    SHAPE,
    EscapeTallies,
    Floats,
    attribute,
    fitted_escapes,
)
from ngtcli.draft.drafter import Context, DraftSettings
from ngtcli.draft.pool import Pool
from ngtcli.measure.replay import recorded_background
from ngtcli.measure.traces import Trace, is_odd, read_traces
from ngtcli.trie.background import BackgroundCounts

_SMOOTH = 3.0  # observations that an order's mean over its buckets weighs


def fit(
    traces: Sequence[Trace], rounds: int, backgrounds: Sequence[BackgroundCounts] = ()
) -> tuple[npt.NDArray[np.float64], list[float]]:
    """Escape probabilities, float64 (source, order, bucket), and each round's mean negative log
    probability a token.

    With `backgrounds`, which are used in turn, only their escapes are fitted, beside those that
    ship; without, all others.
    """
    fitted = (BACKGROUND,) if backgrounds else (OWN, PROMPT, POOL)
    escapes = fitted_escapes().copy()
    escapes[list(fitted)] = 0.5
    losses = []
    for _ in range(rounds):
        predicted, reached = np.zeros(SHAPE), np.zeros(SHAPE)
        logs: list[float] = []
        for background in backgrounds or (None,):
            logs += _tally(traces, (escapes, predicted, reached), background)
        mean = (predicted.sum(2, keepdims=True) + 1) / (reached.sum(2, keepdims=True) + 2)
        moved = 1 - (predicted + _SMOOTH * mean) / (reached + _SMOOTH)
        escapes = escapes.copy()
        for source in fitted:
            escapes[source] = np.clip(moved[source], CONFIG.min_escape, 1 - CONFIG.min_escape)
        losses.append(sum(logs) / len(logs))
        print(f"{losses[-1]:.4f} nats a token", file=sys.stderr)
    return escapes, losses


def _tally(
    traces: Sequence[Trace], tallies: tuple[Floats, ...], background: BackgroundCounts | None
) -> list[float]:
    """Attribute every token of the odd questions; the negative log probabilities."""
    logs: list[float] = []
    drafter = Auto(DraftSettings(pool=Pool(), background=background))
    drafter.tallies = EscapeTallies(tallies[0], trust=1e6)
    matches = drafter.sources.nodes
    room = np.empty(matches.size), np.empty((matches.size, 3), np.int32)
    for trace in traces:
        drafter.reset(Context(trace.prompt_ids))
        for token in trace.output_ids:
            if is_odd(trace.id):
                sources = named(drafter.sources.arrays)
                probability, _ = attribute(sources, matches, token, tallies, *room)
                logs.append(-float(np.log(probability)))
            drafter.observe([token])
    return logs


def main() -> None:
    """Fit, and write the table that `auto` starts from."""
    parser = argparse.ArgumentParser(description="Fit the escapes of auto to recorded runs.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", default="", help="with commas; all by default")
    parser.add_argument(
        "--background", action="append", default=[], metavar="NAMES",
        help="fit only the background's, with these names joined; several times: with each in turn",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=ESCAPES)
    args = parser.parse_args()
    found = read_traces(args.folder)
    tasks = [t for t in args.tasks.split(",") if t]
    traces = [t for t in found.traces if not tasks or t.task in tasks]
    backgrounds = [
        counts
        for names in args.background
        if (counts := recorded_background(found, names.split(","), sys.exit)) is not None
    ]
    escapes, losses = fit(traces, args.rounds, backgrounds)
    said = json.loads(ESCAPES.read_text(encoding="utf-8"))
    which = "background_" if backgrounds else ""
    told = f"{found.model}, odd ids, {', '.join(tasks) or 'all tasks'}"
    if backgrounds:
        told += f", with {' and '.join(args.background)}"
    table = {
        **said,
        f"{which}fitted_on": told,
        f"{which}nats_per_token": round(losses[-1], 4),
        "escapes": [[[round(float(v), 4) for v in o] for o in s] for s in escapes[OWN:SCORES]],
    }
    args.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
