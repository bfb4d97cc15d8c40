"""What a predicted answer gives: `python -m tests.tools.predicted FILE… [--edits N] [--nodes N]`.

The answer is a file of which lines were edited (a word replaced, a line left out, a line of the
file put in), the prediction is the file as it was. `auto` is driven over the answer as over a
recording, without a model: tokens a step at 32 nodes, without the file, with it predicted, with it
in the prompt, and with both.
"""

import argparse
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ngtcli.draft.auto.drafter import Auto
from ngtcli.draft.drafter import Context
from ngtcli.measure.replay import replay
from ngtcli.measure.traces import Trace
from ngtcli.model_files.pretrained import load_tokenizer

_PROMPT = "Write this file again with the changes that were asked for.\n\n"


def edited(text: str, edits: int, seed: int = 0) -> str:
    """The text with so many edits of lines, the same for the same seed."""
    lines, draw = text.split("\n"), random.Random(seed)
    for _ in range(edits):
        at, kind = draw.randrange(len(lines)), draw.choice("rdi")
        if kind == "i":
            lines.insert(at, draw.choice(lines))
        elif kind == "d":
            del lines[at]
        elif words := re.findall(r"[A-Za-z_]{3,}", lines[at]):
            lines[at] = lines[at].replace(draw.choice(words), "changed_name", 1)
    return "\n".join(lines)


def lengths(
    answer: Sequence[int], old: Sequence[int], prompt: list[int], nodes: int
) -> list[float]:
    """Mean acceptance length without the old text, predicted, in the prompt, and both."""
    found = []
    for in_prompt in (False, True):
        ids = [*old, *prompt] if in_prompt else prompt
        trace = Trace("", "", tuple(ids), tuple(answer), len(answer) + 1)
        context = Context(ids, references=(old,) if in_prompt else (), vocabulary=max(ids) + 1)
        for predicted in ((), old):
            made = replay(trace, Auto(), replace(context, predicted=predicted), nodes)
            found.append(len(answer) / made.steps)
    return found


def main() -> None:
    """A line for each file."""
    parser = argparse.ArgumentParser(description="Measure predicted answers on edited files.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--edits", type=int, default=20)
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=32)
    args = parser.parse_args()
    tokenizer = load_tokenizer("builtin")
    print("tokens  nothing  predicted  in the prompt  both")
    for file in args.files:
        text = "\n".join(file.read_text("utf-8").split("\n")[: args.lines])
        answer = tokenizer.encode(edited(text, args.edits))
        own = lengths(answer, tokenizer.encode(text), tokenizer.encode(_PROMPT), args.nodes)
        print(f"{len(answer):6d}  " + "  ".join(f"{one:6.2f}" for one in own) + f"  {file}")


if __name__ == "__main__":
    main()
