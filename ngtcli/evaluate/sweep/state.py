"""The state file of a sweep: a line for each finished measurement, so that a sweep can go on."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ngtcli.config import Settings
from ngtcli.errors import InputError, UsageError
from ngtcli.evaluate.sweep.grid import Axis
from ngtcli.evaluate.sweep.ranking import Measurement, from_json
from ngtcli.system.reading import read_bounded
from ngtcli.system.storage import DamagedFileError, home, parse_json

FORMAT, VERSION = "ngt-tune", 1
MOST = 1 << 28  # bytes of a state file: a hundred thousand measurements of a hundred prompts


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
