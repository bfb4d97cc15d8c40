"""What `ngt bench`, `ngt tune` and `ngt check` report: what was run, on what, and the rows.

The fields are the keys of --json, in this order.
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
    """Versions that decide how fast and what; imports none of them."""
    return {
        "ngt": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers")},
    }


def digest(value: Any) -> str:
    """Stands for the data that were measured on."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def invocation_field() -> Any:
    """The field of a result for how it was started; its keys stand beside the others."""
    return field(default_factory=Invocation, metadata=json_key(flat=True))


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
    """What cells are measured on."""

    model: str
    device: str
    data: str
    data_sha256: str
    prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """Everything that a sweep measured and what follows from it.

    `best`, `tied` and `chosen` name cells. `preset`, `method` and `command` say what the sweep was
    laid over and how it was started, `skipped` which files were left out.
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
    """One prompt at one number of drafts. `divergence` is the first place of difference, or None.

    `margin` is the difference of plain decoding's two best scores there (logits, greedy only).
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
