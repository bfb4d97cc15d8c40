"""Recorded runs of a model, for measuring drafters without it.

Under greedy decoding a lossless method emits exactly the recorded tokens, so how many drafts are
accepted at each step depends on prompt, recorded output and drafter alone.

Two kinds of folder are read. Our own holds `trace.json` (what was run) and `traces.jsonl` (a
prompt's and its output's ids a line). Spec-Bench's (Xia et al. 2024) holds `question.jsonl`, one
file of answers and the model's tokenizer in `tokenizer/`; its texts are tokenized here.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from ngtcli.errors import InputError, UsageError, nearest
from ngtcli.tokens import Tokenizer

FORMAT = "ngt-trace"
VERSION = 1
TURNS = ("first", "all")  # of a conversation
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


def read_traces(folder: Path, template: str = "", turns: str = "first") -> TraceSet:
    """The traces in `folder`. `template` names a prompt format where it cannot be told.

    `turns` is "first" or "all", of conversations. Raises InputError or UsageError.
    """
    if turns not in TURNS:
        raise UsageError(f"no turns {turns!r}", nearest(turns, TURNS))
    if (folder / "trace.json").is_file():
        if template or turns != TURNS[0]:
            raise UsageError(
                f"{folder}: holds prompts as they were, of one turn each",
                "Leave out --template and --turns; they are for Spec-Bench's files.",
            )
        return _read_own(folder)
    if (folder / "question.jsonl").is_file():
        return _read_spec_bench(folder, template, turns)
    raise InputError(
        f"{folder}: no recording here",
        "Give a folder written by `ngt bench --record`, or one with Spec-Bench's question.jsonl,"
        " an answer file and tokenizer/.",
    )


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line of a JSONL file; blank lines are skipped."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})", "Check the file.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: not a JSON object", "Write one object a line.")
        yield number, row


def _read_own(folder: Path) -> TraceSet:
    path = folder / "trace.json"
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
        if head["format"] != FORMAT or head["version"] != VERSION:
            raise ValueError
        vocabulary = int(head["vocabulary"])
        model, tokenizer = str(head["model"]), str(head["tokenizer"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{path}: not a recording of this version", "Record it anew with `ngt bench --record`."
        ) from None
    traces = []
    for number, row in read_lines(folder / "traces.jsonl"):
        try:
            traces.append(_own_trace(row, vocabulary))
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{folder / 'traces.jsonl'}:{number}: not a trace", "Record it anew."
            ) from None
    return TraceSet(str(folder), model, tokenizer, vocabulary, tuple(traces))


def _own_trace(row: dict[str, Any], vocabulary: int) -> Trace:
    runs = [row["prompt_ids"], row["output_ids"], *row["references"]]
    if not all(type(i) is int and 0 <= i < vocabulary for run in runs for i in run):
        raise ValueError("ids out of range")
    if not row["prompt_ids"] or not row["output_ids"]:
        raise ValueError("nothing recorded")
    prompt, output, *references = (tuple(run) for run in runs)
    room = max(int(row["room"]), len(output))
    return Trace(str(row["id"]), str(row["task"]), prompt, output, room, tuple(references))


def _read_spec_bench(folder: Path, template: str, turns: str, most: int = 1024) -> TraceSet:
    """Spec-Bench's files; `most` is the limit of new tokens its runs have."""
    from ngtcli.pretrained import load_tokenizer

    answers_path = _answer_file(folder)
    if not (folder / "tokenizer").is_dir():
        raise InputError(f"{folder}: no tokenizer/ in it", "Put the model's tokenizer there.")
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    questions = {q.get("question_id"): q for _, q in read_lines(folder / "question.jsonl")}
    traces, model, inexact = [], "", 0
    for number, row in read_lines(answers_path):
        try:
            model = str(row["model_id"])
            question = questions[row["question_id"]]
            form = template_for(template, model)
            found = list(_spec_bench_turns(question, row["choices"][0], form, tokenizer, most))
        except (KeyError, IndexError, TypeError, ValueError):
            raise InputError(
                f"{answers_path}:{number}: not an answer to a question of question.jsonl",
                "Check that both files belong together.",
            ) from None
        wanted = found if turns == "all" else found[:1]
        traces += [trace for trace, _ in wanted]
        inexact += sum(not exact for _, exact in wanted)
    size = len(tokenizer.backend)
    return TraceSet(str(folder), model, tokenizer.fingerprint, size, tuple(traces), inexact)


def _answer_file(folder: Path) -> Path:
    found = sorted(p for p in folder.glob("*.jsonl") if p.name != "question.jsonl")
    found += sorted((folder / "model_answer").glob("*.jsonl"))
    if len(found) != 1:
        what = "no answer file" if not found else f"{len(found)} answer files"
        raise InputError(f"{folder}: {what} beside question.jsonl", "Keep exactly one there.")
    return found[0]


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


def _spec_bench_turns(
    question: dict[str, Any],
    choice: dict[str, Any],
    form: tuple[str, str],
    tokenizer: Tokenizer,
    most: int,
) -> Iterator[tuple[Trace, bool]]:
    """(trace, whether its length is the recorded one) of each turn of a conversation."""
    history = ""
    begin, end = tokenizer.backend.bos_token_id, tokenizer.backend.eos_token_id
    for turn, answer in enumerate(choice["turns"]):
        asked = question["turns"][turn]
        text = form[0].replace("{history}", history).replace("{question}", asked)
        prompt = tokenizer.encode(text)
        if begin is not None:
            prompt = [begin, *prompt]
        output = tokenizer.encode(answer)
        recorded = int(choice["new_tokens"][turn])
        if recorded != len(output) or not output:  # the run did not stop at its limit
            output.append(end)
        name = f"{question['question_id']}" + (f"/{turn + 1}" if turn else "")
        trace = Trace(
            name, str(question["category"]), tuple(prompt), tuple(output), max(most, len(output))
        )
        yield trace, recorded == len(output)
        history += form[1].replace("{question}", asked).replace("{answer}", answer)
