"""Packed linear layers: what they compute, what is packed, what is left alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import HARBOUR, FakeBackend, Scripted, decode, generate, make_hf, ngt, prompts
from torch import nn

from ngtcli.decode.load import load_model
from ngtcli.decode.model import TargetModel
from ngtcli.decode.packed import PackedEmbedding, PackedLinear, is_packed, pack, packable
from ngtcli.decode.packing import Trial, load_trial, pack_if_it_pays, save_trial
from ngtcli.draft.tree import ROOT, DraftTree
from ngtcli.system.storage import home, read_json
from ngtcli.tokens.tokenizer import Tokenizer

try:
    PackedLinear(nn.Linear(8, 8))
except (RuntimeError, AttributeError, NotImplementedError):
    pytest.skip("torch has no packed products here", allow_module_level=True)

HALF = [torch.float32, torch.bfloat16]


def linear(inputs: int, outputs: int, bias: bool, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(inputs + outputs)
    return nn.Linear(inputs, outputs, bias=bias).to(dtype).requires_grad_(False)


def weight_bytes(hf: Any) -> int:
    return sum(p.numel() * p.element_size() for p in hf.parameters())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers of the tests' models are not too small."""
    monkeypatch.setattr("ngtcli.decode.packing._SMALLEST", 1)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 1), (1, 5), (2, 3), (0,), (1, 64)])
def test_a_packed_layer_computes_what_the_layer_did(shape: tuple[int, ...], bias: bool) -> None:
    for inputs, outputs in ((40, 97), (64, 128)):
        layer = linear(inputs, outputs, bias)
        rows = torch.randn(*shape, inputs)
        found, true = PackedLinear(layer)(rows), layer(rows)
        assert found.shape == true.shape
        torch.testing.assert_close(found, true, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", HALF)
def test_the_weight_can_be_had_unpacked_and_counts_as_before(dtype: torch.dtype) -> None:
    layer = linear(40, 97, True, dtype)
    packed = PackedLinear(layer)
    assert torch.equal(packed.weight, layer.weight)
    assert weight_bytes(packed) == weight_bytes(layer)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("dtype", HALF)
def test_the_bits_of_a_row_depend_on_neither_its_place_nor_its_neighbours(
    dtype: torch.dtype, count: int, threads: Any
) -> None:
    threads(count)
    layer = PackedLinear(linear(512, 1000, False, dtype))
    row = torch.randn(512).to(dtype)
    for rows in (4, 8, 32, 64):
        found = []
        for place in (0, 1, rows // 2, rows - 1):
            beside = torch.randn(rows, 512).to(dtype)
            beside[place] = row
            found.append(layer(beside)[place])
        assert all(torch.equal(found[0], other) for other in found), rows


def test_all_linear_layers_of_a_model_are_packed_and_the_tokens_stay() -> None:
    for family in ("llama", "qwen2", "gemma2-sliding"):  # Qwen2 has biases
        hf = make_hf(family, tie_word_embeddings=False)
        before, parameters = [generate(hf, p, 12) for p in prompts(4)], weight_bytes(hf)
        assert max(pack(packable(hf))) < parameters
        assert not any(type(module) is nn.Linear for module in hf.modules())
        assert [generate(hf, p, 12) for p in prompts(4)] == before
        assert weight_bytes(hf) == parameters


@pytest.mark.parametrize("dtype", HALF)
def test_a_tied_embedding_reads_its_rows_from_the_one_packed_copy(dtype: torch.dtype) -> None:
    hf = make_hf("llama", tie_word_embeddings=True, vocab_size=97).to(dtype)
    ids, parameters = torch.arange(97)[None], weight_bytes(hf)
    rows = hf.get_input_embeddings()(ids)
    list(pack(packable(hf)))
    assert isinstance(hf.get_input_embeddings(), PackedEmbedding)
    assert isinstance(hf.get_output_embeddings(), PackedLinear)
    assert torch.equal(hf.get_input_embeddings()(ids), rows)
    assert weight_bytes(hf) == parameters  # counted once


def test_an_unknown_embedding_keeps_the_weight_that_it_shares() -> None:
    """Gemma's embedding is a class of its own, which scales what it reads."""
    hf = make_hf("gemma3-sliding", tie_word_embeddings=True)
    list(pack(packable(hf)))
    assert type(hf.get_output_embeddings()) is nn.Linear
    assert hf.get_output_embeddings().weight is hf.get_input_embeddings().weight
    assert is_packed(hf)


def test_other_classes_hooks_and_shared_weights_are_left_alone() -> None:
    class Other(nn.Linear):
        pass

    shared, hooked = nn.Linear(8, 8), nn.Linear(8, 8)
    twin = nn.Linear(8, 8)
    twin.weight = shared.weight
    hooked.register_forward_hook(lambda *_: None)
    model = nn.Sequential(Other(8, 8), shared, twin, hooked, nn.Linear(8, 8).double())
    assert packable(model) == []
    assert [p.name for p in packable(nn.Sequential(*model, nn.Linear(8, 8)))] == ["5"]


def test_drafts_are_verified_on_packed_weights_as_generate_decodes_without() -> None:
    hf = make_hf("llama")
    truth = {tuple(p): generate(hf, p, 24) for p in prompts(6)}
    list(pack(packable(hf)))
    model = TargetModel(hf, Tokenizer(FakeBackend()), "packed")
    for prompt, expected in truth.items():
        right = [*prompt, *expected]

        def propose(ids: list[int], budget: int, right: list[int] = right) -> DraftTree:
            told = right[len(ids) : len(ids) + 3]
            if len(told) < 3 or budget < 6:
                return DraftTree()
            wrong = [(token + 1) % 97 for token in told]
            return DraftTree((*wrong, *told), (ROOT, ROOT, ROOT, ROOT, 3, 4))

        assert decode(model, Scripted(propose), list(prompt), max_tokens=24).output == expected


def test_a_trial_is_stored_and_one_that_is_wrong_in_any_way_is_made_again(tmp_path: Path) -> None:
    trial = Trial(True, {1: 0.5, 8: 1.0, 32: 2.0}, {1: 0.5, 8: 0.5, 32: 1.0})
    path = tmp_path / "trial.json"
    assert load_trial(path) is None
    save_trial(path, trial)
    assert load_trial(path) == trial
    good = read_json(path, 10_000)
    for name, value in [
        ("agrees", 1), ("packed_s", {"1": 1.0}), ("packed_s", {"1": 0, "8": 1, "32": 1}),
        ("unpacked_s", None), ("more", 1),
    ]:  # fmt: skip
        path.write_text(json.dumps({**good, name: value}))
        assert load_trial(path) is None, (name, value)
    path.write_text("{")
    assert load_trial(path) is None


@pytest.mark.parametrize(
    "agrees, packed, with_drafts, without",
    [
        (True, {1: 1.0, 8: 0.5, 32: 0.5}, True, True),
        (True, {1: 1.2, 8: 0.5, 32: 0.5}, True, False),  # plain decoding must not pay
        (True, {1: 1.4, 8: 0.5, 32: 0.5}, False, False),
        (True, {1: 0.5, 8: 1.0, 32: 1.0}, False, False),
        (False, {1: 0.5, 8: 0.5, 32: 0.5}, False, False),
    ],
)
def test_weights_are_packed_where_it_pays(
    agrees: bool, packed: dict[int, float], with_drafts: bool, without: bool
) -> None:
    trial = Trial(agrees, {1: 1.0, 8: 1.0, 32: 1.0}, packed)
    assert (trial.pays(drafts=True), trial.pays(drafts=False)) == (with_drafts, without)


@pytest.mark.usefixtures("small")
def test_a_model_is_tried_once_and_packed_as_the_trial_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = Trial(True, {1: 1.0, 8: 1.0, 32: 1.0}, {1: 1.2, 8: 0.5, 32: 0.5})
    tried: list[int] = []
    monkeypatch.setattr(
        "ngtcli.decode.packing.try_packing", lambda places: tried.append(len(places)) or good
    )
    for drafts in (False, True, True):
        said: list[str] = []
        hf = make_hf("llama")
        assert pack_if_it_pays(hf, drafts=drafts, warn=said.append) == is_packed(hf) == drafts
        assert ["one row takes 1.20 times as long" in s for s in said] == [True] * drafts
    assert len(tried) == 1
    assert not pack_if_it_pays(make_hf("llama"), wanted=False)


def test_small_layers_are_left_alone() -> None:
    hf = make_hf("llama")
    assert not pack_if_it_pays(hf) and not is_packed(hf)
    assert not (home("cache") / "packed").exists()


def test_a_trial_of_a_real_model_agrees() -> None:
    model = load_model("builtin", device="cpu")
    trials = list((home("cache") / "packed").glob("*.json"))
    trial = load_trial(trials[0])
    assert len(trials) == 1
    assert trial is not None and trial.agrees
    assert is_packed(model.hf) == trial.pays(drafts=True)


@pytest.mark.usefixtures("small")
def test_half_precision_that_is_slow_with_several_rows_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Trial(True, {1: 1.0, 8: 9.0, 32: 30.0}, {1: 1.0, 8: 7.0, 32: 20.0})
    monkeypatch.setattr("ngtcli.decode.packing.try_packing", lambda _: slow)
    for dtype, wanted, times in ((torch.bfloat16, True, "7"), (torch.bfloat16, False, "9")):
        said: list[str] = []
        pack_if_it_pays(make_hf("llama").to(dtype), wanted=wanted, warn=said.append)
        assert said == [
            f"bfloat16 on this CPU: 8 rows cost {times} times one row, so drafts hardly pay;"
            " --dtype float32 does better"
        ]
    said = []
    pack_if_it_pays(make_hf("llama"), warn=said.append)
    assert said == []


def test_the_answer_is_the_same_packed_or_not() -> None:
    common = (
        "summarize",
        HARBOUR,
        "--max-tokens",
        "24",
        "--method",
        "prompt-lookup",
        "--device",
        "cpu",
    )
    packed, unpacked = ngt(*common, "--verbose"), ngt(*common, "--no-packed", "--verbose")
    assert packed.stdout == unpacked.stdout and packed.stdout
    assert b"packed weights" in packed.stderr and b"acked" not in unpacked.stderr
