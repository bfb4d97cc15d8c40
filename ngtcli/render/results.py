"""The results of `ngt bench` as a whole: what was run, on what, and the rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ngtcli.documents.find import Skipped
from ngtcli.render.rows import LiveRow, PromptRow, Refusal, ReplayRow, SplitRow, as_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The command line, when it was run, and the versions of what ran."""

    command: str
    date: str
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a model ran on."""

    device: str
    device_name: str
    dtype: str
    threads: int
    cores: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveResult:
    """A live measurement.

    `memory` is what `peak_memory_mib` counts (see `PeakMemory`), `noise` the number of unrelated
    passages in each prompt, `skipped` the files that were left out.
    """

    model: str
    machine: Machine
    questions: int
    rounds: int
    max_tokens: int
    fresh: bool
    interrupted: bool
    memory: str
    notes: Sequence[str]
    rows: Sequence[LiveRow]
    split: Sequence[SplitRow]
    prompts: Sequence[PromptRow]
    refused: Sequence[Refusal]
    noise: int = 0
    skipped: Sequence[Skipped] = ()
    invocation: Invocation | None = None

    def as_json(self) -> dict[str, Any]:
        """The object that --json prints."""
        return {
            "kind": "live",
            "model": self.model,
            **asdict(self.machine),
            "questions": self.questions,
            "rounds": self.rounds,
            "max_tokens": self.max_tokens,
            "fresh": self.fresh,
            "interrupted": self.interrupted,
            "memory": self.memory,
            "notes": list(self.notes),
            "rows": as_rows(self.rows),
            "split": as_rows(self.split),
            "prompts": as_rows(self.prompts),
            "refused": as_rows(self.refused),
            "noise": self.noise,
            "skipped": as_rows(self.skipped),
            **_invocation(self.invocation),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """A replay of a recording; `inexact` texts give another number of tokens than recorded."""

    source: str
    model: str
    questions: int
    inexact: int
    fresh: bool
    seconds: float
    rows: Sequence[ReplayRow]
    refused: Sequence[Refusal]
    invocation: Invocation | None = None

    @property
    def interrupted(self) -> bool:
        """Never: a replay that is interrupted has no result."""
        return False

    @property
    def notes(self) -> list[str]:
        """What a reader must know of the recording."""
        text = "of the recorded texts give another number of tokens than was recorded"
        return [f"{self.inexact} {text}"] if self.inexact else []

    def as_json(self) -> dict[str, Any]:
        """The object that --json prints."""
        return {
            "kind": "replay",
            "source": self.source,
            "model": self.model,
            "questions": self.questions,
            "inexact": self.inexact,
            "fresh": self.fresh,
            "seconds": self.seconds,
            "rows": as_rows(self.rows),
            "refused": as_rows(self.refused),
            "notes": self.notes,
            **_invocation(self.invocation),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordResult:
    """A recording that was written to the folder `path`."""

    path: str
    model: str
    questions: int
    new_tokens: int
    interrupted: bool
    noise: int = 0
    skipped: Sequence[Skipped] = ()
    invocation: Invocation | None = None

    def as_json(self) -> dict[str, Any]:
        """The object that --json prints."""
        return {
            "kind": "record",
            "path": self.path,
            "model": self.model,
            "questions": self.questions,
            "new_tokens": self.new_tokens,
            "interrupted": self.interrupted,
            "noise": self.noise,
            "skipped": as_rows(self.skipped),
            **_invocation(self.invocation),
        }


Measured = LiveResult | ReplayResult


def _invocation(of: Invocation | None) -> dict[str, Any]:
    return asdict(of) if of else {}
