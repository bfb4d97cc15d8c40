"""The table of features of the log-linear stage: the name, range and meaning of each.

A feature puts each candidate into one of its cells, and each cell has a weight (loglinear.py). No
feature depends on a token id, only on where the token occurred and on the class of its text. Tokens
of a damaged or foreign text are in some cell as well.
"""

from typing import NamedTuple

from ngtcli.drafting.tries.classes import CLASSES

# Kinds of evidence: the answer so far, the prompt, earlier answers, a general text. Sources of the
# last kind are ignored by all features.
OWN, PROMPT, POOL, GENERAL, NO_EVIDENCE = range(5)
# The sizes of the tables: into how many classes each fact is divided.
# The order of the longest match in a source: no match, or 0, 1, …; the last class has the rest.
ORDERS = 8
GENERAL_ORDERS = 5
# The order of a match in answer, prompt or earlier answers: 0, 1, …, 6.
TEXT_ORDERS = 7
# An order in fewer classes: no match, 0, 1, 2 or more; or 0, 1, 2, 3 or more.
SHORT_ORDERS = 4
# How often the token followed a match: once, twice, 3 or 4 times, more.
COUNTS = 4
# How often any token followed a match: once, twice, 3 to 5, 6 to 15 times, more.
TOTALS = 5
# A probability: above 1/2, above 1/4, ….
PROBABILITIES = 16
# How many tokens ago the token last occurred: never, 1, 2-3, 4-7, …, 256 or more.
DISTANCES = 10
# By how many tokens a match is shorter than another: 0, 1, 2, 3 or more.
SHORTFALLS = 4
# How far a token is from a place: 0, 1, 2, 3-4, 5-8, 9-16, 17-32, 33-63 tokens after it; 1-4, 5-16
# tokens before it; elsewhere.
PLACES = 11


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
