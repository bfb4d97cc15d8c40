"""Layers with a sliding window attend to their window only, and give the logits of the library."""

import random
from typing import Any

import pytest
import torch

from ngtcli.decoding.exactness.numerics import Numerics
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.kv_cache import KVLayer
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.pass_plan import PassPlan
from ngtcli.drafting.drafter import Context
from tests.support.helpers import VOCABULARY
from tests.support.runs import Run
from tests.support.sliding import SLIDING_FAMILIES, assert_logits_of_library, sliding_model
from tests.support.tiny_models import (
    GREEDY,
    Scripted,
    a_tree,
    decode,
    drafts_of,
    generate,
    make_drafter,
)

WINDOW = 12
LENGTH = 500
PROMPT = random.Random(1).choices(range(4, VOCABULARY), k=LENGTH)


@pytest.fixture
def attended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int, int]]:
    """For each layer and forward pass: whether it slides, its query tokens, its KV positions."""
    seen: list[tuple[bool, int, int]] = []
    write = KVLayer.write

    def watched(layer: KVLayer, plan: PassPlan, keys: torch.Tensor, values: Any) -> Any:
        attended_to = write(layer, plan, keys, values)
        seen.append((layer.slides, keys.shape[2], attended_to[0].shape[2]))
        return attended_to

    monkeypatch.setattr(KVLayer, "write", watched)
    return seen


def after_prefill(attended: list[tuple[bool, int, int]]) -> list[tuple[bool, int, int]]:
    """List the forward passes after the prefill, whose chunks have more than 100 tokens."""
    last = max(i for i, (_, tokens, _) in enumerate(attended) if tokens > 100)
    return attended[last + 1 :]


@pytest.mark.parametrize("family", SLIDING_FAMILIES)
@pytest.mark.parametrize("drafts", [False, True])
def test_sliding_layers_attend_to_their_window_only(
    family: str, drafts: bool, attended: list[tuple[bool, int, int]]
) -> None:
    model = sliding_model(family, 2 * LENGTH)
    truth = generate(model.hf, PROMPT, 30)
    propose = drafts_of({tuple(PROMPT): truth}, wrong=2)
    drafter = Scripted(propose) if drafts else make_drafter("none")
    attended.clear()
    run = decode(model, drafter, PROMPT, max_tokens=30, num_draft=8)
    assert run.output == truth
    assert (run.statistics.mean_acceptance_length > 4) == drafts
    steps = after_prefill(attended)
    kinds = {slides for slides, _, _ in steps}
    assert kinds == ({True} if family == "mistral-sliding" else {True, False})
    for slides, tokens, positions in steps:
        if slides:
            assert positions <= WINDOW - 1 + tokens
        else:
            assert positions >= LENGTH


@pytest.mark.parametrize("family", SLIDING_FAMILIES)
@pytest.mark.parametrize("length", [1, WINDOW - 2, WINDOW, WINDOW + 1, 300])
def test_logits_equal_those_of_the_library(family: str, length: int) -> None:
    """After every node of a tree, for sequences on both sides of the window."""
    model = sliding_model(family, 2 * LENGTH)
    tree = a_tree(9, seed=length)
    token_ids = PROMPT[: length + 1]
    model.start(2 * LENGTH - 80)
    model.prefill(token_ids[:-1])
    logits = model.forward(token_ids[-1], tree)
    assert_logits_of_library(model, logits, token_ids, tree, range(-1, len(tree)))


def test_exact_passes_attend_to_all_positions_under_the_mask(
    attended: list[tuple[bool, int, int]],
) -> None:
    """The order in which KV positions are summed must not depend on the draft."""
    model = sliding_model("mistral-sliding", 2 * LENGTH)
    truth = generate(model.hf, PROMPT, 12)
    attended.clear()
    context = Context(PROMPT, vocabulary=model.vocabulary)
    drafter = Scripted(drafts_of({tuple(PROMPT): truth}, wrong=0))
    exact = Numerics(PassRows.fixed(8))
    run = Run(model, drafter, context, GREEDY, Limits(12, 8), numerics=exact).finish()
    assert run.output == truth
    assert {positions >= LENGTH for _, _, positions in after_prefill(attended)} == {True}
