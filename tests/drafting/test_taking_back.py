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
class Call:
    """A call of a drafter, and the length of the log at that time."""

    name: str
    length: int
    nodes: int = 0


@dataclass
class Recording:
    """A drafter, the log of its sequence, and its calls as far as they were not taken back."""

    drafter: Drafter
    log: TokenLog
    calls: list[Call] = field(default_factory=list)

    def propose(self, nodes: int) -> DraftTree:
        self.calls.append(Call("propose", len(self.log), nodes))
        return self.drafter.propose(self.log, Room(nodes)).tree

    def learn(self) -> None:
        self.calls.append(Call("learn", len(self.log)))
        self.drafter.learn(self.log, Outcome())

    def follow(self, actions: list[tuple[str, Any]]) -> None:
        """Do these actions, and drop the calls that they undo."""
        for action, argument in actions:
            if action == "propose":
                self.propose(argument)
                continue
            if action == "learn":
                self.learn()
                continue
            before = self.log.mark
            if action == "emit":
                self.log.emit(argument)
            elif action == "expect":
                self.log.expect(argument, [""] * len(argument))
            else:
                self.log.take_back(argument)
            unchanged, _ = self.log.since(before)
            self._drop_calls_after(unchanged)

    def _drop_calls_after(self, unchanged: int) -> None:
        """Replace calls with a longer log by one that learns the unchanged tokens.

        What was proposed with a longer log does not count: it was proposed for other tokens.
        """
        calls: list[Call] = []
        for call in self.calls:
            if call.length <= unchanged:
                calls.append(call)
            elif not calls or calls[-1].length < unchanged:
                calls.append(Call("learn", unchanged))
        self.calls = calls

    def replayed_by(self, drafter: Drafter) -> "Recording":
        """Make the calls that were not taken back, and no others, with another drafter."""
        ids = self.log.token_ids
        replay = Recording(drafter, TokenLog(ids[: self.log.prompt_length]))
        for call in self.calls:
            replay.log.emit(ids[len(replay.log) : call.length])
            if call.name == "propose":
                replay.propose(call.nodes)
            else:
                replay.learn()
        replay.log.emit(ids[len(replay.log) :])
        return replay


@cache
def small_model(number: int) -> Any:
    """Return a model of this number: two drafters need one each, for it holds one sequence."""
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
# Methods whose drafts depend on the tokens of the log alone. What the pool of another method or
# the tallies of `auto` hold depends also on when the drafter was called.
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
        recording = Recording(new_drafter(method, prompt, chains, 1), TokenLog(prompt))
        recording.follow(actions)
        fresh = recording.replayed_by(new_drafter(method, prompt, chains, 2))
        assert recording.propose(BUDGET) == fresh.propose(BUDGET)
        if isinstance(recording.drafter, Auto):
            # So few tokens change the tallies, but rarely the draft: compare them as well.
            assert isinstance(fresh.drafter, Auto)
            escapes = recording.drafter.tallies.escape
            np.testing.assert_allclose(escapes, fresh.drafter.tallies.escape)

    holds()


@pytest.mark.parametrize("method", BY_TOKENS_ALONE)
def test_a_draft_equals_that_of_a_fresh_drafter_with_the_same_tokens(method: str) -> None:
    supply(method, [CORPUS])

    @settings(max_examples=15 if method == "draft-model" else 150, deadline=None)
    @given(PROMPTS, ACTIONS, st.booleans())
    def holds(prompt: list[int], actions: list[tuple[str, Any]], chains: bool) -> None:
        recording = Recording(new_drafter(method, prompt, chains, 1), TokenLog(prompt))
        recording.follow(actions)
        log = TokenLog(prompt)
        log.emit(recording.log.token_ids[len(prompt) :])
        fresh = Recording(new_drafter(method, prompt, chains, 2), log)
        assert recording.propose(BUDGET) == fresh.propose(BUDGET)

    holds()


@pytest.mark.parametrize("method", ["trtllm", "suffix"])
def test_a_pool_of_all_sequences_forgets_what_was_taken_back(method: str) -> None:
    """The next sequence is drafted for as if the tokens had never been there."""
    supply(method)

    @settings(max_examples=60, deadline=None)
    @given(PROMPTS, ACTIONS, PROMPTS)
    def holds(prompt: list[int], actions: list[tuple[str, Any]], later: list[int]) -> None:
        recording = Recording(new_drafter(method, prompt, False, 1), TokenLog(prompt))
        recording.follow([*actions, ("take back", 0), ("learn", None)])
        fresh = recording.replayed_by(new_drafter(method, prompt, False, 2))
        recording.drafter.close()
        fresh.drafter.close()

        draft = DrafterRun(recording.drafter, Context(later)).propose(BUDGET)

        assert draft == DrafterRun(fresh.drafter, Context(later)).propose(BUDGET)

    holds()


class ForcingMatcher:
    """A matcher whose grammar forces some tokens, and allows any after them."""

    def __init__(self, forced: list[int]) -> None:
        self.forced = list(forced)

    def copy(self) -> "ForcingMatcher":
        return ForcingMatcher(self.forced)

    def follow(self, token: int) -> bool:
        return not self.forced or self.forced.pop(0) == token

    def force(self, limit: int) -> list[int]:
        tokens = self.forced[:limit]
        self.forced = self.forced[limit:]
        return tokens


@pytest.mark.parametrize(
    "make",
    [batch_drafting, lambda: Drafting(lambda context: make_drafter("auto"), 32)],
    ids=["batch", "single"],
)
def test_tokens_that_a_grammar_forces_come_before_the_draft_of_auto(
    make: Callable[[], Drafting],
) -> None:
    drafting = make()
    prompt = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    context = Context(prompt, vocabulary=99)
    log = TokenLog(prompt)
    drafter = drafting.join(context, log)
    guide = SimpleNamespace(grammar_decides=True, matcher=ForcingMatcher([4, 9]))
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
    guide.matcher = ForcingMatcher([])
    assert drafted().tokens[:3] == (2, 3, 4)


def test_the_sequences_of_a_batch_share_the_public_pool_except_private_ones() -> None:
    batch = parse_method("trtllm", DraftSettings()).build_batch()

    def drafted(ids: list[int], private: bool = False) -> tuple[int, ...]:
        drafter = batch.join(Context(ids, private=private), TokenLog(ids))
        return drafter.propose(TokenLog(ids), Room(8)).tree.tokens

    batch.join(Context(list(range(1, 9))), TokenLog([]))
    assert drafted([9, 1, 2]) == (3, 4, 5, 6, 7)
    assert not drafted([9, 1, 2], private=True)

    batch.join(Context([20, 21, 22, 23], private=True), TokenLog([]))
    assert not drafted([20, 21])


METHODS_WITH_MEMORY = [name for name in method_names() if name not in ("none", "draft-model")]


@pytest.mark.parametrize("method", METHODS_WITH_MEMORY)
def test_nothing_of_a_private_sequence_is_drafted_later(method: str) -> None:
    supply(method, [CORPUS])
    secret = [50, 51, 52, 53, 50, 51, 52]
    public = [3, 4, 5, 3, 4]
    heads = KnownHeads([public], ["medusa"] if method == "auto" else [method])
    drafter = make_drafter(method, DraftSettings(heads=heads, masks=(9, 9)))
    private_run = DrafterRun(drafter, Context(secret, vocabulary=60, private=True))
    tree = private_run.propose(BUDGET)
    top = np.full((len(tree) + 1, private_run.top_k), 53) if private_run.top_k else None
    private_run.emit([53, 50, 51], Outcome(tree, top))
    private_run.close()

    for ids in (public, [*public, 50], [*public, 50, 51]):
        drafted = set(DrafterRun(drafter, Context(ids, vocabulary=60)).propose(BUDGET).tokens)
        unseen_secrets = set(secret) - set(ids)
        assert not drafted & unseen_secrets


def test_the_public_pool_drops_what_was_added_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ngtcli.drafting.methods.trtllm._MAX_VALUES", 100)
    drafter = make_drafter("trtllm")
    for start in range(100, 1000, 10):
        drafter.begin(Context(list(range(start, start + 10))))
    drafts = {}
    for last in (100, 990):
        drafts[last] = DrafterRun(drafter, Context([1, last])).propose(BUDGET).tokens
    assert drafts == {100: (), 990: (991, 992, 993, 994, 995)}
