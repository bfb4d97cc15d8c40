"""Measuring the cells of a sweep, in turn, so that it can be stopped and taken up again.

Every round measures every cell once, in an order of its own, so that a machine that slows down or
speeds up troubles all cells alike.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ngtcli.config import Settings
from ngtcli.evaluate.sweep.grid import Axis, Cell
from ngtcli.evaluate.sweep.ranking import CellSummary, Measurement, judge, summarize
from ngtcli.evaluate.sweep.state import State
from ngtcli.render.sweep_rows import SkippedCell, SweepReport

Progress = Callable[[int, int, float | None], None]  # done, total, seconds left if known


class Source(Protocol):
    """What cells are measured on."""

    @property
    def about(self) -> Mapping[str, Any]:
        """Model, device and data, ready for JSON."""

    def measure(self, settings: Settings) -> Measurement:
        """One pass over all prompts, nothing kept from the pass before."""


def schedule(cells: Sequence[Cell], rounds: int, seed: int = 0) -> list[tuple[Cell, int]]:
    """Every cell once a round, each round in an order of its own; the same for one seed."""
    out = []
    for turn in range(rounds):
        order = list(cells)
        random.Random(f"{seed} {turn}").shuffle(order)
        out += [(cell, turn) for cell in order]
    return out


def measure_all(
    source: Source, cells: Sequence[Cell], rounds: int, state: State, progress: Progress
) -> None:
    """Measure what `state` does not hold yet."""
    plan = schedule(cells, rounds)
    todo = [(cell, turn) for cell, turn in plan if (cell.label, turn) not in state.done]
    progress(len(plan) - len(todo), len(plan), None)
    begin = time.perf_counter()
    for i, (cell, turn) in enumerate(todo, 1):
        state.add(cell.label, turn, source.measure(cell.settings))
        left = (time.perf_counter() - begin) / i * (len(todo) - i)
        progress(len(plan) - len(todo) + i, len(plan), left)


def summaries(cells: Sequence[Cell], rounds: int, state: State) -> list[CellSummary]:
    """The summaries of all cells that were measured at least once."""
    out = []
    for cell in cells:
        got = [state.done[k] for turn in range(rounds) if (k := (cell.label, turn)) in state.done]
        if got:
            out.append(summarize(cell.label, dict(cell.values), got))
    return out


def report(
    about: Mapping[str, Any],
    axes: Sequence[Axis],
    cells: Sequence[Cell],
    skipped: Sequence[SkippedCell],
    rounds: int,
    state: State,
) -> SweepReport:
    """Everything that was measured and what follows from it.

    A cell is "chosen" only where everything is measured; before that one is "ahead".
    """
    measured = summaries(cells, rounds, state)
    complete = sum(cell.rounds for cell in measured) == len(cells) * rounds
    verdict = judge(measured, complete) if measured else None
    standing = {c.label: "tied" for c in verdict.tied} if verdict else {}
    if verdict:
        standing[verdict.chosen.label] = "chosen" if complete else "ahead"
    rows = [c.row(standing.get(c.label, "")) for c in measured]
    return SweepReport(
        about=about,
        sweep={axis.name: axis.values for axis in axes},
        rounds=rounds,
        measured=sum(row.rounds for row in rows),
        planned=len(cells) * rounds,
        complete=complete,
        cells=rows,
        skipped_cells=skipped,
        best=verdict.best.label if verdict else None,
        tied=[c.label for c in verdict.tied] if verdict else [],
        chosen=verdict.chosen.label if verdict and complete else None,
        reason=verdict.reason if verdict else "nothing was measured",
        state=str(state.path),
    )
