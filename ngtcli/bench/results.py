"""The results of `ngt bench`, `ngt tune` and `ngt check`.

Their fields are the keys of --json, in this order.
"""

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal

from ngtcli import __version__
from ngtcli.bench import summary
from ngtcli.bench.grid import Refusal, SkippedCell
from ngtcli.config import SETTINGS
from ngtcli.documents.find import Skipped
from ngtcli.system.json_form import HIDDEN, json_key, json_property


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The command line, when it was run, and the versions of what ran."""

    command: str = ""
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


def versions() -> dict[str, str]:
    """Return the versions that results depend on, without importing the packages."""
    return {
        "ngt": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers")},
    }


def digest(value: Any) -> str:
    """Return the SHA-256 of data in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def invocation_field() -> Any:
    """Make the field of a result for its command; in JSON its keys are beside the others."""
    return field(default_factory=Invocation, metadata=json_key(flat=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The device that a model ran on, and the dtype that it was computed in."""

    device: str
    device_name: str
    dtype: str
    threads: int
    cores: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveResult:
    """A live measurement; `skipped` are the files that were left out."""

    kind: Literal["live"] = "live"
    model: str
    machine: Machine = field(metadata=json_key(flat=True))
    questions: int
    rounds: int
    max_tokens: int
    fresh: bool
    interrupted: bool
    notes: Sequence[str]
    rows: Sequence[summary.Row] = summary.json_rows(summary.Row)
    refused: Sequence[Refusal]
    skipped: Sequence[Skipped] = ()
    invocation: Invocation = invocation_field()


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepData:
    """The model, the device and the prompts that cells are measured on."""

    model: str
    device: str
    data: str
    data_sha256: str
    prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """The figures of a sweep and the verdict.

    `best`, `tied` and `chosen` are keys of cells. `preset`, `method` and `command` say what the
    sweep was based on and how it was started; `skipped` are files that were left out.
    """

    kind: Literal["tune"] = "tune"
    about: SweepData = field(metadata=json_key(flat=True))
    sweep: Mapping[str, Sequence[Any]]
    rounds: int
    measured: int
    planned: int
    complete: bool
    cells: Sequence[summary.CellRow] = summary.json_rows(summary.CellRow)
    skipped: Sequence[Skipped] = ()
    skipped_cells: Sequence[SkippedCell]
    best: str
    tied: Sequence[str]
    chosen: str | None
    reason: str
    state: str
    preset: str = ""
    method: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Drafted against plain decoding of one prompt, with one draft budget.

    `divergence` is the index of the first token that differs, or None. `margin` is the difference
    of the two largest logits of plain decoding there (greedy only).
    """

    name: str
    num_draft: int
    new_tokens: int
    mean_acceptance_length: float = field(metadata=json_key(digits=4))
    divergence: int | None
    margin: float | None
    exact: bool = field(metadata=HIDDEN)

    @property
    @json_property(after="num_draft")
    def identical(self) -> bool:
        """Whether drafting changed no token."""
        return self.divergence is None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All comparisons of `ngt check`."""

    model: str
    method: str
    dtype: str = field(metadata=json_key(choices=SETTINGS["dtype"].choices))
    quantize: str = field(metadata=json_key(choices=SETTINGS["quantize"].choices))
    exact: bool
    prompts: int
    prompts_available: int
    num_draft: Sequence[int]
    runs: int
    identical: int
    results: Sequence[Comparison]
    skipped: Sequence[Skipped]
