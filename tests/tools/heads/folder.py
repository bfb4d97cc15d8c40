"""The folder that a head is trained in: its plan, its progress, and which files ngt wrote there.

`log.jsonl` is its journal. It begins with the plan; then come the points of the loss curve, and the
size and time of each file that ngt wrote. A file that is not listed there, or was changed since, is
never overwritten. This module does not load torch.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from ngtcli.errors import UsageError
from ngtcli.system.files import key_of, new_file
from ngtcli.system.journal import Form, Journal
from ngtcli.words import reason_of

KINDS = ("medusa", "hydra", "eagle3", "dflash")
RECORDING = "recording"  # name of the folder, inside the head's, of the recorded answers
CHECKPOINT = "checkpoint.safetensors"
ELSEWHERE = "Name another folder with -o."
_LOG = "log.jsonl"
_FILE_MODE = 0o644  # files of models are readable by all users
_MAX_LINE_BYTES = 1_000_000  # of the journal; guess


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt with the model's answer, as token ids; those held out are for validation."""

    prompt: Sequence[int]
    answer: Sequence[int]
    held_out: bool = False

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a training. A 0 stands for the default of the kind or of the target.

    Args:
        kind: One of `KINDS`.
        minutes: Training time, if `steps` is None.
        steps: Number of steps; None: as many as fit in `minutes`.
        depth: Number of tokens guessed in a row.
        inner: Width of the perceptrons of EAGLE-3 and DFlash.
        vocabulary: Size of EAGLE-3's vocabulary.
        own_scores: Whether the heads of Medusa and Hydra have output layers of their own; otherwise
            they use the target's.
        batch: Tokens of a step.
        rate: Learning rate.
        seed: Seed of the first weights and of the order of the samples.
    """

    kind: str
    minutes: float = 10.0
    steps: int | None = None
    depth: int = 0
    inner: int = 0
    vocabulary: int = 0
    own_scores: bool = True
    batch: int = 2048
    rate: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """The result of a training.

    `texts` and `held_out` count the samples to train on and to validate with. `accepted` has for
    each depth the share of positions of held-out answers after which the likeliest guesses down to
    that depth are all right. `tokens_per_step` is their sum plus the model's own token.
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


class Line(Struct, frozen=True, omit_defaults=True):
    """A line of the journal: a point of the curve, the number of `steps`, or a written file.

    The first line of a training has a key of its model and samples in `on`. The line of a
    checkpoint has its `step` and `seconds`.
    """

    step: int = 0
    seconds: float = 0.0
    loss: float | None = None
    held_loss: float | None = None
    accepted: tuple[float, ...] = ()
    tokens_per_step: float = 0.0
    steps: int | None = None
    on: str = ""
    wrote: tuple[str, int, int] | None = None


_FORM = Form("ngt-training", 2, Line, ELSEWHERE)


class TrainingFolder:
    """A folder for a head trained by `plan`, new or of an earlier run. Call `close` at the end.

    Raises UsageError if ngt did not write the folder, if another process uses it, or if its
    training was begun with another plan.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self.plan = plan
        self.steps = plan.steps
        self._data_key = ""  # of the model and the samples; "" before the training begins
        self._lines: dict[tuple[str, int, int], Line] = {}  # by stamp of the file

        try:
            path.mkdir(parents=True, exist_ok=True)
            names = {entry.name for entry in path.iterdir()} - {_LOG}
        except OSError as error:
            raise UsageError(f"{path}: {reason_of(error)}", hint=ELSEWHERE) from None
        self._journal = Journal(path / _LOG, _FORM, asdict(plan), _MAX_LINE_BYTES, restart=False)
        self.close = self._journal.close
        if names and not self._journal.begun:
            self.close()
            raise UsageError(
                f"{path}: there are files that ngt did not write ({min(names)[:100]})",
                hint=ELSEWHERE,
            )
        for _, line in self._journal:
            self._apply(line)

    def _apply(self, line: Line) -> None:
        self.steps = line.steps or self.steps
        self._data_key = line.on or self._data_key
        if line.wrote is not None:
            self._lines[line.wrote] = line

    def recording(self) -> Path:
        """The folder for recorded answers. It counts as ngt's from now on. Raises OSError."""
        if not self._journal.begun:
            self.note()
        return self.path / RECORDING

    def begin(self, model: str, samples: Sequence[Sample]) -> None:
        """Note the model and the samples. Raises UsageError if the training began with others."""
        values = [(*sample.prompt, "|", *sample.answer, sample.held_out) for sample in samples]
        data_key = key_of(model, *values)
        if not self._data_key:
            self.note(on=data_key)
        elif data_key != self._data_key:
            raise UsageError(
                f"{self.path} was begun with another model or other texts", hint=ELSEWHERE
            )

    def note(self, **facts: Any) -> None:
        """Add a line with these fields to the journal. Raises OSError."""
        line = Line(**facts)
        self._apply(line)
        self._journal.add(line)

    def written(self, name: str) -> Line | None:
        """The journal's line of a file; None if there is no such file.

        Raises UsageError if the file is not as ngt wrote it.
        """
        path = self.path / name
        if not path.exists():
            return None
        line = self._lines.get(_stamp(name, path))
        if line is None:
            raise UsageError(f"{path}: ngt did not write it, or it was changed", hint=ELSEWHERE)
        return line

    def write(self, name: str, data: bytes, **facts: Any) -> None:
        """Write a file, with these fields in its line of the journal.

        Raises OSError, and UsageError as `written` does.
        """
        self.written(name)
        with new_file(self.path / name, _FILE_MODE) as file:
            file.write(data)
            file.flush()
            # The line comes before the rename: a run may be killed in between, and a file without
            # a line would count as the user's.
            self.note(wrote=_stamp(name, file.fileno()), **facts)


def _stamp(name: str, file: Path | int) -> tuple[str, int, int]:
    """Identify a file as it was written, by name, bytes and nanoseconds; renaming keeps both."""
    status = os.stat(file)
    return name, status.st_size, status.st_mtime_ns
