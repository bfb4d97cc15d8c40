"""Recorded runs of a model, for measuring drafters without it.

Under greedy decoding a lossless method emits exactly the recorded tokens, so how many drafts are
accepted at each step depends on prompt, recorded output and drafter alone. A recording is a folder
with `trace.json` (what was run) and `traces.jsonl` (a prompt's and its output's ids a line, and
where it was asked for the best tokens after each of them).
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
from ngtcli.documents.read import Reader
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.engine.batch.lines import Id, converted, json_object
from ngtcli.errors import InputError
from ngtcli.system.files import write_atomically
from ngtcli.system.journal import LineFile
from ngtcli.words import reason_of

FORMAT = "ngt-trace"
VERSION = 1
ROOM = 1024  # new tokens that a run is taken to have had room for, where it does not say; guess
_HEAD, _LINES = "trace.json", "traces.jsonl"
_OWN_MB = 10**6  # of a recording that is gone on with; the most that settings bound
_LONGEST = 100_000_000  # bytes of a line; guess: ten million ids
_ANEW = "Record it again with python -m tests.tools.record, or mend that place."


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The model's best tokens after each token of a prompt and its answer, but the last.

    Attributes:
        ids: A row for each position, the best first; all rows have the same width.
        log_probabilities: Natural logarithms, in the same form.
    """

    ids: tuple[tuple[int, ...], ...] = ()
    log_probabilities: tuple[tuple[float, ...], ...] = ()


NO_TOP = TopTokens()


@dataclass(frozen=True, slots=True)
class Trace:
    """One prompt and what the model answered, as ids.

    `room` is the most tokens that could have been emitted: with the length of the answer in its
    place a drafter would be told where that ends. `references` are the runs of the prompt that are
    documents, if that is known. `top` has no rows where the best tokens were not recorded.
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
        """What it says. Raises InputError for what is missing, and for ids that there are not."""
        for key in ("id", "task", "prompt_ids", "output_ids"):
            if getattr(self, key) in (None, ()):
                raise InputError(f"key {key!r} is missing or empty")
        named = {f"references[{i}]": run for i, run in enumerate(self.references)}
        named |= {f"top.ids[{i}]": row for i, row in enumerate(self.top.ids)}
        for key, ids in {
            "prompt_ids": self.prompt_ids,
            "output_ids": self.output_ids,
            **named,
        }.items():
            for place, id in enumerate(ids):
                if not 0 <= id < vocabulary:
                    raise InputError(f"{key}[{place}] is {id}, no id below {vocabulary}")
        self._check_top()
        room = max(self.room, len(self.output_ids))
        own = str(self.id), self.task or "", self.prompt_ids, self.output_ids
        return Trace(*own, room, self.references, self.top)

    def _check_top(self) -> None:
        """Raise InputError where the best tokens are not those of this prompt and answer."""
        ids, log_probabilities = self.top.ids, self.top.log_probabilities
        if not ids and not log_probabilities:
            return
        expected = len(self.prompt_ids) + len(self.output_ids) - 1
        if not len(ids) == len(log_probabilities) == expected:
            rows = f"{len(ids)} rows of ids and {len(log_probabilities)} of log-probabilities"
            raise InputError(f"top has {rows}; prompt and answer need {expected}")
        widths = {len(row) for row in (*ids, *log_probabilities)}
        if len(widths) != 1 or 0 in widths:
            raise InputError("the rows of top have different widths, or none")


def is_odd(id: str) -> bool:
    """Whether the question of a trace is odd by the first number in its id; without one it is even.

    The turns of a conversation (`81/2`) stay with their question. Odd questions are for fitting and
    choosing, even ones for reporting.

    >>> [is_odd(id) for id in ("81", "82/1", "doc2-5", "none")]
    [True, False, False, False]
    """
    found = re.search(r"\d+", id)
    return found is not None and int(found.group()[-1]) % 2 == 1


class TraceWriter(AbstractContextManager["TraceWriter"]):
    """Writes a recording: `with TraceWriter(…) as writer: writer.add(…)`.

    An interrupted recording keeps the lines that it has; with `more` those of the same model are
    gone on with, whose ids are in `done`. Raises InputError where the folder cannot be written or
    holds something else.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: str,
        model: str,
        vocabulary: int,
        more: bool = False,
    ) -> None:
        model = model.encode("utf-8", "replace").decode()  # a path may hold other bytes
        about = {"format": FORMAT, "version": VERSION, "model": model, "tokenizer": tokenizer}
        head = {**about, "vocabulary": vocabulary}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path, text = folder / _HEAD, json.dumps(head, indent=1) + "\n"
            is_own = more and path.is_file() and path.read_bytes() == text.encode()
            if not is_own and any(folder.iterdir()):
                raise InputError(f"{folder}: is not empty", hint="Name a new folder to record to.")
            if not is_own:
                write_atomically(path, text)
            self._lines = LineFile(folder / _LINES, 0o644)
            for place, line in self._lines.lines(_LONGEST):
                if not line.endswith(b"\n"):  # torn: the last one
                    self._lines.truncate(place)
            begun = os.fstat(self._lines.fileno()).st_size
            self.done = set[str]()
            if begun:
                self.done = {one.id for one in read_traces(folder, _OWN_MB).traces}
        except OSError as error:
            what = f"{folder}: cannot be written ({reason_of(error)})"
            raise InputError(what, hint="Name another folder.") from None

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
        """Write one trace; `room` is the most tokens that the run could have made."""
        runs = tuple(map(tuple, references))
        room = max(room, len(output_ids))
        trace = Trace(id, task, tuple(prompt_ids), tuple(output_ids), room, runs, top)
        line = asdict(trace)
        if not top.ids:
            del line["top"]
        self._lines.append(json.dumps(line).encode(), sync=False)


def recorded_files(folder: Path) -> list[Path]:
    """The files that `read_traces` reads there, of those that there are."""
    return [folder / name for name in (_HEAD, _LINES) if os.path.isfile(folder / name)]


def read_traces(folder: Path, max_mb: int | None = None) -> TraceSet:
    """The traces in `folder`; `max_mb` (by default the settings' own) bounds the bytes read.

    Raises InputError.
    """
    reader, path = Reader(max_mb or Settings().reading.max_mb), folder / _HEAD
    if not os.path.isfile(path):  # False for a name that is too long
        hint = "Give a folder written by python -m tests.tools.record."
        raise InputError(f"{folder}: no recording here", hint=hint)
    try:
        head = converted(json_object(decode_text(reader.read(path))), _Head)
        if (head.format, head.version) != (FORMAT, VERSION):
            raise InputError(f"not a recording of version {VERSION}")
        if head.model is None or head.tokenizer is None or head.vocabulary < 1:
            raise InputError("model, tokenizer or vocabulary (a number of ids) is missing")
    except Unreadable as error:
        raise error.of(str(path)) from None
    except InputError as error:
        raise InputError(f"{path}: {error}", hint=_ANEW) from None
    traces = []
    for row in read_rows(folder / _LINES, reader):
        try:
            traces.append(converted(row.data, _Line).trace(head.vocabulary))
        except InputError as error:
            raise row.wrong(str(error), _ANEW) from None
    about = str(folder), head.model, head.tokenizer, head.vocabulary
    return TraceSet(*about, tuple(traces))
