"""The folder that a head is trained in: what was asked for, how far it is, which files are ngt's.

`log.jsonl` is its journal: behind what the training was asked for, the curve, and the size and time
of each file that ngt wrote; one that is not among these, or was changed since, is not written over.
Knows no torch.
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
RECORDING = "recording"  # the folder of the answers in the head's
CHECKPOINT = "checkpoint.safetensors"
ELSEWHERE = "Name another folder with -o."
_LOG = "log.jsonl"
_MODE = 0o644  # of files that are written; those of models are others' to read, too
_LONGEST = 1_000_000  # bytes of a line of the journal; guess


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt with the model's answer, as ids; `held` ones are for validation."""

    prompt: Sequence[int]
    answer: Sequence[int]
    held: bool = False

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a training was asked for; `steps` None: as many as fit in `minutes`.

    `depth` are the tokens guessed in a row, `inner` is the width of perceptrons of EAGLE-3 and
    DFlash, `vocabulary` that of EAGLE-3, `batch` the tokens of a step, `rate` the learning rate;
    0 stands for the kind's or the target's own. `own_scores`: the heads of Medusa and Hydra have
    last layers of their own, else they score by the target's.
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


class Line(Struct, frozen=True, omit_defaults=True):
    """A line of the journal: a point of the curve, how many `steps` there are, or a file.

    The first of a training says what it is `on`, model and texts, by a key; that of a checkpoint
    how far it is.
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
    """A folder for a head as `plan` says, new or of an earlier run. `close` it.

    Raises UsageError for a folder that ngt did not write or another process uses, and for one that
    was begun with another plan.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path, self.plan, self.steps, self._on = path, plan, plan.steps, ""
        try:
            path.mkdir(parents=True, exist_ok=True)
            others = {one.name for one in path.iterdir()} - {_LOG}
        except OSError as error:
            raise UsageError(f"{path}: {reason_of(error)}", hint=ELSEWHERE) from None
        self._journal = Journal(path / _LOG, _FORM, asdict(plan), _LONGEST, restart=False)
        self.close = self._journal.close
        if others and not self._journal.begun:
            self.close()
            what = f"{path}: there are files that ngt did not write ({min(others)[:100]})"
            raise UsageError(what, hint=ELSEWHERE)
        self._written: dict[tuple[str, int, int], Line] = {}
        for _, line in self._journal:
            self._take(line)

    def _take(self, line: Line) -> None:
        self.steps, self._on = line.steps or self.steps, line.on or self._on
        if line.wrote is not None:
            self._written[line.wrote] = line

    def recording(self) -> Path:
        """Where answers are recorded; what is there later is known as ngt's. Raises OSError."""
        if not self._journal.begun:
            self.note()
        return self.path / RECORDING

    def begin(self, model: str, texts: Sequence[Text]) -> None:
        """Note what it is trained on. Raises UsageError where it was begun on something else."""
        on = key_of(model, *((*text.prompt, "|", *text.answer, text.held) for text in texts))
        if not self._on:
            self.note(on=on)
        elif on != self._on:
            raise UsageError(
                f"{self.path} was begun with another model or other texts", hint=ELSEWHERE
            )

    def note(self, **facts: Any) -> None:
        """Add a line with these fields to the journal. Raises OSError."""
        self._take(line := Line(**facts))
        self._journal.add(line)

    def written(self, name: str) -> Line | None:
        """The line of a file, None where there is no file.

        Raises UsageError for one that is not as ngt wrote it.
        """
        path = self.path / name
        if not path.exists():
            return None
        if (line := self._written.get(_stamp(name, path))) is None:
            raise UsageError(f"{path}: ngt did not write it, or it was changed", hint=ELSEWHERE)
        return line

    def write(self, name: str, data: bytes, **facts: Any) -> None:
        """Write a file, with these fields in its line. Raises OSError, and as `written` does."""
        self.written(name)
        with new_file(self.path / name, _MODE) as file:
            file.write(data)
            file.flush()
            # First: a run may be killed in between.
            self.note(wrote=_stamp(name, file.fileno()), **facts)


def _stamp(name: str, file: Path | int) -> tuple[str, int, int]:
    """What tells a file as it was written: bytes and nanoseconds; a name that it gets keeps it."""
    about = os.stat(file)
    return name, about.st_size, about.st_mtime_ns
