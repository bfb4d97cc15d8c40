"""How well and how fast passages are found: recall of paragraphs by questions asked of them.

    python -m tests.tools.retrieval --data newwiki-qa.jsonl.xz

Each line of the file, JSON, has a paragraph `context` and its questions `qas`. The paragraphs are
the documents, and the questions queries: recall@k is the share of questions whose own paragraph is
among the first k; with `--embedder` by its vectors too, and by both fused. For the times of a large
set each paragraph is repeated with made-up words in place of a part of its own, so that the copies
have other words; its vectors are random ones around common centres, of some widths.
"""

import argparse
import json
import lzma
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from os import environ
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np

from ngtcli.documents.load import Document
from ngtcli.documents.passages import Cutting
from ngtcli.retrieve.encoders import Embedder, load_embedder
from ngtcli.retrieve.index import Index, index_of
from ngtcli.retrieve.nearest import Nearest, ivf_pq, nearest_of
from ngtcli.retrieve.ranking import CANDIDATES, fused
from ngtcli.retrieve.vectors import vectors_of

RANKS = (1, 5, 10)
_WHOLE = Cutting(100_000)  # a passage a paragraph
_MADE_UP = 0.3  # share of words replaced in copies; guess
_QUERIES = 300  # timed on the large set
_VECTORS = 100  # questions timed on vectors

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


def recall(
    index: Index, questions: Questions, search: Callable[[str], Iterable[int]] | None = None
) -> dict[int, float]:
    """For each of RANKS the share of questions whose paragraph is among the first.

    `search` gives the passages that fit a question, the best first; without one BM25 does.
    """
    search = search or (lambda question: (p for p, _ in index.ranked(question)))
    hits = dict.fromkeys(RANKS, 0)
    for wanted, question in questions:
        found: dict[int, None] = {}
        for passage in search(question):
            found[index.place(passage).document] = None
            if len(found) == max(RANKS):
                break
        for k in RANKS:
            hits[k] += wanted in list(found)[:k]
    return {k: n / len(questions) for k, n in hits.items()}


def searches(
    documents: Sequence[Document], index: Index, embedder: Embedder
) -> dict[str, Callable[[str], Iterable[int]]]:
    """What finds passages by vectors, and by BM25 and vectors fused, as `rank` does."""

    def text(passage: int) -> str:
        at = index.place(passage)
        return documents[at.document].text[at.start : at.end]

    nearest = nearest_of(vectors_of(index, text, embedder))

    @cache
    def dense(question: str) -> list[int]:
        return [p for p, _ in nearest.search(embedder.question(question), CANDIDATES)]

    def both(question: str) -> list[int]:
        together = fused([p for p, _ in index.ranked(question, CANDIDATES)], dense(question))
        return sorted(together, key=lambda p: (-together[p], p))

    return {"dense": dense, "fused": both}


def measure_search(count: int, width: int) -> str:
    """A line: seconds to build, megabytes, milliseconds a question, recall@10 of flat search's."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((max(1, count // 50), width), np.float32)
    rows = centres[rng.integers(len(centres), size=count)]
    rows += rng.standard_normal((count, width), np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    asked = rows[rng.integers(count, size=_VECTORS)] + 0.5 * rng.standard_normal(
        (_VECTORS, width), np.float32
    ) / np.sqrt(width)  # fmt: skip
    flat = Nearest(rows)
    build, coded = _timed(lambda: Nearest(rows, ivf_pq(rows)))
    wanted = [_timed(partial(flat.search, one, 10)) for one in asked]
    found = [_timed(partial(coded.search, one, 10)) for one in asked]
    hits = sum(
        len(dict(a).keys() & dict(b).keys()) for (_, a), (_, b) in zip(wanted, found, strict=True)
    )
    return (
        f"{count:>7} vectors of {width}: flat {rows.nbytes / 1e6:.0f} MB, a question"
        f" {1000 * median(s for s, _ in wanted):.1f} ms; IVF-PQ built {build:.1f} s,"
        f" a question {1000 * median(s for s, _ in found):.2f} ms,"
        f" recall@10 {hits / 10 / len(asked):.3f}"
    )


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
    parser.add_argument("--large", type=int, default=100_000, help="passages of the large set")
    parser.add_argument("--embedder", default="", help="folder or hub id of an embedding model")
    parser.add_argument("--width", type=int, nargs="*", default=[], help="of vectors timed")
    given = parser.parse_args()
    paragraphs, questions = read(given.data)
    print(f"{len(paragraphs)} paragraphs, {len(questions)} questions")
    embedder = load_embedder(given.embedder) if given.embedder else None
    import bm25s  # noqa: F401  # so that no time below is its loading

    for cutting in (_WHOLE, Cutting(200), Cutting(200, 40), Cutting(100)):
        documents = [Document(str(i), text) for i, text in enumerate(paragraphs)]
        with own_cache():
            index = index_of(documents, cutting)
            ways = {"BM25": None, **(searches(documents, index, embedder) if embedder else {})}
        for way, search in ways.items():
            found = ", ".join(f"@{k} {v:.3f}" for k, v in recall(index, questions, search).items())
            about = f"passages of {cutting.tokens} tokens, overlap {cutting.overlap}"
            print(f"{about}: {way} recall {found}", flush=True)
    if given.large <= 0:
        return
    random.Random(0).shuffle(questions)
    print(measure(paragraphs, questions, _WHOLE))
    print(measure(enlarged(paragraphs, given.large), questions, _WHOLE), flush=True)
    for width in given.width:
        print(measure_search(given.large, width), flush=True)


if __name__ == "__main__":
    main()
