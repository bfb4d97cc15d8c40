"""How well and how fast passages are found: recall of paragraphs by questions asked of them.

    python -m ngtcli.evaluate.dev.retrieval --data newwiki-qa.jsonl.xz

Each line of the file, JSON, has a paragraph `context` and its questions `qas`. The paragraphs are
the documents, and the questions queries: recall@k is the share of questions whose own paragraph is
among the first k. For the times of a large set each paragraph is repeated with made-up words in
place of a part of its own, so that the copies have other words.
"""

import argparse
import json
import lzma
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from os import environ
from pathlib import Path
from statistics import median
from typing import TypeVar

from ngtcli.documents.load import Document
from ngtcli.documents.passages import Cutting
from ngtcli.retrieve.index import Index, index_of

RANKS = (1, 5, 10)
_WHOLE = Cutting(100_000)  # a passage a paragraph
_MADE_UP = 0.3  # share of words replaced in copies; guess
_QUERIES = 300  # timed on the large set

T = TypeVar("T")
Questions = Sequence[tuple[int, str]]  # the paragraph that is asked, and the question


def read(path: Path) -> tuple[list[str], list[tuple[int, str]]]:
    """The paragraphs and the questions."""
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    questions = [(i, qa["question"]) for i, row in enumerate(rows) for qa in row["qas"]]
    return [row["context"].strip() for row in rows], questions


def enlarged(paragraphs: Sequence[str], count: int) -> list[str]:
    """The paragraphs and copies of them with made-up words, `count` in all."""
    rng = random.Random(0)
    made_up = ["".join(rng.choices("abcdefghiklmnoprstuvwz", k=7)) for _ in range(200_000)]
    found = list(paragraphs[:count])
    for i in range(len(found), count):
        own = paragraphs[i % len(paragraphs)].split(" ")
        found.append(
            " ".join(rng.choice(made_up) if rng.random() < _MADE_UP else word for word in own)
        )
    return found


def recall(index: Index, questions: Questions) -> dict[int, float]:
    """For each of RANKS the share of questions whose paragraph is among the first."""
    hits = dict.fromkeys(RANKS, 0)
    for wanted, question in questions:
        found: dict[int, None] = {}
        for passage, _ in index.ranked(question):
            found[index.place(passage).document] = None
            if len(found) == max(RANKS):
                break
        for k in RANKS:
            hits[k] += wanted in list(found)[:k]
    return {k: n / len(questions) for k, n in hits.items()}


@contextmanager
def own_cache() -> Iterator[None]:
    """An empty cache folder for as long as it runs."""
    before = environ.get("NGT_HOME")
    with tempfile.TemporaryDirectory() as folder:
        environ["NGT_HOME"] = folder
        try:
            yield
        finally:
            environ.pop("NGT_HOME")
            if before is not None:
                environ["NGT_HOME"] = before


def measure(paragraphs: Sequence[str], questions: Questions, cutting: Cutting) -> str:
    """A line: passages; seconds to build, read and update the index; milliseconds a question."""
    documents = [
        Document(str(i), text, path=f"/collection/{i}.txt") for i, text in enumerate(paragraphs)
    ]
    changed = [Document("0", paragraphs[0] + " Changed.", path="/collection/0.txt"), *documents[1:]]
    with own_cache():
        built, index = _timed(lambda: index_of(documents, cutting))
        cached, again = _timed(lambda: index_of(documents, cutting))
        updated, other = _timed(lambda: index_of(changed, cutting))
    assert (index.status, again.status, other.status) == ("built", "cached", "updated")
    queries = [_timed(partial(index.ranked, q, max(RANKS)))[0] for _, q in questions[:_QUERIES]]
    return (
        f"{len(index):>7} passages: built {built:.2f} s, cached {cached:.2f} s,"
        f" one document changed {updated:.2f} s, a question {1000 * median(queries):.2f} ms"
    )


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    clock = time.perf_counter()
    found = work()
    return time.perf_counter() - clock, found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--large", type=int, default=100_000, help="paragraphs of the large set")
    given = parser.parse_args()
    paragraphs, questions = read(given.data)
    print(f"{len(paragraphs)} paragraphs, {len(questions)} questions")
    import bm25s  # noqa: F401  # so that no time below is its loading

    for cutting in (_WHOLE, Cutting(200), Cutting(200, 40), Cutting(100)):
        documents = [Document(str(i), text) for i, text in enumerate(paragraphs)]
        with own_cache():
            index = index_of(documents, cutting)
        found = ", ".join(f"@{k} {v:.3f}" for k, v in recall(index, questions).items())
        print(f"passages of {cutting.tokens} tokens, overlap {cutting.overlap}: recall {found}")
    random.Random(0).shuffle(questions)
    print(measure(paragraphs, questions, _WHOLE))
    print(measure(enlarged(paragraphs, given.large), questions, _WHOLE), flush=True)


if __name__ == "__main__":
    main()
