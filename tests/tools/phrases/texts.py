"""The texts whose phrases are counted, as numbered words with the document that each stands in."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ngtcli.background.phrases import PARAGRAPH, Ints
from tests.tools.training.corpus import read_corpus, read_rows, tidy_speech

# Words with the space before them; marks that touch are one.
_WORD = re.compile(r" ?(?:\w+(?:['’-]\w+)*|[^\w\s]+)")
BORDER = -1  # between texts
# How much an occurrence counts. Swept on odd questions of the recording, coarsely: what is written
# for readers against what is written for engineers, or was said.
WEIGHTS = {
    "newwiki-qa": 15, "qmsum-answers": 20, "scitldr": 5, "sherlock": 5, "eips": 1, "peps": 1,
    "rust-rfcs": 1, "qmsum": 1,
}  # fmt: skip
_PIECES = {"newwiki-qa": 1, "sherlock": 20, "qmsum": 100}  # paragraphs a document; others are whole


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts as one stream, all arrays int32 (words,), with a BORDER after each paragraph.

    `stream` has indices of `words`; `works`, `documents` and `sources` what each word stands in: a
    work is a file, an article or a meeting, a document one or a piece of it.
    """

    words: tuple[str, ...]
    stream: Ints
    works: Ints
    documents: Ints
    sources: Ints
    source_names: tuple[str, ...]


def _paragraphs(folder: Path) -> Iterator[tuple[str, str, int, str]]:
    """(source, work, number in the work, text) of every paragraph."""
    for article in read_corpus(folder):
        for i, paragraph in enumerate(article.paragraphs):
            yield (
                article.source,
                f"{article.source}/{article.name}",
                i,
                " ".join(paragraph.sentences),
            )
    for i, row in enumerate(read_rows(folder / "scitldr.jsonl.xz")):
        yield "scitldr", f"scitldr/{i}", 0, row["target"][0]
    for i, row in enumerate(read_rows(folder / "qmsum.jsonl.xz")):
        for query in row["queries"]:
            yield "qmsum-answers", f"qmsum/{i}", 0, tidy_speech(f"x: {query['answer']}")


def read_texts(folder: Path) -> Texts:
    """All texts of the folder. Raises as `read_corpus` does."""
    words: dict[str, int] = {PARAGRAPH: 0}
    works: dict[str, int] = {}
    documents: dict[tuple[int, int], int] = {}
    names = list(WEIGHTS)
    rows: list[Ints] = []
    for source, work, number, text in _paragraphs(folder):
        found = [PARAGRAPH, *_WORD.findall(" ".join(text.split()))]
        row = np.full((4, len(found) + 1), BORDER, np.int32)
        row[0, :-1] = [words.setdefault(word, len(words)) for word in found]
        row[1] = of_work = works.setdefault(work, len(works))
        piece = number // _PIECES[source] if source in _PIECES else 0
        row[2] = documents.setdefault((of_work, piece), len(documents))
        row[3] = names.index(source)
        rows.append(row)
    stream, of_works, of_documents, sources = np.concatenate(rows, 1)
    return Texts(tuple(words), stream, of_works, of_documents, sources, tuple(names))
