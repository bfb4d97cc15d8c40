"""Heads as sources of `auto`: their guesses against a naive blend, and when they are asked."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.drafting.auto.config import CONFIG, Options
from ngtcli.drafting.auto.drafter import Auto
from ngtcli.drafting.auto.sources.heads import HeadUse
from ngtcli.drafting.auto.sources.source import Resources
from ngtcli.drafting.auto.sources.table import Sources, first_escapes
from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.drafting.guesses import Guessed
from tests.support.driven_drafters import DrafterRun
from tests.support.naive_blend import NaiveBlend
from tests.support.naive_copy import NaiveCopy
from tests.support.tiny_models import KnownHeads, make_drafter, paths

Guess = dict[int, float]
SHAPE = first_escapes().shape
_HEADS = SHAPE[0]  # the first row of the escapes of heads, which come after those of copies


class Seeded:
    """A head with random guesses, which depend on the whole path or on its length alone."""

    kind = "seeded"

    def __init__(self, seed: int, by_path: bool) -> None:
        self.seed = seed
        self.by_path = by_path
        self.depth = 3

    def guess(self, path: Sequence[int]) -> Guess:
        """Return the probabilities of four tokens, or nothing where the head does not guess."""
        if len(path) >= self.depth or not self.reaches(path):
            return {}
        key = tuple(path) if self.by_path else len(path)
        rng = random.Random(repr((self.seed, key)))
        weights = sorted((rng.random() for _ in range(5)), reverse=True)
        tokens = rng.sample(range(8), 4)
        total = sum(weights)
        return {token: weight / total for token, weight in zip(tokens, weights, strict=False)}

    def reaches(self, path: Sequence[int]) -> bool:
        """Tell whether the head guesses after a path: by path, only after its own guesses."""
        if not self.by_path or not path:
            return True
        return path[-1] in self.guess(path[:-1])

    def first(self, root: int) -> Guessed:
        if not self.by_path:
            return self._guesses_after([(0,) * depth for depth in range(self.depth)])
        paths: list[tuple[int, ...]] = [()]
        edges: list[tuple[int, int]] = []
        for index, path in enumerate(paths):  # grows while it is walked
            if len(path) == self.depth - 1:
                continue
            for token in self.guess(path):
                edges.append((index, token))
                paths.append((*path, token))
        return self._guesses_after(paths, np.array(edges, np.int32).reshape(-1, 2).T)

    def _guesses_after(self, paths: Sequence[tuple[int, ...]], led: Any = None) -> Guessed:
        guesses = [self.guess(path) for path in paths]
        width = max(map(len, guesses))
        tokens = np.zeros((len(paths), width), np.int32)
        shares = np.zeros((len(paths), width))
        for row, guess in enumerate(guesses):
            tokens[row, : len(guess)] = list(guess)
            shares[row, : len(guess)] = list(guess.values())
        return Guessed(tokens, shares, led)


class FixedHeads(KnownHeads):
    """Heads of this test, which need no text."""

    def __init__(self, guessers: Sequence[Any]) -> None:
        self.guessers = list(guessers)


class Blended(NaiveBlend):
    """The naive blend with heads, which come before the other sources."""

    def __init__(self, heads: Sequence[Seeded], *arguments: Any) -> None:
        super().__init__(*arguments)
        self.heads = heads

    def guessed(self, context: list[int], path: list[int]) -> list[tuple[Any, ...]]:
        guesses: list[tuple[Any, ...]] = []
        for index, head in enumerate(self.heads):
            guess = head.guess(path)
            if not guess:
                continue
            top = max(guess.values())
            bucket = sum(top < threshold for threshold in CONFIG.guess_sure)
            if path:
                bucket += len(CONFIG.guess_sure) + 1
            guesses.append((guess, _HEADS + index, self.match_length(context), bucket))
        return guesses

    def match_length(self, context: list[int]) -> int:
        """Return the length of the longest match in scores, own text, prompt or pool."""
        for length in range(min(len(context), SHAPE[1] - 1), 0, -1):
            end = tuple(context[-length:])
            if any(self.follows(source, end) for source in range(4)):
                return length
        return 0


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=30),
    st.integers(0, 9),
    st.lists(st.booleans(), min_size=1, max_size=2),
)
def test_the_tree_holds_the_likeliest_nodes_of_the_naive_blend(
    prompt: list[int], seed: int, by_path: list[bool]
) -> None:
    heads = [Seeded(seed + i, is_by_path) for i, is_by_path in enumerate(by_path)]
    drafter = Auto(DraftSettings(heads=FixedHeads(heads)), Options(loglinear=False))
    run = DrafterRun(drafter, Context(prompt))
    escapes = drafter.tallies.escape
    escapes[:] = np.random.default_rng(seed).uniform(0.05, 0.95, escapes.shape)
    texts: list[list[list[int]]] = [[], [], [prompt], [], [], []]
    naive = Blended(heads, texts, escapes, NaiveCopy(prompt, []))

    run.propose(12)

    assert drafter._growth is not None
    probabilities = drafter._growth.probabilities
    expected = naive.tree(prompt, 12)[: len(probabilities)]
    assert probabilities.tolist() == pytest.approx(expected)


class SureAfterFive(Seeded):
    """Guesses 5 or 6 first, and after 5 for certain 9."""

    def guess(self, path: Sequence[int]) -> Guess:
        if not path:
            return {5: 0.6, 6: 0.4}
        if list(path) == [5]:
            return {9: 1.0}
        return {0: 0.0}


def test_a_copy_continues_under_a_guess_and_a_guess_under_a_copy() -> None:
    drafter = Auto(DraftSettings(heads=FixedHeads([SureAfterFive(0, True)])))
    prompt = [5, 7, 8, 1, 2, 3, 4, 5, 1, 2, 3]

    drafted = paths(DrafterRun(drafter, Context(prompt)).propose(64))

    assert (4, 5) in drafted  # a copy
    assert (5, 1) in drafted  # copies under a guess
    assert (5, 7) in drafted
    assert (5, 9) in drafted  # a guess under what both say


@pytest.mark.parametrize("knows_text", [True, False])
def test_a_head_that_comes_true_is_believed_and_one_that_does_not_is_not(
    knows_text: bool,
) -> None:
    text = list(range(10, 610))  # it repeats nothing, so nothing can be copied
    heads = KnownHeads([text if knows_text else []], ["medusa"])
    drafter = Auto(DraftSettings(heads=heads))
    run = DrafterRun(drafter, Context(text[:1]))

    for start in range(1, 600, 2):
        run.propose(4)
        run.emit(text[start : start + 2])

    # The head's escape beside no match, where its top guess has at least 0.7.
    belief = 1 - drafter.tallies.escape[_HEADS, 0, 2]
    if knows_text:
        assert belief > 0.9
    else:
        assert belief < 0.3


def test_a_method_of_heads_alone_believes_them_even_if_they_are_wrong() -> None:
    drafter = make_drafter("medusa", DraftSettings(heads=KnownHeads([[]], ["medusa"])))
    run = DrafterRun(drafter, Context([9]))

    for token in range(100):
        tree = run.propose(4)
        run.emit([token])

    assert len(tree)
    assert drafter.tallies.escape[_HEADS:].max() == pytest.approx(CONFIG.min_escape)


def times_asked(use: HeadUse, steps: int, pass_s: float, head_s: float, predicted: float) -> int:
    """Count the steps of a run in which a head is asked; it takes `head_s` each time."""
    asked = 0
    for _ in range(steps):
        if use.wants(pass_s):
            asked += 1
            use.took(head_s)
            use.learn(1.0, predicted)
    return asked


def test_a_head_that_does_not_pay_is_asked_rarely_and_one_that_pays_always() -> None:
    assert times_asked(HeadUse(), 400, pass_s=0.01, head_s=0.002, predicted=0.0) <= 40
    assert times_asked(HeadUse(), 400, pass_s=0.01, head_s=0.002, predicted=0.9) == 400


@pytest.mark.parametrize("first_s", [0.05, 0.4])
@pytest.mark.parametrize("captures", [0, 2])
def test_a_head_that_pays_is_asked_however_long_its_first_calls_of_a_sequence_take(
    first_s: float, captures: int
) -> None:
    """The first call reads a prompt, and the next ones may capture a graph."""
    use = HeadUse()
    for _ in range(3):
        use.start()
        for step in range(100):
            assert use.wants(0.02)
            use.took(first_s if step <= captures else 0.002)
            use.learn(1.0, 0.8)
    assert use.report().first_s == 0.002


def test_a_head_that_was_slow_for_a_while_is_asked_again() -> None:
    use = HeadUse()
    assert times_asked(use, 2000, pass_s=0.02, head_s=0.002, predicted=0.8) == 2000
    assert times_asked(use, 2000, pass_s=0.02, head_s=0.2, predicted=0.8) < 200
    assert times_asked(use, 2000, pass_s=0.02, head_s=0.002, predicted=0.8) > 1000


def test_without_known_costs_a_head_is_always_asked() -> None:
    use = HeadUse()
    for _ in range(50):
        assert use.wants(0.0)
        use.learn(1.0, 0.0)


class TooManyStates(Seeded):
    """A head that guesses for more nodes than there is room for."""

    def first(self, root: int) -> Guessed:
        return self._guesses_after([()] * (CONFIG.guess_states + 9))


def test_a_head_that_guesses_too_much_leaves_the_next_head_its_room() -> None:
    heads = Sources(Resources(heads=FixedHeads([TooManyStates(1, False), Seeded(2, True)]))).heads

    heads.propose([1, 2, 3], 0.0)

    assert heads.matches[:, 1].tolist() == [0, CONFIG.guess_states]
    assert list(heads.report() or ()) == ["seeded", "seeded 2"]
