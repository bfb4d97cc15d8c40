"""What heads guess, as sources of `auto`: against a plain blend, and when heads are asked."""

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
from ngtcli.drafting.tree import DraftTree
from tests.support.driven_drafters import DrafterRun
from tests.support.naive_blend import NaiveBlend
from tests.support.naive_copy import NaiveCopy
from tests.support.tiny_models import KnownHeads, make_drafter

Guess = dict[int, float]
SHAPE = first_escapes().shape
_HEADS = SHAPE[0]  # their first row, after those of copies


class Seeded:
    """A head whose guesses are random, the same for one path, or for one depth."""

    kind = "seeded"

    def __init__(self, seed: int, by_path: bool) -> None:
        self.seed, self.by_path, self.depth = seed, by_path, 3

    def guess(self, path: Sequence[int]) -> Guess:
        """Up to four tokens; none where the head says nothing."""
        if len(path) >= self.depth or not self.knows(path):
            return {}
        key = tuple(path) if self.by_path else len(path)
        draw = random.Random(repr((self.seed, key)))
        weights = sorted((draw.random() for _ in range(5)), reverse=True)
        tokens = draw.sample(range(8), 4)
        return {t: w / sum(weights) for t, w in zip(tokens, weights, strict=False)}

    def knows(self, path: Sequence[int]) -> bool:
        """By path it guesses after what it guessed alone."""
        return not (self.by_path and path) or path[-1] in self.guess(path[:-1])

    def first(self, root: int) -> Guessed:
        if not self.by_path:
            return self._of([(0,) * depth for depth in range(self.depth)])
        paths, led = list[tuple[int, ...]]([()]), list[tuple[int, int]]()
        for at, path in enumerate(paths):
            for token in self.guess(path) if len(path) < self.depth - 1 else ():
                led.append((at, token))
                paths.append((*path, token))
        return self._of(paths, np.array(led, np.int32).reshape(-1, 2).T)

    def _of(self, paths: Sequence[tuple[int, ...]], led: Any = None) -> Guessed:
        found = [self.guess(path) for path in paths]
        width = max(map(len, found))
        tokens, shares = np.zeros((len(paths), width), np.int32), np.zeros((len(paths), width))
        for row, one in enumerate(found):
            tokens[row, : len(one)], shares[row, : len(one)] = [*one], [*one.values()]
        return Guessed(tokens, shares, led)


class Given(KnownHeads):
    """Some heads, which have read everything."""

    def __init__(self, guessers: Sequence[Any]) -> None:
        self.guessers = list(guessers)


class Blended(NaiveBlend):
    """The blend with heads: they come first, one after the other."""

    def __init__(self, heads: Sequence[Seeded], *given: Any) -> None:
        super().__init__(*given)
        self.heads = heads

    def guessed(self, context: list[int], path: list[int]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for at, head in enumerate(self.heads):
            if guess := head.guess(path):
                level = sum(max(guess.values()) < least for least in CONFIG.guess_sure)
                bucket = level + (len(CONFIG.guess_sure) + 1 if path else 0)
                found.append((guess, _HEADS + at, self.beside(context), bucket))
        return found

    def beside(self, context: list[int]) -> int:
        """The longest match in own text, prompt or pool."""
        orders = range(min(len(context), SHAPE[1] - 1), 0, -1)
        lengths = (k for k in orders for s in range(4) if self.follows(s, tuple(context[-k:])))
        return next(lengths, 0)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=30),
    st.integers(0, 9),
    st.lists(st.booleans(), min_size=1, max_size=2),
)
def test_the_tree_holds_the_likeliest_nodes_of_the_naive_blend(
    prompt: list[int], seed: int, by_path: list[bool]
) -> None:
    heads = [Seeded(seed + i, one) for i, one in enumerate(by_path)]
    drafter = Auto(DraftSettings(heads=Given(heads)), Options(loglinear=False))
    followed = DrafterRun(drafter, Context(prompt))
    drafter.tallies.escape[:] = np.random.default_rng(seed).uniform(
        0.05, 0.95, drafter.tallies.escape.shape
    )
    followed.propose(12)
    texts: list[list[list[int]]] = [[], [], [prompt], [], [], []]
    naive = Blended(heads, texts, drafter.tallies.escape, NaiveCopy(prompt, []))
    assert drafter._growth is not None
    found = drafter._growth.probabilities
    wanted = naive.tree(prompt, 12)[: len(found)]
    assert found.tolist() == pytest.approx(wanted)


def drafts(heads: Sequence[Any], prompt: list[int]) -> DraftTree:
    drafter = Auto(DraftSettings(heads=Given(heads)))
    return DrafterRun(drafter, Context(prompt)).propose(64)


class Sure(Seeded):
    """Says that 9 follows 5, and nothing else."""

    def guess(self, path: Sequence[int]) -> Guess:
        return {9: 1.0} if [*path] == [5] else {5: 0.6, 6: 0.4} if not path else {0: 0.0}


def test_a_copy_continues_under_a_guess_and_a_guess_under_a_copy() -> None:
    tree = drafts([Sure(0, True)], [5, 7, 8, 1, 2, 3, 4, 5, 1, 2, 3])
    paths = {tuple(path) for path in _paths(tree)}
    assert (4, 5) in paths  # a copy
    assert (5, 1) in paths and (5, 7) in paths  # copies under a guess
    assert (5, 9) in paths  # a guess under what both say


def _paths(tree: DraftTree) -> list[list[int]]:
    paths: list[list[int]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
    return paths


@pytest.mark.parametrize("knows", [True, False])
def test_a_head_that_comes_true_is_believed_and_one_that_does_not_is_not(knows: bool) -> None:
    text = [*range(10, 610)]  # no copies
    drafter = Auto(DraftSettings(heads=KnownHeads([text if knows else []], ["medusa"])))
    followed = DrafterRun(drafter, Context(text[:1]))
    for at in range(1, 600, 2):
        followed.propose(4)
        followed.emit(text[at : at + 2])
    believed = 1 - drafter.tallies.escape[_HEADS, 0, 2]  # beside no match, sure by 0.7
    assert believed > 0.9 if knows else believed < 0.3


def test_a_method_of_heads_alone_believes_them_whatever_comes() -> None:
    drafter = make_drafter("medusa", DraftSettings(heads=KnownHeads([[]], ["medusa"])))
    followed = DrafterRun(drafter, Context([9]))
    for at in range(100):
        tree = followed.propose(4)
        followed.emit([at])
    assert len(tree)
    assert drafter.tallies.escape[_HEADS:].max() == pytest.approx(CONFIG.min_escape)


def test_a_head_that_does_not_pay_is_asked_less_and_less_and_one_that_pays_always() -> None:
    for predicted, most in ((0.0, 40), (0.9, 400)):
        use, asked = HeadUse(), 0
        for _ in range(400):
            if use.wants(0.01):
                asked += 1
                use.took(0.002)
                use.learn(1.0, predicted)
        assert asked <= most
        assert (asked == 400) == (most == 400)


@pytest.mark.parametrize("first_s", [0.05, 0.4])
@pytest.mark.parametrize("captures", [0, 2])
def test_a_head_that_pays_is_asked_whatever_its_first_call_of_a_text_takes(
    first_s: float, captures: int
) -> None:
    """A first call reads a prompt; the next ones may capture a graph."""
    use = HeadUse()
    for _ in range(3):
        use.start()
        for step in range(100):
            assert use.wants(0.02)
            use.took(first_s if step <= captures else 0.002)
            use.learn(1.0, 0.8)
    assert use.report().first_s == 0.002


def test_a_head_that_was_dear_for_a_while_is_asked_again() -> None:
    use, asked = HeadUse(), [0, 0, 0]
    for phase, seconds in enumerate((0.002, 0.2, 0.002)):
        for _ in range(2000):
            if use.wants(0.02):
                asked[phase] += 1
                use.took(seconds)
                use.learn(1.0, 0.8)
    assert asked[0] == 2000
    assert asked[1] < 200
    assert asked[2] > 1000


def test_without_known_costs_a_head_is_always_asked() -> None:
    use = HeadUse()
    for _ in range(50):
        assert use.wants(0.0)
        use.learn(1.0, 0.0)


class Deep(Seeded):
    """Guesses for more nodes than there is room for."""

    def first(self, root: int) -> Guessed:
        return self._of([()] * (CONFIG.guess_states + 9))


def test_a_head_that_guesses_beyond_its_room_leaves_others_theirs() -> None:
    heads = Sources(Resources(heads=Given([Deep(1, False), Seeded(2, True)]))).heads
    heads.propose([1, 2, 3], 0.0)
    assert heads.matches[:, 1].tolist() == [0, CONFIG.guess_states]
    assert [*(heads.report() or ())] == ["seeded", "seeded 2"]
