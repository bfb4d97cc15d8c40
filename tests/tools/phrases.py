"""Make the phrases that ship: `python -m tests.tools.phrases TEXTS [--out FILE]`.

TEXTS is a folder with the sources that the card names (`ngtcli/background/README.md`). The same
texts give the same file.

A phrase is kept where both phrases that are a word shorter are kept, and enough documents, works
and sources have it. One with a name or a number must stand in more: none is of a few documents.
"""

import argparse
import lzma
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ngtcli.background.files import SHIPPED
from ngtcli.background.phrases import (
    LONGEST,
    MOST,
    MOST_PACKED,
    PARAGRAPH,
    PARAGRAPH_MARK,
    Ints,
    Phrases,
)
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
                article.source, f"{article.source}/{article.name}", i,
                " ".join(paragraph.sentences),
            )  # fmt: skip
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


Wide = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Least:
    """The fewest documents, works and sources of a phrase of 1, 2, … words."""

    documents: tuple[int, ...] = (3, 3, 3, 3, 3, 3)
    works: tuple[int, ...] = (3, 3, 3, 3, 3, 3)
    sources: tuple[int, ...] = (1, 1, 1, 2, 2, 2)

    def enough(self, n: int, spread: Sequence[Wide]) -> npt.NDArray[np.bool_]:
        """Which phrases of n words stand in enough; `spread` is in how many, in this order."""
        bounds = (self.documents[n - 1], self.works[n - 1], self.sources[n - 1])
        good: npt.NDArray[np.bool_] = np.all(
            [of >= bound for of, bound in zip(spread, bounds, strict=True)], axis=0
        )
        return good


# Swept on odd questions: (4, 3, 4, 4, 5, 5) documents lose 0.6%, 2 of phrases of two words gain
# nothing. Names and numbers without a bound of their own gain 0.2%.
ORDINARY = Least()
NAMED = Least((8, 5, 5, 5, 5, 5), (8, 5, 5, 5, 5, 5), (2, 2, 2, 2, 2, 2))


def names_and_numbers(words: Sequence[str], counts: Wide) -> npt.NDArray[np.bool_]:
    """Which words have a digit, or a capital and are seldom written without.

    >>> names_and_numbers([" The", " the", " Rome", " 1990"], np.array([3, 9, 2, 1])).tolist()
    [False, False, True, True]
    """
    number = {word: i for i, word in enumerate(words)}
    small = {word.strip(): 0 for word in words}
    for word, i in number.items():
        small[word.strip()] += int(counts[i])
    found = []
    for word in words:
        bare = word.strip()
        capital = bare != bare.lower() and small.get(bare.lower(), 0) < small[bare]
        found.append(capital or any(c.isdigit() for c in bare))
    return np.array(found, bool)


def mine(texts: Texts, ordinary: Least = ORDINARY, named: Least = NAMED) -> Phrases:
    """The phrases of `texts` with the weights of their occurrences summed."""
    stream = texts.stream.astype(np.int64)
    inside = stream >= 0
    counts = np.bincount(stream[inside], minlength=len(texts.words))
    special = np.where(inside, names_and_numbers(texts.words, counts)[stream], False)
    weight_of = np.array([WEIGHTS[name] for name in texts.source_names])[texts.sources]
    # The number of the phrase that begins at each place, BORDER where none does.
    numbers = words = np.where(inside, stream, BORDER)
    rows = []
    for n in range(1, LONGEST + 1):
        key = numbers
        if n > 1:
            both = (numbers[:-1] >= 0) & (numbers[1:] >= 0)
            key = np.where(both, numbers[:-1] << 32 | words[n - 1 :], BORDER)
            special = special[:-1] | special[1:]
        at = np.flatnonzero(key >= 0)
        _, first, group = np.unique(key[at], return_index=True, return_inverse=True)
        first = at[first]
        spread = [_spread(group, of[at]) for of in (texts.documents, texts.works, texts.sources)]
        kept = np.where(special[first], named.enough(n, spread), ordinary.enough(n, spread))
        numbers = np.full(len(key), BORDER, np.int64)
        numbers[at] = np.where(kept, np.cumsum(kept) - 1, BORDER)[group]
        words = numbers if n == 1 else words
        found = np.stack([stream[first[kept] + i] for i in range(n)], 1).astype(np.int32)
        rows.append((found, np.bincount(group, weight_of[at])[kept].astype(np.int32)))
    return _only_used(texts.words, rows)


def _spread(group: Wide, of: Ints) -> Wide:
    """How many different `of` each group has."""
    wide = int(of.max(initial=0)) + 1
    pairs = np.unique(group * wide + of)
    return np.bincount(pairs // wide, minlength=int(group.max(initial=-1)) + 1)


def _only_used(words: Sequence[str], rows: Sequence[tuple[Ints, Ints]]) -> Phrases:
    """The phrases with only those words that are phrases themselves."""
    kept = rows[0][0][:, 0]
    number = np.full(len(words), -1, np.int32)
    number[kept] = np.arange(len(kept))
    return Phrases(
        tuple(words[i] for i in kept.tolist()), tuple((number[r], counts) for r, counts in rows)
    )


def write_phrases(path: Path, phrases: Phrases) -> None:
    """Write phrases of which all beginnings are among them. Raises OSError.

    Raises ValueError where a beginning is missing, or the file would be too large to be read.
    """
    words = np.array([PARAGRAPH_MARK if w == PARAGRAPH else w for w in phrases.words])
    rank = np.argsort(np.argsort(words)).astype(np.int32)
    lines: list[tuple[tuple[int, ...], int]] = []
    for rows, counts in phrases.rows:
        lines += zip(map(tuple, rank[rows].tolist()), counts.tolist(), strict=True)
    lines.sort()
    by_rank = np.sort(words).tolist()
    known = {phrase for phrase, _ in lines}
    if any(phrase[:-1] not in known for phrase in known if len(phrase) > 1):
        raise ValueError("a phrase without its beginning")
    text = "".join(f"{len(p)}{by_rank[p[-1]]}\t{count}\n" for p, count in lines).encode()
    packed = lzma.compress(text, preset=6 | lzma.PRESET_EXTREME)
    if len(packed) > MOST_PACKED or len(text) > MOST:
        raise ValueError(f"{len(packed)} bytes, of {len(text)}, are too many")
    path.write_bytes(packed)


def main() -> None:
    """Count, write, and print what the card says of numbers."""
    parser = argparse.ArgumentParser(description="Make the phrases that ship.")
    parser.add_argument("texts", type=Path)
    parser.add_argument("--out", type=Path, default=SHIPPED["english"])
    args = parser.parse_args()
    texts = read_texts(args.texts)
    print(
        f"{int((texts.stream > 0).sum())} words and marks, {int(texts.works.max()) + 1} works,"
        f" {int(texts.documents.max()) + 1} documents"
    )
    phrases = mine(texts)
    for n, (_, counts) in enumerate(phrases.rows, 1):
        print(f"{len(counts)} phrases of {n} words")
    write_phrases(args.out, phrases)
    print(f"{args.out}: {len(phrases)} phrases, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
