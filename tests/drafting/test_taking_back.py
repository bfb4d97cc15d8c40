"""Tokens that were taken back leave no trace: drafts are those of a drafter that never saw them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ngtcli.config import Settings
from ngtcli.decoding.assistant import AssistantModel
from ngtcli.drafting.auto.drafter import AutoDrafters
from ngtcli.drafting.drafter import Context, Drafter, Drafters, DraftSettings, Feedback
from ngtcli.drafting.registry import method_names, parse_method
from ngtcli.drafting.tree import DraftTree
from tests.support.tiny_models import KnownHeads, make_drafter, make_target, supply

TOKENS = st.lists(st.integers(3, 8), min_size=1, max_size=4)
PROMPTS = st.lists(st.integers(3, 8), min_size=1, max_size=30)
CORPUS = [3, 4, 5, 6, 7, 8, 3, 4, 5, 6, 3, 5, 7, 3, 4, 4, 5, 8]
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("emit"), TOKENS),
        st.tuples(st.just("expect"), st.lists(st.integers(6, 9), min_size=1, max_size=4)),
        st.tuples(st.just("take back"), st.integers(1, 6)),
        st.tuples(st.just("propose"), st.integers(1, 12)),
    ),
    max_size=12,
)
BUDGET = 8


@dataclass
class Life:
    """A drafter, its text, and those of the things told it that still hold."""

    drafter: Drafter
    ids: list[int]
    emitted: int = 0  # tokens of the text that are never taken back
    told: list[tuple[str, int, Any]] = field(default_factory=list)  # what, length of text, more

    def observe(self, tokens: list[int], expected: bool) -> None:
        self.told.append(("observe", len(self.ids), tokens))
        self.ids += tokens
        self.drafter.observe(tokens)
        if not expected:
            self.emitted = len(self.ids)

    def propose(self, budget: int) -> DraftTree:
        self.told.append(("propose", len(self.ids), budget))
        return self.drafter.propose(list(self.ids), budget)

    def take_back(self, count: int) -> None:
        count = min(count, len(self.ids) - self.emitted)
        if not count:
            return
        length = len(self.ids) - count
        del self.ids[length:]
        self.drafter.retract(count, list(self.ids))
        holds = []
        for what, at, more in self.told:
            if what == "propose" and at <= length:
                holds.append((what, at, more))
            if what == "observe" and at < length:
                holds.append((what, at, more[: length - at]))
        self.told = holds


def follow(life: Life, actions: list[tuple[str, Any]]) -> None:
    """Do what was drawn. What is emitted while other tokens are expected takes these back."""
    for what, more in actions:
        if what == "emit":
            life.take_back(len(life.ids))
            life.observe(more, expected=False)
        elif what == "expect":
            life.observe(more, expected=True)
        elif what == "take back":
            life.take_back(more)
        else:
            life.propose(more)


def repeat(life: Life, drafter: Drafter, prompt: list[int]) -> Life:
    """Tell another drafter what still holds, and nothing else."""
    other = Life(drafter, list(prompt), len(prompt))
    for what, _, more in list(life.told):
        if what == "observe":
            other.observe(more, expected=True)
        else:
            other.propose(more)
    assert other.ids == life.ids
    return other


@cache
def small_model(number: int) -> Any:
    """Drafters beside each other need models of their own, for a model holds one text."""
    return make_target("llama", seed=1)


def settings_for(method: str, number: int) -> DraftSettings:
    # What a step teaches of heads goes with its guesses, which a proposal in between replaces.
    heads = None if method == "auto" else KnownHeads([CORPUS * 3], [method])
    assistant = None
    if method == "draft-model":
        sampling = Settings(temperature=0.8, repetition_penalty=1.3, seed=5)
        assistant = AssistantModel(small_model(number), sampling)
    return DraftSettings(learn_output=True, assistant=assistant, heads=heads, masks=(9, 9))


def new_drafter(method: str, prompt: list[int], chains: bool, number: int) -> Drafter:
    drafter = make_drafter(method, settings_for(method, number))
    references = (tuple(prompt),)
    drafter.reset(Context(prompt, None, references, references, vocabulary=12, chains=chains))
    return drafter


SPECS = [*method_names(), "trtllm:is_keep_all=false", "trtllm:is_use_oldest=false"]


@pytest.mark.parametrize("method", SPECS)
def test_what_was_taken_back_leaves_no_trace(method: str) -> None:
    supply(method, [CORPUS])

    @settings(max_examples=15 if method == "draft-model" else 150, deadline=None)
    @given(PROMPTS, ACTIONS, st.booleans())
    @example([3, 3, 3], [("propose", 1), ("expect", [6]), ("emit", [3])], False)
    def holds(prompt: list[int], actions: list[tuple[str, Any]], chains: bool) -> None:
        life = Life(new_drafter(method, prompt, chains, 1), list(prompt), len(prompt))
        follow(life, actions)
        fresh = repeat(life, new_drafter(method, prompt, chains, 2), prompt)
        drafted = life.propose(BUDGET)
        assert drafted == fresh.propose(BUDGET)

    holds()


@pytest.mark.parametrize("method", ["trtllm", "suffix"])
def test_a_pool_of_all_texts_forgets_what_was_taken_back(method: str) -> None:
    """The next text drafts what it would have drafted, too."""
    supply(method)

    @settings(max_examples=60, deadline=None)
    @given(PROMPTS, ACTIONS, PROMPTS)
    def holds(prompt: list[int], actions: list[tuple[str, Any]], later: list[int]) -> None:
        life = Life(new_drafter(method, prompt, False, 1), list(prompt), len(prompt))
        follow(life, actions)
        life.take_back(len(life.ids))
        fresh = repeat(life, new_drafter(method, prompt, False, 2), prompt)
        drafts = []
        for drafter in (life.drafter, fresh.drafter):
            drafter.reset(Context(later))
            drafts.append(drafter.propose(later, BUDGET))
        assert drafts[0] == drafts[1]

    holds()


class Forcing:
    """A grammar that wants some tokens next, and allows any behind them."""

    def __init__(self, wanted: list[int]) -> None:
        self.wanted = list(wanted)

    def copy(self) -> "Forcing":
        return Forcing(self.wanted)

    def follow(self, token: int) -> bool:
        return not self.wanted or self.wanted.pop(0) == token

    def force(self, most: int) -> list[int]:
        forced, self.wanted = self.wanted[:most], self.wanted[most:]
        return forced


@dataclass
class Asked:
    """A text, as Drafters want it."""

    ids: list[int]
    matcher: Any
    depth: int = 20
    left: int = 99


@pytest.mark.parametrize(
    "make", [AutoDrafters, lambda: Drafters(lambda: make_drafter("auto"), 32)], ids=["many", "one"]
)
def test_what_a_grammar_forces_stands_before_the_draft_of_auto(
    make: Callable[[], Drafters[Any]],
) -> None:
    drafters, prompt = make(), [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    drafter = drafters.start(Context(prompt, vocabulary=99))
    (tree,) = drafters.propose([drafter], [Asked(prompt, Forcing([4, 9]))])
    assert tree.tokens[:2] == (4, 9) and tree.parents[:2] == (-1, 0)
    assert -1 not in tree.parents[1:]
    drafters.observe([drafter], [[4, 9, 1]])
    text = [*prompt, 4, 9, 1]
    (tree,) = drafters.propose([drafter], [Asked(text, Forcing([]))])
    assert tree.tokens[:3] == (2, 3, 4)


def test_sequences_beside_each_other_share_the_public_pool_but_for_private_ones() -> None:
    many = parse_method("trtllm", DraftSettings()).build_many()
    many.start(Context(list(range(1, 9))))
    beside, hidden = many.start(Context([9, 1, 2])), many.start(Context([9, 1, 2], private=True))
    assert beside.propose([9, 1, 2], 8).tokens == (3, 4, 5, 6, 7)
    assert not hidden.propose([9, 1, 2], 8)
    many.start(Context([20, 21, 22, 23], private=True))
    assert not many.start(Context([20, 21])).propose([20, 21], 8)


REMEMBERING = [method for method in method_names() if method not in ("none", "draft-model")]


@pytest.mark.parametrize("method", REMEMBERING)
def test_nothing_of_a_private_text_is_drafted_later(method: str) -> None:
    supply(method, [CORPUS])
    secret, known = [50, 51, 52, 53, 50, 51, 52], [3, 4, 5, 3, 4]
    heads = KnownHeads([known], ["medusa"] if method == "auto" else [method])
    drafter = make_drafter(method, DraftSettings(heads=heads, masks=(9, 9)))
    drafter.reset(Context(secret, vocabulary=60, private=True))
    tree = drafter.propose(secret, BUDGET)
    if drafter.top_k:
        drafter.learn(Feedback(tree, np.full((len(tree) + 1, drafter.top_k), 53)))
    drafter.observe([53, 50, 51])
    for ids in (known, [*known, 50], [*known, 50, 51]):
        drafter.reset(Context(ids, vocabulary=60))
        drafted = set(drafter.propose(ids, BUDGET).tokens)
        assert not drafted & {*secret} - {*ids}


def test_the_public_pool_drops_what_was_added_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ngtcli.drafting.methods.trtllm._MAX_VALUES", 100)
    drafter = make_drafter("trtllm")
    for start in range(100, 1000, 10):
        drafter.reset(Context(list(range(start, start + 10))))
    drafts = {}
    for last in (100, 990):
        drafter.reset(Context([1, last]))
        drafts[last] = drafter.propose([1, last], BUDGET).tokens
    assert drafts == {100: (), 990: (991, 992, 993, 994, 995)}
