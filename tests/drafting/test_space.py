"""SPACE: masks below drafted tokens guess the next draft. Against a naive form without trees."""

import json
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ngtcli.config import Settings
from ngtcli.decoding.exactness.numerics import Numerics
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.probe import target_model
from ngtcli.drafting.drafter import Context, Draft, DraftSettings, Outcome, Room
from ngtcli.drafting.guesses import Guessed
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.methods.space import Options, Space, likeliest_nodes, masks_after, with_masks
from ngtcli.drafting.tree import DraftTree
from ngtcli.errors import UsageError
from ngtcli.models.pretrained import mask_tokens
from ngtcli.models.tokenizer import Tokenizer
from tests.support.batches import decode_batch, outputs, separate_drafters
from tests.support.driven_drafters import DrafterRun
from tests.support.helpers import HARBOUR, VOCABULARY, FakeBackend, copy_builtin_model, ngt
from tests.support.runs import Run
from tests.support.tiny_models import (
    GREEDY,
    check_tree,
    decode,
    generate,
    make_hf,
    plain,
    prompts,
)

pytestmark = pytest.mark.search
SAMPLED = Settings.of(temperature=0.8, seed=5)
MASKS = (90, 91, 92)
CYCLE = torch.randperm(60, generator=torch.Generator().manual_seed(1)) + 10


CHAIN = Options()


def space(options: Options = CHAIN, masks: Sequence[int] = MASKS) -> Space:
    return Space(DraftSettings(masks=tuple(masks)), options)


@cache
def tuned() -> Any:
    """A model tuned, from random weights, to go round a cycle of 60 tokens and to fill masks."""
    hf = make_hf("llama")
    optimizer = torch.optim.Adam(hf.parameters(), lr=5e-3)
    rng = torch.Generator().manual_seed(0)
    for _ in range(120):
        starts = torch.randint(60, (32, 1), generator=rng)
        text = CYCLE[(starts + torch.arange(34)) % 60]
        cut = int(torch.randint(1, 31, (), generator=rng))
        masks = torch.tensor(MASKS).expand(32, -1)
        scores = hf(input_ids=torch.cat([text[:, :cut], masks], 1)).logits
        wanted = text[:, 1 : cut + len(MASKS) + 1]
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return hf.eval()


@cache
def tuned_target() -> TargetModel:
    return target_model(tuned(), Tokenizer(FakeBackend()), "tuned")


class Watched(Space):
    """Keeps what it proposed."""

    def __init__(self, masks: Sequence[int]) -> None:
        super().__init__(DraftSettings(masks=tuple(masks)), CHAIN)
        self.seen: list[DraftTree] = []

    def propose(self, log: TokenLog, room: Room) -> Draft:
        draft = super().propose(log, room)
        self.seen.append(draft.tree)
        return draft


class Naive:
    """The authors' step, each branch by running the model on the branch's own text.

    `draft` are the candidates, one for each mask; at first there are none.
    """

    def __init__(self, hf: Any, masks: Sequence[int]) -> None:
        self.hf = hf
        self.masks = list(masks)
        self.draft = list[int]()

    def choice(self, text: list[int]) -> int:
        with torch.no_grad():
            return int(self.hf(torch.tensor([text])).logits[0, -1].argmax())

    def step(self, ids: list[int]) -> list[int]:
        """What one pass emits."""
        emitted = []
        for candidate in [*self.draft, -1]:
            emitted.append(self.choice([*ids, *emitted]))
            if emitted[-1] != candidate:
                break
        known = [*ids, *emitted[:-1]]
        groups = [self.masks[: i + 1] for i in range(len(self.masks))]
        self.draft = [self.choice([*known, *group]) for group in groups]
        return emitted


@pytest.mark.parametrize("masks", [MASKS, (91, 91, 91, 91, 91)])
def test_a_step_is_that_of_the_authors(masks: tuple[int, ...]) -> None:
    """The guesses that a pass leaves, what the next one accepts of them, and all that is emitted.

    Beside cycles, prompts of random tokens, after which guesses are wrong.
    """
    model = tuned_target()
    rejected = 0
    for prompt in [CYCLE[50:].tolist(), *prompts(2)]:
        naive = Naive(tuned(), masks)
        drafter = Watched(masks)
        ids = list(prompt)
        run = Run(model, drafter, Context(prompt, vocabulary=97), GREEDY, Limits(16))
        for step in run:
            drafted = naive.draft
            expected = naive.step(ids)
            if drafter.seen:
                tree = drafter.seen.pop()
                check_tree(tree)
                assert list(tree.tokens[: tree.drafts]) == drafted
                assert tree.probes == len(masks) * (tree.drafts + 1)
            found = [token.id for token in step.tokens]
            assert found == expected or step.finish_reason and found == expected[: len(found)]
            rejected += len(found) <= len(drafted)
            ids += found
    assert rejected > 3


def test_masks_stand_where_a_continuation_would() -> None:
    """Positions and ancestors of each row, counted by hand: a root, two tokens, three groups."""
    tree = with_masks(DraftTree((5, 6), (-1, 0)), [-1, 0, 1], [8, 9])
    assert tree.tokens == (5, 6, 8, 9, 8, 9, 8, 9)
    assert tree.depths() == [1, 2, 1, 2, 2, 3, 3, 4]
    assert [np.flatnonzero(row).tolist() for row in tree.ancestors()] == [
        [0],
        [0, 1],
        [0, 1, 2],
        [0, 3],
        [0, 3, 4],
        [0, 1, 5],
        [0, 1, 5, 6],
        [0, 1, 2, 7],
        [0, 1, 2, 7, 8],
    ]
    assert tree.drafts == 2
    assert tree.probes == 6
    assert [masks_after(tree, node) for node in (-1, 0, 1)] == [[2, 3], [4, 5], [6, 7]]
    cut = tree.cut(2, 1, 3)  # as near the context's end
    assert [masks_after(cut, node) for node in (-1, 0)] == [[1, 2], [3, 4]]


def test_a_tree_has_the_likeliest_paths_and_masks_below_some() -> None:
    """Against all paths, sorted by the products of their tokens' probabilities."""
    rng = np.random.default_rng(0)
    chances = -np.sort(-rng.dirichlet(np.ones(9), 3)[:, :4])
    guessed = Guessed(rng.permutation(12).reshape(3, 4).astype(np.int32), chances)
    every = [ranks for depth in (1, 2, 3) for ranks in np.ndindex(*[4] * depth)]
    every.sort(key=lambda ranks: -np.prod([chances[d, rank] for d, rank in enumerate(ranks)]))
    tokens, parents, found = likeliest_nodes(guessed, 30, 4)
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        rank = guessed.tokens[len(paths[parent]) if parent >= 0 else 0].tolist().index(token)
        paths.append((*(paths[parent] if parent >= 0 else ()), rank))
    assert paths == every[:30]
    assert np.allclose(found, sorted(found, reverse=True))

    drafter = space(Options(nodes=30, masked=4))
    followed = DrafterRun(drafter, Context((1,)))
    top = np.zeros((4, 0), np.int64)
    followed.emit([1], Outcome(followed.propose(40), top, -1, lambda nodes: guessed))
    tree = followed.propose(40)
    check_tree(tree)
    masked = {tree.parents[i] for i in range(30, len(tree)) if tree.parents[i] < 30}
    below = {tuple(path(tree, node, guessed)) for node in masked}
    assert below == {(), *every[:4]}
    assert tree.drafts == 30
    assert tree.probes == 15


def path(tree: DraftTree, node: int, guessed: Guessed) -> list[int]:
    """The ranks that lead to a node."""
    tokens: list[int] = []
    while node >= 0:
        tokens.insert(0, tree.tokens[node])
        node = tree.parents[node]
    return [row.tolist().index(t) for row, t in zip(guessed.tokens, tokens, strict=False)]


@pytest.mark.parametrize("options", [Options(), Options(nodes=6), Options(nodes=6, masked=1)])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_a_tuned_model_accepts_what_its_masks_guess(options: Options, sampling: Settings) -> None:
    model = tuned_target()
    prompt = CYCLE[:9].tolist()
    truth = plain(model, prompt, sampling, max_tokens=22)
    run = decode(model, space(options), prompt, sampling, max_tokens=22)
    assert run.output == truth
    assert run.statistics.mean_acceptance_length > 2.5
    if sampling is GREEDY:
        assert truth == generate(tuned(), prompt, 22)


@pytest.mark.parametrize("rows", [PassRows.fixed(9), PassRows.fixed(33), PassRows(33, 4)])
def test_masks_share_the_rows_of_exact_passes(rows: PassRows) -> None:
    """Where there is room for few groups, guesses are those of a node further up."""
    model = tuned_target()
    prompt = CYCLE[:9].tolist()
    drafter = space()
    context = Context(prompt, vocabulary=VOCABULARY)
    limits = Limits(22, rows.max - 1)
    run = Run(model, drafter, context, GREEDY, limits, numerics=Numerics(rows)).finish()
    assert run.exact
    assert run.output == plain(model, prompt, max_tokens=22)
    assert run.statistics.mean_acceptance_length > (1.8 if rows.max < 10 else 2.5)


def test_texts_decoded_together_have_their_own_guesses() -> None:
    model = tuned_target()
    texts = [CYCLE[i : i + 9].tolist() for i in range(0, 50, 9)]
    found = decode_batch(model, [*texts, *prompts(2)], separate_drafters(space, 24), 3)
    alone = [plain(model, text, max_tokens=20) for text in [*texts, *prompts(2)]]
    assert outputs(found) == alone
    assert all(m.statistics.mean_acceptance_length > 2 for m in found[: len(texts)])


def test_a_mask_that_the_model_chooses_is_emitted_as_by_generate() -> None:
    hf = make_hf("llama", seed=2)
    with torch.no_grad():
        hf.lm_head.weight[list(MASKS)] *= 3
    model = target_model(hf, Tokenizer(FakeBackend()), "masks")
    said = set[int]()
    for prompt in prompts(3):
        found = decode(model, space(), prompt).output
        assert found == generate(hf, prompt, 40)
        said |= set(found)
    assert said & set(MASKS)


@pytest.mark.parametrize(
    ("values", "masks"),
    [
        ({"mask_id": 5, "mask_num": 3}, (5, 5, 5)),
        ({"mask_id": 5, "mask_num": 3, "mask_diff": False}, (5, 5, 5)),
        ({"mask_id": 5, "mask_num": 3, "mask_diff": True}, (5, 6, 7)),
        ({"mask_id": 8, "mask_num": 2, "mask_diff": True}, (8, 9)),
        ({"mask_id": 9, "mask_num": 2, "mask_diff": True}, ()),
        ({"mask_id": 10, "mask_num": 1}, ()),
        ({"mask_id": -1, "mask_num": 1}, ()),
        ({"mask_id": "5", "mask_num": 1}, ()),
        ({"mask_id": 5, "mask_num": True}, ()),
        ({"mask_id": 5, "mask_num": 0}, ()),
        ({"mask_id": 5, "mask_num": 10**9}, ()),
        ({"mask_id": 5}, ()),
        ({}, ()),
    ],
)
def test_the_configuration_names_the_masks(values: dict[str, Any], masks: tuple[int, ...]) -> None:
    assert mask_tokens(SimpleNamespace(vocab_size=10, **values)) == masks


def test_a_model_without_masks_is_refused_before_it_is_loaded() -> None:
    done = ngt("summarize", HARBOUR, "--method", "space")
    assert done.returncode == 2
    assert not done.stdout
    lines = done.stderr.decode().splitlines()
    assert "the model was not tuned to fill masks" in lines[-2]
    assert "mask_id and mask_num" in lines[-1]
    with pytest.raises(UsageError):
        space(masks=())


def test_a_folder_whose_configuration_names_masks_drafts_by_them(tmp_path) -> None:
    """The built-in model, which fills masks with anything: the text stays, and rows are spent."""
    folder = copy_builtin_model(tmp_path / "tuned", mask_id=9, mask_num=2)
    answers = {}
    for method in ("none", "space"):
        done = ngt(
            "summarize",
            HARBOUR,
            "-m",
            folder,
            "--method",
            method,
            "--json",
            "--max-tokens",
            "12",
            "--set",
            "packed=no",
        )
        assert done.returncode == 0, done.stderr.decode()
        answers[method] = json.loads(done.stdout)
    assert answers["space"]["text"] == answers["none"]["text"]
    assert answers["space"]["statistics"]["drafted_tokens"] > 0
