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
    """A token's probability by one prediction; `source` is None for copies and heads."""

    token: int
    probability: float
    source: int | None = None
    order: int = 0
    times: int = 0
    total: int = 0


class NaiveBlend:
    """The blend over lists of sequences for each source.

    `escapes` are the probabilities that a prediction passes on to the next one.
    """

    def __init__(
        self, texts: list[list[list[int]]], escapes: np.ndarray, copy: NaiveCopy | None = None
    ) -> None:
        self.texts = texts
        self.escapes = escapes
        self.copy = copy or NaiveCopy([], [])

    def copied(self, context: list[int], path: list[int]) -> list[tuple[int, int, int, int]]:
        """Return the tokens that a copy continues with, each with the index of its escape."""
        for order in range(min(ORDERS - 1, len(context)), 0, -1):
            end = tuple(context[-order:])
            distinct = max(len(self.follows(source, end)) for source in (PREDICTED, OWN, PROMPT))
            if distinct:
                return self.copy.guesses(path, distinct)
        return self.copy.guesses(path, 0)

    def guessed(self, context: list[int], path: list[int]) -> list[tuple[Any, ...]]:
        """Return the guesses of heads, each with the index of its escape. Here there are none."""
        return []

    def follows(self, source: int, context: tuple[int, ...]) -> Counter[int]:
        """Count the tokens that follow a context in the sequences of a source."""
        followers: Counter[int] = Counter()
        for text in self.texts[source]:
            for end in range(len(context), len(text)):
                if tuple(text[end - len(context) : end]) == context:
                    followers[text[end]] += 1
        return followers

    def bucket(self, followers: Counter[int]) -> int:
        return bucket_of(sum(followers.values()), len(followers))

    def background_bucket(self, followers: Counter[int]) -> int:
        total = sum(followers.values())
        top = max(followers.values())
        size = sum(total > threshold for threshold in (1, 4, 24))
        if top >= 0.75 * total:
            certainty = 0
        elif top >= 0.3 * total:
            certainty = 1
        else:
            certainty = 2
        return 3 * size + certainty

    def probabilities(self, context: list[int], path: Sequence[int] = ()) -> dict[int, float]:
        total: Counter[int] = Counter()
        for part in self.contributions(context, path):
            total[part.token] += part.probability
        return dict(total)

    def contributions(self, context: list[int], path: Sequence[int] = ()) -> Iterator[Part]:
        """Yield what each prediction adds to the probabilities of tokens, in their order."""
        mass = 1.0
        context = context + list(path)
        for token, *index in self.copied(context, list(path)):
            escape = self.escapes[tuple(index)]
            yield Part(token, mass * (1 - escape))
            mass *= escape
        for guess, *index in self.guessed(context, list(path)):
            escape = self.escapes[tuple(index)]
            for token, share in guess.items():
                yield Part(token, mass * (1 - escape) * share)
            mass *= escape
        for order in range(min(ORDERS - 1, len(context)), -1, -1):
            for source in range(len(SOURCES)):
                if source == BACKGROUND and not 0 < order < DEPTH:
                    continue
                followers = self.follows(source, tuple(context[len(context) - order :]))
                if not followers:
                    continue
                total = sum(followers.values())
                bucket = self.background_bucket if source == BACKGROUND else self.bucket
                escape = self.escapes[source, order, bucket(followers)]
                for token, count in followers.items():
                    probability = mass * (1 - escape) * count / total
                    yield Part(token, probability, source, order, count, total)
                mass *= escape

    def longest_matches(self, context: list[int]) -> tuple[int, int]:
        """Return how long the ends of `context` are that occur in texts and in the background."""
        in_texts = 0
        in_background = 0
        for order in range(min(ORDERS, len(context) + 1)):
            end = tuple(context[len(context) - order :])
            if any(self.follows(source, end) for source in (OWN, PROMPT, POOL)):
                in_texts = order
            if 0 < order < DEPTH and self.follows(BACKGROUND, end):
                in_background = order
        return in_texts, in_background

    def tree(self, context: list[int], budget: int) -> list[float]:
        """Return the probabilities of the likeliest nodes, in falling order."""
        heap = [(-p, [token]) for token, p in self.probabilities(context).items()]
        heapq.heapify(heap)
        likeliest = []
        while heap and len(likeliest) < budget:
            negative, path = heapq.heappop(heap)
            likeliest.append(-negative)
            for token, p in self.probabilities(context, path).items():
                heapq.heappush(heap, (negative * p, path + [token]))
        return likeliest
