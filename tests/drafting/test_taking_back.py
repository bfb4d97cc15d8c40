"""Tokens that were taken back leave no trace: drafts are those of a drafter that never saw them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ngtcli.config import Settings
from ngtcli.decoding.assistant import AssistantModel
from ngtcli.decoding.draft_bounds import draft_bounds
from ngtcli.decoding.exactness.numerics import NOT_EXACT
from ngtcli.drafting.auto.drafter import Auto, batch_drafting
from ngtcli.drafting.batch import Drafting
from ngtcli.drafting.drafter import Context, Drafter, DraftSettings, Outcome, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.registry import method_names, parse_method
from ngtcli.drafting.tree import DraftTree
from tests.support.driven_drafters import DrafterRun
from tests.support.tiny_models import KnownHeads, make_drafter, make_target, supply

TOKENS = st.lists(st.integers(3, 8), min_size=1, max_size=4)
PROMPTS = st.lists(st.integers(3, 8), min_size=1, max_size=30)
CORPUS = [3, 4, 5, 6, 7, 8, 3, 4, 5, 6, 3, 5, 7, 3, 4, 4, 5, 8]
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("emit"), TOKENS),
        st.tuples(st.just("expect"), st.lists(st.integers(6, 9), min_size=1, max_size=4)),
        st.tuples(st.just("take back"), st.integers(0, 5)),
        st.tuples(st.just("propose"), st.integers(1, 12)),
        st.tuples(st.just("learn"), st.none()),
    ),
    max_size=14,
)
BUDGET = 8


@dataclass
class Seen:
    """What a drafter was asked, or had to learn, after how many tokens of its log."""

    what: str
    length: int
    nodes: int = 0


@dataclass
class Life:
    """A drafter, the log of its sequence, and what it was asked that still holds."""

    drafter: Drafter
    log: TokenLog
    seen: list[Seen] = field(default_factory=list)

    def propose(self, nodes: int) -> DraftTree:
        self.seen.append(Seen("propose", len(self.log), nodes))
        return self.drafter.propose(self.log, Room(nodes)).tree

    def learn(self) -> None:
        self.seen.append(Seen("learn", len(self.log)))
        self.drafter.learn(self.log, Outcome())

    def follow(self, actions: list[tuple[str, Any]]) -> None:
        """Do what was drawn, to the log or to the drafter, and note what is undone by it."""
        for what, argument in actions:
            if what == "propose":
                self.propose(argument)
                continue
            if what == "learn":
                self.learn()
                continue
            before = self.log.mark
            if what == "emit":
                self.log.emit(argument)
            elif what == "expect":
                self.log.expect(argument, [""] * len(argument))
            else:
                self.log.take_back(argument)
            self._forget_behind(self.log.since(before)[0])

    def _forget_behind(self, known: int) -> None:
        """Of a moment at which more tokens were there, those that still stand were learned.

        What was proposed then does not hold: another text was asked for.
        """
        holds = []
        for seen in self.seen:
            if seen.length <= known:
                holds.append(seen)
            elif not holds or holds[-1].length < known:
                holds.append(Seen("learn", known))
        self.seen = holds

    def repeated_by(self, drafter: Drafter) -> "Life":
        """Another drafter, which sees what still holds, and nothing else."""
        prompt_length = self.log.prompt_length
        life = Life(drafter, TokenLog(self.log.token_ids[:prompt_length]))
        for seen in self.seen:
            life.log.emit(self.log.token_ids[len(life.log) : seen.length])
            if seen.what == "propose":
                life.propose(seen.nodes)
            else:
                life.learn()
        life.log.emit(self.log.token_ids[len(life.log) :])
        return life


@cache
def small_model(number: int) -> Any:
    """Drafters beside each other need models of their own, for a model holds one text."""
    return make_target("llama", seed=1)


def settings_for(method: str, number: int) -> DraftSettings:
    # What a step teaches of heads goes with its guesses, which a proposal in between replaces.
    heads = None if method == "auto" else KnownHeads([CORPUS * 3], [method])
    assistant = None
    if method == "draft-model":
        sampling = Settings.of(temperature=0.8, repetition_penalty=1.3, seed=5)
        assistant = AssistantModel(small_model(number), sampling)
    return DraftSettings(learn_output=True, assistant=assistant, heads=heads, masks=(9, 9))


def new_drafter(method: str, prompt: list[int], chains: bool, number: int) -> Drafter:
    drafter = make_drafter(method, settings_for(method, number))
    references = (tuple(prompt),)
    drafter.begin(Context(prompt, None, references, references, vocabulary=12, chains=chains))
    return drafter


SPECS = [*method_names(), "trtllm:is_keep_all=false", "trtllm:is_use_oldest=false"]
# Of these a draft depends on nothing but the tokens of the log. Others learn as the steps go: what
# a pool of values or the tallies of sources hold depends on where a text was looked at.
BY_TOKENS_ALONE = [
    "none",
    "trie",
    "prompt-lookup",
    "llma",
    "akunu",
    "rest",
    "suffix",
    "recycling",
    "draft-model",
]


@pytest.mark.parametrize("method", SPECS)
def test_what_was_taken_back_leaves_no_trace(method: str) -> None:
    supply(method, [CORPUS])

    @settings(max_examples=15 if method == "draft-model" else 150, deadline=None)
    @given(PROMPTS, ACTIONS, st.booleans())
    @example([3, 3, 3], [("propose", 1), ("expect", [6]), ("propose", 4), ("emit", [3])], False)
    def holds(prompt: list[int], actions: list[tuple[str, Any]], chains: bool) -> None:
        life = Life(new_drafter(method, prompt, chains, 1), TokenLog(prompt))
        life.follow(actions)
        fresh = life.repeated_by(new_drafter(method, prompt, chains, 2))
        assert life.propose(BUDGET) == fresh.propose(BUDGET)
        if isinstance(life.drafter, Auto):  # what a few tokens teach of sources moves few drafts
            assert isinstance(fresh.drafter, Auto)
            np.testing.assert_allclose(life.drafter.tallies.escape, fresh.drafter.tallies.escape)

    holds()


@pytest.mark.parametrize("method", BY_TOKENS_ALONE)
def test_a_draft_is_that_of_a_fresh_drafter_given_the_same_tokens(method: str) -> None:
    supply(method, [CORPUS])

    @settings(max_examples=15 if method == "draft-model" else 150, deadline=None)
    @given(PROMPTS, ACTIONS, st.booleans())
    def holds(prompt: list[int], actions: list[tuple[str, Any]], chains: bool) -> None:
        life = Life(new_drafter(method, prompt, chains, 1), TokenLog(prompt))
        life.follow(actions)
        log = TokenLog(prompt)
        log.emit(life.log.token_ids[len(prompt) :])
        fresh = Life(new_drafter(method, prompt, chains, 2), log)
        assert life.propose(BUDGET) == fresh.propose(BUDGET)

    holds()


@pytest.mark.parametrize("method", ["trtllm", "suffix"])
def test_a_pool_of_all_texts_forgets_what_was_taken_back(method: str) -> None:
    """The next text drafts what it would have drafted, too."""
    supply(method)

    @settings(max_examples=60, deadline=None)
    @given(PROMPTS, ACTIONS, PROMPTS)
    def holds(prompt: list[int], actions: list[tuple[str, Any]], later: list[int]) -> None:
        life = Life(new_drafter(method, prompt, False, 1), TokenLog(prompt))
        life.follow([*actions, ("take back", 0), ("learn", None)])
        fresh = life.repeated_by(new_drafter(method, prompt, False, 2))
        drafts = []
        for drafter in (life.drafter, fresh.drafter):
            drafter.close()
            drafts.append(DrafterRun(drafter, Context(later)).propose(BUDGET))
        assert drafts[0] == drafts[1]

    holds()


class Forcing:
    """A grammar that wants some tokens next, and allows any after them."""

    def __init__(self, wanted: list[int]) -> None:
        self.wanted = list(wanted)

    def copy(self) -> "Forcing":
        return Forcing(self.wanted)

    def follow(self, token: int) -> bool:
        return not self.wanted or self.wanted.pop(0) == token

    def force(self, most: int) -> list[int]:
        forced = self.wanted[:most]
        self.wanted = self.wanted[most:]
        return forced


@pytest.mark.parametrize(
    "make",
    [batch_drafting, lambda: Drafting(lambda context: make_drafter("auto"), 32)],
    ids=["many", "one"],
)
def test_what_a_grammar_forces_stands_before_the_draft_of_auto(
    make: Callable[[], Drafting],
) -> None:
    drafting = make()
    prompt = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    context = Context(prompt, vocabulary=99)
    log = TokenLog(prompt)
    drafter = drafting.join(context, log)
    guide = SimpleNamespace(grammar_decides=True, matcher=Forcing([4, 9]))
    sequence: Any = SimpleNamespace(
        drafter=drafter,
        log=log,
        guide=guide,
        context=context,
        numerics=NOT_EXACT,
        max_depth=20,
        context_left=99,
    )

    def drafted() -> DraftTree:
        bounds = draft_bounds(sequence, 32)
        (draft,) = drafting.propose([drafter], [log], [bounds.room])
        return bounds.tree(draft.tree)

    tree = drafted()
    assert tree.tokens[:2] == (4, 9)
    assert tree.parents[:2] == (-1, 0)
    assert -1 not in tree.parents[1:]
    log.emit([4, 9, 1])
    drafter.learn(log, Outcome())
    guide.matcher = Forcing([])
    assert drafted().tokens[:3] == (2, 3, 4)


def test_sequences_beside_each_other_share_the_public_pool_but_for_private_ones() -> None:
    many = parse_method("trtllm", DraftSettings()).build_batch()

    def drafted(ids: list[int], private: bool = False) -> tuple[int, ...]:
        drafter = many.join(Context(ids, private=private), TokenLog(ids))
        return drafter.propose(TokenLog(ids), Room(8)).tree.tokens

    many.join(Context(list(range(1, 9))), TokenLog([]))
    assert drafted([9, 1, 2]) == (3, 4, 5, 6, 7)
    assert not drafted([9, 1, 2], private=True)
    many.join(Context([20, 21, 22, 23], private=True), TokenLog([]))
    assert not drafted([20, 21])


REMEMBERING = [method for method in method_names() if method not in ("none", "draft-model")]


@pytest.mark.parametrize("method", REMEMBERING)
def test_nothing_of_a_private_text_is_drafted_later(method: str) -> None:
    supply(method, [CORPUS])
    secret = [50, 51, 52, 53, 50, 51, 52]
    known = [3, 4, 5, 3, 4]
    heads = KnownHeads([known], ["medusa"] if method == "auto" else [method])
    drafter = make_drafter(method, DraftSettings(heads=heads, masks=(9, 9)))
    followed = DrafterRun(drafter, Context(secret, vocabulary=60, private=True))
    tree = followed.propose(BUDGET)
    top = np.full((len(tree) + 1, followed.top_k), 53) if followed.top_k else None
    followed.emit([53, 50, 51], Outcome(tree, top))
    followed.close()
    for ids in (known, [*known, 50], [*known, 50, 51]):
        drafted = set(DrafterRun(drafter, Context(ids, vocabulary=60)).propose(BUDGET).tokens)
        assert not drafted & {*secret} - {*ids}


def test_the_public_pool_drops_what_was_added_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ngtcli.drafting.methods.trtllm._MAX_VALUES", 100)
    drafter = make_drafter("trtllm")
    for start in range(100, 1000, 10):
        drafter.begin(Context(list(range(start, start + 10))))
    drafts = {}
    for last in (100, 990):
        drafts[last] = DrafterRun(drafter, Context([1, last])).propose(BUDGET).tokens
    assert drafts == {100: (), 990: (991, 992, 993, 994, 995)}
