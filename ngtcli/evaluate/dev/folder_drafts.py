"""What drafts from a whole folder add: acceptance lengths of `auto` on recorded answers.

    python -m ngtcli.evaluate.dev.folder_drafts --replay FOLDER --task rag [--texts FILE.jsonl.xz]

The prompts of all questions of the task are taken for the documents of a folder, so that each
prompt has its own and the others' are distractors; `--texts` adds the paragraphs (`context`) of
another file. Replays as `ngt bench --replay`, with a pool; passes cost nothing.
"""

import argparse
import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path

from ngtcli.background.counting import joined
from ngtcli.background.folder import LEAST
from ngtcli.background.making import make_shipped
from ngtcli.draft.auto.config import CONFIG
from ngtcli.draft.auto.pool import Pool
from ngtcli.draft.drafter import DraftSettings
from ngtcli.draft.registry import parse_method
from ngtcli.evaluate.replay.run import context_of, replay
from ngtcli.evaluate.replay.traces import Trace, TraceSet, read_traces
from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import BackgroundCounts, build_counts

_BACKGROUND = "english"


def paragraphs(path: Path, tokenizer: Tokenizer) -> Iterator[list[int]]:
    """The ids of each paragraph of a file."""
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield tokenizer.encode(json.loads(line)["context"].strip())


def acceptance_length(
    traces: TraceSet, chosen: Sequence[Trace], background: BackgroundCounts | None, num_draft: int
) -> float:
    """Tokens a step over all chosen recordings, with these counts for a background."""
    pool = Pool(CONFIG.pool_tokens, False)
    settings = DraftSettings(num_draft=num_draft, background=background, pool=pool)
    drafter = parse_method("auto", settings).build()
    tokens = steps = 0
    for trace in chosen:
        steps += replay(trace, drafter, context_of(trace, traces), num_draft).steps
        drafter.finish()
        tokens += len(trace.output_ids)
    return tokens / steps


def main() -> None:
    """Print a line for each source of drafts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--replay", type=Path, required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--num-draft", type=int, default=32)
    given = parser.parse_args()
    traces = read_traces(given.replay, "", "first", None)
    tokenizer = load_tokenizer(str(given.replay / "tokenizer"))
    chosen = [trace for trace in traces.traces if trace.task == given.task]
    texts = [list(trace.prompt_ids) for trace in chosen]
    texts += paragraphs(given.texts, tokenizer) if given.texts else []
    folder = build_counts([(ids, 1.0) for ids in texts], least=LEAST)
    general = make_shipped(_BACKGROUND, tokenizer)
    rows = {"prompt": None, "folder": folder, _BACKGROUND: general}
    rows[f"{_BACKGROUND} and folder"] = joined([general, folder])
    print(f"{len(chosen)} questions, {len(texts)} texts, {sum(map(len, texts))} tokens")
    for name, counts in rows.items():
        length = acceptance_length(traces, chosen, counts, given.num_draft)
        print(f"{name:20} {length:.3f}")


if __name__ == "__main__":
    main()
