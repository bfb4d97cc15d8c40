"""Recorded runs of a model, for measuring drafters without it.

Under greedy decoding a lossless method emits exactly the recorded tokens, so how many drafts are
accepted at each step depends on prompt, recorded output and drafter alone.

Two kinds of folder are read. Our own holds `trace.json` (what was run) and `traces.jsonl` (a
prompt's and its output's ids a line). The other is Spec-Bench's, read by `spec_bench`.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from ngtcli.batch.json_lines import read_rows
from ngtcli.config import Settings
from ngtcli.documents.reading import Reader
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.errors import InputError, UsageError, nearest

FORMAT = "ngt-trace"
VERSION = 1
_ANEW = "Record it again with `ngt bench --record`, or mend that place."
_KINDS = {str: "text", int: "whole number", list: "list"}
TURNS = ("first", "all")  # of a conversation


@dataclass(frozen=True, slots=True)
class Trace:
    """One prompt and what the model answered, as ids.

    `room` is the most tokens that could have been emitted; `references` the runs of the prompt
    that are documents, if that is known.
    """

    id: str
    task: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    room: int
    references: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TraceSet:
    """Traces of one model. `inexact` counts those whose length differs from the recorded one."""

    source: str
    model: str
    tokenizer: str
    vocabulary: int
    traces: tuple[Trace, ...]
    inexact: int = 0


def is_odd(id: str) -> bool:
    """Whether the question of a trace is odd by the first number in its id; without one it is even.

    The turns of a conversation (`81/2`) stay with their question. Odd questions are for fitting and
    choosing, even ones for reporting.

    >>> [is_odd(id) for id in ("81", "82/1", "doc2-5", "none")]
    [True, False, False, False]
    """
    found = re.search(r"\d+", id)
    return found is not None and int(found.group()[-1]) % 2 == 1


class TraceWriter:
    """Writes our own trace format: `with TraceWriter(…) as writer: writer.add(…)`.

    Lines are flushed one by one, so an interrupted recording keeps what it has. Raises InputError
    where the folder cannot be written or holds something else already.
    """

    def __init__(
        self, folder: Path, tokenizer_fingerprint: str, model: str, vocabulary: int
    ) -> None:
        self.folder = folder
        self._head = {
            "format": FORMAT,
            "version": VERSION,
            "model": model,
            "tokenizer": tokenizer_fingerprint,
            "vocabulary": vocabulary,
        }
        self._lines: TextIO | None = None

    def __enter__(self) -> "TraceWriter":
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if any(self.folder.iterdir()):
                raise InputError(f"{self.folder}: is not empty", "Name a new folder to record to.")
            head = json.dumps(self._head, indent=1) + "\n"
            (self.folder / "trace.json").write_text(head, encoding="utf-8")
            self._lines = (self.folder / "traces.jsonl").open("w", encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"{self.folder}: cannot be written ({error.strerror})", "Name another folder."
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lines is not None:
            self._lines.close()

    def add(
        self,
        id: str,
        task: str,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        references: Sequence[Sequence[int]] = (),
        room: int = 0,
    ) -> None:
        """Write one trace; `room` is the run's token limit, by default the output's length."""
        if self._lines is None:
            raise RuntimeError("the writer is not open")
        trace = Trace(
            id, task, tuple(prompt_ids), tuple(output_ids), room or len(output_ids),
            tuple(tuple(r) for r in references),
        )  # fmt: skip
        self._lines.write(json.dumps(asdict(trace)) + "\n")
        self._lines.flush()


def read_traces(
    folder: Path, template: str = "", turns: str = "first", max_mb: int | None = None
) -> TraceSet:
    """The traces in `folder`. `template` names a prompt format where it cannot be told.

    `turns` is "first" or "all", of conversations. `max_mb` (by default the settings' own) bounds
    the bytes read. Raises InputError or UsageError.
    """
    if turns not in TURNS:
        raise UsageError(f"no turns {turns!r}", nearest(turns, TURNS))
    settings = Settings()
    reader = Reader(replace(settings, max_mb=max_mb or settings.max_mb))
    if os.path.isfile(folder / "trace.json"):  # False for a name that is too long
        if template or turns != TURNS[0]:
            raise UsageError(
                f"{folder}: holds prompts as they were, of one turn each",
                "Leave out --template and --turns; they are for Spec-Bench's files.",
            )
        return _read_own(folder, reader)
    if os.path.isfile(folder / "question.jsonl"):
        from ngtcli.measure.replay.spec_bench import read_spec_bench  # here: it imports this file

        return read_spec_bench(folder, template, turns, reader)
    raise InputError(
        f"{folder}: no recording here",
        "Give a folder written by `ngt bench --record`, or one with Spec-Bench's question.jsonl,"
        " an answer file and tokenizer/.",
    )


def recorded_files(folder: Path) -> list[Path]:
    """The files that `read_traces` reads there, of those that there are."""
    if os.path.isfile(folder / "trace.json"):
        return [folder / "trace.json", folder / "traces.jsonl"]
    if not os.path.isfile(folder / "question.jsonl"):
        return []
    return [p for of in ("*.jsonl", "model_answer/*.jsonl", "tokenizer/*") for p in folder.glob(of)]


class WrongRow(ValueError):
    """What is wrong with a line of a recording."""


def _read_own(folder: Path, reader: Reader) -> TraceSet:
    head = _head(folder / "trace.json", reader)
    traces = []
    for row in read_rows(folder / "traces.jsonl", reader):
        try:
            traces.append(_own_trace(row.data, head["vocabulary"]))
        except WrongRow as error:
            raise row.wrong(str(error), _ANEW) from None
    return TraceSet(
        str(folder), head["model"], head["tokenizer"], head["vocabulary"], tuple(traces)
    )


def _head(path: Path, reader: Reader) -> dict[str, Any]:
    """What was run: `model` and `tokenizer`, texts, and `vocabulary`, a number of ids."""
    try:
        head = json.loads(decode_text(reader.file(path)))
        if not isinstance(head, dict):
            raise WrongRow("no JSON object")
        if (head.get("format"), head.get("version")) != (FORMAT, VERSION):
            raise WrongRow(f"not a recording of version {VERSION}")
        for key in ("model", "tokenizer"):
            get(head, key, str)
        if get(head, "vocabulary", int) < 1:
            raise WrongRow("vocabulary is not a number of ids")
    except Unreadable as error:
        raise error.of(str(path)) from None
    except WrongRow as error:
        raise InputError(f"{path}: {error}", _ANEW) from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not JSON", _ANEW) from None
    return head


def get(row: Mapping[str, Any], key: str, kind: type) -> Any:
    """The value of `key`, which is of `kind`. Raises WrongRow."""
    if key not in row:
        raise WrongRow(f"key {key!r} is missing")
    value = row[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise WrongRow(f"{key} is not a {_KINDS[kind]}")
    return value


def _own_trace(row: Mapping[str, Any], vocabulary: int) -> Trace:
    prompt, output = (_ids(get(row, k, list), k, vocabulary) for k in ("prompt_ids", "output_ids"))
    references = tuple(
        _ids(run if isinstance(run, list) else [run], f"references[{i}]", vocabulary)
        for i, run in enumerate(get({"references": [], **row}, "references", list))
    )
    for key, run in (("prompt_ids", prompt), ("output_ids", output)):
        if not run:
            raise WrongRow(f"{key} is empty")
    room = max(get({"room": 0, **row}, "room", int), len(output))
    id = str(row["id"]) if type(row.get("id")) is int else get(row, "id", str)
    return Trace(id, get(row, "task", str), prompt, output, room, references)


def _ids(run: list[Any], where: str, vocabulary: int) -> tuple[int, ...]:
    for place, id in enumerate(run):
        if type(id) is not int or not 0 <= id < vocabulary:
            shown = json.dumps(id)[:40]
            raise WrongRow(f"{where}[{place}] is {shown}, no id below {vocabulary}")
    return tuple(run)
