"""Measuring the cells of a sweep, in turn, so that it can be stopped and taken up again.

Every round measures every cell once, in an order of its own, so that a machine that slows down or
speeds up troubles all cells alike. Each finished measurement is a line of a state file.
"""

import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from ngtcli.config import Settings
from ngtcli.errors import InputError, UsageError
from ngtcli.evaluate.sweep import Axis, Cell, Skipped
from ngtcli.evaluate.verdict import Figures, Measurement, from_json, judge, summarize
from ngtcli.reading import read_bounded
from ngtcli.storage import DamagedFileError, home, parse_json

FORMAT, VERSION = "ngt-tune", 1
MOST = 1 << 28  # bytes of a state file: a hundred thousand measurements of a hundred prompts
Progress = Callable[[int, int, float | None], None]  # done, total, seconds left if known


class Source(Protocol):
    """What cells are measured on."""

    @property
    def about(self) -> Mapping[str, Any]:
        """Model, device and data, ready for JSON."""

    def measure(self, settings: Settings) -> Measurement:
        """One pass over all prompts, nothing kept from the pass before."""


def state_key(about: Mapping[str, Any], axes: Sequence[Axis], base: Settings) -> str:
    """What makes measurements comparable: data, model, device, settings and the sweep."""
    settings = asdict(base)
    settings.pop("color")
    for axis in axes:
        settings.pop(axis.name)
    state = [VERSION, dict(about), settings, [asdict(axis) for axis in axes]]
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def default_state(key: str) -> Path:
    """The state file of a key in the user's cache folder."""
    return home("cache") / "tune" / f"{key[:32]}.jsonl"


class State:
    """Finished measurements by (cell, round); each is appended to `path` as it comes.

    Raises UsageError where the file belongs to another run, InputError where it cannot be used.
    """

    def __init__(self, path: Path, key: str, fresh: bool = False) -> None:
        self.path, self.key = path, key
        self.done: dict[tuple[str, int], Measurement] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = read_bounded(path, MOST).decode("utf-8") if path.exists() else ""
            if text and _object(text.split("\n")[0]).get("format") != FORMAT:
                raise UsageError(
                    f"{path}: not a state file of ngt tune", "Name another with --state."
                )
            if fresh or not text:
                self._write("w", {"format": FORMAT, "version": VERSION, "key": key})
            else:
                self._read(text)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            raise InputError(
                f"{path}: cannot be used ({reason.lower()})", "Name another file with --state."
            ) from None

    def _read(self, text: str) -> None:
        lines = text.split("\n")
        head = _object(lines[0])
        if head.get("version") != VERSION or head.get("key") != self.key:
            raise UsageError(
                f"{self.path}: from another sweep, data, model or settings",
                "Name another with --state, or start anew with --fresh.",
            )
        for line in lines[1:]:
            row = _object(line)
            try:
                measured = from_json(row["measured"])
                first = next(iter(self.done.values()), measured)
                if len(first.prompts) != len(measured.prompts):
                    continue
                self.done[str(row["cell"]), int(row["round"])] = measured
            except (KeyError, TypeError, ValueError):
                continue  # cut off as the run was ended, or damaged: measured again
        if not text.endswith("\n"):
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def add(self, cell: str, turn: int, measured: Measurement) -> None:
        """Keep one measurement."""
        self.done[cell, turn] = measured
        self._write("a", {"cell": cell, "round": turn, "measured": measured.as_json()})

    def _write(self, mode: str, row: Mapping[str, Any]) -> None:
        with self.path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _object(line: str) -> dict[str, Any]:
    try:
        return parse_json(line, dict)
    except DamagedFileError:
        return {}


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


def figures(cells: Sequence[Cell], rounds: int, state: State) -> list[Figures]:
    """The figures of all cells that were measured at least once."""
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
    skipped: Sequence[Skipped],
    rounds: int,
    state: State,
) -> dict[str, Any]:
    """Everything that was measured and what follows from it, ready for JSON.

    A cell is "chosen" only where everything is measured; before that one is "ahead".
    """
    measured = figures(cells, rounds, state)
    complete = sum(cell.rounds for cell in measured) == len(cells) * rounds
    verdict = judge(measured, complete) if measured else None
    standing = {c.label: "tied" for c in verdict.tied} if verdict else {}
    if verdict:
        standing[verdict.chosen.label] = "chosen" if complete else "ahead"
    rows = [{**c.as_json(), "standing": standing.get(c.label, "")} for c in measured]
    return {
        "kind": "tune",
        **about,
        "sweep": {axis.name: list(axis.values) for axis in axes},
        "rounds": rounds,
        "measured": sum(row["rounds"] for row in rows),
        "planned": len(cells) * rounds,
        "complete": complete,
        "cells": rows,
        "skipped": [{"values": dict(s.values), "reason": s.reason} for s in skipped],
        "best": verdict.best.label if verdict else None,
        "tied": [c.label for c in verdict.tied] if verdict else [],
        "chosen": verdict.chosen.label if verdict and complete else None,
        "reason": verdict.reason if verdict else "nothing was measured",
        "state": str(state.path),
    }
