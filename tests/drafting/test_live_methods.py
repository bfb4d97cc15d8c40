"""Methods that learn from logits or hold a second model, against naive forms."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ngtcli.config import Settings
from ngtcli.decoding.assistant import AssistantModel
from ngtcli.drafting.drafter import Context, Draft, DraftSettings, Outcome, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.methods import lookahead, recycling
from ngtcli.drafting.methods.lookahead import Lookahead
from ngtcli.drafting.methods.recycling import STATIC_TREE, Recycling
from ngtcli.errors import UsageError
from tests.support.driven_drafters import DrafterRun
from tests.support.helpers import examples
from tests.support.tiny_models import (
    GREEDY,
    check_tree,
    decode,
    make_drafter,
    make_target,
    plain,
    prompts,
)

SAMPLED = Settings.of(temperature=0.8, top_p=0.9, seed=5)


class NaiveLookahead:
    """The loop of Lookahead's authors, without a tree: one run of the model for each branch.

    `next_token(ids)` is the model's greedy token. `n`, `w` and `g` are the authors' names for the
    levels, the window and the size of the pool.
    """

    def __init__(
        self, next_token: Callable[[list[int]], int], prompt: list[int], n: int, w: int, g: int
    ) -> None:
        rng = random.Random(10)
        self.next_token = next_token
        self.n = n
        self.w = w
        self.g = g
        self.past: list[Any] = [[rng.choice(prompt) for _ in range(w + n - 3)]]
        self.past += [None] * (n - 2)
        self.pool: dict[int, list[tuple[int, ...]]] = {}

    def branch(self, level: int, column: int) -> list[int]:
        """Return the tokens up to the one at a level and column of the window."""
        if level == 0:
            return list(self.past[0][: column + 1])
        above = [self.past[k][column] for k in range(1, level + 1)]
        return [*self.past[0][:column], *above]

    def step(self, ids: list[int]) -> None:
        filled = sum(level is not None for level in self.past)
        top = filled - 1
        columns = range(len(self.past[top]))
        new = [self.next_token(ids + self.branch(top, column)) for column in columns]
        if filled == 1:
            self.past[0] = self.past[0][1:]
            self.past[1] = new
        elif filled < self.n - 1:
            for k in range(filled):
                self.past[k] = self.past[k][1:]
            self.past[filled] = new[1:]
        else:
            for column in range(self.w):
                first = ids[-1] if column == 0 else self.past[0][column - 1]
                middle = [self.past[k][column] for k in range(1, self.n - 1)]
                ngram = (*middle, new[column])
                others = [entry for entry in self.pool.get(first, []) if entry != ngram]
                self.pool[first] = [*others, ngram][-self.g :]
            self.past = [self.past[1][1:], *self.past[2:], new]


@pytest.mark.parametrize(("n", "w", "g"), [(3, 2, 1), (4, 3, 2), (5, 7, 7)])
def test_the_lookahead_window_moves_as_the_authors_loop_does(n: int, w: int, g: int) -> None:
    model = make_target("llama", seed=2)

    def next_token(ids: list[int]) -> int:
        with torch.no_grad():
            return int(model.hf(torch.tensor([ids])).logits[0, -1].argmax())

    class CheckedLookahead(Lookahead):
        def learn(self, log: TokenLog, outcome: Outcome) -> None:
            if outcome.top is None:  # after the last token nothing was proposed
                return
            naive.step(proposed_after[-1])
            super().learn(log, outcome)
            assert self._levels == [level for level in naive.past if level is not None]
            assert self._pool == naive.pool

        def propose(self, log: TokenLog, room: Room) -> Draft:
            proposed_after.append(list(log.token_ids))
            draft = super().propose(log, room)
            check_tree(draft.tree)
            assert draft.tree.drafts <= room.nodes
            return draft

    for prompt in prompts(examples(3)):
        proposed_after: list[list[int]] = []
        naive = NaiveLookahead(next_token, prompt, n, w, g)
        drafter = CheckedLookahead(DraftSettings(), lookahead.Options(n, w, g))

        run = decode(model, drafter, prompt, max_tokens=30)

        assert run.output == plain(model, prompt, max_tokens=30)
        assert len(proposed_after) > 5


def test_the_pool_of_lookahead_holds_the_prompt_where_asked() -> None:
    options = lookahead.Options(level=3, window_size=2, pool_from_prompt=True)
    run = DrafterRun(Lookahead(DraftSettings(), options), Context([7, 8, 9, 7, 8, 6]))
    run.emit([7])

    tree = run.propose(10)

    assert tree.tokens[: tree.drafts] == (8, 6, 9)
    assert tree.parents[: tree.drafts] == (-1, 0, 0)


def test_the_static_tree_has_eighty_nodes_and_parents_first() -> None:
    paths = [path for _, path in STATIC_TREE]
    assert len(paths) == 80
    assert len(set(paths)) == 80
    assert max(map(len, paths)) == 6
    earlier = {""}
    for path in paths:
        parent = path[:-1]
        rank = int(path[-1])
        assert parent in earlier
        if rank > 0:
            assert f"{parent}{rank - 1}" in earlier
        earlier.add(path)


def test_recycling_drafts_the_tokens_with_the_highest_logits() -> None:
    drafter = Recycling(DraftSettings(), recycling.Options(output_id_topk=2))
    run = DrafterRun(drafter, Context([5]))
    first_tree = run.propose(80)
    assert set(first_tree.tokens) == {0}  # unseen tokens are followed by token 0
    top = np.array([[10, 11]] + [[12, 13]] * len(first_tree))
    run.emit([5], Outcome(first_tree, top))

    tree = run.propose(80)

    check_tree(tree)
    roots = [t for t, parent in zip(tree.tokens, tree.parents, strict=True) if parent == -1]
    assert roots == [10, 11]
    assert DrafterRun(drafter, Context([1, 5])).propose(80) == tree  # the matrix outlives a prompt
    assert DrafterRun(drafter, Context([0])).propose(1).tokens == (12,)


def test_recycling_keeps_the_last_row_of_a_token_and_the_cheapest_nodes() -> None:
    run = DrafterRun(Recycling(DraftSettings(), recycling.Options()), Context([0]))
    first_tree = run.propose(80)  # the root and all nodes are token 0
    top = np.arange(8 * (len(first_tree) + 1)).reshape(-1, 8) + 1
    run.emit([0], Outcome(first_tree, top))

    tree = run.propose(3)

    assert len(tree) == 3
    assert tree.tokens[0] == top[-1][0]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_a_draft_model_equal_to_the_target_is_always_right(sampling: Settings) -> None:
    model = make_target("llama", seed=1)
    twin = make_target("llama", seed=1)
    settings = DraftSettings(assistant=AssistantModel(twin, sampling))
    drafter = make_drafter("draft-model:gamma=5", settings)
    for prompt in prompts(examples(4)):
        run = decode(model, drafter, prompt, sampling)
        assert run.output == plain(model, prompt, sampling)
        full_steps = run.statistics.steps - 1  # the last step may be cut short
        assert run.statistics.acceptance_histogram[5] >= full_steps


def test_a_draft_model_has_to_be_named() -> None:
    with pytest.raises(UsageError) as caught:
        make_drafter("draft-model", DraftSettings())
    assert caught.value.hint == "Name one with --set draft_model."


@pytest.mark.parametrize("method", ["lookahead", "recycling", "auto"])
def test_a_method_drafts_with_a_vocabulary_smaller_than_its_top_k(method: str) -> None:
    """Recycling asks for the 8 best of 7 tokens."""
    model = make_target("llama", vocab_size=7)
    drafter = make_drafter(method, DraftSettings())
    for prompt in ([4, 5, 6, 4, 5], [1, 2]):
        run = decode(model, drafter, prompt)
        assert run.output == plain(model, prompt)
        assert run.statistics.drafted_tokens
