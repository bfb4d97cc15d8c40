"""Time to the first token behind documents that were read: `python -m tests.tools.prefix_times`.

A model of a shape with random weights reads arbitrary tokens and, behind them, a question of 40.
Cold is measured once; then, `--rounds` times each with another question, with the documents' rows
on disk, the system's copies of the files dropped, in memory, and in the model's own cache, where
those of the last prompt lie. Reported are medians of the processor's seconds, which a busy machine
does not change by much, and as `files` the least time that reading files took, waiting included.
What the cache keeps of documents is deleted.
"""

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from statistics import median

from ngtcli.config import Settings
from ngtcli.decode.kv_cache import CHUNK, Keeping
from ngtcli.decode.load import use_threads
from ngtcli.decode.memory_limits import read_prompt
from ngtcli.decode.model import TargetModel
from ngtcli.draft.tree import DraftTree
from ngtcli.measure.options import find_shape
from ngtcli.measure.shape_model import build, plan
from ngtcli.render.tables import Column, Table, to_markdown
from ngtcli.system.cache import STORES, clear
from ngtcli.system.files import home

QUESTION = 40  # tokens
KEEPING = Keeping(reads=True, least_s=0.0, most=1 << 40)
STORE = [store for store in STORES if store.name == "prefixes"]
HEADS = "tokens", "dtype", "cold", "from disk", "from memory", "last prompt", "files", "MB"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table in Markdown; times are in seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 8192, 31744])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    use_threads(given.threads)
    rows = []
    for dtype in given.dtypes:
        settings = Settings(dtype=dtype, device="cpu")
        model = build(plan(find_shape(given.shape), settings), settings, tell, False).model
        model.weights = f"random weights of shape {given.shape}"
        first_token(model, range(100))  # what libraries set up at first
        for tokens in given.tokens:
            rows.append([f"{tokens:,}", dtype, *times(model, tokens, given.rounds)])
            tell(" ".join(rows[-1]))
    clear(home("cache"), STORE)
    print(to_markdown([Table(given.shape, [Column(head) for head in HEADS], rows)]))


def tell(words: str) -> None:
    """Say it on standard error."""
    print(words, file=sys.stderr, flush=True)


def first_token(model: TargetModel, ids: Sequence[int]) -> float:
    """The processor's seconds to the scores of the first token."""
    clock = time.process_time()
    read_prompt(model, ids[:-1], len(ids) + 64, lambda _: None, keeping=KEEPING)
    int(model.forward(ids[-1], DraftTree())[0].argmax())
    return time.process_time() - clock


def times(model: TargetModel, tokens: int, rounds: int) -> list[str]:
    """The other cells of a row."""
    source = random.Random(tokens)
    documents, other = (source.choices(range(model.vocabulary), k=n) for n in (tokens, CHUNK))

    def prompt() -> list[int]:
        return documents + source.choices(range(model.vocabulary), k=QUESTION)

    def empty(memory: bool) -> None:
        model.use(model.way)
        model.keep_prefixes(memory)

    clear(home("cache"), STORE)
    empty(False)
    found = {"cold": [first_token(model, prompt())], "disk": [], "memory": [], "last": []}
    assert model.prefixes is not None
    size, files = model.prefixes.store(model.cache), list[float]()
    for _ in range(rounds):
        empty(False)
        drop_copies()
        found["disk"].append(first_token(model, prompt()))
        assert model.reused.from_disk == tokens // CHUNK * CHUNK
        files.append(model.reused.seconds)
    empty(True)
    first_token(model, prompt())
    for _ in range(rounds):
        found["last"].append(first_token(model, prompt()))
        first_token(model, other)
        found["memory"].append(first_token(model, prompt()))
        assert model.reused.tokens == tokens // CHUNK * CHUNK and not model.reused.from_disk
    cells = [f"{median(seconds):.2f}" for seconds in found.values()]
    return [*cells, f"{min(files):.2f}", f"{size / 1e6:.0f}"]


def drop_copies() -> None:
    """Let the system forget what it has of the files in memory."""
    for path in (home("cache") / STORE[0].folder).iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
