"""Vicuna's answers to Spec-Bench (2024) as a recording: `python -m tests.tools.spec_bench OF NEW`.

OF is a folder with `question.jsonl`, one file of answers and the model's tokenizer in `tokenizer/`.
Texts are tokenized here; NEW is what `python -m tests.tools.replay` reads, with a copy
of the tokenizer.
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

# Of a prompt, {history} with those before it, and of what is in the history.
PROMPT = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions. "
    "{history}USER: {question} ASSISTANT:"
)
TURN = "USER: {question} ASSISTANT: {answer}</s>"


def convert(folder: Path, new: Path, every_turn: bool = False) -> int:
    """Write the recording; how many texts have another number of tokens than was recorded.

    Of conversations the first turn is taken, or every one.
    """
    (answers,) = (p for p in folder.glob("*.jsonl") if p.name != "question.jsonl")
    asked = {one["question_id"]: one for one in _lines(folder / "question.jsonl")}
    tokenizer, inexact, model = load_tokenizer(str(folder / "tokenizer")), 0, ""
    traces = list[Trace]()
    for answer in _lines(answers):
        model = answer["model_id"]
        turns = list(_turns(asked[answer["question_id"]], answer["choices"][0], tokenizer))
        for trace, is_exact in turns if every_turn else turns[:1]:
            inexact += not is_exact
            traces.append(trace)
    with TraceWriter(new, tokenizer.fingerprint, model, len(tokenizer.backend)) as writer:
        for trace in traces:
            writer.add(trace.id, trace.task, trace.prompt_ids, trace.output_ids, (), trace.room)
    shutil.copytree(folder / "tokenizer", new / "tokenizer")
    return inexact


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _turns(question: Any, said: Any, own: Tokenizer) -> Iterator[tuple[Trace, bool]]:
    """(trace, whether its length is the recorded one) of each turn of a conversation."""
    begin, end, history = own.backend.bos_token_id, own.backend.eos_token_id, ""
    turns = zip(question["turns"], said["turns"], said["new_tokens"], strict=False)
    for turn, (asked, text, recorded) in enumerate(turns):
        whole = PROMPT.replace("{history}", history).replace("{question}", asked)
        # As it was recorded: encoded whole, the format's own marks with the rest.
        prompt = own.locate(whole, template=[(0, len(whole))]).ids
        prompt = [*([] if begin is None else [begin]), *prompt]
        output = own.encode(text)
        if recorded != len(output) or not output:  # the run did not stop at its limit
            output.append(end)
        name = f"{question['question_id']}" + (f"/{turn + 1}" if turn else "")
        room = max(ROOM, len(output))  # its runs have so many tokens
        trace = Trace(name, question["category"], tuple(prompt), tuple(output), room)
        yield trace, recorded == len(output)
        history += TURN.replace("{question}", asked).replace("{answer}", text)


def main(words: Sequence[str] | None = None) -> None:
    """Convert a folder."""
    parser = argparse.ArgumentParser(description="Spec-Bench's files as a recording.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--every-turn", action="store_true", help="not the first turn alone")
    args = parser.parse_args(words)
    inexact = convert(args.folder, args.new, args.every_turn)
    print(f"{inexact} of the texts give another number of tokens than was recorded")


if __name__ == "__main__":
    main()
