"""Methods that learn from scores or hold a second model: what they draft, against naive forms."""

import random

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
    """The authors' loop written out: levels as lists, one argmax per branch by running the model
    on the branch's own text, no tree. `follow(text)` is the model's greedy token after a text."""

    def __init__(self, follow, prompt: list[int], n: int, w: int, g: int) -> None:
        rng = random.Random(10)
        self.follow = follow
        self.n = n
        self.w = w
        self.g = g
        self.past: list[list[int] | None] = [[rng.choice(prompt) for _ in range(w + n - 3)]]
        self.past += [None] * (n - 2)
        self.pool: dict[int, list[tuple[int, ...]]] = {}

    def branch(self, level: int, column: int) -> list[int]:
        """Text of the window's token at `level` and `column`, level 0 counted from the first."""
        if level == 0:
            return self.past[0][: column + 1]
        text = self.past[0][:column]
        return text + [self.past[k][column] for k in range(1, level + 1)]

    def step(self, ids: list[int]) -> None:
        filled = sum(level is not None for level in self.past)
        top = filled - 1
        new = [self.follow(ids + self.branch(top, column)) for column in range(len(self.past[top]))]
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
                rest = tuple(self.past[k][column] for k in range(1, self.n - 1)) + (new[column],)
                held = [r for r in self.pool.get(first, []) if r != rest]
                self.pool[first] = [*held, rest][-self.g :]
            self.past = [self.past[1][1:], *self.past[2:], new]


@pytest.mark.parametrize(("n", "w", "g"), [(3, 2, 1), (4, 3, 2), (5, 7, 7)])
def test_the_lookahead_window_moves_as_the_authors_loop_does(n: int, w: int, g: int) -> None:
    model = make_target("llama", seed=2)

    def follow(text: list[int]) -> int:
        with torch.no_grad():
            return int(model.hf(torch.tensor([text])).logits[0, -1].argmax())

    class Watched(Lookahead):
        def learn(self, log: TokenLog, outcome: Outcome) -> None:
            if outcome.top is None:  # the last token, for which nothing is proposed
                return
            naive.step(seen[-1])
            super().learn(log, outcome)
            assert self._levels == [level for level in naive.past if level is not None]
            assert self._pool == naive.pool

        def propose(self, log: TokenLog, room: Room) -> Draft:
            seen.append(list(log.token_ids))
            draft = super().propose(log, room)
            check_tree(draft.tree)
            assert draft.tree.drafts <= room.nodes
            return draft

    for prompt in prompts(examples(3)):
        seen: list[list[int]] = []
        naive = NaiveLookahead(follow, prompt, n, w, g)
        run = decode(
            model, Watched(DraftSettings(), lookahead.Options(n, w, g)), prompt, max_tokens=30
        )
        assert run.output == plain(model, prompt, max_tokens=30)
        assert len(seen) > 5


def test_the_pool_of_lookahead_holds_the_prompt_where_asked() -> None:
    drafter = Lookahead(
        DraftSettings(), lookahead.Options(level=3, window_size=2, pool_from_prompt=True)
    )
    followed = DrafterRun(drafter, Context([7, 8, 9, 7, 8, 6]))
    followed.emit([7])
    tree = followed.propose(10)
    assert tree.tokens[: tree.drafts] == (8, 6, 9)
    assert tree.parents[: tree.drafts] == (-1, 0, 0)


def test_the_static_tree_has_eighty_nodes_and_parents_first() -> None:
    paths = [path for _, path in STATIC_TREE]
    assert len(paths) == len(set(paths)) == 80
    assert max(map(len, paths)) == 6
    seen = {""}
    for path in paths:
        assert path[:-1] in seen
        assert int(path[-1]) == 0 or path[:-1] + str(int(path[-1]) - 1) in seen
        seen.add(path)


def test_recycling_drafts_what_the_scores_ranked_high() -> None:
    drafter = Recycling(DraftSettings(), recycling.Options(output_id_topk=2))
    followed = DrafterRun(drafter, Context([5]))
    first = followed.propose(80)
    assert set(first.tokens) == {0}  # unseen tokens are followed by token 0
    top = np.array([[10, 11]] + [[12, 13]] * len(first))
    followed.emit([5], Outcome(first, top))
    tree = followed.propose(80)
    check_tree(tree)
    roots = [t for t, p in zip(tree.tokens, tree.parents, strict=True) if p == -1]
    assert roots == [10, 11]
    assert DrafterRun(drafter, Context([1, 5])).propose(80) == tree  # the matrix outlives a prompt
    assert DrafterRun(drafter, Context([0])).propose(1).tokens == (12,)


def test_recycling_keeps_the_last_row_of_a_token_and_the_cheapest_nodes() -> None:
    drafter = Recycling(DraftSettings(), recycling.Options())
    followed = DrafterRun(drafter, Context([0]))
    tree = followed.propose(80)  # root and all nodes are token 0
    rows = np.arange(8 * (len(tree) + 1)).reshape(-1, 8) + 1
    followed.emit([0], Outcome(tree, rows))
    again = followed.propose(3)
    assert len(again) == 3
    assert again.tokens[0] == rows[-1][0]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_a_draft_model_equal_to_the_target_is_always_right(sampling: Settings) -> None:
    model = make_target("llama", seed=1)
    twin = make_target("llama", seed=1)
    settings = DraftSettings(assistant=AssistantModel(twin, sampling))
    drafter = make_drafter("draft-model:gamma=5", settings)
    for prompt in prompts(examples(4)):
        run = decode(model, drafter, prompt, sampling)
        assert run.output == plain(model, prompt, sampling)
        inner = run.statistics.steps - 1  # the last step may be cut short by an end
        assert run.statistics.acceptance_histogram[5] >= inner


def test_a_draft_model_has_to_be_named() -> None:
    with pytest.raises(UsageError) as caught:
        make_drafter("draft-model", DraftSettings())
    assert caught.value.hint == "Name one with --set draft_model."


@pytest.mark.parametrize("method", ["lookahead", "recycling", "auto"])
def test_a_vocabulary_smaller_than_what_a_method_ranks_is_drafted_from(method: str) -> None:
    """Recycling asks for the 8 best of 7."""
    model = make_target("llama", vocab_size=7)
    drafter = make_drafter(method, DraftSettings())
    for prompt in ([4, 5, 6, 4, 5], [1, 2]):
        run = decode(model, drafter, prompt)
        assert run.output == plain(model, prompt)
        assert run.statistics.drafted_tokens
