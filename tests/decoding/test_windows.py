"""Layers with a sliding window attend to what their window needs, and give the same tokens."""

import random
from typing import Any

import pytest
import torch

from ngtcli.decoding import model as module
from ngtcli.decoding.exactness.numerics import Numerics
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.kv_cache import KVLayer
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.pass_plan import PassPlan
from ngtcli.decoding.probe import target_model
from ngtcli.drafting.drafter import Context
from ngtcli.models.tokenizer import Tokenizer
from tests.support.helpers import VOCABULARY, FakeBackend
from tests.support.runs import Run
from tests.support.tiny_models import (
    GREEDY,
    Scripted,
    a_tree,
    decode,
    drafts_of,
    generate,
    make_drafter,
    make_hf,
)
from tests.support.together import each_by_itself, outputs, together

WINDOW, LENGTH = 12, 500
FAMILIES = ("mistral-sliding", "gemma2-sliding", "gemma3-sliding")
PROMPT = random.Random(1).choices(range(4, VOCABULARY), k=LENGTH)


def long_model(family: str) -> TargetModel:
    kinds = {"layer_types": ["sliding_attention", "full_attention"]} if "gemma3" in family else {}
    hf = make_hf(family, max_position_embeddings=2 * LENGTH, **kinds)
    hf.generation_config.eos_token_id = None
    model = target_model(hf, Tokenizer(FakeBackend()), family)
    model.context, model.end_ids = 2 * LENGTH, frozenset()
    return model


@pytest.fixture
def attended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int, int]]:
    """Of each layer in each pass: whether it slides, its rows, and the places it attends to."""
    seen: list[tuple[bool, int, int]] = []
    write = KVLayer.write

    def watched(layer: KVLayer, plan: PassPlan, keys: torch.Tensor, values: Any) -> Any:
        attended_to = write(layer, plan, keys, values)
        seen.append((layer.slides, keys.shape[2], attended_to[0].shape[2]))
        return attended_to

    monkeypatch.setattr(KVLayer, "write", watched)
    return seen


def behind_the_prompt(attended: list[tuple[bool, int, int]]) -> list[tuple[bool, int, int]]:
    """What comes after the passes over the prompt, which have more rows than any other."""
    last = max(at for at, (_, rows, _) in enumerate(attended) if rows > 100)
    return attended[last + 1 :]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("drafts", [False, True])
def test_a_pass_of_a_sliding_layer_attends_to_its_window_alone(
    family: str, drafts: bool, attended: list[tuple[bool, int, int]]
) -> None:
    model = long_model(family)
    truth = generate(model.hf, PROMPT, 30)
    propose = drafts_of({tuple(PROMPT): truth}, wrong=2)
    drafter = Scripted(propose) if drafts else make_drafter("none")
    attended.clear()
    run = decode(model, drafter, PROMPT, max_tokens=30, num_draft=8)
    assert run.output == truth
    assert (run.statistics.mean_acceptance_length > 4) == drafts
    steps = behind_the_prompt(attended)
    kinds = {narrow for narrow, _, _ in steps}
    assert kinds == ({True} if family == "mistral-sliding" else {True, False})
    for narrow, rows, places in steps:
        assert places <= WINDOW - 1 + rows if narrow else places >= LENGTH


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", [1, WINDOW - 2, WINDOW, WINDOW + 1, 300])
def test_the_logits_are_those_of_a_whole_pass_of_the_library(family: str, length: int) -> None:
    """Of every node of a tree, behind any length: the path is read anew without a cache."""
    model, tree, ids = long_model(family), a_tree(9, seed=length), PROMPT[: length + 1]
    model.start(2 * LENGTH - 80)
    model.prefill(ids[:-1])
    found = model.forward(ids[-1], tree)
    for node in range(-1, len(tree)):
        path: list[int] = []
        at = node
        while at >= 0:
            path.insert(0, tree.tokens[at])
            at = tree.parents[at]
        with torch.inference_mode():
            right = model.hf(torch.tensor([[*ids, *path]])).logits[0, -1]
        assert torch.allclose(found[node + 1], right, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("stay", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_texts_together_have_the_tokens_of_the_library(
    family: str, stay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of lengths on both sides of the window."""
    monkeypatch.setattr(module, "STAYING_DEVICES", {"cpu"} if stay else set())
    model = long_model(family)
    texts = [PROMPT[:length] for length in (3, WINDOW, 40, 300, LENGTH)]
    truth = {tuple(text): generate(model.hf, text, 20) for text in texts}
    drafters = each_by_itself(lambda: Scripted(drafts_of(truth, wrong=1)), 24)
    found = together(model, texts, drafters, 5, limits=lambda _: Limits(20, 24))
    assert outputs(found) == [truth[tuple(text)] for text in texts]


def test_exact_passes_attend_to_all_places_under_the_mask(
    attended: list[tuple[bool, int, int]],
) -> None:
    """How a row's places are added up must not depend on what was drafted."""
    model = long_model("mistral-sliding")
    truth = generate(model.hf, PROMPT, 12)
    attended.clear()
    context = Context(PROMPT, vocabulary=model.vocabulary)
    drafter = Scripted(drafts_of({tuple(PROMPT): truth}, wrong=0))
    exact = Numerics(PassRows.fixed(8))
    run = Run(model, drafter, context, GREEDY, Limits(12, 8), numerics=exact).finish()
    assert run.output == truth
    assert {places >= LENGTH for _, _, places in behind_the_prompt(attended)} == {True}
