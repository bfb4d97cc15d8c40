"""Recordings in Spec-Bench's files (Xia et al. 2024).

A folder holds `question.jsonl`, one file of answers and the model's tokenizer in `tokenizer/`; the
texts are tokenized here.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ngtcli.batch.json_lines import Row, read_rows
from ngtcli.documents.reading import Reader
from ngtcli.errors import InputError, UsageError, nearest
from ngtcli.measure.replay.traces import Trace, TraceSet, WrongRow, get
from ngtcli.tokens.tokenizer import Tokenizer

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


def read_spec_bench(
    folder: Path, template: str, turns: str, reader: Reader, most: int = 1024
) -> TraceSet:
    """Spec-Bench's files; `most` is the limit of new tokens its runs have."""
    from ngtcli.model_files.pretrained import load_tokenizer

    answers_path = _answer_file(folder)
    if not (folder / "tokenizer").is_dir():
        raise InputError(f"{folder}: no tokenizer/ in it", "Put the model's tokenizer there.")
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    questions = {}
    for row in read_rows(folder / "question.jsonl", reader):
        questions[_question_id(row)] = row.data
    traces, model, inexact = [], "", 0
    for row in read_rows(answers_path, reader):
        try:
            model = get(row.data, "model_id", str)
            asked = _asked(row, questions)
            form = template_for(template, model)
            found = list(_spec_bench_turns(asked, row.data, form, tokenizer, most))
        except WrongRow as error:
            raise row.wrong(str(error), "Check that it is an answer file of Spec-Bench.") from None
        wanted = found if turns == "all" else found[:1]
        traces += [trace for trace, _ in wanted]
        inexact += sum(not exact for _, exact in wanted)
    size = len(tokenizer.backend)
    return TraceSet(str(folder), model, tokenizer.fingerprint, size, tuple(traces), inexact)


def _question_id(row: Row) -> str | int:
    id = row.data.get("question_id")
    if isinstance(id, bool) or not isinstance(id, str | int):
        what = "is not a text or number" if "question_id" in row.data else "is missing"
        raise row.wrong(f"question_id {what}", "Each question and answer has one.")
    return id


def _asked(row: Row, questions: Mapping[str | int, dict[str, Any]]) -> dict[str, Any]:
    id = _question_id(row)
    if id not in questions:
        raise WrongRow(f"no question {id!r} in question.jsonl")
    return questions[id]


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
    question: Mapping[str, Any],
    answer: Mapping[str, Any],
    form: tuple[str, str],
    tokenizer: Tokenizer,
    most: int,
) -> Iterator[tuple[Trace, bool]]:
    """(trace, whether its length is the recorded one) of each turn of a conversation."""
    history = ""
    begin, end = tokenizer.backend.bos_token_id, tokenizer.backend.eos_token_id
    if end is None:
        raise WrongRow("the recording's tokenizer has no end token")
    task = get(question, "category", str)
    for turn, (asked, said, recorded) in enumerate(_turns(question, answer)):
        text = form[0].replace("{history}", history).replace("{question}", asked)
        # As it was recorded: encoded whole, the format's own marks with the rest.
        prompt = tokenizer.locate(text, template=[(0, len(text))]).ids
        if begin is not None:
            prompt = [begin, *prompt]
        output = tokenizer.encode(said)
        if recorded != len(output) or not output:  # the run did not stop at its limit
            output.append(end)
        name = f"{question['question_id']}" + (f"/{turn + 1}" if turn else "")
        trace = Trace(name, task, tuple(prompt), tuple(output), max(most, len(output)))
        yield trace, recorded == len(output)
        history += form[1].replace("{question}", asked).replace("{answer}", said)


def _turns(question: Mapping[str, Any], answer: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """(what was asked, what was answered, how many tokens that was) by turn."""
    choices = get(answer, "choices", list)
    if not choices or not isinstance(choices[0], dict):
        raise WrongRow("choices holds no answer")
    asked = get(question, "turns", list)
    said, recorded = (get(choices[0], key, list) for key in ("turns", "new_tokens"))
    if not said or len(said) > len(asked) or len(said) > len(recorded):
        raise WrongRow(
            f"{len(said)} turns are answered, {len(asked)} asked and {len(recorded)} counted"
        )
    turns = list(zip(asked, said, recorded, strict=False))
    if not all(isinstance(a, str) and isinstance(s, str) and type(n) is int for a, s, n in turns):
        raise WrongRow("a turn is not a text, or its new_tokens not a number")
    return turns
