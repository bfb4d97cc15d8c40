"""The log of runs, as it is read: its lines, and their sums by model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ngtcli.errors import NgtError, reason_of
from ngtcli.session.runs import FIGURES, MOST, files
from ngtcli.system.files import read_bounded
from ngtcli.system.json_form import json_key, json_property

_PLAIN = "seconds that plain decoding would have taken; null where that is not known"


def _text(about: str) -> Any:
    return field(default=None, metadata=json_key(omit=True, about=f"{about}, with --set log_text"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A line of the log.

    `by` is the command that asked, or "http", "mcp" or "page" for a request to the server.
    `settings` are those that differ from the defaults, without texts. Times are in seconds.
    """

    id: str
    at: str = field(metadata=json_key(about="when the answer was complete, UTC"))
    by: str
    task: str
    model: str
    method: str
    preset: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    documents: int = 0
    characters: int = 0
    parts: int = 0
    finish_reason: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    plain_s: float | None = field(default=None, metadata=json_key(about=_PLAIN))
    question: str | None = _text("text of the question")
    text: str | None = _text("text of the answer")
    names: tuple[str, ...] | None = _text("names of documents")

    @property
    def saved_s(self) -> float | None:
        """Seconds that drafts saved; None where that is not known."""
        return None if self.plain_s is None else self.plain_s - self.decode_s


def read_runs() -> tuple[list[RunRecord], int]:
    """The lines of the log, the oldest first, and how many are damaged. Raises NgtError."""
    read = msgspec.json.Decoder(RunRecord).decode
    found, damaged = list[RunRecord](), 0
    for path in reversed(files()):
        try:
            data = read_bounded(path, 2 * MOST)
        except FileNotFoundError:
            continue
        except OSError as error:
            hint = "Move it away: a new one is begun by the next answer."
            raise NgtError(f"{path}: {reason_of(error)}", hint) from None
        for line in data.splitlines():
            try:
                found.append(read(line))
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                damaged += 1
    return found, damaged


_KNOWN = "of the runs whose plain time is known"


@dataclass(slots=True, kw_only=True)
class ModelRuns:
    """The sums over the runs of a model. Times are in seconds."""

    model: str
    runs: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    prefill_s: float = field(default=0.0, metadata=json_key(digits=3))
    decode_s: float = field(default=0.0, metadata=json_key(digits=3))
    compared_runs: int = field(default=0, metadata=json_key(about="whose plain time is known"))
    compared_s: float = field(default=0.0, metadata=json_key(digits=3, about=f"decoding, {_KNOWN}"))
    plain_s: float = field(
        default=0.0, metadata=json_key(digits=3, about=f"plain decoding, {_KNOWN}")
    )

    def add(self, run: RunRecord) -> None:
        """Count a run."""
        self.runs += 1
        for name in FIGURES:
            setattr(self, name, getattr(self, name) + getattr(run, name))
        if run.plain_s is not None:
            self.compared_runs += 1
            self.compared_s += run.decode_s
            self.plain_s += run.plain_s

    @property
    @json_property(after="accepted_tokens", digits=4)
    def mean_acceptance_length(self) -> float:
        """Tokens emitted per step."""
        return self.new_tokens / self.steps if self.steps else 0.0

    @property
    @json_property(after="decode_s", digits=3)
    def tokens_per_s(self) -> float:
        """New tokens per second of decoding, prefill left out."""
        return self.new_tokens / self.decode_s if self.decode_s else 0.0

    @property
    @json_property(after="plain_s", digits=3, about=f"by drafts, {_KNOWN}; null for none")
    def saved_s(self) -> float | None:
        """Seconds that drafts saved; None where no run's plain time is known."""
        return self.plain_s - self.compared_s if self.compared_runs else None


def totals(runs: Iterable[RunRecord]) -> list[ModelRuns]:
    """The sums of each model, that with the most runs first."""
    found: dict[str, ModelRuns] = {}
    for run in runs:
        found.setdefault(run.model, ModelRuns(model=run.model)).add(run)
    return sorted(found.values(), key=lambda sums: -sums.runs)
