"""The cells of a sweep measured on a source, and the report of what that shows."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from ngtcli.config import Settings
from ngtcli.measure.grid import Axis, Cell
from ngtcli.measure.ranking import CellSummary, judge, summarize
from ngtcli.measure.records import Contestant, Notify, P, Turn, by_contestant, run
from ngtcli.measure.state import VERSION, Record, State
from ngtcli.render.sweep_rows import SkippedCell, SweepReport
from ngtcli.system.storage import home


class Source(Protocol[P]):
    """What cells are measured on."""

    @property
    def about(self) -> Mapping[str, Any]:
        """Model, device and data, ready for JSON."""

    @property
    def prompts(self) -> Sequence[P]:
        """What every cell answers."""

    def contestant(self, cell: Cell) -> Contestant[P]:
        """Who answers with the settings of `cell`, under its label."""


def state_key(about: Mapping[str, Any], axes: Sequence[Axis], base: Settings) -> str:
    """What makes passes comparable: data, model, device, settings and the sweep."""
    settings = asdict(base)
    settings.pop("color")
    for axis in axes:
        settings.pop(axis.name)
    state = [VERSION, dict(about), settings, [asdict(axis) for axis in axes]]
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def default_state(key: str) -> Path:
    """The state file of a key in the user's cache folder."""
    return home("cache") / "tune" / f"{key[:32]}.jsonl"


def measure(
    source: Source[P], cells: Sequence[Cell], rounds: int, state: State, progress: Notify
) -> None:
    """Measure what `state` does not hold yet."""
    contestants = [source.contestant(cell) for cell in cells]
    turns = by_contestant(contestants, len(source.prompts), rounds)
    words = Progress(sum(len(_passes(c, rounds, state)) for c in cells), len(cells) * rounds)
    for turn, sample in run(state.left(turns), source.prompts, describe=words, progress=progress):
        state.add(turn, sample)


class Progress:
    """How far a sweep is, in words: `done` of `total` passes at first."""

    def __init__(self, done: int, total: int) -> None:
        self._done, self._total, self._before = done, total, done
        self._begin, self._words = time.perf_counter(), ""

    def __call__(self, turn: Turn[Any]) -> str:
        if turn.prompt:
            return self._words
        self._words = f"{self._done} of {self._total} measurements"
        if passed := self._done - self._before:
            seconds = (time.perf_counter() - self._begin) / passed * (self._total - self._done)
            self._words += f" · about {duration(seconds)} left"
        self._done += 1
        return self._words


def duration(seconds: float) -> str:
    """In words.

    >>> duration(75)
    '1 min 15 s'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _passes(cell: Cell, rounds: int, state: State) -> list[tuple[Record, ...]]:
    places = ((cell.label, number) for number in range(rounds))
    return [state.done[place] for place in places if place in state.done]


def summaries(cells: Sequence[Cell], rounds: int, state: State) -> list[CellSummary]:
    """The summaries of all cells that were measured at least once."""
    measured = ((cell, _passes(cell, rounds, state)) for cell in cells)
    return [summarize(cell.label, dict(cell.values), got) for cell, got in measured if got]


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
