"""How the phrases that ship were found: those that stand in enough texts, by brute force."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.phrase_counts import WORDS, counts_in, n_grams
from tests.tools.phrases import BORDER, WEIGHTS, Least, Texts, mine, names_and_numbers


def corpus(texts_by_work: list[list[list[str]]], sources: list[int]) -> Texts:
    """A work a list of paragraphs; each paragraph is a document."""
    words: dict[str, int] = {}
    columns: list[list[int]] = [[], [], [], []]
    document = 0
    for work, (paragraphs, source) in enumerate(zip(texts_by_work, sources, strict=True)):
        for paragraph in paragraphs:
            ids = [*(words.setdefault(word, len(words)) for word in paragraph), BORDER]
            for column, value in zip(columns[1:], (work, document, source), strict=True):
                column += [value] * len(ids)
            columns[0] += ids
            document += 1
    arrays = [np.array(column, np.int32) for column in columns]
    return Texts(tuple(words), arrays[0], arrays[1], arrays[2], arrays[3], tuple(WEIGHTS))


NAMED_WORDS = (*WORDS, " Rome", " 1990")


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.lists(st.sampled_from(NAMED_WORDS), max_size=8), min_size=1, max_size=3),
        min_size=1,
        max_size=5,
    ),
    st.data(),
)
def test_every_phrase_stands_in_enough_documents_works_and_sources(
    works: list[list[list[str]]], data: st.DataObject
) -> None:
    """Counted again by brute force; and no phrase that does is left out."""
    sources = [data.draw(st.integers(0, 2)) for _ in works]
    ordinary = Least((2,) * 6, (1, 1, 2, 2, 2, 2), (1, 1, 1, 2, 2, 2))
    named = Least((3,) * 6, (2,) * 6, (2,) * 6)
    places: dict[tuple[str, ...], set[tuple[int, int]]] = {}
    weights: Counter[tuple[str, ...]] = Counter()
    for w, paragraphs in enumerate(works):
        for p, paragraph in enumerate(paragraphs):
            for phrase, count in n_grams([paragraph]).items():
                places.setdefault(phrase, set()).add((w, p))
                weights[phrase] += count * list(WEIGHTS.values())[sources[w]]
    texts = corpus(works, sources)
    found = counts_in(mine(texts, ordinary, named)) if len(texts.words) else {}
    special = {" Rome", " 1990"}
    wanted = {}
    for phrase in sorted(places, key=len):
        least = named if special & set(phrase) else ordinary
        n, at = len(phrase), places[phrase]
        enough = (
            len(at) >= least.documents[n - 1]
            and len({w for w, _ in at}) >= least.works[n - 1]
            and len({sources[w] for w, _ in at}) >= least.sources[n - 1]
        )
        if enough and (n == 1 or (phrase[:-1] in wanted and phrase[1:] in wanted)):
            wanted[phrase] = weights[phrase]
    assert found == wanted


def test_names_and_numbers_are_told_from_words_that_begin_a_sentence() -> None:
    words = [" The", " the", " Ada", " 7th", "(", " NASA", "Ada"]
    found = names_and_numbers(words, np.array([2, 9, 3, 1, 4, 2, 1]))
    assert found.tolist() == [False, False, True, True, False, True, True]
