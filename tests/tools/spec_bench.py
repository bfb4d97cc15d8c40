"""Spec-Bench's files (Xia et al. 2024) as a recording: `python -m tests.tools.spec_bench OF NEW`.

OF is a folder with `question.jsonl`, one file of answers and the model's tokenizer in `tokenizer/`.
Texts are tokenized here; NEW is what `ngt bench replay` reads, with a copy of the tokenizer.
"""

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from ngtcli.batch.lines import Id, converted
from ngtcli.documents.read import Reader
from ngtcli.errors import InputError, NgtError, UsageError, nearest
from ngtcli.measure.prompts import read_rows
from ngtcli.measure.traces import ROOM, Trace, TraceWriter
from ngtcli.model_files.pretrained import load_tokenizer
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


class _Question(Struct):
    question_id: Id
    category: str
    turns: list[str]


class _Choice(Struct):
    turns: list[str]
    new_tokens: list[int]


class _Answer(Struct):
    question_id: Id
    model_id: str
    choices: list[_Choice]


def template_for(name: str, model: str) -> tuple[str, str]:
    """The prompt format `name`, or the one that the model's name tells. Raises UsageError."""
    name = name or next((t for t in TEMPLATES if t in model.lower()), "")
    if name not in TEMPLATES:
        hint = nearest(name, TEMPLATES) if name else f"Name one of {', '.join(TEMPLATES)}."
        raise UsageError(f"no prompt template {name!r} for {model}", hint)
    return TEMPLATES[name]


def convert(folder: Path, new: Path, template: str = "", every_turn: bool = False) -> int:
    """Write the recording; how many texts have another number of tokens than was recorded.

    `template` names a prompt format where the model's name does not tell it. Of conversations the
    first turn is taken, or every one. Raises NgtError.
    """
    reader = Reader(1000)
    answers = [p for p in sorted(folder.glob("*.jsonl")) if p.name != "question.jsonl"]
    answers += sorted((folder / "model_answer").glob("*.jsonl"))
    if len(answers) != 1:
        what = f"{len(answers)} answer files next to question.jsonl"
        raise InputError(f"{folder}: {what}", "Keep exactly one there.")
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    asked = [converted(row.data, _Question) for row in read_rows(folder / "question.jsonl", reader)]
    questions, found, model = (
        {one.question_id: one for one in asked},
        list[tuple[Trace, bool]](),
        "",
    )
    for row in read_rows(answers[0], reader):
        answer = converted(row.data, _Answer)
        if answer.question_id not in questions or not answer.choices:
            raise row.wrong("no such question, or no answer", "Check that the files match.")
        model, question = answer.model_id, questions[answer.question_id]
        turns = list(_turns(question, answer, template_for(template, model), tokenizer))
        found += turns if every_turn else turns[:1]
    inexact = sum(not exact for _, exact in found)
    about = tokenizer.fingerprint, model, len(tokenizer.backend)
    with TraceWriter(new, *about) as writer:
        for trace, _ in found:
            writer.add(trace.id, trace.task, trace.prompt_ids, trace.output_ids, (), trace.room)
    shutil.copytree(folder / "tokenizer", new / "tokenizer")
    return inexact


def _turns(
    question: _Question, answer: _Answer, form: tuple[str, str], own: Tokenizer
) -> Iterator[tuple[Trace, bool]]:
    """(trace, whether its length is the recorded one) of each turn of a conversation."""
    begin, end = own.backend.bos_token_id, own.backend.eos_token_id
    said, history = answer.choices[0], ""
    if end is None or len(said.turns) > min(len(question.turns), len(said.new_tokens)):
        what = f"{question.question_id}: more turns are answered than asked or counted"
        raise InputError(what if end is not None else "the tokenizer has no end token")
    turns = zip(question.turns, said.turns, said.new_tokens, strict=False)
    for turn, (asked, text, recorded) in enumerate(turns):
        whole = form[0].replace("{history}", history).replace("{question}", asked)
        # As it was recorded: encoded whole, the format's own marks with the rest.
        prompt = own.locate(whole, template=[(0, len(whole))]).ids
        if begin is not None:
            prompt = [begin, *prompt]
        output = own.encode(text)
        if recorded != len(output) or not output:  # the run did not stop at its limit
            output.append(end)
        name = f"{question.question_id}" + (f"/{turn + 1}" if turn else "")
        room = max(ROOM, len(output))  # its runs have so many tokens
        trace = Trace(name, question.category, tuple(prompt), tuple(output), room)
        yield trace, recorded == len(output)
        history += form[1].replace("{question}", asked).replace("{answer}", text)


def main(words: Sequence[str] | None = None) -> None:
    """Convert a folder."""
    parser = argparse.ArgumentParser(description="Spec-Bench's files as a recording.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--template", default="", help=f"one of {', '.join(TEMPLATES)}")
    parser.add_argument("--every-turn", action="store_true", help="not the first turn alone")
    args = parser.parse_args(words)
    try:
        inexact = convert(args.folder, args.new, args.template, args.every_turn)
    except NgtError as error:
        sys.exit(f"{error}. {error.hint}")
    print(f"{inexact} of the texts give another number of tokens than was recorded")


if __name__ == "__main__":
    main()
