"""Which phrases stand in several documents, and how often.

A phrase is kept where both phrases that are a word shorter are kept, and enough documents, works
and sources have it. One with a name or a number must stand in more: none is of a few documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ngtcli.background.phrases import LONGEST, Ints, Phrases
from tests.tools.phrases.texts import BORDER, WEIGHTS, Texts

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
