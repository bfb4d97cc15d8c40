"""Recorded runs of a model, for measuring drafters without it.

Under greedy decoding a lossless method emits exactly the recorded tokens, so how many drafts are
accepted at each step depends on prompt, recorded output and drafter alone.

Two kinds of folder are read. Our own holds `trace.json` (what was run) and `traces.jsonl` (a
prompt's and its output's ids a line). The other is Spec-Bench's (Xia et al. 2024): it holds
`question.jsonl`, one file of answers and the model's tokenizer in `tokenizer/`; its texts are
tokenized here.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ngtcli.batch.lines import json_object
from ngtcli.config import Settings
from ngtcli.documents.read import Reader
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.errors import InputError, UsageError, nearest, reason_of
from ngtcli.measure.rows import InputRow, read_rows
from ngtcli.system.journal import LineFile
from ngtcli.tokens.tokenizer import Tokenizer

FORMAT = "ngt-trace"
VERSION = 1
ROOM = 1024  # new tokens that a run is taken to have had room for, where it does not say; guess
_SPEC_BENCH_TOKENS = 1024  # the limit of new tokens that its runs have
_LONGEST = 100_000_000  # bytes of a line; guess: ten million ids
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


class TraceWriter(AbstractContextManager["TraceWriter"]):
    """Writes our own trace format: `with TraceWriter(…) as writer: writer.add(…)`.

    An interrupted recording keeps the lines that it has; with `more` those of the same model are
    gone on with, whose ids are in `done`. Raises InputError where the folder cannot be written or
    holds something else.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer_fingerprint: str,
        model: str,
        vocabulary: int,
        more: bool = False,
    ) -> None:
        head = {
            "format": FORMAT,
            "version": VERSION,
            "model": model.encode("utf-8", "replace").decode(),  # a path may hold other bytes
            "tokenizer": tokenizer_fingerprint,
            "vocabulary": vocabulary,
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            about, text = folder / "trace.json", json.dumps(head, indent=1) + "\n"
            is_own = more and about.is_file() and about.read_bytes() == text.encode()
            if not is_own and any(folder.iterdir()):
                raise InputError(f"{folder}: is not empty", "Name a new folder to record to.")
            about.write_text(text, encoding="utf-8")
            self._lines = LineFile(folder / "traces.jsonl", 0o644)
            for place, line in self._lines.lines(_LONGEST):
                if not line.endswith(b"\n"):  # torn: the last one
                    self._lines.truncate(place)
            begun = os.fstat(self._lines.fileno()).st_size
            self.done = {one.id for one in read_traces(folder).traces} if begun else set[str]()
        except OSError as error:
            what = f"{folder}: cannot be written ({reason_of(error)})"
            raise InputError(what, "Name another folder.") from None

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
    ) -> None:
        """Write one trace; `room` is the most tokens that the run could have made."""
        room = max(room, len(output_ids))
        trace = Trace(
            id, task, tuple(prompt_ids), tuple(output_ids), room, tuple(map(tuple, references))
        )
        self._lines.append(json.dumps(asdict(trace)).encode(), sync=False)


def read_traces(
    folder: Path, template: str = "", turns: str = "first", max_mb: int | None = None
) -> TraceSet:
    """The traces in `folder`. `template` names a prompt format where it cannot be told.

    `turns` is "first" or "all", of conversations. `max_mb` (by default the settings' own) bounds
    the bytes read. Raises InputError or UsageError.
    """
    if turns not in TURNS:
        raise UsageError(f"no turns {turns!r}", nearest(turns, TURNS))
    reader = Reader(max_mb or Settings().max_mb)
    if os.path.isfile(folder / "trace.json"):  # False for a name that is too long
        if template or turns != TURNS[0]:
            raise UsageError(
                f"{folder}: holds prompts as they were, of one turn each",
                "Leave out --template and --turns; they are for Spec-Bench's files.",
            )
        return _own_traces(folder, reader)
    if os.path.isfile(folder / "question.jsonl"):
        return _spec_bench_traces(folder, template, turns, reader)
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


def _value(row: Mapping[str, Any], key: str, kind: type) -> Any:
    """The value of `key`, which is of `kind`. Raises InputError."""
    if key not in row:
        raise InputError(f"key {key!r} is missing")
    value = row[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{key} is not a {_KINDS[kind]}")
    return value


def _own_traces(folder: Path, reader: Reader) -> TraceSet:
    path = folder / "trace.json"
    try:
        head = json_object(decode_text(reader.read(path)))
        if (head.get("format"), head.get("version")) != (FORMAT, VERSION):
            raise InputError(f"not a recording of version {VERSION}")
        model, tokenizer = (_value(head, key, str) for key in ("model", "tokenizer"))
        vocabulary = _value(head, "vocabulary", int)
        if vocabulary < 1:
            raise InputError("vocabulary is not a number of ids")
    except Unreadable as error:
        raise error.of(str(path)) from None
    except InputError as error:
        raise InputError(f"{path}: {error}", _ANEW) from None
    traces = []
    for row in read_rows(folder / "traces.jsonl", reader):
        try:
            traces.append(_own_trace(row.data, vocabulary))
        except InputError as error:
            raise row.wrong(str(error), _ANEW) from None
    return TraceSet(str(folder), model, tokenizer, vocabulary, tuple(traces))


def _own_trace(row: Mapping[str, Any], vocabulary: int) -> Trace:
    def ids(run: Any, where: str) -> tuple[int, ...]:
        run = run if isinstance(run, list) else [run]
        for place, id in enumerate(run):
            if type(id) is not int or not 0 <= id < vocabulary:
                shown = json.dumps(id)[:40]
                raise InputError(f"{where}[{place}] is {shown}, no id below {vocabulary}")
        return tuple(run)

    prompt, output = (ids(_value(row, k, list), k) for k in ("prompt_ids", "output_ids"))
    given = _value({"references": [], **row}, "references", list)
    references = tuple(ids(run, f"references[{i}]") for i, run in enumerate(given))
    for key, run in (("prompt_ids", prompt), ("output_ids", output)):
        if not run:
            raise InputError(f"{key} is empty")
    room = max(_value({"room": ROOM, **row}, "room", int), len(output))
    id = str(row["id"]) if type(row.get("id")) is int else _value(row, "id", str)
    return Trace(id, _value(row, "task", str), prompt, output, room, references)


# Prompt formats of models whose tokenizers carry none; {history} holds earlier turns.
TEMPLATES = {
    "vicuna": (
        "A chat between a curious user and an artificial intelligence assistant. The assistant "
        "gives helpful, detailed, and polite answers to the user's questions. "
        "{history}USER: {question} ASSISTANT:",
        "USER: {question} ASSISTANT: {answer}</s>",
    ),
    "llama-2": ("{history}[INST] {question} [/INST]", "[INST] {question} [/INST] {answer} </s><s>"),
    "plain": ("{history}{question}\n\n", "{question}\n\n{answer}\n\n"),
}


def _spec_bench_traces(folder: Path, template: str, turns: str, reader: Reader) -> TraceSet:
    from ngtcli.model_files.pretrained import load_tokenizer

    answers = sorted(p for p in folder.glob("*.jsonl") if p.name != "question.jsonl")
    answers += sorted((folder / "model_answer").glob("*.jsonl"))
    if len(answers) != 1:
        what = f"{len(answers)} answer files" if answers else "no answer file"
        raise InputError(f"{folder}: {what} next to question.jsonl", "Keep exactly one there.")
    if not (folder / "tokenizer").is_dir():
        raise InputError(f"{folder}: no tokenizer/ in it", "Put the model's tokenizer there.")
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    questions = {_question_id(r): r.data for r in read_rows(folder / "question.jsonl", reader)}
    traces, model, inexact = list[Trace](), "", 0
    for row in read_rows(answers[0], reader):
        id = _question_id(row)
        try:
            model = _value(row.data, "model_id", str)
            if id not in questions:
                raise InputError(f"no question {id!r} in question.jsonl")
            form = template_for(template, model)
            found = list(_conversation(questions[id], row.data, form, tokenizer))
        except InputError as error:
            raise row.wrong(str(error), "Check that it is an answer file of Spec-Bench.") from None
        wanted = found if turns == "all" else found[:1]
        traces += [trace for trace, _ in wanted]
        inexact += sum(not exact for _, exact in wanted)
    size = len(tokenizer.backend)
    return TraceSet(str(folder), model, tokenizer.fingerprint, size, tuple(traces), inexact)


def _question_id(row: InputRow) -> str | int:
    id = row.data.get("question_id")
    if isinstance(id, bool) or not isinstance(id, str | int):
        what = "is not a text or number" if "question_id" in row.data else "is missing"
        raise row.wrong(f"question_id {what}", "Each question and answer has one.")
    return id


def template_for(name: str, model: str) -> tuple[str, str]:
    """The prompt format `name`, or the one that the model's name tells. Raises UsageError."""
    if not name:
        name = next((t for t in TEMPLATES if t in model.lower()), "")
    if name not in TEMPLATES:
        raise UsageError(
            f"no prompt template {name!r}" if name else f"no prompt template known for {model}",
            nearest(name, TEMPLATES) if name else f"Name one of {', '.join(TEMPLATES)}.",
        )
    return TEMPLATES[name]


def _conversation(
    question: Mapping[str, Any], answer: Mapping[str, Any], form: tuple[str, str], own: Tokenizer
) -> Iterator[tuple[Trace, bool]]:
    """(trace, whether its length is the recorded one) of each turn of a conversation."""
    begin, end = own.backend.bos_token_id, own.backend.eos_token_id
    if end is None:
        raise InputError("the recording's tokenizer has no end token")
    task, history = _value(question, "category", str), ""
    for turn, (asked, said, recorded) in enumerate(_turns(question, answer)):
        text = form[0].replace("{history}", history).replace("{question}", asked)
        # As it was recorded: encoded whole, the format's own marks with the rest.
        prompt = own.locate(text, template=[(0, len(text))]).ids
        if begin is not None:
            prompt = [begin, *prompt]
        output = own.encode(said)
        if recorded != len(output) or not output:  # the run did not stop at its limit
            output.append(end)
        name = f"{question['question_id']}" + (f"/{turn + 1}" if turn else "")
        room = max(_SPEC_BENCH_TOKENS, len(output))
        yield Trace(name, task, tuple(prompt), tuple(output), room), recorded == len(output)
        history += form[1].replace("{question}", asked).replace("{answer}", said)


def _turns(question: Mapping[str, Any], answer: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """(what was asked, what was answered, how many tokens that was) by turn."""
    choices = _value(answer, "choices", list)
    if not choices or not isinstance(choices[0], dict):
        raise InputError("choices holds no answer")
    asked = _value(question, "turns", list)
    said, recorded = (_value(choices[0], key, list) for key in ("turns", "new_tokens"))
    if not said or len(said) > len(asked) or len(said) > len(recorded):
        raise InputError(
            f"{len(said)} turns are answered, {len(asked)} asked and {len(recorded)} counted"
        )
    turns = list(zip(asked, said, recorded, strict=False))
    if not all(isinstance(a, str) and isinstance(s, str) and type(n) is int for a, s, n in turns):
        raise InputError("a turn is not a text, or its new_tokens not a number")
    return turns
