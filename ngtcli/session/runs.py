"""The log of runs: a line of JSON for each answer, its figures and settings; read, and summed.

The lines stand in two files of the state folder, the older one of which is replaced when the newer
one is full. Text of questions, answers and documents is in them only where that is set.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ngtcli.config import SETTINGS, Settings
from ngtcli.documents.text import utf8
from ngtcli.errors import NgtError, reason_of
from ngtcli.session.events import Ended
from ngtcli.session.question import Question
from ngtcli.system import process
from ngtcli.system.files import home, private_folder, read_bounded
from ngtcli.system.journal import LineFile
from ngtcli.system.json_form import json_key, json_property

# Bytes of a file, of which there are two. A line has about 460 without texts (measured), so that
# they have the last 17,000 to 35,000 answers; that many are a guess.
MOST = 8_000_000
_LOCK_S = 1.0  # longest wait for another process, whose line takes less than a ms; guess
_TEXT = 100_000  # characters of a question or an answer that are kept; guess
_NAMES = 100  # documents whose names are kept; guess
_ENOUGH = 4  # plain steps of a run, the mean of fewer of which says little; guess
_FIGURES = (  # of the statistics
    *("prompt_tokens", "cached_tokens", "new_tokens", "steps", "drafted_tokens"),
    *("accepted_tokens", "prefill_s", "decode_s"),
)
_DIGITS = 5  # bytes of an id: among 35,000 two are alike with a chance of 6 in 10,000
_PLAIN = "seconds that plain decoding would have taken; null where that is not known"
_KNOWN = "of the runs whose plain time is known"


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


def plain_seconds(question: Question, answer: Ended) -> float | None:
    """Seconds that plain decoding would have taken for the tokens of an answer; None if unknown.

    They are those tokens times the cost of a pass over one row, as the drafter knew it at the end:
    measured on this device, and refined by the steps of the run. Where the drafter knows none they
    are times the mean of the run's own plain steps. Passes that other texts shared cost each of
    them less, so of such an answer nothing is known; nor is of one that nothing was drafted for.
    """
    of = answer.statistics
    if of.shared_steps or question.settings.method == "none" or not question.settings.num_draft:
        return None
    cost_s = answer.policy.cost_s.get(1) if answer.policy else None
    if cost_s is None and of.plain_steps >= _ENOUGH:
        cost_s = of.plain_s / of.plain_steps
    return None if cost_s is None else round(of.new_tokens * cost_s, 6)


def record_of(question: Question, answer: Ended, by: str) -> RunRecord:
    """The line of an answer that is complete."""
    settings, documents, texts = question.settings, question.documents, dict[str, Any]()
    if settings.log_text:
        texts["question"] = utf8(question.question[:_TEXT])
        texts["text"] = utf8(answer.text[:_TEXT])
        texts["names"] = tuple(utf8(document.name) for document in documents[:_NAMES])
    return RunRecord(
        id=os.urandom(_DIGITS).hex(),
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        by=by,
        task=question.task,
        model=utf8(settings.model),
        method=utf8(settings.method),
        preset=utf8(question.preset.name),
        settings=dict(_differing(settings)),
        documents=len(documents),
        characters=sum(len(document.text) for document in documents),
        parts=len(answer.parts),
        finish_reason=answer.finish_reason,
        plain_s=plain_seconds(question, answer),
        **{name: round(getattr(answer.statistics, name), 6) for name in _FIGURES},
        **texts,
    )


def _differing(settings: Settings) -> Iterator[tuple[str, Any]]:
    """The settings that are not as by default: numbers, choices and names, but no free text."""
    for name, about in SETTINGS.items():
        value = getattr(settings, name)
        plain = about.kind in (int, float, bool) or about.choices or about.complete
        if plain and value != about.default and name not in ("model", "method"):
            named = tuple(map(utf8, value)) if isinstance(value, tuple) else value
            yield name, utf8(value) if isinstance(value, str) else named


def log_answer(question: Question, answer: Ended, by: str, warn: Callable[[str], object]) -> None:
    """Add the line of an answer to the log, if that is wanted; what fails is told in one line."""
    if not question.settings.log:
        return
    try:
        append(record_of(question, answer, by))
    except (OSError, NgtError) as error:
        warn(f"the run is not logged: {reason_of(error)}; --no-log leaves the log out")


def folder() -> Path:
    """Where the log is. Raises UsageError as `home` does."""
    return home("state") / "runs"


def _files() -> tuple[Path, Path]:
    """The file that is written to, and the one before it."""
    return folder() / "runs.jsonl", folder() / "runs.1.jsonl"


def append(run: RunRecord) -> None:
    """Add a line, whole or not at all, whatever other processes add. Raises OSError, NgtError."""
    line, (path, before) = msgspec.json.encode(run), _files()
    private_folder(path.parent)
    with process.unbroken():
        while True:
            with LineFile(path, wait_s=_LOCK_S) as file:
                size = file.seek(0, os.SEEK_END)
                if size and size + len(line) > MOST:
                    os.replace(path, before)
                    continue
                torn = size and os.pread(file.fileno(), 1, size - 1) != b"\n"
                file.append(b"\n" * bool(torn) + line, sync=False)
                return


def read_runs() -> tuple[list[RunRecord], int]:
    """The lines of the log, the oldest first, and how many are damaged. Raises NgtError."""
    read = msgspec.json.Decoder(RunRecord).decode
    found, damaged = list[RunRecord](), 0
    for path in reversed(_files()):
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
        for name in _FIGURES:
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
