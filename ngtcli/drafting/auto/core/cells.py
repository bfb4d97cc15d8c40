"""The table of features of the log-linear stage: the name, range and meaning of each.

A feature puts each candidate into one of its cells, and each cell has a weight (loglinear.py). No
feature depends on a token id, only on where the token occurred and on the class of its text. Tokens
of a damaged or foreign text are in some cell as well.
"""

from typing import NamedTuple

from ngtcli.drafting.tries.classes import CLASSES

# Kinds of evidence: the answer so far, the prompt, earlier answers, a general text; the last is of
# sources that no feature looks at.
OWN, PROMPT, POOL, GENERAL, NO_EVIDENCE = range(5)
# Orders of the longest match in a source: none, and those from 0 on; longer ones count as the last.
ORDERS = 8
GENERAL_ORDERS = 5
TEXT_ORDERS = 7  # of a match in answer, prompt or earlier answers, from 0 on
SHORT_ORDERS = 4  # of none, 0, 1 and 2 or more; or of 0, 1, 2 and 3 or more
COUNTS = 4  # how often the token followed a match: once, twice, 3 or 4 times, more
TOTALS = 5  # how often anything did: once, twice, 3 to 5, 6 to 15 times, more
PROBABILITIES = 16  # by halves: above 1/2, above 1/4, …
DISTANCES = 10  # of the last occurrence: none, 1, 2-3, 4-7, …, 256 or more tokens ago
SHORTFALLS = 4  # 0, 1, 2 and 3 or more tokens
PLACES = 11  # 0, 1, 2, 3-4, 5-8, 9-16, 17-32, 33-63 tokens on; 1-4, 5-16 tokens back; elsewhere


class Feature(NamedTuple):
    """A feature: its name, the number of values of each of its parts, and its meaning."""

    name: str
    shape: tuple[int, ...]
    tells: str

    @property
    def cells(self) -> int:
        """Return the number of its cells."""
        cells = 1
        for values in self.shape:
            cells *= values
        return cells


FEATURES = (
    Feature(
        "texts",
        (ORDERS, ORDERS),
        "the longest match that the token follows in the answer, and that in the prompt",
    ),
    Feature(
        "knowledge",
        (ORDERS, GENERAL_ORDERS, SHORT_ORDERS),
        "the same in earlier answers, in the general text, and in answer or prompt",
    ),
    Feature(
        "probability",
        (PROBABILITIES, CLASSES),
        "the probability by the blend, and the class of the token",
    ),
    Feature(
        "counts",
        (4, COUNTS, TOTALS, SHORT_ORDERS),
        "of the longest match: the kind of its source, its counts, and its order",
    ),
    Feature(
        "recency",
        (DISTANCES, CLASSES, 2),
        "how long ago the token was last in the answer, its class, and whether the answer has it"
        " after the last token",
    ),
    Feature(
        "place",
        (PLACES, SHORT_ORDERS),
        "how far from the place last copied the token stands in the prompt, and its match there",
    ),
    Feature(
        "classes",
        (CLASSES, CLASSES, 3),
        "the classes of the token before and of the token, and the order of the longest match",
    ),
    Feature(
        "shortfall",
        (TEXT_ORDERS, GENERAL_ORDERS - 1, SHORTFALLS),
        "the longest match of the last tokens in answer, prompt or earlier answers, that in the"
        " general text, and how many tokens shorter the longest match is that the token follows",
    ),
)
SIZE = sum(feature.cells for feature in FEATURES)


def _starts() -> tuple[int, ...]:
    """Return the number of the first cell of each feature."""
    starts = []
    start = 0
    for feature in FEATURES:
        starts.append(start)
        start += feature.cells
    return tuple(starts)


STARTS = _starts()
