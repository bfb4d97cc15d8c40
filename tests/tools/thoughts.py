"""How often drafts come true in a thought, and in an answer behind it: `python -m
tests.tools.thoughts DIR`.

Of a recording that `ngt bench --replay` reads each answer is taken for a thought. The answer behind
it is the thought's last sentence again: so the thought is a model's own text, and the answer is
made by a rule. Drafts are made for both in one run, and once more for the answer with the thought
left out. Tokens a pass, by task; a pass counts where its first token stands.
"""

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ngtcli.config import Settings
from ngtcli.draft.drafter import draft_settings
from ngtcli.draft.registry import parse_method
from ngtcli.draft.tree import DraftTree
from ngtcli.measure.replay import context_of, walk
from ngtcli.measure.traces import Trace, TraceSet, read_traces
from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.tokens.tokenizer import Tokenizer

METHODS = ("trie", "trie:learn_output=true", "prompt-lookup", "auto")
NODES = 32


def passes(
    spec: str, traces: TraceSet, trace: Trace, parts: Sequence[Sequence[int]]
) -> list[tuple[int, int]]:
    """The passes and tokens of each part of the output behind a recorded prompt."""
    one = parse_method(spec, replace(draft_settings(Settings()), pool=None, background=None))
    drafter, output = one.build(), [token for part in parts for token in part]
    place = [number for number, part in enumerate(parts) for _ in part]
    drafter.reset(context_of(replace(trace, references=()), traces))
    ids, done, steps = list(trace.prompt_ids), 0, Counter[int]()
    while done < len(output):
        depth = len(output) - done - 1
        tree = drafter.propose(ids, NODES).cut(depth, NODES) if depth else DraftTree()
        kept = output[done : done + walk(tree, output, done) + 1]
        drafter.observe(kept)
        steps[place[done]] += 1
        ids, done = ids + kept, done + len(kept)
    return [(steps[number], len(part)) for number, part in enumerate(parts)]


def split(trace: Trace, tokenizer: Tokenizer) -> list[list[int]]:
    """The thought, and the answer that repeats its last sentence; [] for a single sentence."""
    said = tokenizer.decode(trace.output_ids).strip()
    sentences = re.split(r"(?<=[.!?])\s+", said)
    texts = [f"{said}\n</think>\n\n", sentences[-1]]
    return [tokenizer.encode(text) for text in texts] if len(sentences) > 1 else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="a recording with its tokenizer/")
    parser.add_argument("--tasks", nargs="+", default=["math_reasoning", "rag", "summarization"])
    given = parser.parse_args()
    traces = read_traces(given.folder)
    tokenizer = load_tokenizer(str(given.folder / "tokenizer"))
    for task in given.tasks:
        found = [(t, split(t, tokenizer)) for t in traces.traces if t.task == task]
        found = [(trace, parts) for trace, parts in found if parts]
        for spec in METHODS:
            both = [passes(spec, traces, trace, parts) for trace, parts in found]
            alone = [passes(spec, traces, trace, parts[1:]) for trace, parts in found]
            columns = [[b[0] for b in both], [b[1] for b in both], [a[0] for a in alone]]
            means = [sum(n for _, n in c) / sum(s for s, _ in c) for c in columns]
            words = "thought {:.2f}  answer {:.2f}  without the thought {:.2f}".format(*means)
            print(f"{task:15} {len(found):3} {spec:23} {words}", flush=True)


if __name__ == "__main__":
    main()
