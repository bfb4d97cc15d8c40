"""SPACE, whose masks below drafted tokens guess the next draft, against a naive form without trees.

The target is a tiny model that the test itself tunes to fill masks.
"""

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
    """Tune a random model to go round a cycle of 60 tokens and to fill masks."""
    hf = make_hf("llama")
    optimizer = torch.optim.Adam(hf.parameters(), lr=5e-3)
    rng = torch.Generator().manual_seed(0)
    for _ in range(120):
        starts = torch.randint(60, (32, 1), generator=rng)
        sequences = CYCLE[(starts + torch.arange(34)) % 60]
        cut = int(torch.randint(1, 31, (), generator=rng))
        masks = torch.tensor(MASKS).expand(32, -1)
        logits = hf(input_ids=torch.cat([sequences[:, :cut], masks], 1)).logits
        labels = sequences[:, 1 : cut + len(MASKS) + 1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return hf.eval()


@cache
def tuned_target() -> TargetModel:
    return target_model(tuned(), Tokenizer(FakeBackend()), "tuned")


class RecordingSpace(Space):
    """Keeps the trees that it proposed."""

    def __init__(self, masks: Sequence[int]) -> None:
        super().__init__(DraftSettings(masks=tuple(masks)), CHAIN)
        self.trees: list[DraftTree] = []

    def propose(self, log: TokenLog, room: Room) -> Draft:
        draft = super().propose(log, room)
        self.trees.append(draft.tree)
        return draft


class NaiveSpace:
    """The step of SPACE's authors, with one run of the model for each branch.

    `draft` holds one candidate for each mask; at first there are none.
    """

    def __init__(self, hf: Any, masks: Sequence[int]) -> None:
        self.hf = hf
        self.masks = list(masks)
        self.draft = list[int]()

    def next_token(self, ids: list[int]) -> int:
        with torch.no_grad():
            return int(self.hf(torch.tensor([ids])).logits[0, -1].argmax())

    def step(self, ids: list[int]) -> list[int]:
        """Return the tokens that one forward pass emits."""
        emitted = []
        for candidate in [*self.draft, -1]:
            emitted.append(self.next_token([*ids, *emitted]))
            if emitted[-1] != candidate:
                break
        known = [*ids, *emitted[:-1]]
        mask_groups = [self.masks[: i + 1] for i in range(len(self.masks))]
        self.draft = [self.next_token([*known, *group]) for group in mask_groups]
        return emitted


@pytest.mark.parametrize("masks", [MASKS, (91, 91, 91, 91, 91)])
def test_a_step_is_that_of_the_authors(masks: tuple[int, ...]) -> None:
    """Compare the guesses of each pass, how many the next one accepts, and all emitted tokens.

    After prompts of random tokens the guesses are wrong.
    """
    model = tuned_target()
    rejected = 0
    for prompt in [CYCLE[50:].tolist(), *prompts(2)]:
        naive = NaiveSpace(tuned(), masks)
        drafter = RecordingSpace(masks)
        ids = list(prompt)
        run = Run(model, drafter, Context(prompt, vocabulary=97), GREEDY, Limits(16))
        for step in run:
            drafted = naive.draft
            expected = naive.step(ids)
            if drafter.trees:
                tree = drafter.trees.pop()
                check_tree(tree)
                assert list(tree.tokens[: tree.drafts]) == drafted
                assert tree.probes == len(masks) * (tree.drafts + 1)
            emitted = [token.id for token in step.tokens]
            if step.finish_reason:  # the last step may be cut short
                expected = expected[: len(emitted)]
            assert emitted == expected
            rejected += len(emitted) <= len(drafted)
            ids += emitted
    assert rejected > 3


def test_masks_have_the_positions_and_ancestors_of_a_continuation() -> None:
    """The expected rows are counted by hand: a root, two tokens, three groups of masks."""
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
    cut = tree.cut(2, 1, 3)  # as near the end of the context
    assert [masks_after(cut, node) for node in (-1, 0)] == [[1, 2], [3, 4]]


def random_guesses() -> Guessed:
    """Draw four tokens for each of three depths, with falling probabilities."""
    rng = np.random.default_rng(0)
    probabilities = -np.sort(-rng.dirichlet(np.ones(9), 3)[:, :4])
    return Guessed(rng.permutation(12).reshape(3, 4).astype(np.int32), probabilities)


def likeliest_rank_paths(guesses: Guessed) -> list[tuple[int, ...]]:
    """Return all paths as ranks, sorted by the products of their tokens' probabilities."""

    def probability(ranks: tuple[int, ...]) -> float:
        factors = [guesses.probabilities[depth, rank] for depth, rank in enumerate(ranks)]
        return float(np.prod(factors))

    all_paths = [ranks for depth in (1, 2, 3) for ranks in np.ndindex(*[4] * depth)]
    return sorted(all_paths, key=probability, reverse=True)


def rank_path(
    tokens: Sequence[int], parents: Sequence[int], node: int, guesses: Guessed
) -> tuple[int, ...]:
    """Return the ranks of the tokens that lead to a node."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, tokens[node])
        node = parents[node]
    return tuple(
        row.tolist().index(token) for row, token in zip(guesses.tokens, path, strict=False)
    )


def test_the_likeliest_nodes_are_those_of_the_sorted_paths() -> None:
    guesses = random_guesses()

    tokens, parents, probabilities = likeliest_nodes(guesses, 30, 4)

    paths = [rank_path(tokens, parents, node, guesses) for node in range(len(tokens))]
    assert paths == likeliest_rank_paths(guesses)[:30]
    assert np.allclose(probabilities, sorted(probabilities, reverse=True))


def test_masks_stand_below_the_root_and_the_likeliest_nodes() -> None:
    guesses = random_guesses()
    run = DrafterRun(space(Options(nodes=30, masked=4)), Context((1,)))
    top = np.zeros((4, 0), np.int64)
    run.emit([1], Outcome(run.propose(40), top, -1, lambda nodes: guesses))

    tree = run.propose(40)

    check_tree(tree)
    assert tree.drafts == 30
    assert tree.probes == 15
    masked = {parent for parent in tree.parents[30:] if parent < 30}
    paths = {rank_path(tree.tokens, tree.parents, node, guesses) for node in masked}
    assert paths == {(), *likeliest_rank_paths(guesses)[:4]}


@pytest.mark.parametrize("options", [Options(), Options(nodes=6), Options(nodes=6, masked=1)])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_a_tuned_model_accepts_what_its_masks_guess(options: Options, sampling: Settings) -> None:
    model = tuned_target()
    prompt = CYCLE[:9].tolist()
    expected = plain(model, prompt, sampling, max_tokens=22)

    run = decode(model, space(options), prompt, sampling, max_tokens=22)

    assert run.output == expected
    assert run.statistics.mean_acceptance_length > 2.5
    if sampling is GREEDY:
        assert expected == generate(tuned(), prompt, 22)


@pytest.mark.parametrize("rows", [PassRows.fixed(9), PassRows.fixed(33), PassRows(33, 4)])
def test_masks_share_the_rows_of_exact_passes(rows: PassRows) -> None:
    """Where only few groups of masks fit, the guesses are those of a node further up."""
    model = tuned_target()
    prompt = CYCLE[:9].tolist()
    drafter = space()
    context = Context(prompt, vocabulary=VOCABULARY)
    limits = Limits(22, rows.max - 1)
    run = Run(model, drafter, context, GREEDY, limits, numerics=Numerics(rows)).finish()

    assert run.exact
    assert run.output == plain(model, prompt, max_tokens=22)
    min_acceptance = 1.8 if rows.max < 10 else 2.5
    assert run.statistics.mean_acceptance_length > min_acceptance


def test_sequences_of_a_batch_have_their_own_guesses() -> None:
    model = tuned_target()
    cycles = [CYCLE[start : start + 9].tolist() for start in range(0, 50, 9)]
    batch = [*cycles, *prompts(2)]

    sequences = decode_batch(model, batch, separate_drafters(space, 24), 3)

    assert outputs(sequences) == [plain(model, prompt, max_tokens=20) for prompt in batch]
    for sequence in sequences[: len(cycles)]:
        assert sequence.statistics.mean_acceptance_length > 2


def test_a_mask_that_the_model_chooses_is_emitted_as_by_generate() -> None:
    hf = make_hf("llama", seed=2)
    with torch.no_grad():
        hf.lm_head.weight[list(MASKS)] *= 3
    model = target_model(hf, Tokenizer(FakeBackend()), "masks")
    emitted: set[int] = set()
    for prompt in prompts(3):
        output = decode(model, space(), prompt).output
        assert output == generate(hf, prompt, 40)
        emitted.update(output)
    assert emitted & set(MASKS)


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
    run = ngt("summarize", HARBOUR, "--method", "space")
    assert run.returncode == 2
    assert not run.stdout
    error, hint = run.stderr.decode().splitlines()[-2:]
    assert "the model was not tuned to fill masks" in error
    assert "mask_id and mask_num" in hint
    with pytest.raises(UsageError):
        space(masks=())


def test_a_folder_whose_configuration_names_masks_drafts_by_them(tmp_path) -> None:
    """The built-in model fills masks with anything: its drafts are wrong, the answer is not."""
    folder = copy_builtin_model(tmp_path / "tuned", mask_id=9, mask_num=2)
    answers = {}
    for method in ("none", "space"):
        run = ngt(
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
        assert run.returncode == 0, run.stderr.decode()
        answers[method] = json.loads(run.stdout)
    assert answers["space"]["text"] == answers["none"]["text"]
    assert answers["space"]["statistics"]["drafted_tokens"] > 0
