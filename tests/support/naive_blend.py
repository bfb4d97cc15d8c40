"""The blend of `auto`, written over lists of texts, with dictionaries."""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ngtcli.drafting import origins
from ngtcli.drafting.auto.config import CONFIG
from ngtcli.drafting.auto.core.forms import bucket_of
from ngtcli.drafting.origins import SOURCES
from ngtcli.drafting.tries.background import DEPTH
from tests.support.naive_copy import NaiveCopy

ORDERS = CONFIG.orders
PREDICTED, OWN, PROMPT, POOL, BACKGROUND = (
    SOURCES.index(origin)
    for origin in (
        origins.PREDICTED,
        origins.OWN_TEXT,
        origins.PROMPT,
        origins.POOL,
        origins.BACKGROUND,
    )
)


class Part(NamedTuple):
    """What one prediction gives a token; `source` is None of what is copied and of heads."""

    token: int
    probability: float
    source: int | None = None
    order: int = 0
    times: int = 0
    total: int = 0


class NaiveBlend:
    """The blend, written over lists of texts, with dictionaries."""

    def __init__(
        self, texts: list[list[list[int]]], escapes: np.ndarray, copy: NaiveCopy | None = None
    ) -> None:
        self.texts, self.escapes, self.copy = texts, escapes, copy or NaiveCopy([], [])

    def copied(self, context: list[int], path: list[int]) -> list[tuple[int, int, int, int]]:
        for k in range(ORDERS - 1, 0, -1):
            match = tuple(context[len(context) - k :])
            if k <= len(context) and (
                distinct := max(len(self.follows(s, match)) for s in (PREDICTED, OWN, PROMPT))
            ):
                return self.copy.guesses(path, distinct)
        return self.copy.guesses(path, 0)

    def guessed(self, context: list[int], path: list[int]) -> list[tuple[Any, ...]]:
        """What heads guess, each with the place of its escape."""
        return []

    def follows(self, source: int, context: tuple[int, ...]) -> Counter[int]:
        out: Counter[int] = Counter()
        for text in self.texts[source]:
            for at in range(len(context), len(text)):
                if tuple(text[at - len(context) : at]) == context:
                    out[text[at]] += 1
        return out

    def bucket(self, found: Counter[int]) -> int:
        return bucket_of(sum(found.values()), len(found))

    def background_bucket(self, found: Counter[int]) -> int:
        total, top = sum(found.values()), max(found.values())
        seen = sum(total > most for most in (1, 4, 24))
        return 3 * seen + (0 if top >= 0.75 * total else 1 if top >= 0.3 * total else 2)

    def probabilities(self, context: list[int], path: Sequence[int] = ()) -> dict[int, float]:
        out: Counter[int] = Counter()
        for part in self.contributions(context, path):
            out[part.token] += part.probability
        return dict(out)

    def contributions(self, context: list[int], path: Sequence[int] = ()) -> Iterator[Part]:
        """What each prediction adds to the probability of each token, in their order."""
        mass = 1.0
        context = context + list(path)
        for token, *place in self.copied(context, list(path)):
            stay = self.escapes[tuple(place)]
            yield Part(token, mass * (1 - stay))
            mass *= stay
        for guess, *place in self.guessed(context, list(path)):
            stay = self.escapes[tuple(place)]
            for token, share in guess.items():
                yield Part(token, mass * (1 - stay) * share)
            mass *= stay
        for k in range(ORDERS - 1, -1, -1):
            for source in range(len(SOURCES)):
                if k > len(context) or (source == BACKGROUND and not 0 < k < DEPTH):
                    continue
                found = self.follows(source, tuple(context[len(context) - k :]))
                total = sum(found.values())
                if not total:
                    continue
                bucket = self.background_bucket if source == BACKGROUND else self.bucket
                stay = self.escapes[source, k, bucket(found)]
                for token, count in found.items():
                    gain = mass * (1 - stay) * count / total
                    yield Part(token, gain, source, k, count, total)
                mass *= stay

    def longest_matches(self, context: list[int]) -> tuple[int, int]:
        """The longest ends of `context` that something followed: in texts, in the background."""
        ends = {k: tuple(context[len(context) - k :]) for k in range(min(ORDERS, len(context) + 1))}
        texts = [k for k, end in ends.items() for s in (OWN, PROMPT, POOL) if self.follows(s, end)]
        general = [k for k in range(1, DEPTH) if k in ends and self.follows(BACKGROUND, ends[k])]
        return max(texts, default=0), max(general, default=0)

    def tree(self, context: list[int], budget: int) -> list[float]:
        """Chances of the likeliest nodes, in falling order."""
        heap = [(-p, [t]) for t, p in self.probabilities(context).items()]
        heapq.heapify(heap)
        out = []
        while heap and len(out) < budget:
            p, path = heapq.heappop(heap)
            out.append(-p)
            for token, q in self.probabilities(context, path).items():
                heapq.heappush(heap, (p * q, path + [token]))
        return out
