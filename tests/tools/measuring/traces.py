"""Recorded runs of a model, for measuring drafters without it.

Under greedy decoding a lossless method emits exactly the recorded tokens, so how many drafts are
accepted at each step depends on prompt, recorded output and drafter alone. A recording is a folder
with `trace.json`, which describes the model, and `traces.jsonl`, which has the ids of a prompt and
of its output on each line and, if they were asked for, the best tokens after each of them.
"""

import json
import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from ngtcli.bench.prompts import read_rows
from ngtcli.config import Settings
from ngtcli.documents.read import BoundedReader
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.engine.batch.lines import Id, converted, json_object
from ngtcli.errors import InputError
from ngtcli.system.files import write_atomically
from ngtcli.system.journal import LineFile
from ngtcli.words import reason_of

FORMAT = "ngt-trace"
VERSION = 1
ROOM = 1024  # New tokens that a run had room for, if its line does not say. Guess.
_HEAD = "trace.json"
_LINES = "traces.jsonl"
_CONTINUED_MB = 10**6  # The limit for a recording that is continued: the highest of the settings.
_MAX_LINE_BYTES = 100_000_000  # Guess: ten million ids.
_RECORD_AGAIN = "Record it again with python -m tests.tools.record, or correct that line."


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The model's best tokens after each token of a prompt and its answer except the last.

    Attributes:
        ids: A row for each position, the best first; all rows have the same width.
        log_probabilities: Natural logarithms, in the same form.
    """

    ids: tuple[tuple[int, ...], ...] = ()
    log_probabilities: tuple[tuple[float, ...], ...] = ()


NO_TOP = TopTokens()


@dataclass(frozen=True, slots=True)
class Trace:
    """One prompt and the model's answer, as ids.

    Attributes:
        id: The id of the prompt.
        task: Its task.
        prompt_ids: The ids of the prompt.
        output_ids: The ids of the answer.
        room: The most tokens that could have been emitted. The length of the answer in its place
            would tell a drafter where the answer ends.
        references: The parts of the prompt that are documents, if they are known.
        top: The best tokens; without rows if they were not recorded.
    """

    id: str
    task: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    room: int
    references: tuple[tuple[int, ...], ...] = ()
    top: TopTokens = NO_TOP


@dataclass(frozen=True, slots=True)
class TraceSet:
    """Traces of one model."""

    source: str
    model: str
    tokenizer: str
    vocabulary: int
    traces: tuple[Trace, ...]


class _Head(Struct):
    format: str = ""
    version: int = 0
    model: str | None = None
    tokenizer: str | None = None
    vocabulary: int = 0


class _Line(Struct):
    """A line of a recording."""

    id: Id | None = None
    task: str | None = None
    prompt_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    room: Annotated[int, Meta(ge=0)] = ROOM
    references: tuple[tuple[int, ...], ...] = ()
    top: TopTokens = NO_TOP

    def trace(self, vocabulary: int) -> Trace:
        """Return the trace.

        Raises InputError if a key is missing, or an id is not below `vocabulary`.
        """
        for key in ("id", "task", "prompt_ids", "output_ids"):
            if getattr(self, key) in (None, ()):
                raise InputError(f"key {key!r} is missing or empty")
        _check_ids("prompt_ids", self.prompt_ids, vocabulary)
        _check_ids("output_ids", self.output_ids, vocabulary)
        for index, reference in enumerate(self.references):
            _check_ids(f"references[{index}]", reference, vocabulary)
        for index, row in enumerate(self.top.ids):
            _check_ids(f"top.ids[{index}]", row, vocabulary)
        self._check_top()
        return Trace(
            id=str(self.id),
            task=self.task or "",
            prompt_ids=self.prompt_ids,
            output_ids=self.output_ids,
            room=max(self.room, len(self.output_ids)),
            references=self.references,
            top=self.top,
        )

    def _check_top(self) -> None:
        """Raise InputError if the best tokens do not fit the lengths of prompt and answer."""
        ids = self.top.ids
        log_probabilities = self.top.log_probabilities
        if not ids and not log_probabilities:
            return
        expected = len(self.prompt_ids) + len(self.output_ids) - 1
        if not len(ids) == len(log_probabilities) == expected:
            rows = f"{len(ids)} rows of ids and {len(log_probabilities)} of log-probabilities"
            raise InputError(f"top has {rows}; prompt and answer need {expected}")
        widths = {len(row) for row in (*ids, *log_probabilities)}
        if len(widths) != 1 or 0 in widths:
            raise InputError("the rows of top have different widths, or none")


def _check_ids(key: str, ids: Sequence[int], vocabulary: int) -> None:
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocabulary:
            raise InputError(f"{key}[{index}] is {token_id}, no id below {vocabulary}")


def is_odd(id: str) -> bool:
    """Return whether the first number in a trace's id is odd. An id without a number is even.

    The turns of a conversation (`81/2`) stay with their question. Odd questions are for fitting and
    choosing, even ones for reporting.

    >>> [is_odd(id) for id in ("81", "82/1", "doc2-5", "none")]
    [True, False, False, False]
    """
    number = re.search(r"\d+", id)
    return number is not None and int(number.group()[-1]) % 2 == 1


class TraceWriter(AbstractContextManager["TraceWriter"]):
    """Writes a recording: `with TraceWriter(…) as writer: writer.add(…)`.

    An interrupted recording keeps its lines. With `resume` a recording of the same model is
    continued: `done` has the ids of its traces. Raises InputError if the folder cannot be written
    or has other content.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: str,
        model: str,
        vocabulary: int,
        resume: bool = False,
    ) -> None:
        head = {
            "format": FORMAT,
            "version": VERSION,
            "model": model.encode("utf-8", "replace").decode(),  # a path may not be UTF-8
            "tokenizer": tokenizer,
            "vocabulary": vocabulary,
        }
        text = json.dumps(head, indent=1) + "\n"
        path = folder / _HEAD
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_continued = resume and path.is_file() and path.read_bytes() == text.encode()
            if not is_continued:
                if any(folder.iterdir()):
                    raise InputError(
                        f"{folder}: is not empty", hint="Name a new folder to record to."
                    )
                write_atomically(path, text)
            self._lines = LineFile(folder / _LINES, 0o644)
            for offset, line in self._lines.lines(_MAX_LINE_BYTES):
                if not line.endswith(b"\n"):  # the last one, torn by an interruption
                    self._lines.truncate(offset)
            self.done: set[str] = set()
            if os.fstat(self._lines.fileno()).st_size:
                self.done = {trace.id for trace in read_traces(folder, _CONTINUED_MB).traces}
        except OSError as error:
            raise InputError(
                f"{folder}: cannot be written ({reason_of(error)})", hint="Name another folder."
            ) from None

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def add(
        self,
        id: str,
        task: str,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        references: Sequence[Sequence[int]] = (),
        room: int = ROOM,
        top: TopTokens = NO_TOP,
    ) -> None:
        """Write one trace; the parameters are the attributes of `Trace`."""
        trace = Trace(
            id=id,
            task=task,
            prompt_ids=tuple(prompt_ids),
            output_ids=tuple(output_ids),
            room=max(room, len(output_ids)),
            references=tuple(map(tuple, references)),
            top=top,
        )
        line = asdict(trace)
        if not top.ids:
            del line["top"]
        self._lines.append(json.dumps(line).encode(), sync=False)


def recorded_files(folder: Path) -> list[Path]:
    """Return the files in `folder` that `read_traces` would read."""
    return [folder / name for name in (_HEAD, _LINES) if os.path.isfile(folder / name)]


def read_traces(folder: Path, max_mb: int | None = None) -> TraceSet:
    """Read the recording in `folder`, of at most `max_mb` (default: that of the settings).

    Raises InputError.
    """
    reader = BoundedReader(max_mb or Settings().reading.max_mb)
    path = folder / _HEAD
    if not os.path.isfile(path):  # unlike Path.is_file it allows a name that is too long
        raise InputError(
            f"{folder}: no recording here",
            hint="Give a folder written by python -m tests.tools.record.",
        )
    try:
        head = converted(json_object(decode_text(reader.read(path))), _Head)
        if (head.format, head.version) != (FORMAT, VERSION):
            raise InputError(f"not a recording of version {VERSION}")
        if head.model is None or head.tokenizer is None or head.vocabulary < 1:
            raise InputError("model, tokenizer or vocabulary (a number of ids) is missing")
    except Unreadable as error:
        raise error.of(str(path)) from None
    except InputError as error:
        raise InputError(f"{path}: {error}", hint=_RECORD_AGAIN) from None
    traces = []
    for row in read_rows(folder / _LINES, reader):
        try:
            traces.append(converted(row.data, _Line).trace(head.vocabulary))
        except InputError as error:
            raise row.wrong(str(error), _RECORD_AGAIN) from None
    return TraceSet(
        source=str(folder),
        model=head.model,
        tokenizer=head.tokenizer,
        vocabulary=head.vocabulary,
        traces=tuple(traces),
    )
