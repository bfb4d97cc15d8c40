"""What `ngt tune` reports: the cells of a sweep, and the report around them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ngtcli.documents.find import Skipped
from ngtcli.render.rows import Pair
from ngtcli.system.json_form import to_json


def as_written(value: Any) -> str:
    """A value as it is written on a command line.

    >>> [as_written(value) for value in (8, True, ("END", "STOP"))]
    ['8', 'true', 'END,STOP']
    """
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRow:
    """A combination of settings as measured: medians over rounds, times in seconds.

    `standing` is "chosen" in a report that is complete and "ahead" in another, "tied" for cells
    that cannot be told from the best, "" for the rest.
    """

    cell: str
    values: Mapping[str, Any]
    rounds: int
    tokens_per_s: float
    tokens_per_s_least_and_most: Pair
    mean_acceptance_length: float
    trie_build_s: float | None
    trie_bytes: int | None
    standing: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SkippedCell:
    """A combination that cannot be, and why."""

    values: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """Everything that was measured and what follows from it.

    `about` has model, device and data; `best`, `tied` and `chosen` name cells. `preset`, `method`
    and `command` say what the sweep was laid over and how it was started, `skipped` which files
    were left out.
    """

    about: Mapping[str, Any]
    sweep: Mapping[str, Sequence[Any]]
    rounds: int
    measured: int
    planned: int
    complete: bool
    cells: Sequence[CellRow]
    skipped_cells: Sequence[SkippedCell]
    best: str | None
    tied: Sequence[str]
    chosen: str | None
    reason: str
    state: str
    preset: str = ""
    method: str = ""
    command: str = ""
    skipped: Sequence[Skipped] = ()

    def as_json(self) -> dict[str, Any]:
        """The object that --json prints."""
        return {
            "kind": "tune",
            **self.about,
            "sweep": {name: list(values) for name, values in self.sweep.items()},
            "rounds": self.rounds,
            "measured": self.measured,
            "planned": self.planned,
            "complete": self.complete,
            "cells": [cell.as_json() for cell in self.cells],
            "skipped": to_json(list(self.skipped)),
            "skipped_cells": [asdict(cell) for cell in self.skipped_cells],
            "best": self.best,
            "tied": list(self.tied),
            "chosen": self.chosen,
            "reason": self.reason,
            "state": self.state,
            "preset": self.preset,
            "method": self.method,
            "command": self.command,
        }
