"""Measure the trie: `python -m tests.tools.trie_bench --data FILE.jsonl.xz`.

Builds the trie of all texts of a file (rows with a "text" key), stores it, opens it again, and
drafts trees for suffixes of the text itself. Medians of several runs, on one core.
"""

import argparse
import json
import lzma
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ngtcli.documents.load import Document
from ngtcli.draft.drafter import Context
from ngtcli.draft.methods.trie import TrieDrafter
from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.render.sinks import dump_json
from ngtcli.trie import store
from ngtcli.trie.ngram import NGramTrie, build_trie


def read_texts(path: Path) -> list[str]:
    """Texts of a `.jsonl.xz` file, or the one text of any other file."""
    if path.suffix != ".xz":
        return [path.read_text(encoding="utf-8")]
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def median_seconds(work: Callable[[], Any], times: int) -> float:
    """Median wall time of `work` over `times` runs."""
    seconds = []
    for _ in range(times):
        clock = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - clock)
    return statistics.median(seconds)


def drafting_us(
    trie: NGramTrie, ids: Sequence[Sequence[int]], nodes: int, times: int
) -> list[float]:
    """Microseconds of each of `times` proposals after random places of the text."""
    rng = random.Random(0)
    drafter = TrieDrafter(trie.n, trie.lp)
    drafter.reset(Context((), trie))
    long = [d for d in ids if len(d) > 100]
    seconds = []
    for _ in range(times):
        document = rng.choice(long)
        at = rng.randrange(10, len(document))
        tail = list(document[at - 10 : at])
        clock = time.perf_counter()
        drafter.propose(tail, nodes)
        seconds.append((time.perf_counter() - clock) * 1e6)
    return sorted(seconds)


def measure(texts: Sequence[str], tokenizer: Any, n: int, lp: int, runs: int) -> dict[str, Any]:
    """All figures, as a JSON-ready mapping. Uses a cache folder of its own."""
    ids = [tokenizer.encode(text) for text in texts]
    tokens = sum(map(len, ids))
    documents = [Document(str(i), text) for i, text in enumerate(texts)]
    vocabulary = len(tokenizer.backend)
    build_s = median_seconds(lambda: build_trie(ids, n, lp), runs)
    trie = build_trie(ids, n, lp)
    key = store.trie_key(tokenizer.fingerprint, documents, n, lp)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NGT_HOME"] = folder
        save_s = median_seconds(lambda: store.save(trie, key, documents), runs)
        size = store.trie_path(key).stat().st_size
        open_s = median_seconds(lambda: store.load(key, n, lp, vocabulary), runs * 3)
        loaded = store.load(key, n, lp, vocabulary)
    assert loaded is not None
    times = drafting_us(loaded, ids, 32, 5000)
    return {
        "n": n,
        "lp": lp,
        "documents": len(texts),
        "tokens": tokens,
        "nodes": len(trie),
        "build_s": round(build_s, 4),
        "build_tokens_per_s": round(tokens / build_s),
        "save_s": round(save_s, 4),
        "bytes_per_token": round(size / tokens, 2),
        "open_and_verify_ms": round(open_s * 1e3, 2),
        "open_and_verify_ms_per_million_tokens": round(open_s * 1e9 / tokens, 2),
        "draft_32_nodes_us_median": round(times[len(times) // 2], 1),
        "draft_32_nodes_us_p99": round(times[len(times) * 99 // 100], 1),
    }


def main() -> None:
    """Read texts, measure, print one JSON object."""
    parser = argparse.ArgumentParser(description="Measure building, storing and drafting.")
    parser.add_argument(
        "--data", type=Path, required=True, help="a .jsonl.xz with texts, or a text"
    )
    parser.add_argument("--model", default="builtin", help="whose tokenizer to use")
    parser.add_argument("--n", type=int, default=13)
    parser.add_argument("--lp", type=int, default=3)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tokens", type=int, help="use about this many tokens, not all")
    args = parser.parse_args()
    texts = read_texts(args.data)
    tokenizer = load_tokenizer(args.model)
    if args.tokens:
        texts = _first(texts, tokenizer, args.tokens)
    print(dump_json(measure(texts, tokenizer, args.n, args.lp, args.runs)))


def _first(texts: Sequence[str], tokenizer: Any, tokens: int) -> list[str]:
    kept: list[str] = []
    for text in texts:
        if tokens <= 0:
            break
        tokens -= len(tokenizer.encode(text))
        kept.append(text)
    return kept


if __name__ == "__main__":
    main()
