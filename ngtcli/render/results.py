"""The results of `ngt bench` as a whole: what was run, on what, and the rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ngtcli.documents.find import Skipped
from ngtcli.render.rows import LiveRow, PromptRow, Refusal, ReplayRow, SplitRow, as_rows
from ngtcli.render.shape_rows import ShapeRow
from ngtcli.system.json_form import to_json


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
            "skipped": to_json(list(self.skipped)),
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
        return inexact_notes(self.inexact)

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
class ShapeResult:
    """A replay with real passes of a model of the shape `shape`, whose weights are random.

    By question: `prompt_tokens`, and `prefill_s`, the seconds to read them once. `cost_s` are the
    seconds of a pass that were measured first, by its rows, for each length of context. `passes`
    says how passes were captured.
    """

    source: str
    model: str
    shape: str
    parameters: int
    weight_bytes: int
    machine: Machine
    questions: int
    rounds: int
    fresh: bool
    interrupted: bool
    seconds: float
    prompt_tokens: Sequence[int]
    prefill_s: Sequence[float]
    cost_s: Mapping[int, Mapping[int, float]]
    passes: Mapping[str, Any]
    notes: Sequence[str]
    rows: Sequence[ShapeRow]
    refused: Sequence[Refusal]
    invocation: Invocation | None = None

    @property
    def label(self) -> str:
        """What stands beside every figure."""
        return f"random weights of shape {self.shape}; tokens from the recording"

    def as_json(self) -> dict[str, Any]:
        """The object that --json prints."""
        costs = {
            str(length): {str(rows): s for rows, s in curve.items()}
            for length, curve in self.cost_s.items()
        }
        return {
            "kind": "shape",
            "label": self.label,
            "source": self.source,
            "model": self.model,
            "shape": self.shape,
            "parameters": self.parameters,
            "weight_bytes": self.weight_bytes,
            **asdict(self.machine),
            "questions": self.questions,
            "rounds": self.rounds,
            "fresh": self.fresh,
            "interrupted": self.interrupted,
            "seconds": self.seconds,
            "prompt_tokens": list(self.prompt_tokens),
            "prefill_s": list(self.prefill_s),
            "cost_s": costs,
            "passes": dict(self.passes),
            "notes": list(self.notes),
            "rows": [row.as_json() for row in self.rows],
            "refused": as_rows(self.refused),
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
            "skipped": to_json(list(self.skipped)),
            **_invocation(self.invocation),
        }


Measured = LiveResult | ReplayResult | ShapeResult


def inexact_notes(inexact: int) -> list[str]:
    """What a reader must know of a recording in which so many texts have another length."""
    text = "of the recorded texts give another number of tokens than was recorded"
    return [f"{inexact} {text}"] if inexact else []


def _invocation(of: Invocation | None) -> dict[str, Any]:
    return asdict(of) if of else {}
