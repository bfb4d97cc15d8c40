"""Fit the escapes of `auto` to recorded runs: `python -m tests.tools.fit_escapes DIR DIR …`.

Expectation maximisation over every emitted token of the questions with odd ids: for each, which
source would have given it and which would have passed. The even ids are left for reporting. Each
question is answered twice, with a pool that holds the answers to the questions before, and without.
First all sources without a background are fitted, those of what is copied to all recordings and the
others to the first, then the background beside them:

    python -m tests.tools.fit_escapes DIR DIR …
    python -m tests.tools.fit_escapes DIR --background english --background NAME
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ngtcli.draft.auto.config import CONFIG
from ngtcli.draft.auto.core.blend import (
    BACKGROUND,
    COPIED,
    EDITED,
    OWN,
    POOL,
    PROMPT,
    SCORES,
    named,
    query_for,
)
from ngtcli.draft.auto.core.learning import attribute
from ngtcli.draft.auto.drafter import Auto
from ngtcli.draft.auto.escapes import (
    ESCAPES,
    SHAPE,
    EscapeTallies,
    Floats,
    fitted_escapes,
)
from ngtcli.draft.drafter import Context, DraftSettings
from ngtcli.draft.pool import Pool
from ngtcli.measure.replay import recorded_background
from ngtcli.measure.traces import Trace, is_odd, read_traces
from ngtcli.trie.background import BackgroundCounts

_SMOOTH = 3.0  # observations that an order's mean over its buckets weighs


def fit(
    recordings: Sequence[Sequence[Trace]], rounds: int, backgrounds: Sequence[BackgroundCounts] = ()
) -> tuple[npt.NDArray[np.float64], list[float]]:
    """Escape probabilities, float64 (row, order, bucket), and each round's mean negative log
    probability a token of the first recording.

    With `backgrounds`, which are used in turn, only their escapes are fitted, beside those that
    ship; without, all others: of copies to all recordings, of sources to the first.
    """
    fitted = ((BACKGROUND,), ()) if backgrounds else ((OWN, PROMPT, POOL), (COPIED, EDITED))
    escapes = fitted_escapes().copy()
    escapes[[*fitted[0], *fitted[1]]] = 0.5
    losses = []
    for _ in range(rounds):
        first, every = _observe(recordings, escapes, backgrounds)
        escapes = escapes.copy()
        for rows, tallied in zip(fitted, (first, every), strict=True):
            escapes[list(rows)] = _moved(tallied)[list(rows)]
        losses.append(first.loss)
        print(f"{losses[-1]:.4f} nats a token", file=sys.stderr)
    return escapes, losses


@dataclass(frozen=True, slots=True)
class _Tallied:
    """What was expected of the matches, as EscapeTallies has it, and the mean surprise."""

    predicted: Floats
    reached: Floats
    loss: float


def _observe(
    recordings: Sequence[Sequence[Trace]], escapes: Floats, backgrounds: Sequence[BackgroundCounts]
) -> tuple[_Tallied, _Tallied]:
    """The expectation step over the first recording, and over all."""
    predicted, reached, found = np.zeros(SHAPE), np.zeros(SHAPE), []
    logs: list[float] = []
    for traces in recordings:
        for background in backgrounds or (None,):
            for pool in (Pool(), None):
                settings = DraftSettings(pool=pool, background=background)
                tallies = escapes, predicted, reached, np.zeros((len(escapes), 3))
                logs += _tally(traces, tallies, settings)
        found.append(_Tallied(predicted.copy(), reached.copy(), sum(logs) / len(logs)))
    return found[0], found[-1]


def _moved(tallied: _Tallied) -> Floats:
    """The maximisation step, each bucket drawn to the mean of its order."""
    predicted, reached = tallied.predicted, tallied.reached
    mean = (predicted.sum(2, keepdims=True) + 1) / (reached.sum(2, keepdims=True) + 2)
    escapes: Floats = 1 - (predicted + _SMOOTH * mean) / (reached + _SMOOTH)
    return np.clip(escapes, CONFIG.min_escape, 1 - CONFIG.min_escape)


def _tally(
    traces: Sequence[Trace], tallies: tuple[Floats, ...], settings: DraftSettings
) -> list[float]:
    """Attribute every token of the odd questions; the negative log probabilities."""
    logs: list[float] = []
    drafter = Auto(settings)
    drafter.tallies = EscapeTallies(tallies[0], trust=1e6)
    matches = drafter.sources.nodes
    query = query_for(matches)
    room = query, np.empty(len(query.keys))
    for trace in traces:
        if settings.pool is None and not is_odd(trace.id):
            continue
        drafter.reset(Context(trace.prompt_ids))
        for token in trace.output_ids:
            if is_odd(trace.id):
                sources = named(drafter.sources.arrays)
                probability = attribute(sources, matches, token, tallies, *room)
                logs.append(-float(np.log(probability)))
            drafter.observe([token])
    return logs


def main() -> None:
    """Fit, and write the table that `auto` starts from."""
    parser = argparse.ArgumentParser(description="Fit the escapes of auto to recorded runs.")
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--tasks", default="", help="with commas; all by default")
    parser.add_argument(
        "--background", action="append", default=[], metavar="NAMES",
        help="fit only the background's, with these names joined; several times: with each in turn",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=ESCAPES)
    args = parser.parse_args()
    recordings = [read_traces(folder) for folder in args.folders]
    tasks = [t for t in args.tasks.split(",") if t]
    chosen = [[t for t in one.traces if not tasks or t.task in tasks] for one in recordings]
    backgrounds = [
        counts
        for names in args.background
        if (counts := recorded_background(recordings[0], names.split(","), sys.exit)) is not None
    ]
    escapes, losses = fit(chosen, args.rounds, backgrounds)
    said = json.loads(ESCAPES.read_text(encoding="utf-8"))
    which = "background_" if backgrounds else ""
    told = (
        " and ".join(one.model for one in recordings)
        + f", odd ids, {', '.join(tasks) or 'all tasks'}"
    )
    if backgrounds:
        told += f", with {' and '.join(args.background)}"
    rows = [[[round(float(v), 4) for v in o] for o in s] for s in escapes]
    table = {
        **said, f"{which}fitted_on": told, f"{which}nats_per_token": round(losses[-1], 4),
        "escapes": rows[OWN:SCORES], "copies": rows[COPIED:],
    }  # fmt: skip
    args.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
