"""Counts of phrases, naively."""

from collections import Counter

from hypothesis import strategies as st

from ngtcli.background.phrases import LONGEST, PARAGRAPH, Phrases

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


texts = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12), min_size=1, max_size=6)
