"""Convert Vicuna's answers to Spec-Bench (2024): `python -m tests.tools.spec_bench FOLDER NEW`.

FOLDER has `question.jsonl`, one file of answers, and the model's tokenizer in `tokenizer/`. The
texts are tokenized here. NEW becomes a recording for `python -m tests.tools.replay`, with a copy of
the tokenizer.
"""

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ngtcli.models.pretrained import load_tokenizer
from ngtcli.models.tokenizer import Tokenizer
from tests.tools.measuring.traces import ROOM, Trace, TraceWriter

# A prompt; its {history} has a TURN for each turn before.
PROMPT = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions. "
    "{history}USER: {question} ASSISTANT:"
)
TURN = "USER: {question} ASSISTANT: {answer}</s>"


def convert(folder: Path, new: Path, every_turn: bool = False) -> int:
    """Write the recording; return how many answers have not as many tokens as was recorded.

    Args:
        folder: The folder of Spec-Bench.
        new: The folder of the recording.
        every_turn: Whether every turn of a conversation is taken, or the first alone.
    """
    (answers_file,) = (path for path in folder.glob("*.jsonl") if path.name != "question.jsonl")
    questions = {
        question["question_id"]: question for question in _lines(folder / "question.jsonl")
    }
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    model = ""
    inexact = 0
    traces: list[Trace] = []
    for answer in _lines(answers_file):
        model = answer["model_id"]
        question = questions[answer["question_id"]]
        turns = list(_turns(question, answer["choices"][0], tokenizer))
        if not every_turn:
            turns = turns[:1]
        for trace, has_recorded_length in turns:
            traces.append(trace)
            if not has_recorded_length:
                inexact += 1

    with TraceWriter(new, tokenizer.fingerprint, model, len(tokenizer.backend)) as writer:
        for trace in traces:
            writer.add(trace.id, trace.task, trace.prompt_ids, trace.output_ids, (), trace.room)
    shutil.copytree(folder / "tokenizer", new / "tokenizer")
    return inexact


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _turns(question: Any, answer: Any, tokenizer: Tokenizer) -> Iterator[tuple[Trace, bool]]:
    """Yield a trace of each turn, and whether its answer has as many tokens as was recorded."""
    bos_id = tokenizer.backend.bos_token_id
    eos_id = tokenizer.backend.eos_token_id
    history = ""
    turns = zip(question["turns"], answer["turns"], answer["new_tokens"], strict=False)
    for number, (message, text, recorded_tokens) in enumerate(turns, 1):
        prompt = PROMPT.replace("{history}", history).replace("{question}", message)
        # The whole prompt counts as a template, since its special tokens were recorded as such.
        prompt_ids = tokenizer.locate(prompt, template=[(0, len(prompt))]).ids
        if bos_id is not None:
            prompt_ids = [bos_id, *prompt_ids]
        output_ids = tokenizer.encode(text)
        if recorded_tokens != len(output_ids) or not output_ids:
            output_ids.append(eos_id)  # the run did not stop at its limit

        trace_id = str(question["question_id"])
        if number > 1:
            trace_id += f"/{number}"
        room = max(ROOM, len(output_ids))
        trace = Trace(trace_id, question["category"], tuple(prompt_ids), tuple(output_ids), room)
        yield trace, recorded_tokens == len(output_ids)
        history += TURN.replace("{question}", message).replace("{answer}", text)


def main(argv: Sequence[str] | None = None) -> None:
    """Convert a folder."""
    parser = argparse.ArgumentParser(description="Spec-Bench's files as a recording.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--every-turn", action="store_true", help="not the first turn alone")
    args = parser.parse_args(argv)
    inexact = convert(args.folder, args.new, args.every_turn)
    print(f"{inexact} of the texts give another number of tokens than was recorded")


if __name__ == "__main__":
    main()
