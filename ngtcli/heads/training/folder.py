"""The folder that a head is trained in: whose it is, what it was begun with, what it holds.

`training.json` marks it as ngt's, says what the training was asked for, and which files ngt wrote;
what is not among these, or was changed since, is not written over. Knows no torch.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ngtcli.errors import UsageError, reason_of
from ngtcli.heads.training.answers import ANSWERS, ELSEWHERE
from ngtcli.system import process
from ngtcli.system.files import DamagedFileError, parse_json, read_bounded, write_atomically
from ngtcli.system.journal import LineFile, errors_named

KINDS = ("medusa", "hydra", "eagle3", "dflash", "space")
CHECKPOINT = "checkpoint.safetensors"
_ABOUT, _LOG, _PARTIAL = "training.json", "log.jsonl", "partial"
_FORMAT = {"format": "ngt-training", "version": 1}
_MODE = 0o644  # of files that are written; those of models are others' to read, too
_MOST = 10_000_000  # bytes of training.json; guess


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of a training.

    `accepted` has for each depth the share of rows of held-out answers after which the likeliest
    guesses down to it are all right; `tokens_per_step` is their sum and the model's own token.
    """

    folder: str
    kind: str
    steps: int
    seconds: float
    texts: int
    held_out: int
    held_loss: float
    accepted: tuple[float, ...]
    tokens_per_step: float


class TrainingFolder:
    """A folder for a head of a `kind`, new or of an earlier run; closed at the end of a `with`.

    Raises UsageError for a folder that ngt did not write or another process uses, and for one of
    another kind.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind = path, kind
        try:
            path.mkdir(parents=True, exist_ok=True)
            held = {one.name for one in path.iterdir()}
        except OSError as error:
            raise UsageError(f"{path}: {reason_of(error)}", ELSEWHERE) from None
        self.about = self._read(held)
        if self.about["kind"] != kind:
            raise UsageError(f"{path} was begun with kind {self.about['kind']}", ELSEWHERE)
        with errors_named(path / _LOG, ELSEWHERE, UsageError):
            self._log = LineFile(path / _LOG, 0o644)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def _read(self, held: set[str]) -> dict[str, Any]:
        """What `training.json` says. Raises UsageError where others' files are there."""
        if not held:
            return {**_FORMAT, "kind": self.kind, "written": {}}
        try:
            found = parse_json(read_bounded(self.path / _ABOUT, _MOST), dict)
        except (OSError, DamagedFileError):
            found = {}
        if found.items() >= _FORMAT.items() and isinstance(found.get("written"), dict):
            return found
        if held <= {_LOG, ANSWERS}:  # ended before it began to train
            return {**_FORMAT, "kind": self.kind, "written": {}}
        raise UsageError(f"{self.path}: there are files that ngt did not write", ELSEWHERE)

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Note what is asked for. Raises UsageError where the folder was begun with other."""
        then: dict[str, Any] = self.about.get("plan") or dict(plan)
        for name, value in plan.items():
            if then.get(name) != value:
                what = f"{self.path} was begun with {name} {then.get(name)}, now {value}"
                raise UsageError(what, ELSEWHERE)
        self.note(plan=dict(plan))

    def note(self, **facts: Any) -> None:
        """Keep facts in `training.json`."""
        self.about |= facts
        write_atomically(self.path / _ABOUT, json.dumps(self.about, indent=1) + "\n")

    def log(self, line: Mapping[str, Any]) -> None:
        """A line of the training curve."""
        self._log.append(json.dumps(line).encode())

    def write(self, write: Callable[[Path], object]) -> None:
        """Let `write` make files in a folder of its own, then put them in place.

        Raises UsageError for one that stands there and is not as ngt wrote it.
        """
        partial = self.path / _PARTIAL
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        write(partial)
        made = sorted(one.name for one in partial.iterdir())
        for name in made:
            if (path := self.path / name).exists() and _stamp(path) not in self._known(name):
                shutil.rmtree(partial)
                raise UsageError(f"{path}: ngt did not write it, or it was changed", ELSEWHERE)
        for name in made:
            (partial / name).chmod(_MODE)
        # Of before and of now: a run may be killed between two of these lines.
        stamps = {n: [*self._known(n)[-1:], _stamp(partial / n)] for n in made}
        with process.unbroken():
            self.note(written=self.about["written"] | stamps)
            for name in made:
                (partial / name).replace(self.path / name)
            partial.rmdir()

    def _known(self, name: str) -> list[list[int]]:
        known: list[list[int]] = self.about["written"].get(name, [])
        return known


def _stamp(path: Path) -> list[int]:
    """What tells a file as it was written: bytes and nanoseconds; renaming keeps it."""
    about = path.stat()
    return [about.st_size, about.st_mtime_ns]
