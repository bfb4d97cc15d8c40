"""Counts of phrases, naively, and files of them."""

import lzma
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from ngtcli.drafting.background.phrases import LONGEST, PARAGRAPH, PARAGRAPH_MARK, Phrases

WORDS = (PARAGRAPH, " the", " of", "of", " fact", ",", " that", " naïve", "“")


def counts_in(phrases: Phrases) -> dict[tuple[str, ...], int]:
    return {
        tuple(phrases.words[i] for i in row): count
        for rows, counts in phrases.rows
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True)
    }


def n_grams(texts: list[list[str]]) -> Counter[tuple[str, ...]]:
    return Counter(
        tuple(text[i : i + n])
        for text in texts
        for n in range(1, LONGEST + 1)
        for i in range(len(text) - n + 1)
    )


def write_phrases(path: Path, phrases: Phrases) -> None:
    """Write phrases of which all beginnings are among them."""
    words = np.array([PARAGRAPH_MARK if w == PARAGRAPH else w for w in phrases.words])
    rank = np.argsort(np.argsort(words)).astype(np.int32)
    lines: list[tuple[tuple[int, ...], int]] = []
    for rows, counts in phrases.rows:
        lines += zip(map(tuple, rank[rows].tolist()), counts.tolist(), strict=True)
    by_rank = np.sort(words).tolist()
    text = "".join(f"{len(p)}{by_rank[p[-1]]}\t{count}\n" for p, count in sorted(lines))
    path.write_bytes(lzma.compress(text.encode()))


texts = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12), min_size=1, max_size=6)
