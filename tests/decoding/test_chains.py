"""Drafts without branches, for models whose own cache takes back what was not accepted."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.decoding import state_slot
from ngtcli.decoding.calibration import calibrate
from ngtcli.decoding.exactness.choice import Exactness
from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.exactness.rows import PassRows
from ngtcli.decoding.model import Origin, TargetModel
from ngtcli.decoding.state_slot import StateSlot
from ngtcli.decoding.support import DraftSupport
from ngtcli.drafting.costs import SHORT, Costs
from ngtcli.drafting.drafter import Context, DraftSettings, Room
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.tree import ROOT, DraftTree, chain
from tests.support.families import (
    RESTORES,
    VOCABULARY,
    build,
    chained,
    family,
    prompts,
    reason_and_way,
    target,
)
from tests.support.tiny_models import decode, generate, make_drafter, make_target

pytestmark = pytest.mark.search
NAMES = ["lfm2", "llama4_text", "bloom", "mamba2", "qwen3_next", "falcon_h1", "rwkv"]


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest) -> TargetModel:
    return target(build(family(request.param)), request.param)


def fresh(model: TargetModel, token_ids: list[int]) -> torch.Tensor:
    """The logits (vocabulary,) after the tokens, by a state that never saw a draft."""
    slot = StateSlot(model.hf, replace(model.mode, support=DraftSupport.NONE, crops=False))
    with torch.inference_mode():
        return slot.read(token_ids)[0]


@pytest.mark.parametrize("seed", range(3))
def test_logits_after_a_rejected_chain_are_those_of_a_new_state(
    model: TargetModel, seed: int
) -> None:
    rng = random.Random(seed)
    token_ids = [rng.randrange(VOCABULARY) for _ in range((1, 2, 40)[seed])]
    model.start(0)
    model.prefill(token_ids[:-1])
    for _ in range(12):
        draft = [rng.randrange(VOCABULARY) for _ in range(rng.choice((0, 0, 1, 2, 3, 6, 20)))]
        accepted = rng.randint(0, len(draft))
        logits = model.forward(token_ids[-1], chain(draft))
        assert len(logits) == len(draft) + 1
        assert torch.allclose(logits[0], fresh(model, token_ids), atol=1e-3)
        assert torch.allclose(
            logits[accepted], fresh(model, token_ids + draft[:accepted]), atol=1e-3
        )
        if rng.random() < 0.2 and draft:  # as calibration does
            logits = model.forward(token_ids[-1], chain(draft))
            assert torch.allclose(
                logits[accepted], fresh(model, token_ids + draft[:accepted]), atol=1e-3
            )
        model.keep(range(accepted))
        token_ids += [*draft[:accepted], rng.randrange(VOCABULARY)]


def test_many_accepted_tokens_are_read_again_in_a_forward_pass_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = target(build(family("mamba2")), "mamba2")
    pass_sizes = list[int]()
    read = StateSlot.read

    def read_and_count(self: Any, token_ids: Any, scored: int = 1) -> Any:
        pass_sizes.append(len(token_ids))
        return read(self, token_ids, scored)

    monkeypatch.setattr(StateSlot, "read", read_and_count)
    monkeypatch.setattr(state_slot, "_MAX_UNREAD", 4)
    model.start(0)
    model.prefill([1, 2, 3])
    for _ in range(4):  # the root and two are accepted, two are rejected
        model.forward(5, chain([1, 2, 3, 4]))
        model.keep((0, 1))
    assert pass_sizes == [3, 5, 8, 6, 5, 8]
    assert not model.was_unusually_slow
    model.forward(5, DraftTree())
    assert pass_sizes[6:] == [7]
    assert model.was_unusually_slow
    model.forward(5, DraftTree())
    assert pass_sizes[7:] == [1]
    assert not model.was_unusually_slow


@pytest.mark.parametrize("prompt", [prompts()[0], prompts()[-1]], ids=["one", "many"])
@pytest.mark.parametrize("name", ["lfm2", "qwen3_next", "bloom", "llama4_text"])
def test_running_out_of_memory_within_a_chain_changes_no_token(
    name: str, prompt: list[int]
) -> None:
    hf = build(family(name))
    model = target(hf, name)
    expected = generate(hf, prompt, 24)
    layer = [m for m in hf.modules() if isinstance(m, torch.nn.Linear)][-2]
    failures_left = [1]

    def run_out_of_memory(module: Any, inputs: Any, out: torch.Tensor) -> None:
        if 4 < out.shape[-2] < 30 and failures_left[0]:
            failures_left[0] -= 1
            raise torch.OutOfMemoryError("out of memory")

    layer.register_forward_hook(run_out_of_memory)
    run = decode(model, chained(expected, len(prompt)), prompt, max_tokens=24)
    assert run.output == expected
    assert failures_left == [0]
    assert run.statistics.accepted_tokens


@pytest.mark.parametrize(
    ("name", "method"), [("mamba2", "auto"), ("bloom", "auto"), ("lfm2", "lookahead")]
)
def test_any_method_drafts_chains(name: str, method: str) -> None:
    model = target(build(family(name)), name)
    costs = Costs({SHORT: calibrate(model, 0.1)}) if method == "auto" else None
    for prompt in prompts()[1:]:
        expected = generate(model.hf, prompt, 24)
        drafter = make_drafter(method, DraftSettings(costs=costs))
        assert decode(model, drafter, prompt, max_tokens=24).output == expected


def test_auto_grows_a_chain_where_a_context_wants_one() -> None:
    token_ids = [1, 2, 3, 4, 5, 1, 2, 9, 7, 1, 2, 3, 1, 2]
    for needs_chains in (True, False):
        drafter = make_drafter("auto", DraftSettings())
        drafter.begin(
            Context(token_ids, outside=(tuple(token_ids),), vocabulary=20, chains=needs_chains)
        )
        tree = drafter.propose(TokenLog(token_ids), Room(16)).tree
        assert len(tree) > 3
        assert (tree.first_chain() is tree) == needs_chains


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_the_first_chain_of_a_tree(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 12))
    parents = tuple(data.draw(st.integers(ROOT, i - 1)) for i in range(size))
    tree = DraftTree(tuple(range(size)), parents, data.draw(st.integers(0, size)))
    first_chain = tree.first_chain()
    node = ROOT
    path = []
    while (node := next((i for i in range(tree.drafts) if parents[i] == node), None)) is not None:
        path.append(node)
    assert first_chain.tokens == tuple(path)
    assert first_chain.parents == chain(path).parents
    assert (first_chain is tree) == (len(path) == size)


def test_branches_are_refused_and_no_texts_are_joined() -> None:
    from ngtcli.decoding.probe import find_batching

    model = target(build(family("lfm2")), "lfm2")
    assert find_batching(model).why == model.mode.why
    model.start(0)
    model.prefill([1, 2])
    with pytest.raises(ValueError, match="branches"):
        model.forward(3, DraftTree((1, 2), (ROOT, ROOT)))


def test_exact_decoding_of_a_model_that_takes_chains_is_plain() -> None:
    hf = build(family("mamba2")).to(torch.bfloat16)
    model = target(hf, "mamba2")
    exactness = Exactness(model)
    single_rows = Numerics(PassRows.fixed(1))
    assert reason_and_way(model.mode)[1] == RESTORES
    assert exactness.numerics("auto", 32, 100) == NOT_EXACT
    assert exactness.numerics("on", 32, 100) == single_rows
    model.origin = Origin(half_by_rule=True)
    assert exactness.numerics("auto", 32, 100) == single_rows
    assert Exactness(make_target()).numerics("auto", 32, 100) == NOT_EXACT
