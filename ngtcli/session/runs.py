"""The log of runs: a line of JSON for each answer, with its figures and settings.

The lines stand in two files of the state folder, the older one of which is replaced when the newer
one is full. Text of questions, answers and documents is in them only where that is set.
"""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ngtcli.config import SETTINGS, Settings
from ngtcli.documents.text import utf8
from ngtcli.errors import NgtError, reason_of
from ngtcli.session.events import Ended
from ngtcli.session.question import Question
from ngtcli.system import process
from ngtcli.system.json_form import json_key, json_property
from ngtcli.system.line_file import LineFile
from ngtcli.system.reading import read_bounded
from ngtcli.system.storage import home, others_cache, private_folder

# Bytes of a file, of which there are two. A line has about 460 without texts (measured), so that
# they have the last 17,000 to 35,000 answers; that many are a guess.
MOST = 8_000_000
_LOCK_S = 1.0  # longest wait for another process, whose line takes less than a ms; guess
_TEXT = 100_000  # characters of a question or an answer that are kept; guess
_NAMES = 100  # documents whose names are kept; guess
_ENOUGH = 4  # plain steps of a run, the mean of fewer of which says little; guess
_DIGITS = 5  # bytes of an id: among 35,000 two are alike with a chance of 6 in 10,000
_TEXTS = ("text of the question", "text of the answer", "names of documents")
_PLAIN = "seconds that plain decoding would have taken; null where that is not known"


def _text(about: str) -> Any:
    return field(default=None, metadata=json_key(omit=True, about=f"{about}, with --log-text"))


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
    question: str | None = _text(_TEXTS[0])
    text: str | None = _text(_TEXTS[1])
    names: tuple[str, ...] | None = _text(_TEXTS[2])

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
    return None if cost_s is None else of.new_tokens * cost_s


def record_of(question: Question, answer: Ended, by: str) -> RunRecord:
    """The line of an answer that is complete."""
    settings, of, documents = question.settings, answer.statistics, question.documents
    texts: dict[str, Any] = {}
    if settings.log_text:
        names = tuple(utf8(document.name) for document in documents[:_NAMES])
        texts = {"question": utf8(question.question[:_TEXT]), "names": names}
        texts["text"] = utf8(answer.text[:_TEXT])
    plain_s = plain_seconds(question, answer)
    return RunRecord(
        id=secrets.token_hex(_DIGITS),
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
        prompt_tokens=of.prompt_tokens,
        cached_tokens=of.cached_tokens,
        new_tokens=of.new_tokens,
        steps=of.steps,
        drafted_tokens=of.drafted_tokens,
        accepted_tokens=of.accepted_tokens,
        prefill_s=round(of.prefill_s, 6),
        decode_s=round(of.decode_s, 6),
        plain_s=None if plain_s is None else round(plain_s, 6),
        **texts,
    )


def _differing(settings: Settings) -> Iterator[tuple[str, Any]]:
    """The settings that are not as by default: numbers, choices and names, but no free text."""
    for name, about in SETTINGS.items():
        value = getattr(settings, name)
        plain = about.kind in (int, float, bool) or about.choices or about.complete
        if plain and value != about.default and name not in ("model", "method"):
            yield name, value


def log_answer(question: Question, answer: Ended, by: str, warn: Callable[[str], object]) -> None:
    """Add the line of an answer to the log, if that is wanted; what fails is told in one line."""
    if not question.settings.log:
        return
    try:
        if others_cache() is None:  # else nothing is kept, which has been told
            append(record_of(question, answer, by))
    except (OSError, NgtError) as error:
        warn(f"the run is not logged: {reason_of(error)}; --no-log leaves the log out")


def folder() -> Path:
    """Where the log is. Raises UsageError as `home` does."""
    return home("state") / "runs"


def _files() -> tuple[Path, Path]:
    """The file that is written to, and the one before it."""
    return folder() / "runs.jsonl", folder() / "runs.1.jsonl"


def append(record: RunRecord) -> None:
    """Add a line, whole or not at all, whatever other processes add. Raises OSError, NgtError."""
    known = {name: value for name, value in asdict(record).items() if value is not None}
    line, (path, before) = json.dumps(known), _files()
    private_folder(path.parent)
    with process.unbroken():
        while True:
            with LineFile(path, 0o600) as file:
                _lock(file)
                about = os.fstat(file.fileno())
                if not os.path.exists(path) or not os.path.samestat(about, os.stat(path)):
                    continue  # another process has put a new file in its place
                if about.st_size and about.st_size + len(line) > MOST:
                    os.replace(path, before)
                    continue
                torn = about.st_size and os.pread(file.fileno(), 1, about.st_size - 1) != b"\n"
                file.append("\n" * bool(torn) + line, sync=False)
                return


def _lock(file: LineFile) -> None:
    """Lock a file until it is closed. Raises OSError where another process has it for too long."""
    end = time.monotonic() + _LOCK_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise OSError("another process holds its file") from None
            time.sleep(0.005)
        except OSError:  # a file system without locks
            return


def read_runs() -> tuple[list[RunRecord], int]:
    """The lines of the log, the oldest first, and how many are damaged. Raises NgtError."""
    import msgspec  # here: what only writes does without

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


_SUMMED = (
    *("prompt_tokens", "cached_tokens", "new_tokens", "steps", "drafted_tokens"),
    *("accepted_tokens", "prefill_s", "decode_s"),
)
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
        for name in _SUMMED:
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
